"""S7: variables, settings files and start-up code."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from validate.contracts.static import EnvironmentEvidence, EnvironmentExpect, Start
from validate.judging import Finding, listed, typed
from validate.judging.text import conclude, matches


@typed
def judge(_subject: str, expect: EnvironmentExpect, evidence: EnvironmentEvidence) -> Finding:
    """S7. expect: {required: {name: value}, denied: {pattern: why}, start_files: {name pattern: why}}."""
    required, denied = expect["required"], expect["denied"]
    faults = [
        f"{name} is {'not set' if found is None else repr(found)}, {required[name]!r} is expected"
        for name, found in evidence["required"].items()
        if found != required[name]
    ]
    faults += [
        f"{name}={value} is set: {_why(name, denied)}"
        for name, value in evidence["denied"].items()
        if name not in required
    ]
    for one in evidence["in_files"]:
        if required.get(one["name"]) != one["value"].strip("\"'"):
            faults.append(f"{one['file']} sets {one['name']}={one['value']}: {_why(one['name'], denied)}")
    faults += [f"{path} is not empty: {listed(lines)}" for path, lines in evidence["settings_files"].items() if lines]
    faults += _start_faults(expect, evidence["start"])
    good = f"{len(required)} variables as expected, none that misleads, no start-up code of unknown owner"
    return conclude(faults, good)


def _why(name: str, denied: Mapping[str, str]) -> str:
    return next((why for pattern, why in denied.items() if fnmatch.fnmatchcase(name, pattern)), "it is denied")


def _start_faults(expect: EnvironmentExpect, start: Start) -> Iterator[str]:
    if start["flags"]["optimize"]:
        yield "Python starts with optimisation: every `assert` is gone"
    for name, value in start["changes"].items():
        yield f"starting Python sets {name}={value!r}"
    for one in start["code"]:
        harmless = one["owners"] or one["of_debian"] or one["does_nothing"]
        if not harmless and not matches(PurePosixPath(one["file"]).name, expect["start_files"]):
            yield f"{one['file']} runs at every start of Python and belongs to no distribution"
