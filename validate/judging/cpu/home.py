"""C8: caches and additions, for one user and one kind of mount."""

from __future__ import annotations

from collections.abc import Iterator

from validate.contracts.home import HomeEvidence, HomeExpect
from validate.judging import Finding, failed, passed, typed, unproven
from validate.judging.text import conclude

_ADVICE = ("-v truetag-cache:", "--user $(id -u):$(id -g)", "install -d -m 1777", "--tmpfs")
"""What a user who may not write is told, each a way out."""


@typed
def judge(_subject: str, expect: HomeExpect, evidence: HomeEvidence) -> Finding:
    """C8 of a mount. expect: {uid, gid, folder, caches, writable}. The trial's own conditions are judged first."""
    mounted = evidence["mounted"]
    if (evidence["uid"], evidence["gid"]) != (expect["uid"], expect["gid"]):
        return unproven(f"the probe ran as {evidence['uid']}:{evidence['gid']}, not {expect['uid']}:{expect['gid']}")
    if not mounted["mounted"]:
        return unproven(f"nothing is mounted on {expect['folder']} ({mounted['mode']})")
    if not expect["writable"]:
        return _told(expect, evidence)
    good = f"uid {evidence['uid']}:{evidence['gid']} writes {len(expect['caches'])} caches and adds packages there"
    return conclude(_faults(expect, evidence), good)


def _faults(expect: HomeExpect, evidence: HomeEvidence) -> Iterator[str]:
    mounted = evidence["mounted"]
    whose = f"uid {mounted['owner']}'s, mode {mounted['mode']}"
    for name, wanted in expect["caches"].items():
        found = evidence["caches"][name]
        if found["path"] != wanted:
            yield f"{name} is {found['path'] or 'not set'}, {wanted} is expected"
        elif "error" in found:
            yield f"uid {evidence['uid']} can't write {name} ({found['error']}; {expect['folder']} is {whose})"
        elif not found["executable"]:
            yield f"{name}={found['path']} is mounted noexec: what is compiled there can't be loaded"
    added = evidence["additions"]
    if "error" in added or added["code"] != 0:
        yield f"{added['python'] or 'PIP_PYTHON'} does not run: {added.get('error') or added['said'][-300:]}"
    elif not added["prefix"].startswith(f"{expect['folder']}/") or not added["writable"]:
        yield f"packages would be added to {added['prefix']}, which is not the user's"
    elif not added["torch"] or added["torch"].startswith(f"{added['prefix']}/"):
        yield f"there, torch is {added['torch'] or 'not found'} and not the image's"


def _told(expect: HomeExpect, evidence: HomeEvidence) -> Finding:
    """Nothing can be written there: pip must still start, and whoever adds a package be told what to do."""
    added = evidence["additions"]
    if all("error" not in found for found in evidence["caches"].values()):
        return unproven(f"{expect['folder']} can be written to: this is not the case that was to be tried")
    if "error" in added or added["code"] != 0:
        return failed(f"python does not start: {added.get('error') or added['said'][-300:]}")
    if lacking := [advice for advice in _ADVICE if advice not in added["said"]]:
        return failed(f"who may not write to {expect['folder']} is not told of {', '.join(lacking)}")
    return passed(f"uid {evidence['uid']} may not write to {expect['folder']}, and is told of {len(_ADVICE)} ways out")
