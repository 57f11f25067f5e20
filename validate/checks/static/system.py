"""S9: programs that a training job calls, and rdma-core as NCCL's own loader would find it. Nothing is loaded.

NCCL opens libibverbs.so or libibverbs.so.1 by name and asks for each function under one version (dlvsym); where one is
not found it goes over sockets, and says so only with NCCL_DEBUG=INFO. libibverbs opens a provider for each driver that
/etc/libibverbs.d names, from the folder beside itself, of its own private version alone.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from validate.binaries import dynsym
from validate.binaries.elf import ElfError
from validate.binaries.loader import Files, Process, SearchPath, machine_named
from validate.claims import Claim
from validate.environment import user_environment
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, conclude, listed, unproven


class ToolsExpect(TypedDict):
    programs: dict[str, list[str]]
    """Program -> the arguments that make it tell its version."""


class _ProgramDetails(TypedDict, total=False):
    version: str
    error: str


class Program(_ProgramDetails):
    path: str | None


class ToolsEvidence(TypedDict):
    programs: dict[str, Program]


class OpenedLibrary(TypedDict):
    names: list[str]
    """As they are tried, the first that is found."""
    symbols: dict[str, str]
    """Function -> the version under which it is asked for (dlvsym). Without them, the library is closed again."""
    by_nccl: bool
    """Otherwise another program of the network's user space opens it."""


class VerbsExpect(TypedDict):
    libraries: dict[str, OpenedLibrary]
    """By the SONAME."""
    providers: list[str]
    """Drivers of network cards that must be there, as rdma-core names them."""


class FoundLibrary(TypedDict):
    path: str | None
    missing: list[str]
    """Libraries that it needs and the loader does not find."""
    lacking: list[str]
    """FUNCTION@VERSION that it does not export."""


class _ProviderDetails(TypedDict, total=False):
    error: str


class Provider(_ProviderDetails):
    path: str
    missing: list[str]
    versions: list[str]
    """VERSION of LIBRARY that it needs and that library does not define."""


class Nccl(TypedDict):
    path: str | None
    opens: list[str]
    """Names in it of the libraries that are asked for."""
    asks: list[str]
    """Names in it of verbs."""


class VerbsEvidence(TypedDict):
    nccl: Nccl
    libraries: dict[str, FoundLibrary]
    providers: dict[str, Provider]


_SECONDS = 60
_DRIVERS = "/etc/libibverbs.d"
_PRIVATE = re.compile(r"IBVERBS_PRIVATE_(\d+)")
_VERBS = "libibverbs.so.1"
_LIBRARY_NAMES, _FUNCTION_NAMES = (b"libibverbs.so", b"libmlx5.so"), (b"ibv_", b"mlx5dv_")
_LONGEST_NAME = 64


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ToolsEvidence | VerbsEvidence]]:
    given = user_environment.recorded()
    for claim in claims:
        if claim.subject == "tools":
            programs = cast(ToolsExpect, claim.expect)["programs"]
            yield claim.subject, {"programs": {name: _program(name, how, given) for name, how in programs.items()}}
        else:
            yield claim.subject, _verbs(cast(VerbsExpect, claim.expect), given)


def _program(name: str, arguments: Sequence[str], given: UserEnvironment) -> Program:
    path = shutil.which(name, path=given.environ.get("PATH", ""))
    if path is None:
        return {"path": None}
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_SECONDS, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"path": path, "error": str(error)}
    said = (done.stdout or done.stderr).strip().partition("\n")[0]
    return {"path": path, "version": said} if done.returncode == 0 else {"path": path, "error": said}


def _verbs(expect: VerbsExpect, given: UserEnvironment) -> VerbsEvidence:
    machine = machine_named(given.machine)
    process = Process(SearchPath.of(given.environ, given.directory, machine), Files(machine))
    nccl = _nccl(given, process)
    libraries = {name: _library(one, nccl["path"] or "", process) for name, one in expect["libraries"].items()}
    verbs = libraries[_VERBS]["path"]
    return {"nccl": nccl, "libraries": libraries, "providers": dict(_providers(verbs, process)) if verbs else {}}


def _nccl(given: UserEnvironment, process: Process) -> Nccl:
    """The NCCL that torch loads: of its wheels, else the system's."""
    folders = [entry or given.directory for entry in user_environment.start(given).path]
    found = sorted(str(path) for folder in folders for path in Path(folder).glob("nvidia/*/lib/libnccl.so.2"))
    path = found[0] if found else process.resolve("libnccl.so.2", "")
    if path is None:
        return {"path": None, "opens": [], "asks": []}
    with Path(path).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        opens, asks = (sorted(set(_strings(content, begins))) for begins in (_LIBRARY_NAMES, _FUNCTION_NAMES))
    return {"path": path, "opens": opens, "asks": asks}


def _strings(content: mmap.mmap, beginnings: Sequence[bytes]) -> Iterator[str]:
    """Short strings of a program that begin so: each ends, as the one before it, with a NUL."""
    for beginning in beginnings:
        at = content.find(b"\0" + beginning)
        while at >= 0:
            end = content.find(b"\0", at + 1, at + _LONGEST_NAME)
            if end > 0:
                yield content[at + 1 : end].decode("ascii", "replace")
            at = content.find(b"\0" + beginning, at + 1)


def _library(wanted: OpenedLibrary, asking: str, process: Process) -> FoundLibrary:
    paths = (process.resolve(name, asking) for name in wanted["names"])
    path = next((found for found in paths if found), None)
    if path is None:
        return {"path": None, "missing": [], "lacking": []}
    found = dynsym.versions_of(path, wanted["symbols"].keys())
    lacking = [f"{name}@{version}" for name, version in wanted["symbols"].items() if version not in found.get(name, ())]
    return {"path": path, "missing": _missing(path, process), "lacking": lacking}


def _missing(path: str, process: Process) -> list[str]:
    return sorted({missing.name for missing in process.copy().load(path)})


def _providers(verbs: str, process: Process) -> Iterator[tuple[str, Provider]]:
    """Each driver that the system names, and the provider that libibverbs would open for it."""
    private = _PRIVATE.search(" ".join(sorted(dynsym.read(verbs).defined_versions)))
    folder = f"{Path(verbs).parent}/libibverbs"
    for driver in sorted(_drivers()):
        path = f"{folder}/lib{driver}-rdmav{private[1] if private else ''}.so"
        yield driver, _provider(path, process)


def _drivers() -> Iterator[str]:
    for file in Path(_DRIVERS).glob("*.driver"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            word, _, name = line.strip().partition(" ")
            if word == "driver" and name.strip():
                yield name.strip()


def _provider(path: str, process: Process) -> Provider:
    own = process.copy()
    try:
        needed = dynsym.read(path).needed_versions
        missing = sorted({one.name for one in own.load(os.path.realpath(path))})
        unmet = sorted(_unmet(needed, own))
    except (OSError, ElfError) as error:
        return {"path": path, "missing": [], "versions": [], "error": getattr(error, "strerror", None) or str(error)}
    return {"path": path, "missing": missing, "versions": unmet}


def _unmet(needed: Mapping[str, frozenset[str]], process: Process) -> Iterator[str]:
    for name, versions in needed.items():
        held = process.held.get(name)
        defined = dynsym.read(held).defined_versions if held else versions
        yield from (f"{version} of {name}" for version in versions - defined)


_NAMELESS = "No user exists for uid"
"""ssh started, and refuses a UID that has no line in /etc/passwd, in any image (ssh.c, main): it is not broken,
the user who runs the suite has no name."""


def judge_tools(_subject: str, expect: ToolsExpect, evidence: ToolsEvidence) -> Finding:
    """expect: {programs: {name: arguments}}."""
    faults = []
    for name in expect["programs"]:
        found = evidence["programs"][name]
        if found["path"] is None:
            faults.append(f"there is no {name} on the PATH")
        elif "error" in found and not found["error"].startswith(_NAMELESS):
            faults.append(f"{found['path']} does not run: {found['error']}")
    return conclude(faults, listed([found.get("version", "")[:40] for found in evidence["programs"].values()], limit=9))


def judge_verbs(_subject: str, expect: VerbsExpect, evidence: VerbsEvidence) -> Finding:
    """expect: {libraries: {name: {names, symbols, by_nccl}}, providers: [driver]}."""
    nccl, libraries = evidence["nccl"], expect["libraries"]
    if nccl["path"] is None:
        return unproven("there is no libnccl.so.2 whose loader could be followed")
    opened = {name for one in libraries.values() if one["by_nccl"] for name in one["names"]}
    if not opened & set(nccl["opens"]):
        return unproven(f"{nccl['path']} names none of {listed(sorted(opened))}: this is another loader than ours")
    symbols = sum(len(one["symbols"]) for one in libraries.values())
    good = f"NCCL finds {listed(list(libraries))} with {symbols} functions, and {len(evidence['providers'])} providers"
    return conclude([*_library_faults(evidence), *_provider_faults(expect, evidence)], good)


def _library_faults(evidence: VerbsEvidence) -> Iterator[str]:
    for name, found in evidence["libraries"].items():
        if found["path"] is None:
            yield f"the loader finds no {name}: NCCL goes over sockets"
        elif found["missing"]:
            yield f"{found['path']} needs {listed(found['missing'])}, which the loader does not find"
        elif found["lacking"]:
            yield f"{found['path']} lacks {listed(found['lacking'])}: NCCL goes over sockets"


def _provider_faults(expect: VerbsExpect, evidence: VerbsEvidence) -> Iterator[str]:
    providers = evidence["providers"]
    for name in expect["providers"]:
        if name not in providers:
            yield f"/etc/libibverbs.d names no driver {name}"
    for found in providers.values():
        if "error" in found:
            yield f"the provider {found['path']} can't be read: {found['error']}"
        elif found["missing"] or found["versions"]:
            yield f"the provider {found['path']} needs {listed([*found['missing'], *found['versions']])}"


CLAIMS = {"S9 tools": judge_tools, "S9 verbs": judge_verbs}
