"""Reads an image's files by this process's own Python, taken into a container of the image.

Program, loader, libraries and standard library come along: it needs, and runs, nothing of the image.

Its ELF interpreter is set to the loader that comes along, so it starts beside any C library, or none.
"""

import json
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import MappingProxyType
from typing import Any

from images.config.platforms import Platform, of_machine
from images.engine import Engine
from images.engine.runtime import ContainerSpec, ImageInfo
from images.errors import failed
from images.validation.containers import (
    INSIDE,
    OF_USER,
    SuiteRun,
    require_end,
    run_suite,
    suite_files,
)
from validate.binaries import elf
from validate.binaries.elf import ElfError
from validate.binaries.loader import machine_named
from validate.claims import ClaimSet
from validate.evidence import Record

PROGRAM = "python/bin/python3"
LIBRARIES = "python/so"
PRELOAD = "/etc/ld.so.preload"
_READ_AT_START = ("/etc/passwd", "/etc/group")
_LOADER = "python/ld.so"
_PT_INTERP = 3
_DECODERS = ("libzstd.so.1", "liblz4.so.1", "libgcc_s.so.1")
"""Opened by name to read compressed device code (validate/binaries/fatbin.py), and by libc where a thread is ended."""
_LISTED = re.compile(r"^\t(?:(\S+) => )?(/.+) \(0x[0-9a-f]+\)$", re.MULTILINE)
"""A line of `ld.so --list` (ld.so(8)): a name and the file that it means, or a file."""
_LACKING = re.compile(r"^\t(\S+) => not found$", re.MULTILINE)
_LEFT_OUT = frozenset(
    "__pycache__ dist-packages ensurepip idlelib lib2to3 pydoc_data site-packages test tkinter asyncio curses dbm"
    " distutils html http sqlite3 turtledemo unittest venv wsgiref xml xmlrpc _asyncio _curses _curses_panel _dbm _gdbm"
    " _elementtree _sqlite3 _ssl _testbuffer _testcapi _testclinic _tkinter audioop nis pyexpat readline".split()
)
"""What the suite has no use for, with libraries of its own for some: each container gets all the rest."""


def require_native(engine: Engine, image: ImageInfo) -> None:
    """Raise UserError where no Python of this machine runs in the engine's containers: another system or processor."""
    this_machine = of_machine(platform.machine()) if platform.system() == "Linux" else None
    if this_machine is None or this_machine.architecture != engine.facts.architecture:
        this = f"this one of {platform.machine()} with {platform.system()}"
        cause = f"the engine's machine is of {engine.facts.architecture}, {this}: its files can't be read from outside"
        raise failed(
            image.id[:19],
            cause,
            "give the command on Linux, on a machine of the engine's processor",
        )


def user_of(
    image: ImageInfo,
    *,
    python: str = "",
    start: Mapping[str, Any] = MappingProxyType({}),
    hidden: Sequence[str] = (),
) -> bytes:
    """Return how a user's process would start in the image, as validate/environment/user_environment.py reads it.

    `start` empty: the suite reads it from the image's files. `hidden`: files of the image that have another over them.
    """
    machine = platform.machine()
    for known in Platform:
        if known.architecture == image.architecture:
            machine = known.machine
    user = {
        "environ": {"HOME": "/root", **image.env},
        "directory": image.workdir or "/",
        "python": python,
        "user": image.user,
        "start": dict(start),
        "hidden": list(hidden),
        "machine": machine,
    }
    return json.dumps(user).encode()


def read_file(engine: Engine, image: ImageInfo, path: str) -> str:
    """Return the beginning of a file of an image; empty: there is none. The container is never started."""
    with engine.container(ContainerSpec(image.id, ["true"])) as container:
        try:
            return container.get_file(path, most=1 << 16).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""


def covered_files(engine: Engine, image: ImageInfo) -> list[str]:
    """Return the files of an image that nobody can look at: the reader lies over them, or has another file there.

    Raises UserError: an engine could not start the image, and would hang.
    """
    covered = []
    with engine.container(ContainerSpec(image.id, ["true"])) as container:
        for path in _READ_AT_START:
            if not container.has(path):
                continue
            try:
                container.get_file(path, most=1)
            except FileNotFoundError:
                cause = f"its {path} is no file, and an engine reads that at each start"
                raise failed(_name(image), cause, "make it a file") from None

        with suppress(FileNotFoundError):
            if container.get_file(PRELOAD, most=1 << 16).strip():
                covered.append(PRELOAD)
        if container.has(INSIDE):
            covered.append(INSIDE)
    return covered


def _name(image: ImageInfo) -> str:
    return image.tags[0] if image.tags else image.id


def measure(
    engine: Engine,
    image: ImageInfo,
    claims: ClaimSet,
    user: bytes,
    *,
    seed: int,
    timeout: float,
    on_record: Callable[[Record], None],
) -> None:
    """Measure claims of an image from its files: records come as they are measured.

    `user`: how a user's process would start there (`user_of`). `timeout` in seconds. Raises UserError: it did not
    start, or was killed; Stopped.
    """
    arguments = ["--claims", f"{INSIDE}/claims.json", *OF_USER, "--seed", str(seed)]
    run = _read(engine, image, arguments, claims, user, timeout=timeout, on_record=on_record)
    require_end(image, "files", run, then="is it an image with a Python on its PATH?")


def document(engine: Engine, image: ImageInfo, verb: str, *, timeout: float) -> dict[str, Any]:
    """Return what a verb of the suite (`survey`, `packages`) prints of an image's files.

    Raises UserError, Stopped.
    """
    no_claims = ClaimSet(image="", claims=())
    run = _read(
        engine, image, [verb, f"{INSIDE}/user.json"], no_claims, user_of(image), timeout=timeout
    )
    for line in run.other_lines:
        if not line.startswith("{"):
            continue
        with suppress(ValueError, RecursionError):
            document = json.loads(line)
            if document:
                return dict(document)
    tail = (
        " | ".join(run.other_lines[-3:]).encode("unicode_escape").decode() or "nothing was printed"
    )
    then = (
        "`docker image inspect` says whether it is a Linux image with a Python; report it if it is"
    )
    raise failed(_name(image), f"could not be read: {tail}", then)


def _read(
    engine: Engine,
    image: ImageInfo,
    arguments: Sequence[str],
    claims: ClaimSet,
    user: bytes,
    *,
    timeout: float,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> SuiteRun:
    """Run the suite by this process's Python, as root, over the files of an image, of which nothing runs.

    `arguments`: of the suite. `user`: what INSIDE/user.json holds there. Raises UserError, Stopped.
    """
    require_native(engine, image)
    spec = ContainerSpec(
        image.id,
        [*command(INSIDE), f"{INSIDE}/validate", *arguments],
        volumes=[INSIDE],
        binds={"/dev/null": PRELOAD},  # the loader reads it whatever the environment says
        # Where NVIDIA's runtime is the default, `all` of the image would bring the driver's files, which have no owner.
        init=False,  # Debian's own is static, another's would load the libraries that lie here
        env={**environment(INSIDE), "NVIDIA_VISIBLE_DEVICES": "void"},
        user="0",
        memory=min(8 << 30, engine.facts.memory * 3 // 4),
        processes=512,
        capabilities=["DAC_READ_SEARCH"],
    )
    content = {**files(INSIDE), **suite_files(claims), "user.json": user}
    probes = {claim.probe for claim in claims.claims}
    return run_suite(
        engine, spec, {INSIDE: content}, timeout=timeout, asked=probes, on_record=on_record
    )


def environment(root: str) -> dict[str, str]:
    """Return variables that let nothing of the image into that Python, whatever the image's own variables say."""
    unset = (
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_ORIGIN_PATH",
        "LD_DEBUG",
        "LD_PROFILE",
        "GLIBC_TUNABLES",
        "TMPDIR",
    )
    openssl = {
        "OPENSSL_CONF": "/dev/null",
        "OPENSSL_MODULES": root,
        "OPENSSL_ENGINES": root,
    }  # it loads what they name
    own = {"LD_LIBRARY_PATH": f"{root}/{LIBRARIES}", "LC_ALL": "C", "TMPDIR": root}
    return {**dict.fromkeys(unset, ""), **openssl, **own}


def command(root: str) -> tuple[str, ...]:
    """Starts it where `files` lie, isolated."""
    return f"{root}/{PROGRAM}", "-I", "-S", "-X", "utf8"


@cache
def files(root: str) -> Mapping[str, bytes | Path]:
    """Return the files that start this process's Python in a container: path below `root` there -> file here.

    The program comes as bytes, because it gets another ELF interpreter. Raises UserError where this Python can't be
    taken along.
    """
    python = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]  # below a virtual environment
    try:
        program, loader = _with_interpreter(python.read_bytes(), f"{root}/{_LOADER}".encode())
        standard = _standard_library(Path(os.__file__).parent)
        extensions = [path for path in standard.values() if path.suffix == ".so"]
        libraries = _libraries(loader, [python, *extensions])
    except (OSError, ElfError) as error:
        then = "run it with this machine's own Python (`/usr/bin/python3`)"
        raise failed(sys.executable, f"can't be taken into a container: {error}", then) from None
    return {
        PROGRAM: program,
        _LOADER: Path(os.path.realpath(loader)),
        **standard,
        **{f"{LIBRARIES}/{name}": path for name, path in libraries.items()},
    }


def _standard_library(folder: Path) -> dict[str, Path]:
    """Return the files of the standard library that the suite uses: path in the container -> file here."""
    found = {}
    for top, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if name not in _LEFT_OUT and not name.startswith("config-")
        ]
        for name in names:
            if name.partition(".")[0] in _LEFT_OUT or not name.endswith((".py", ".so")):
                continue
            source = Path(top, name)
            path = f"python/lib/{folder.name}/{source.relative_to(folder)}"
            bytecode = _bytecode(source) if name.endswith(".py") else None
            if bytecode:
                found[f"{path}c"] = bytecode
            else:
                found[path] = source
    return found


def _bytecode(source: Path) -> Path | None:
    """Return the bytecode of a source if Python would use it: to compile the sources takes half of each start.

    The header of the bytecode: importlib, `_bootstrap_external`. Raises OSError.
    """
    bytecode = source.with_name("__pycache__") / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    facts = source.stat()
    header = struct.pack(
        "<4s3I", MAGIC_NUMBER, 0, int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF
    )
    with suppress(FileNotFoundError), bytecode.open("rb") as stream:
        if stream.read(16) == header:
            return bytecode
    return None


def _with_interpreter(program: bytes, loader: bytes) -> tuple[bytes, str]:
    """The program with another ELF interpreter, and which it had. Raises ElfError."""
    if elf.machine(program) != machine_named(platform.machine()).number:
        raise ElfError(f"it is not built for {platform.machine()}")
    (table,) = struct.unpack_from("<Q", program, 0x20)
    size, count = struct.unpack_from("<HH", program, 0x36)
    for index in range(count):
        kind, _, offset, _, _, room = struct.unpack_from("<IIQQQQ", program, table + index * size)
        if kind == _PT_INTERP:
            if len(loader) >= room:
                raise ElfError(
                    f"its interpreter's name has room for {room} bytes, {len(loader) + 1} are needed"
                )
            was = program[offset : offset + room].split(b"\0")[0].decode()
            return program[:offset] + loader.ljust(room, b"\0") + program[offset + room :], was
    raise ElfError("it names no interpreter")


def _libraries(loader: str, programs: list[Path]) -> dict[str, bytes | Path]:
    """Every library that these load, by the name they ask for it, as the loader itself finds it without variables; and
    the decoders, as it would preload them. Raises OSError.

    One that this machine lacks is an empty file, which ends a search: the loader would take the image's own next, and
    run it. Raises ElfError: an RPATH leads elsewhere before, into the image.
    """
    found: dict[str, bytes | Path] = dict.fromkeys(_DECODERS, b"")
    for program in programs:
        preloaded = {"LD_PRELOAD": " ".join(_DECODERS)} if program is programs[0] else {}
        listing = subprocess.run(
            [loader, "--list", str(program)],
            env=preloaded,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        found |= {name: b"" for name in _LACKING.findall(listing) if name not in found}
        found |= {
            name or Path(path).name: Path(os.path.realpath(path))
            for name, path in _LISTED.findall(listing)
        }
    for path in (*programs, *(one for one in found.values() if isinstance(one, Path))):
        if outside := [
            one for one in elf.read(path).rpath if not one.startswith(("$ORIGIN", "${ORIGIN}"))
        ]:
            raise ElfError(
                f"{path} has the RPATH {':'.join(outside)}, where the image's libraries would come first"
            )
    return found
