"""S2: installed files against what their wheels recorded."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from validate.contracts.static import FileInConflict, FilesEvidence, FilesExpect, WrongFile
from validate.judging import Finding, failed, listed, typed
from validate.judging.text import conclude


@typed
def judge(_subject: str, expect: FilesExpect, evidence: FilesEvidence) -> Finding:
    """S2. expect: {unowned: {path pattern: why it may be there}}."""
    if not evidence["files"]:
        return failed("no distribution lists a single file")
    faults = [_in_conflict(one) for one in evidence["in_conflict"]]
    told = {one["path"] for one in evidence["in_conflict"]}
    faults += [_wrong(one) for one in evidence["wrong"] if one["path"] not in told]
    faults += [f"{path} belongs to no distribution" for path in _unexcused(evidence["unowned"], expect["unowned"])]
    if hidden := evidence["unowned_count"] - len(evidence["unowned"]):
        faults.append(f"{hidden} more files belong to no distribution")
    for one in evidence["without_record"]:
        if not one["location"].endswith("/dist-packages"):
            faults.append(f"{one['name']} in {one['location']} has no readable RECORD")
    return conclude(faults, f"{evidence['files']} files of {evidence['distributions']} distributions are as recorded")


def _in_conflict(one: FileInConflict) -> str:
    holds = f"it holds {listed(one['holds'])}'s" if one["holds"] else "it holds neither's"
    return f"{one['path']} is claimed by {' and '.join(one['owners'])} with different contents ({holds})"


def _wrong(one: WrongFile) -> str:
    states = sorted(set(one["owners"].values()))
    return f"{one['path']} of {listed(list(one['owners']))} is {' and '.join(states)}"


def _unexcused(paths: Sequence[str], excused: Mapping[str, str]) -> list[str]:
    return [path for path in paths if not any(fnmatch.fnmatchcase(path, f"*/{pattern}") for pattern in excused)]
