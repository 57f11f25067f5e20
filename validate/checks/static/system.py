"""system: programs that a training job calls, and rdma-core as NCCL's own loader would find it.

NCCL opens libibverbs.so or libibverbs.so.1 by name and asks for each function under one version (dlvsym); where one is
not found it goes over sockets, and says so only with NCCL_DEBUG=INFO. libibverbs opens a provider for each driver that
/etc/libibverbs.d names, from the folder beside itself, of its own private version alone. The same is done here.
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

_SECONDS = 60
_DRIVERS = "/etc/libibverbs.d"
_PRIVATE = re.compile(r"IBVERBS_PRIVATE_(\d+)")
_VERBS = r"/libibverbs\.so\.1[^/]*$"
_NCCL = "libnccl.so.2"


class ToolsExpect(TypedDict):
    """Program -> arguments with which it tells its version."""

    programs: Mapping[str, Sequence[str]]


class _Program(TypedDict):
    path: str | None


class Program(_Program, total=False):
    """A program on the PATH, and what it said."""

    version: str
    error: str


class ToolsEvidence(TypedDict):
    """Each program that was asked for."""

    programs: dict[str, Program]


class OpenedLibrary(TypedDict):
    """A library of rdma-core. `by_nccl`: else another program of the network's user space opens it."""

    names: Sequence[str]
    """As they are tried."""
    symbols: Mapping[str, str]
    """Function -> its version."""
    by_nccl: bool


class VerbsExpect(TypedDict):
    """What must be there, by SONAME, and the drivers of network cards as rdma-core names them."""

    libraries: Mapping[str, OpenedLibrary]
    providers: Sequence[str]


class Nccl(TypedDict):
    """The NCCL that torch loads, and which names of libraries stand in it."""

    path: str | None
    opens: list[str]


class _Library(TypedDict):
    lacking: list[str]
    """FUNCTION@VERSION."""


class Library(_Library, total=False):
    """A library as the loader opened it, or the loader's error."""

    error: str


class _Provider(TypedDict):
    path: str


class Provider(_Provider, total=False):
    """A provider, and the loader's error where it can't be opened."""

    error: str


class VerbsEvidence(TypedDict):
    """What NCCL gets of rdma-core."""

    nccl: Nccl
    libraries: dict[str, Library]
    providers: dict[str, Provider]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ToolsEvidence | VerbsEvidence]]:
    """Start the programs, and open the libraries."""
    user, start, _ = installed.of_user()
    for claim in claims:
        if claim.subject == "tools":
            programs = claim.expect["programs"]
            yield (
                claim.subject,
                {
                    "programs": {
                        name: start_program(name, how, user) for name, how in programs.items()
                    }
                },
            )
        else:
            expected: Mapping[str, OpenedLibrary] = claim.expect["libraries"]
            yield (
                claim.subject,
                {
                    "nccl": read_nccl(start.path, user, expected),
                    "libraries": {
                        name: open_library(library) for name, library in expected.items()
                    },
                    "providers": open_providers(),
                },
            )


def start_program(name: str, arguments: Sequence[str], user: UserEnvironment) -> Program:
    """Return what a program on the user's PATH says of its version."""
    path = shutil.which(name, path=user.environ.get("PATH", ""))
    if path is None:
        return {"path": None}
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=_SECONDS, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"path": path, "error": str(error)}
    said = (done.stdout or done.stderr).strip().partition("\n")[0]
    return (
        {"path": path, "version": said} if done.returncode == 0 else {"path": path, "error": said}
    )


def read_nccl(
    folders: Sequence[str], user: UserEnvironment, libraries: Mapping[str, OpenedLibrary]
) -> Nccl:
    """Return which names of libraries stand in torch's NCCL: that of its wheels, else the system's."""
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
    with (
        Path(path).open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return {
            "path": path,
            "opens": [
                name for name in sorted(names) if content.find(b"\0%s\0" % name.encode()) >= 0
            ],
        }


def open_library(library: OpenedLibrary) -> Library:
    """Open a library by the first of its names that the loader takes, and look its functions up."""
    find_symbol = ctypes.CDLL(None).dlvsym
    find_symbol.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    find_symbol.restype = ctypes.c_void_p
    reason = ""
    for name in library["names"]:
        try:
            handle = ctypes.CDLL(name)
        except OSError as error:
            reason = str(error)
            continue
        lacking = []
        for symbol, version in library["symbols"].items():
            if not find_symbol(handle._handle, symbol.encode(), version.encode()):
                lacking.append(f"{symbol}@{version}")
        return {"lacking": lacking}
    return {"lacking": [], "error": reason}


def open_providers() -> dict[str, Provider]:
    """Open the provider of each driver that the system names, as the libibverbs of this process would."""
    verbs = next(iter(list_mapped_files(_VERBS)), None)
    if verbs is None:
        return {}
    private = _PRIVATE.search(" ".join(sorted(dynsym.read(verbs).defined_versions)))
    version = private[1] if private else ""
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
    """Return the drivers that files of /etc/libibverbs.d name."""
    drivers = []
    for file in Path(_DRIVERS).glob("*.driver"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            word, _, name = line.strip().partition(" ")
            if word == "driver" and name.strip():
                drivers.append(name.strip())
    return sorted(drivers)


_NAMELESS = "No user exists for uid"
"""ssh started, and refuses a UID that has no line in /etc/passwd, in any image (ssh.c, main): it is not broken,
the user who runs the suite has no name."""


def judge_tools(_subject: str, expect: ToolsExpect, evidence: ToolsEvidence) -> Finding:
    """Name each program that is missing or does not start."""
    faults = []
    for name in expect["programs"]:
        program = evidence["programs"][name]
        if program["path"] is None:
            faults.append(f"there is no {name} on the PATH")
        elif "error" in program and not program["error"].startswith(_NAMELESS):
            faults.append(f"{program['path']} does not run: {program['error']}")
    versions = [program.get("version", "")[:40] for program in evidence["programs"].values()]
    return conclude(faults, listed(versions, limit=9))


def judge_verbs(_subject: str, expect: VerbsExpect, evidence: VerbsEvidence) -> Finding:
    """Name what NCCL does not get of rdma-core."""
    nccl, libraries = evidence["nccl"], expect["libraries"]
    if nccl["path"] is None:
        return unproven("there is no libnccl.so.2 whose loader could be followed")
    opened: set[str] = set()
    for library in libraries.values():
        if library["by_nccl"]:
            opened.update(library["names"])
    if not opened & set(nccl["opens"]):
        return unproven(
            f"{nccl['path']} names none of {listed(sorted(opened))}: this is another loader than ours"
        )

    faults = []
    for name, measured in evidence["libraries"].items():
        if "error" in measured:
            faults.append(
                f"the loader does not take {name} ({measured['error']}): NCCL goes over sockets"
            )
        elif measured["lacking"]:
            faults.append(f"{name} lacks {listed(measured['lacking'])}: NCCL goes over sockets")
    absent = [name for name in expect["providers"] if name not in evidence["providers"]]
    faults += [f"/etc/libibverbs.d names no driver {name}" for name in absent]
    for provider in evidence["providers"].values():
        if "error" in provider:
            faults.append(f"the provider {provider['path']} can't be opened: {provider['error']}")

    symbols = sum(len(library["symbols"]) for library in libraries.values())
    providers = len(evidence["providers"])
    return conclude(
        faults,
        f"NCCL finds {listed(list(libraries))} with {symbols} functions, and {providers} providers",
    )


CLAIMS = {"system/tools": judge_tools, "system/verbs": judge_verbs}
