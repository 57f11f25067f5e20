"""Reads an image's files with this process's own Python, taken into a container of the image.

Interpreter, loader, libraries and standard library come along, so nothing of the image is needed,
and nothing of it runs. The interpreter is made to start through the loader that comes along: so it
works whatever C library the image has, or without any.
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
from typing import Any, NamedTuple

from images.config.platforms import Platform, of_machine
from images.engine import Engine
from images.engine.containers import Container
from images.engine.runtime import ContainerSpec, ImageInfo
from images.errors import failed
from images.validation.containers import (
    CLAIMS_OPTION,
    SUITE_FOLDER,
    USER_OPTION,
    SuiteRun,
    image_label,
    require_end,
    run_suite,
    suite_files,
)
from validate.binaries import elf
from validate.binaries.elf import ElfError
from validate.binaries.loader import machine_named
from validate.claims import ClaimSet
from validate.evidence import Record
from validate.survey.environments import NO_PYTHON

PRELOAD = "/etc/ld.so.preload"
"""A file whose libraries the loader adds to every process, whatever its environment says
(ld.so(8))."""
_MOST_TEXT = 1 << 20
"""Bytes that are read of a text file of an image."""
_READ_AT_START = ("/etc/passwd", "/etc/group")
"""Files of an image that an engine reads at each start of a container."""

# Paths below the folder of our Python in a container.
INTERPRETER = "python/bin/python3"
LIBRARIES = "python/so"
_LOADER = "python/ld.so"

_PT_INTERP = 3
"""Type of the program header that names the loader (ELF specification)."""
_OPENED_BY_NAME = ("libzstd.so.1", "liblz4.so.1", "libgcc_s.so.1")
"""Libraries that are opened by name, so that the loader does not list them: the first two to read
compressed device code (validate/binaries/fatbin.py), the last by libc where a thread is ended."""
_FOUND_LIBRARY = re.compile(r"^\t(?:(\S+) => )?(/.+) \(0x[0-9a-f]+\)$", re.MULTILINE)
"""A line of `ld.so --list` (ld.so(8)): a library's name and file, or only its file."""
_MISSING_LIBRARY = re.compile(r"^\t(\S+) => not found$", re.MULTILINE)
"""A line of `ld.so --list` for a library that this machine lacks."""
_UNUSED_MODULES = frozenset(
    "__pycache__ dist-packages ensurepip idlelib lib2to3 pydoc_data site-packages test tkinter"
    " asyncio curses dbm distutils html http sqlite3 turtledemo unittest venv wsgiref xml xmlrpc"
    " _asyncio _curses _curses_panel _dbm _gdbm _elementtree _sqlite3 _ssl _testbuffer _testcapi"
    " _testclinic _tkinter audioop nis pyexpat readline".split()
)
"""Parts of the standard library that the suite does not use; some need further libraries. All other
parts are copied into each container."""


def measure_files(
    engine: Engine,
    image: ImageInfo,
    claims: ClaimSet,
    user_file: bytes,
    *,
    seed: int,
    timeout: float,
    on_record: Callable[[Record], None],
) -> None:
    """Test claims about the files of an image, in a container that runs no program of the image.

    user_file: how a user's process would start in the image (`user_json`).
    seed: of the random inputs of the checks.
    timeout: in seconds.
    on_record: called with each check's result as soon as it is there.

    Raises UserError if the checks did not start or were ended from outside, and Stopped past the
    timeout.
    """
    # CLAIMS_OPTION and USER_OPTION name two files that lie beside the suite.
    arguments = [*CLAIMS_OPTION, *USER_OPTION, "--seed", str(seed)]
    run = run_over_files(
        engine, image, arguments, claims, user_file, timeout=timeout, on_record=on_record
    )
    # Our own Python starts in any image, also in one without a Python.
    if not run.has_begun:
        _require_packages(image, run.other_lines)
    then = f"see what `docker run --rm {image_label(image)} python3 --version` prints"
    require_end(image, "files", run, then=then)


def query_files(
    engine: Engine, image: ImageInfo, verb: str, *options: str, timeout: float
) -> dict[str, Any]:
    """Run a verb of the suite over an image's files, and return the JSON object that it prints.

    `verb` is `survey` or `packages` (validate/survey/), with its options. `timeout` is in seconds.
    Raises UserError if no object or an empty one is printed, and Stopped past the timeout.
    """
    no_claims = ClaimSet(image="", claims=())
    # The file that `run_over_files` makes of `user_json` in the container.
    arguments = [verb, f"{SUITE_FOLDER}/user.json", *options]
    run = run_over_files(engine, image, arguments, no_claims, user_json(image), timeout=timeout)
    # The object is one of the printed lines. Others, such as warnings, may come before it.
    for line in run.other_lines:
        if not line.startswith("{"):
            continue
        # Skip lines that are not JSON, or too deeply nested.
        with suppress(ValueError, RecursionError):
            document = json.loads(line)
            if document:
                return dict(document)

    _require_packages(image, run.other_lines)
    # Escape control characters: a stranger's image may have printed this.
    tail = " | ".join(run.other_lines[-3:]).encode("unicode_escape").decode()
    cause = f"the image's files could not be read: {tail or 'nothing was printed'}"
    then = (
        f"see whether `docker run --rm {image_label(image)} python3 --version` works; "
        "if it does, report this as an issue of truetag"
    )
    raise failed(image_label(image), cause, then)


def _require_packages(image: ImageInfo, lines: Sequence[str]) -> None:
    """Raise UserError if what the suite printed is that the image has no Python with packages."""
    if any(NO_PYTHON in line for line in lines):
        then = "name an image that has one, such as that of a later stage of its Dockerfile"
        raise failed(image_label(image), "has no Python with installed packages", then)


def user_json(image: ImageInfo, *, covered: Sequence[str] = ()) -> bytes:
    """Return a description of the image's user as JSON: variables, working folder and so on.

    The suite in the container reads it, to look at files as a process of this user would. `covered`
    are files and folders of the image that a mount hides in the container (find_covered_files).
    """
    # The image's processor, as `uname -m` prints it. If the image names none, take this machine's.
    machine = platform.machine()
    for known_platform in Platform:
        if known_platform.architecture == image.architecture:
            machine = known_platform.machine
    user = {
        "environ": {"HOME": "/root", **image.env},
        "directory": image.workdir or "/",
        # Empty stands for the first Python on PATH that has packages.
        "python": "",
        "user": image.user,
        "hidden": list(covered),
        "machine": machine,
    }
    return json.dumps(user).encode()


def read_file(engine: Engine, image: ImageInfo, path: str) -> str:
    """Return the first MiB of a text file of an image; empty if it has none.

    The container that is made for it is never started.
    """
    with engine.container(ContainerSpec(image.handle, ["true"])) as container:
        try:
            return container.get_file(path, most=_MOST_TEXT).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""


def find_covered_files(engine: Engine, image: ImageInfo) -> list[str]:
    """Return which files of an image its checks will not see, because our mounts hide them.

    To check an image's files, we start our own Python in a container of the image. There we mount
    an empty file at PRELOAD, because the libraries that this file lists would be loaded into our
    Python, and a volume for our own files at SUITE_FOLDER. The result has each of these two paths
    where the image has something of its own. A blank file at PRELOAD, or a link to one, is nothing.

    Raises UserError if starting a container of the image would hang (`require_start_files`).
    """
    covered = []
    # Look into a container that is made and never started: it has no mounts.
    with engine.container(ContainerSpec(image.handle, ["true"])) as container:
        require_start_files(container, image)

        # Most images have no such file.
        with suppress(FileNotFoundError):
            if container.get_file(PRELOAD, most=_MOST_TEXT).strip():
                covered.append(PRELOAD)
        if container.has(SUITE_FOLDER):
            covered.append(SUITE_FOLDER)
    return covered


def require_start_files(container: Container, image: ImageInfo) -> None:
    """Raise UserError if /etc/passwd or /etc/group of an image is something else than a file.

    The engine reads these files when it starts a container, and would hang if one is a pipe. An
    image may lack them. `container` is a container of the image that was not started.
    """
    for path in _READ_AT_START:
        if not container.has(path):
            continue
        # Reading one byte is enough to see whether it is a regular file.
        try:
            container.get_file(path, most=1)
        except FileNotFoundError:
            cause = f"{path} in the image is no file, and the engine reads it at each start"
            then = f"remove {path} in the image, or make it a regular file, and build it again"
            raise failed(image_label(image), cause, then) from None


def run_over_files(
    engine: Engine,
    image: ImageInfo,
    arguments: Sequence[str],
    claims: ClaimSet,
    user_file: bytes,
    *,
    timeout: float,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> SuiteRun:
    """Run the suite (our checks) as root in a container of an image, without running the image.

    The Python that runs this program is copied into the container, so that no program of the image
    runs. Returns how the run ended, and what was printed besides records.

    arguments: those of the suite.
    claims: what it tests.
    user_file: how a user's process would start in the image (`user_json`).
    timeout: in seconds.
    on_record: called with what each check measured.

    Raises UserError if our Python can't run there, and Stopped past the timeout.
    """
    require_same_machine(engine, image)
    spec = ContainerSpec(
        image.handle,
        [*python_command(SUITE_FOLDER), f"{SUITE_FOLDER}/validate", *arguments],
        volumes=[SUITE_FOLDER],
        # Mount an empty file over the image's list of preloaded libraries.
        binds={"/dev/null": PRELOAD},
        # Debian's init is linked statically. Another one would load the libraries that lie here.
        init=False,
        # Otherwise NVIDIA's runtime may add the driver's files, which are not the image's.
        env={**python_environment(SUITE_FOLDER), "NVIDIA_VISIBLE_DEVICES": "void"},
        user="0",
        # Leave a quarter of the memory to the machine.
        memory=min(8 << 30, engine.facts.memory * 3 // 4),
        processes=512,
        # So that root can read files and folders of any mode and owner (capabilities(7)).
        capabilities=["DAC_READ_SEARCH"],
    )
    files = {**python_files(SUITE_FOLDER), **suite_files(claims), "user.json": user_file}
    probes = {claim.probe for claim in claims.claims}
    return run_suite(
        engine, spec, {SUITE_FOLDER: files}, timeout=timeout, probes=probes, on_record=on_record
    )


def require_same_machine(engine: Engine, image: ImageInfo) -> None:
    """Raise UserError unless this machine runs Linux on the engine's kind of processor."""
    platform_here = of_machine(platform.machine()) if platform.system() == "Linux" else None
    if platform_here is None or platform_here.architecture != engine.facts.architecture:
        here = f"this one of {platform.machine()} with {platform.system()}"
        cause = (
            f"the engine's machine is of {engine.facts.architecture}, and {here}, so the image's "
            "files can't be read from here"
        )
        then = "give the command on Linux, on a machine of the engine's processor"
        raise failed(image.digest[:19], cause, then)


def python_command(root: str) -> tuple[str, ...]:
    """Return the command that starts our Python, isolated from the files of the image.

    `root` is the folder of the container where `python_files` lie.
    """
    return f"{root}/{INTERPRETER}", "-I", "-S", "-X", "utf8"


def python_environment(root: str) -> dict[str, str]:
    """Return environment variables with which our Python loads nothing of the image.

    Our Python is a copy of this program's own, in the folder `root` of the image's container.
    """
    # Variables of the loader and the C library. An engine can't remove a variable of the image, but
    # can set it to nothing, which has the same effect.
    emptied = (
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_ORIGIN_PATH",
        "LD_DEBUG",
        "LD_PROFILE",
        "GLIBC_TUNABLES",
    )
    return {
        **dict.fromkeys(emptied, ""),
        # OpenSSL would load files from here. There are none.
        "OPENSSL_CONF": "/dev/null",
        "OPENSSL_MODULES": root,
        "OPENSSL_ENGINES": root,
        "LD_LIBRARY_PATH": f"{root}/{LIBRARIES}",
        "LC_ALL": "C",
        "TMPDIR": root,
    }


@cache
def python_files(root: str) -> Mapping[str, bytes | Path]:
    """Return the files of the Python that runs this program, to copy them into a container.

    With it, an image's files can be read without running anything of the image. There are the
    interpreter, the dynamic loader (ld.so) that starts it, the standard library, and the shared
    libraries that these need.

    `root` is the folder in the container. The result is a path below it -> the content, or a file
    of this machine. Raises UserError if this Python can't be copied.
    """
    # The real interpreter: that of a virtual environment is only a link to it.
    interpreter = Path(os.path.realpath(sys._base_executable))  # type: ignore[attr-defined]
    try:
        # Change the interpreter to start through our loader in the container. `loader` is the one
        # that it starts through on this machine.
        program, loader = with_loader(interpreter.read_bytes(), f"{root}/{_LOADER}".encode())
        files: dict[str, bytes | Path] = {
            INTERPRETER: program,
            _LOADER: Path(os.path.realpath(loader)),
        }
        modules = standard_library(Path(os.__file__).parent)
        files.update(modules)
        # Compiled modules need libraries, as the interpreter does.
        extensions = [path for path in modules.values() if path.suffix == ".so"]
        for name, library in needed_libraries(loader, [interpreter, *extensions]).items():
            files[f"{LIBRARIES}/{name}"] = library
    except (OSError, ElfError) as error:
        then = (
            "install truetag into an environment of this machine's own Python "
            "(`/usr/bin/python3 -m venv FOLDER`), and give the command from there"
        )
        cause = f"this Python can't be taken into a container, where it reads the image: {error}"
        raise failed(sys.executable, cause, then) from None
    return files


def standard_library(folder: Path) -> dict[str, Path]:
    """Return the standard library's files that the suite needs: path in the container -> file here.

    They are compiled modules and Python sources, or bytecode in place of a source if it fits.
    `folder` is where the library lies here: /usr/lib/python3.11. Raises OSError.
    """
    files = {}
    for parent, subfolders, names in os.walk(folder):
        # os.walk does not enter folders that are removed from its list. Those named config-* are
        # only for linking programs with Python.
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _UNUSED_MODULES and not name.startswith("config-")
        ]
        for name in names:
            if name.partition(".")[0] in _UNUSED_MODULES or not name.endswith((".py", ".so")):
                continue
            file = Path(parent, name)
            path = f"python/lib/{folder.name}/{file.relative_to(folder)}"
            bytecode = fitting_bytecode(file) if name.endswith(".py") else None
            if bytecode:
                # `os.pyc` in the place of `os.py`: Python looks for bytecode there, too.
                files[f"{path}c"] = bytecode
            else:
                files[path] = file
    return files


def fitting_bytecode(source: Path) -> Path | None:
    """Return the bytecode file of a source; None if there is none that Python would use.

    With bytecode, our Python starts twice as fast, because it need not compile the source. Raises
    OSError if the source or its bytecode can't be read.
    """
    bytecode = source.with_name("__pycache__") / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    facts = source.stat()
    # Python uses bytecode whose header has its own magic number, no flags, and the time and size of
    # the source (importlib._bootstrap_external), each as 32 bits.
    header = struct.pack(
        "<4s3I", MAGIC_NUMBER, 0, int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF
    )
    with suppress(FileNotFoundError), bytecode.open("rb") as stream:
        if stream.read(len(header)) == header:
            return bytecode
    return None


class Relinked(NamedTuple):
    """A program that was made to start through another loader."""

    program: bytes
    old_loader: str
    """The loader that it named before."""


def with_loader(program: bytes, loader: bytes) -> Relinked:
    """Change an ELF program so that another loader (ld.so) starts it. Return it and the old loader.

    `program` is the content of its file, `loader` is the path of the new loader. Raises ElfError if
    the program is for another machine, names no loader, or has too little room for the new path.
    """
    if elf.machine(program) != machine_named(platform.machine()).number:
        raise ElfError(f"the interpreter is not built for {platform.machine()}")

    # Fields of the ELF header: where the program headers begin, how large and how many they are
    # (e_phoff, e_phentsize, e_phnum of the ELF specification).
    (first_header,) = struct.unpack_from("<Q", program, 0x20)
    header_size, header_count = struct.unpack_from("<HH", program, 0x36)
    for index in range(header_count):
        # A program header describes one part of the file. The part of type PT_INTERP is the path of
        # the loader.
        header = struct.unpack_from("<IIQQQQ", program, first_header + index * header_size)
        kind, _flags, offset, _address, _physical, room = header
        if kind != _PT_INTERP:
            continue
        # The path begins at `offset`, ends with a zero byte, and has `room` bytes in all.
        if len(loader) >= room:
            needed = len(loader) + 1
            cause = (
                f"the path of the loader in the interpreter has room for {room} bytes, and "
                f"{needed} are needed"
            )
            raise ElfError(cause)
        end = offset + room
        old_loader = program[offset:end].split(b"\0")[0].decode()
        patched = program[:offset] + loader.ljust(room, b"\0") + program[end:]
        return Relinked(patched, old_loader)
    raise ElfError("the interpreter is linked statically: it names no loader")


def needed_libraries(loader: str, programs: list[Path]) -> dict[str, bytes | Path]:
    """Return every shared library that programs load: the name that they ask for -> file here.

    loader: path of the dynamic loader, which lists the libraries and their files.
    programs: the Python interpreter, then the extension modules.

    A library that this machine lacks becomes an empty file. The loader stops at that, and does not
    take the image's library instead. Raises OSError; ElfError if a file names folders to search
    first (RPATH) that would be the image's.
    """
    # They count as missing until they are found below.
    libraries: dict[str, bytes | Path] = dict.fromkeys(_OPENED_BY_NAME, b"")
    interpreter = programs[0]
    for program in programs:
        # The loader lists the libraries that a program is linked with, and preloaded ones. So let
        # it preload the libraries that Python opens only while it runs. Once is enough.
        environment = {"LD_PRELOAD": " ".join(_OPENED_BY_NAME)} if program is interpreter else {}
        listing = subprocess.run(
            [loader, "--list", str(program)],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for name in _MISSING_LIBRARY.findall(listing):
            libraries.setdefault(name, b"")
        # Some lines have only a path. Then the name is empty.
        for name, path in _FOUND_LIBRARY.findall(listing):
            libraries[name or Path(path).name] = Path(os.path.realpath(path))

    library_files = [library for library in libraries.values() if isinstance(library, Path)]
    for path in (*programs, *library_files):
        require_own_rpath(path)
    return libraries


def require_own_rpath(path: Path) -> None:
    """Raise ElfError if a program or library looks for libraries in folders that are not its own.

    The dynamic loader searches these folders, the file's RPATH, before all others. Raises OSError
    if the file can't be read.
    """
    foreign = []
    # The loader replaces $ORIGIN by the folder of the file itself.
    for folder in elf.read(path).rpath:
        if not folder.startswith(("$ORIGIN", "${ORIGIN}")):
            foreign.append(folder)
    if foreign:
        folders = ":".join(foreign)
        raise ElfError(
            f"{path} looks for its libraries in {folders} (its RPATH), and in a container it would "
            "load the image's files there in place of this machine's"
        )
