"""S9: programs of a training job, and rdma-core for NCCL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from validate.contracts.system import ToolsEvidence, ToolsExpect, VerbsEvidence, VerbsExpect
from validate.judging import Finding, Judging, listed, typed, unproven
from validate.judging.text import conclude

_NAMELESS = "No user exists for uid"
"""ssh started, and refuses a UID that has no line in /etc/passwd, in any image (ssh.c, main): it is not broken,
the user who runs the suite has no name."""


@typed
def _tools(_subject: str, expect: ToolsExpect, evidence: ToolsEvidence) -> Finding:
    """expect: {programs: {name: arguments}}."""
    faults = []
    for name in expect["programs"]:
        found = evidence["programs"][name]
        if found["path"] is None:
            faults.append(f"there is no {name} on the PATH")
        elif "error" in found and not found["error"].startswith(_NAMELESS):
            faults.append(f"{found['path']} does not run: {found['error']}")
    return conclude(faults, listed([found.get("version", "")[:40] for found in evidence["programs"].values()], limit=9))


@typed
def _verbs(_subject: str, expect: VerbsExpect, evidence: VerbsEvidence) -> Finding:
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


JUDGES: Mapping[str, Judging] = {"tools": _tools, "verbs": _verbs}
"""By subject of S9."""
