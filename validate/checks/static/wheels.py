"""S10 wheels: a RECORD that was rewritten with its files hides a change from S2: it is held to the locked wheel's.

What the wheel brought is in the claim: it was measured from the index's own file, outside any image.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict, cast

from validate.claims import Claim
from validate.environment import installed, user_environment, wheel_contents
from validate.environment.installed import Distribution
from validate.environment.wheel_contents import Rows
from validate.judging import Finding, Status, conclude, failed, listed, matches, unproven


class LockedWheel(TypedDict):
    """What one wheel of the lock brings (validate/environment/wheel_contents.py)."""

    digest: str
    tags: str


class LockedSource(TypedDict):
    """What a source archive of the lock has."""

    files: str
    """Long tags of contents."""
    made: list[str]
    """Files that its build makes: patterns of paths below site-packages."""


class WheelsExpect(TypedDict):
    versions: dict[str, str]
    """Distribution -> its version in the lock, without a local part: what was moved is S1's affair."""
    wheels: dict[str, list[LockedWheel]]
    """Distribution -> the wheels of it that the lock has, one of which was installed."""
    sources: dict[str, LockedSource]
    unknown: dict[str, str]
    """Distribution -> why it is not known what its file brings."""


class HeldDistribution(TypedDict):
    """One installed distribution that the lock names."""

    record: str
    version: str
    digest: str
    files: int
    strange: list[str]
    """Files that are in the RECORD and not in the wheel, or there with another hash."""
    strange_count: int
    lacking: int
    """Files of the wheel that are not in the RECORD so."""
    launchers: list[str]
    """Commands that are not what an installer writes for their entry points."""


class WheelsEvidence(TypedDict):
    distributions: dict[str, list[HeldDistribution]]


_MOST_LISTED = 20


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, WheelsEvidence]]:
    start = user_environment.start(user_environment.recorded())
    folders = [entry or user_environment.recorded().directory for entry in start.path]
    found = installed.distributions(folders)
    for claim in claims:
        expect = cast(WheelsExpect, claim.expect)
        yield claim.subject, compare(found, os.path.realpath(start.prefix), expect)


def compare(found: Sequence[Distribution], environment: str, expect: WheelsExpect) -> WheelsEvidence:
    """What of the distributions that the lock names is not as it names it. `environment`: the virtual one's folder."""
    distributions: dict[str, list[HeldDistribution]] = {}
    for distribution in found:
        if distribution.entries is not None and distribution.name in (*expect["wheels"], *expect["sources"]):
            held = _held(distribution, environment, expect)
            distributions.setdefault(distribution.name, []).append(held)
    return {"distributions": distributions}


def _held(distribution: Distribution, environment: str, expect: WheelsExpect) -> HeldDistribution:
    own = wheel_contents.of_installed(distribution, environment)
    digest, launchers = wheel_contents.contents(own.rows).digest, list(own.launchers)
    record = next((entry.path for entry in distribution.entries or () if entry.path.endswith(".dist-info/RECORD")), "")
    if distribution.name in expect["sources"]:
        strange, lacking = _not_of_source(own.rows, expect["sources"][distribution.name]["files"]), 0
    else:
        wheels = expect["wheels"][distribution.name]
        known = any(one["digest"] == digest for one in wheels)
        strange, lacking = ([], 0) if known else min(_differences(own.rows, [one["tags"] for one in wheels]))
    return {
        "record": record or distribution.location,
        "version": distribution.version.partition("+")[0],
        "digest": digest,
        "files": len(own.rows),
        "strange": strange[:_MOST_LISTED],
        "strange_count": len(strange),
        "lacking": lacking,
        "launchers": launchers,
    }


def _differences(rows: Rows, tags: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    for one in tags:
        yield wheel_contents.strange(rows, one), wheel_contents.lacking(rows, one)


def _not_of_source(rows: Mapping[str, str], files: str) -> list[str]:
    """Files that the archive does not have: what a build made of it. Metadata always is."""
    known = wheel_contents.knows(files)
    return sorted(path for path, digest in rows.items() if ".dist-info/" not in path and not known("", digest))


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


CLAIMS = {"S10": judge}
