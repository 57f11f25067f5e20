"""system: programs that a training job calls, and rdma-core as NCCL's own loader would find it. Nothing is loaded.

NCCL opens libibverbs.so or libibverbs.so.1 by name and asks for each function under one version (dlvsym); where one is
not found it goes over sockets, and says so only with NCCL_DEBUG=INFO. libibverbs opens a provider for each driver that
/etc/libibverbs.d names, from the folder beside itself, of its own private version alone.
"""

import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.binaries import dynsym
from validate.binaries.elf import ElfError
from validate.binaries.loader import Files, Process, SearchPath, machine_named
from validate.claims import Claim
from validate.environment import installed
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, conclude, listed, unproven

_SECONDS = 60
_DRIVERS = "/etc/libibverbs.d"
_PRIVATE = re.compile(r"IBVERBS_PRIVATE_(\d+)")
_VERBS = "libibverbs.so.1"
_LIBRARY_NAMES, _FUNCTION_NAMES = (b"libibverbs.so", b"libmlx5.so"), (b"ibv_", b"mlx5dv_")
_LONGEST_NAME = 64


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given, start, _ = installed.of_user()
    for claim in claims:
        if claim.subject == "tools":
            programs = claim.expect["programs"]
            yield claim.subject, {"programs": {name: _program(name, how, given) for name, how in programs.items()}}
        else:
            machine = machine_named(given.machine)
            process = Process(SearchPath.of(given.environ, given.directory, machine), Files(machine))
            nccl = _nccl(start.path, process)
            wanted = claim.expect["libraries"]
            libraries = {name: _library(one, nccl["path"] or "", process) for name, one in wanted.items()}
            verbs = libraries[_VERBS]["path"]
            providers = dict(_providers(verbs, process)) if verbs else {}
            yield claim.subject, {"nccl": nccl, "libraries": libraries, "providers": providers}


def _program(name: str, arguments: Sequence[str], given: UserEnvironment) -> Mapping[str, Any]:
    path = shutil.which(name, path=given.environ.get("PATH", ""))
    if path is None:
        return {"path": None}
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_SECONDS, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"path": path, "error": str(error)}
    said = (done.stdout or done.stderr).strip().partition("\n")[0]
    return {"path": path, "version": said} if done.returncode == 0 else {"path": path, "error": said}


def _nccl(folders: Sequence[str], process: Process) -> Mapping[str, Any]:
    """The NCCL that torch loads: of its wheels, else the system's."""
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


def _library(wanted: Mapping[str, Any], asking: str, process: Process) -> Mapping[str, Any]:
    paths = (process.resolve(name, asking) for name in wanted["names"])
    path = next((found for found in paths if found), None)
    if path is None:
        return {"path": None, "missing": [], "lacking": []}
    found = dynsym.versions_of(path, wanted["symbols"].keys())
    lacking = [f"{name}@{version}" for name, version in wanted["symbols"].items() if version not in found.get(name, ())]
    return {"path": path, "missing": sorted({one.name for one in process.copy().load(path)}), "lacking": lacking}


def _providers(verbs: str, process: Process) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each driver that the system names, and the provider that libibverbs would open for it."""
    private = _PRIVATE.search(" ".join(sorted(dynsym.read(verbs).defined_versions)))
    folder = f"{Path(verbs).parent}/libibverbs"
    files = (file.read_text(encoding="utf-8", errors="replace") for file in Path(_DRIVERS).glob("*.driver"))
    words = (line.strip().partition(" ") for text in files for line in text.splitlines())
    for driver in sorted(name.strip() for word, _, name in words if word == "driver" and name.strip()):
        path = f"{folder}/lib{driver}-rdmav{private[1] if private else ''}.so"
        yield driver, _provider(path, process)


def _provider(path: str, process: Process) -> Mapping[str, Any]:
    own = process.copy()
    try:
        needed = dynsym.read(path).needed_versions
        missing = sorted({one.name for one in own.load(os.path.realpath(path))})
        unmet = []
        for name in needed.keys() & own.held.keys():
            versions = needed[name] - dynsym.read(own.held[name]).defined_versions
            unmet += [f"{version} of {name}" for version in versions]
    except (OSError, ElfError) as error:
        return {"path": path, "missing": [], "versions": [], "error": getattr(error, "strerror", None) or str(error)}
    return {"path": path, "missing": missing, "versions": sorted(unmet)}


_NAMELESS = "No user exists for uid"
"""ssh started, and refuses a UID that has no line in /etc/passwd, in any image (ssh.c, main): it is not broken,
the user who runs the suite has no name."""


def judge_tools(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """expect: {programs: {name: arguments}}. evidence: {programs: {name: {path, version or error}}}."""
    faults = []
    for name in expect["programs"]:
        found = evidence["programs"][name]
        if found["path"] is None:
            faults.append(f"there is no {name} on the PATH")
        elif "error" in found and not found["error"].startswith(_NAMELESS):
            faults.append(f"{found['path']} does not run: {found['error']}")
    return conclude(faults, listed([found.get("version", "")[:40] for found in evidence["programs"].values()], limit=9))


def judge_verbs(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """expect: {libraries: {SONAME: {names: as they are tried, symbols: {function: its version (dlvsym)}, by_nccl:
    otherwise another program of the network's user space opens it}}, providers: drivers of network cards that must be
    there, as rdma-core names them}.

    evidence: {nccl: {path, opens: names in it of libraries, asks: of verbs}, libraries: {SONAME: {path, missing:
    libraries that it needs, lacking: FUNCTION@VERSION}}, providers: {driver: {path, missing, versions: VERSION of
    LIBRARY that none defines, error?}}}.
    """
    nccl, libraries = evidence["nccl"], expect["libraries"]
    if nccl["path"] is None:
        return unproven("there is no libnccl.so.2 whose loader could be followed")
    opened = {name for one in libraries.values() if one["by_nccl"] for name in one["names"]}
    if not opened & set(nccl["opens"]):
        return unproven(f"{nccl['path']} names none of {listed(sorted(opened))}: this is another loader than ours")
    symbols = sum(len(one["symbols"]) for one in libraries.values())
    good = f"NCCL finds {listed(list(libraries))} with {symbols} functions, and {len(evidence['providers'])} providers"
    faults = []
    for name, found in evidence["libraries"].items():
        if found["path"] is None:
            faults.append(f"the loader finds no {name}: NCCL goes over sockets")
        elif found["missing"]:
            faults.append(f"{found['path']} needs {listed(found['missing'])}, which the loader does not find")
        elif found["lacking"]:
            faults.append(f"{found['path']} lacks {listed(found['lacking'])}: NCCL goes over sockets")
    absent = [name for name in expect["providers"] if name not in evidence["providers"]]
    faults += [f"/etc/libibverbs.d names no driver {name}" for name in absent]
    for found in evidence["providers"].values():
        if "error" in found:
            faults.append(f"the provider {found['path']} can't be read: {found['error']}")
        elif found["missing"] or found["versions"]:
            faults.append(f"the provider {found['path']} needs {listed([*found['missing'], *found['versions']])}")
    return conclude(faults, good)


CLAIMS = {"system/tools": judge_tools, "system/verbs": judge_verbs}
