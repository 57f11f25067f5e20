"""S10 files, lookup, privileges: who owns each file, what is found first, and what has more rights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from validate.contracts.provenance import OwnersEvidence, OwnersExpect
from validate.judging import Finding, Judging, typed
from validate.judging.text import conclude


@typed
def judge_files(_subject: str, expect: OwnersExpect, evidence: OwnersEvidence) -> Finding:
    """S10 files. A child may have files of its own; none may change what its parent has."""
    faults = [f"{one['path']} is not as {one['owner']} has it" for one in evidence["altered"]]
    if hidden := evidence["altered_count"] - len(evidence["altered"]):
        faults.append(f"{hidden} more files are not as their owners have them")
    if not expect["free"]:
        faults += [f"{path} belongs to nobody" for path in evidence["unowned"]]
        if hidden := evidence["unowned_count"] - len(evidence["unowned"]):
            faults.append(f"{hidden} more files belong to nobody")
    generated = sum(evidence["excused"].values())
    return conclude(faults, f"{evidence['files']} files have owners, {generated} of them are generated")


@typed
def judge_lookup(_subject: str, expect: OwnersExpect, evidence: OwnersEvidence) -> Finding:
    """S10 lookup."""
    faults = [*_path(expect, evidence["path"])]
    faults += [f"{path} is found before the image's own" for path in evidence["in_front"]]
    faults += [f"{path} is loaded by {who} if it is there" for path, who in evidence["plugins"].items()]
    faults += [
        f"{path} stands where the loader looks, and belongs to nobody"
        for path in evidence["loadable"]
        if path not in evidence["plugins"]
    ]
    return conclude(faults, f"{len(expect['path'])} folders on the PATH, and nothing of unknown owner is found first")


def _path(expect: OwnersExpect, found: Sequence[str]) -> Iterator[str]:
    if list(found) == expect["path"]:
        return
    before = [folder for folder in found if folder not in expect["path"]]
    if not expect["free"]:
        yield f"the PATH is {':'.join(found)}; {', '.join(before) or 'the order of its folders'} is not as expected"
    elif [folder for folder in found if folder in expect["path"]] != expect["path"]:
        yield f"the PATH is {':'.join(found)}: folders of the parent's are missing or in another order"


@typed
def judge_privileges(_subject: str, expect: OwnersExpect, evidence: OwnersEvidence) -> Finding:
    """S10 privileges."""
    faults = [
        f"{one['path']} has mode {one['mode']}{' and capabilities' if one['capabilities'] else ''}: "
        "it runs with more rights than its caller's, and Debian does not bring it so"
        for one in evidence["privileged"]
        if one["capabilities"] or not _is_brought(one["path"], one["mode"], expect["privileged"])
    ]
    faults += [f"every user may change {path}" for path in evidence["writable"]]
    faults += [f"{account}" for account in evidence["accounts"]]
    if evidence["authorities"]:
        faults.append(f"{evidence['authorities']} certificate authorities are trusted that Debian does not bring")
    return conclude(faults, f"{len(evidence['privileged'])} programs run with more rights, all as Debian brings them")


def _is_brought(path: str, mode: str, privileged: Mapping[str, str]) -> bool:
    return privileged.get(path) == mode


JUDGES: Mapping[str, Judging] = {"files": judge_files, "lookup": judge_lookup, "privileges": judge_privileges}
"""By subject of S10."""
