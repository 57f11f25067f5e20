"""system: check that programs a training job calls run, and that NCCL finds RDMA's libraries.

NCCL opens libibverbs.so or libibverbs.so.1 (rdma-core) by name, and asks for each function under
one version (dlvsym). If it does not find one, it uses sockets, and says so only with
NCCL_DEBUG=INFO. libibverbs opens a provider library for each network driver that a file in
/etc/libibverbs.d names. It takes it from the folder beside itself, and only if the file name has
its own private version. This check does the same.
"""

import ctypes
import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.binaries import dynsym
from validate.binaries.loader import SearchPath, machine_named
from validate.claims import Claim
from validate.environment import installed
from validate.environment.user_environment import UserEnvironment
from validate.harness.forked import list_mapped_files
from validate.judging import Finding, conclude, listed, unproven
from validate.next_steps import BUILD_ANEW

_SECONDS = 60
"""A program that takes longer to print its version does not run."""
_DRIVERS = "/etc/libibverbs.d"
_PRIVATE_VERSION = re.compile(r"IBVERBS_PRIVATE_(\d+)")
"""A symbol version of libibverbs. Names of providers end with its number."""
_VERSION_CHARACTERS = 40
_VERBS = r"/libibverbs\.so\.1[^/]*$"
_NCCL = "libnccl.so.2"


class ToolsExpect(TypedDict):
    """What the claim about programs says."""

    programs: Mapping[str, Sequence[str]]
    """Name -> the arguments with which it prints its version."""


class _Program(TypedDict):
    path: str | None


class Program(_Program, total=False):
    """A program, where PATH finds it (None: nowhere), and what it printed."""

    version: str
    """The first line that it printed, if it ended well."""
    error: str
    """That line if it ended with an error, or why it did not run."""


class ToolsEvidence(TypedDict):
    """The programs that the claim names."""

    programs: dict[str, Program]


class OpenedLibrary(TypedDict):
    """A library of rdma-core that a program opens by name."""

    names: Sequence[str]
    """Its names, in the order in which they are tried."""
    symbols: Mapping[str, str]
    """Function -> the symbol version that it is asked for under."""
    by_nccl: bool
    """NCCL opens it; else another program of the network does."""


class VerbsExpect(TypedDict):
    """What the claim about rdma-core says."""

    libraries: Mapping[str, OpenedLibrary]
    """SONAME -> how it is opened."""
    providers: Sequence[str]
    """Drivers of network cards, as rdma-core names them."""


class Nccl(TypedDict):
    """The NCCL that torch loads."""

    path: str | None
    """None: there is none."""
    opens: list[str]
    """Names of rdma-core's libraries that its file contains."""


class _Library(TypedDict):
    lacking: list[str]
    """FUNCTION@VERSION."""


class Library(_Library, total=False):
    """What a library lacks of the functions that are asked for."""

    error: str
    """Why the loader did not open it."""
    path: str | None
    """Only in evidence from before 2026-11-29. None: the loader finds no such library."""


class _Provider(TypedDict):
    path: str


class Provider(_Provider, total=False):
    """The library of a network driver."""

    error: str
    """Why the loader did not open it."""


class VerbsEvidence(TypedDict):
    """What NCCL gets of rdma-core."""

    nccl: Nccl
    libraries: dict[str, Library]
    """By SONAME."""
    providers: dict[str, Provider]
    """By driver."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ToolsEvidence | VerbsEvidence]]:
    """Yield the subject of each claim, and whether its programs start or its libraries load.

    A claim `tools` names programs, such as git: each is started. A claim `verbs` names libraries of
    InfiniBand: each is opened, and then the driver libraries that they find at run time.
    """
    # The image's user, and how this user's Python starts: `start.path` is its sys.path.
    user, start, _ = installed.read_user_python()
    for claim in claims:
        if claim.subject == "tools":
            programs: dict[str, Program] = {}
            for name, arguments in claim.expect["programs"].items():
                programs[name] = start_program(name, arguments, user)
            yield claim.subject, {"programs": programs}
            continue

        to_open: Mapping[str, OpenedLibrary] = claim.expect["libraries"]
        # The NCCL that torch loads, and which of these libraries it opens itself.
        nccl = read_nccl(start.path, user, to_open)
        libraries = {name: open_library(library) for name, library in to_open.items()}
        # The providers come last: they are looked for beside the libibverbs that is open by then.
        providers = open_providers()
        yield claim.subject, {"nccl": nccl, "libraries": libraries, "providers": providers}


def start_program(name: str, arguments: Sequence[str], user: UserEnvironment) -> Program:
    """Run a program on the user's PATH with arguments that make it print its version.

    Returns its path, or None if there is no such program. The first line that it prints is the
    `version` if it exits with 0, and else the `error`. `error` is also why it can't be started.
    """
    path = shutil.which(name, path=user.environ.get("PATH", ""))
    if path is None:
        return {"path": None}
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"path": path, "error": str(error)}
    first_line = (done.stdout or done.stderr).strip().partition("\n")[0]
    if done.returncode:
        return {"path": path, "error": first_line}
    return {"path": path, "version": first_line}


def read_nccl(
    folders: Sequence[str], user: UserEnvironment, libraries: Mapping[str, OpenedLibrary]
) -> Nccl:
    """Return the file of NCCL that torch loads, and which of these libraries NCCL opens by name.

    `folders` are those of sys.path. `libraries` is SONAME -> names by which the library may be
    opened. NCCL opens those names that its file contains. Without NCCL, the path is None. Raises
    ValueError if its file is empty.
    """
    # torch takes NCCL from a wheel, else from where the loader finds it.
    candidates = []
    for folder in folders:
        candidates += sorted(str(path) for path in Path(folder).glob(f"nvidia/*/lib/{_NCCL}"))
    search = SearchPath.of(user.environ, user.directory, machine_named(user.machine))
    candidates += search.everywhere(_NCCL)
    path = next(filter(os.path.isfile, candidates), None)
    if path is None:
        return {"path": None, "opens": []}

    names: set[str] = set()
    for library in libraries.values():
        names.update(library["names"])
    opens = []
    with (
        Path(path).open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for name in sorted(names):
            # Look for the whole name: strings are between two zero bytes.
            if content.find(b"\0%s\0" % name.encode()) >= 0:
                opens.append(name)
    return {"path": path, "opens": opens}


def open_library(library: OpenedLibrary) -> Library:
    """Open a library by the first of its names that the loader finds, and look up its functions.

    `library["symbols"]` maps each function to the symbol version that it must have. Return the
    functions that are not there under it, as FUNCTION@VERSION. If no name is found, return the
    loader's error for the last one.
    """
    # dlvsym of the C library finds a function under a symbol version; ctypes has nothing for that.
    # Its arguments are what dlopen returned for the library, the function and the version. It
    # returns the function's address, or null.
    find_symbol = ctypes.CDLL(None).dlvsym
    find_symbol.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    find_symbol.restype = ctypes.c_void_p
    reason = ""
    for name in library["names"]:
        try:
            opened = ctypes.CDLL(name)
        except OSError as error:
            reason = str(error)
            continue
        lacking = []
        for symbol, version in library["symbols"].items():
            if not find_symbol(opened._handle, symbol.encode(), version.encode()):
                lacking.append(f"{symbol}@{version}")
        return {"lacking": lacking}
    return {"lacking": [], "error": reason}


def open_providers() -> dict[str, Provider]:
    """Open the provider of each network driver that the system names: driver -> what was found.

    libibverbs reaches network cards through such providers. They are libraries in a folder beside
    it, named by driver and version: libmlx5-rdmav34.so. Empty if this process has not opened
    libibverbs (open_library).
    """
    mapped_files = list(list_mapped_files(_VERBS))
    if not mapped_files:
        return {}
    verbs = mapped_files[0]
    # The version of the providers is the 34 of IBVERBS_PRIVATE_34, one of the symbol versions that
    # libibverbs defines.
    symbol_versions = " ".join(sorted(dynsym.read(verbs).defined_versions))
    private_version = _PRIVATE_VERSION.search(symbol_versions)
    version = private_version[1] if private_version else ""

    providers: dict[str, Provider] = {}
    for driver in named_drivers():
        path = f"{Path(verbs).parent}/libibverbs/lib{driver}-rdmav{version}.so"
        providers[driver] = {"path": path}
        try:
            ctypes.CDLL(path)
        except OSError as error:
            providers[driver]["error"] = str(error)
    return providers


def named_drivers() -> list[str]:
    """Return the network drivers that files in /etc/libibverbs.d name, on lines `driver mlx5`."""
    drivers = []
    for file in Path(_DRIVERS).glob("*.driver"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            word, _, name = line.strip().partition(" ")
            if word == "driver" and name.strip():
                drivers.append(name.strip())
    return sorted(drivers)


_USER_HAS_NO_NAME = "No user exists for uid"
"""What ssh prints if the UID has no line in /etc/passwd (ssh.c, main). That is no fault of ssh: the
user who runs the suite has no name."""


def judge_tools(_subject: str, expect: ToolsExpect, evidence: ToolsEvidence) -> Finding:
    """Pass if every program in `expect["programs"]` is on the PATH, and printed its version.

    `evidence["programs"]` is name -> what `start_program` returned. The PASS quotes the versions.
    """
    faults = []
    for name in expect["programs"]:
        program = evidence["programs"][name]
        if program["path"] is None:
            faults.append(f"there is no program {name} on the PATH")
            continue
        error = program.get("error")
        # A user ID that /etc/passwd does not list makes some programs complain. They run all the
        # same, so it is no fault.
        if error is not None and not error.startswith(_USER_HAS_NO_NAME):
            faults.append(f"{program['path']} does not run: {error}")
    # Some programs print their whole configuration after the version.
    versions = [
        program.get("version", "")[:_VERSION_CHARACTERS]
        for program in evidence["programs"].values()
    ]
    return conclude(faults, listed(versions, limit=9))


def judge_verbs(_subject: str, expect: VerbsExpect, evidence: VerbsEvidence) -> Finding:
    """Pass if NCCL finds what it needs for InfiniBand: rdma-core's libraries and network drivers.

    Without them, NCCL uses sockets in place of RDMA, without an error. UNPROVEN without NCCL, and
    for an NCCL that opens other libraries than expected.
    """
    nccl = evidence["nccl"]
    libraries = expect["libraries"]
    if nccl["path"] is None:
        return unproven(
            "the image has no libnccl.so.2, so it can't be checked what NCCL finds for InfiniBand",
            "nothing needs to be done for InfiniBand if you train on one machine; to train on "
            "several, install the NCCL package that this torch requires (nvidia-nccl-cu12 or "
            "nvidia-nccl-cu13: `docker run --rm IMAGE python -m pip show torch` names it under "
            "Requires), then build the image again and validate it",
        )
    # The names by which NCCL opens these libraries, as far as is known. If its file has none,
    # this NCCL finds RDMA in another way.
    expected_names: set[str] = set()
    for library in libraries.values():
        if library["by_nccl"]:
            expected_names.update(library["names"])
    if expected_names.isdisjoint(nccl["opens"]):
        return unproven(
            f"{nccl['path']} names none of the libraries that NCCL opens for InfiniBand "
            f"({listed(sorted(expected_names))}), so this NCCL may find them in another way",
            "train once on two machines with NCCL_DEBUG=INFO: its log says `NET/IB` if InfiniBand "
            "is used, and `NET/Socket` if not",
        )

    faults = [*library_faults(evidence["libraries"]), *provider_faults(expect, evidence)]
    symbols = sum(len(library["symbols"]) for library in libraries.values())
    providers = len(evidence["providers"])
    return conclude(
        faults,
        f"NCCL finds {listed(list(libraries))} with {symbols} functions, and {providers} providers",
    )


def library_faults(libraries: Mapping[str, Library]) -> Iterator[str]:
    """Yield a sentence for each library of rdma-core that NCCL could not use.

    `libraries` is SONAME -> what was measured.
    """
    for name, measured in libraries.items():
        if "path" in measured and measured["path"] is None:
            # Only evidence from before 2026-11-29 has None: our own code then looked for the
            # library in place of the loader.
            yield f"the loader finds no {name}, so NCCL uses sockets in place of InfiniBand"
        elif "error" in measured:
            yield (
                f"the loader does not take {name} ({measured['error']}), so NCCL uses sockets in "
                "place of InfiniBand"
            )
        elif measured["lacking"]:
            yield (
                f"{name} lacks {listed(measured['lacking'])}, so NCCL uses sockets in place of "
                "InfiniBand"
            )


def provider_faults(expect: VerbsExpect, evidence: VerbsEvidence) -> Iterator[str]:
    """Yield the network drivers that are not named below /etc/libibverbs.d, or can't be opened."""
    for name in expect["providers"]:
        if name not in evidence["providers"]:
            yield f"/etc/libibverbs.d names no driver {name} of network cards"
    for provider in evidence["providers"].values():
        if "error" in provider:
            yield f"the network driver {provider['path']} can't be opened: {provider['error']}"


CLAIMS = {"system/tools": judge_tools, "system/verbs": judge_verbs}
NEXT_STEPS = {
    "system/tools": "install the Debian package of the program that the reason names (`apt-get "
    "install`) in your Dockerfile, or in the image that --base names, and build the image again; "
    f"if neither is yours, {BUILD_ANEW}",
    "system/verbs": "run `apt-get install libibverbs1 ibverbs-providers librdmacm1` in your "
    "Dockerfile, or in the image that --base names, remove any other rdma-core (MLNX_OFED, conda) "
    "that the loader finds before that of Debian, and build the image again",
}
