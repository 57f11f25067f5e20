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
from typing import cast

from validate.binaries import dynsym, machines
from validate.binaries.elf import ElfError
from validate.binaries.loader import Files, Process, SearchPath
from validate.claims import Claim
from validate.contracts.system import (
    FoundLibrary,
    Nccl,
    OpenedLibrary,
    Program,
    Provider,
    ToolsEvidence,
    ToolsExpect,
    VerbsEvidence,
    VerbsExpect,
)
from validate.environment import interpreter, user_environment
from validate.environment.user_environment import UserEnvironment

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
    machine = machines.named(given.machine)
    process = Process(SearchPath.of(given.environ, given.directory, machine), Files(machine))
    nccl = _nccl(given, process)
    libraries = {name: _library(one, nccl["path"] or "", process) for name, one in expect["libraries"].items()}
    verbs = libraries[_VERBS]["path"]
    return {"nccl": nccl, "libraries": libraries, "providers": dict(_providers(verbs, process)) if verbs else {}}


def _nccl(given: UserEnvironment, process: Process) -> Nccl:
    """The NCCL that torch loads: of its wheels, else the system's."""
    folders = [entry or given.directory for entry in interpreter.start(given).path]
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
