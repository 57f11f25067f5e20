"""S10 wheels: installed distributions against what the wheels of the lock bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validate.contracts.provenance import HeldDistribution, LockedSource, LockedWheel, WheelsEvidence, WheelsExpect
from validate.judging import Finding, Status, failed, listed, typed, unproven
from validate.judging.text import conclude, matches


@typed
def judge(_subject: str, expect: WheelsExpect, evidence: WheelsEvidence) -> Finding:
    """S10 wheels. A distribution that is missing or was moved is S1's affair; a file that is not as in RECORD, S2's."""
    found = {name: _unmoved(copies, expect["versions"][name]) for name, copies in evidence["distributions"].items()}
    if not found and not expect["wheels"] and not expect["sources"]:
        return unproven(_unknown(expect))
    if not found:
        return failed("no distribution of the lock is installed")
    faults: list[str] = []
    for name, copies in found.items():
        for one in copies:
            if name in expect["sources"]:
                faults += _made_otherwise(name, one, expect["sources"][name])
            else:
                faults += _changed(name, one, expect["wheels"][name])
            faults += [f"{path} is not the launcher of its entry point in {name}" for path in one["launchers"]]
    files = sum(one["files"] for copies in found.values() for one in copies)
    finding = conclude(faults, f"{files} files of {len(found)} distributions are those of the locked wheels")
    if finding.status is Status.PASS and expect["unknown"]:
        return unproven(_unknown(expect))
    return finding


def _unmoved(copies: Sequence[HeldDistribution], version: str) -> list[HeldDistribution]:
    """Those of the lock's version."""
    return [one for one in copies if one["version"] == version]


def _unknown(expect: WheelsExpect) -> str:
    unknown = expect["unknown"]
    return f"of {listed(list(unknown))} it is not known: {listed(sorted(set(unknown.values())))}"


def _changed(name: str, one: HeldDistribution, wheels: Sequence[LockedWheel]) -> Iterator[str]:
    if one["digest"] in (wheel["digest"] for wheel in wheels):
        return
    yield from (f"{path} is not what the locked wheel of {name} brought" for path in one["strange"])
    if hidden := one["strange_count"] - len(one["strange"]):
        yield f"{hidden} more files are not what the locked wheel of {name} brought"
    gone = one["lacking"] - one["strange_count"]
    if gone > 0:
        yield f"{one['record']} lacks {gone} files of the locked wheel of {name}"
    elif not one["strange"]:
        yield f"{one['record']} is not that of the locked wheel of {name}"


def _made_otherwise(name: str, one: HeldDistribution, source: LockedSource) -> Iterator[str]:
    for path in one["strange"]:
        if not matches(path, source["made"]):
            yield f"{path} is in no file of the locked source of {name}"
    if hidden := one["strange_count"] - len(one["strange"]):
        yield f"{hidden} more files are in no file of the locked source of {name}"
