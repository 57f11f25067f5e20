"""records/locked: a tool that changes packages and rewrites their RECORDs hides its damage from `files`.

Our own pruner is such a tool, and so is every `strip` or "slim" step that keeps RECORD current. The claim has one
digest for each wheel of the lock, of the RECORD inside that wheel, measured from the index and outside any image.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed, wheel_contents
from validate.environment.installed import Distribution
from validate.judging import Finding, conclude, failed, listed, unproven

SETTINGS = Settings(reads_files_only=True)


class LockedWheel(TypedDict):
    """A distribution of the lock."""

    version: str
    """Without a local part."""
    records: list[str]
    """Digests of the RECORDs of its wheels, one of which was installed."""


class Expected(TypedDict):
    """What a claim about RECORDs says."""

    wheels: Mapping[str, LockedWheel]
    built: list[str]
    """Distributions that the image's build compiles from source: there is no wheel to compare them with."""
    unknown: Mapping[str, str]
    """Distribution -> why nothing is known of its wheels."""


class InstalledRecord(TypedDict):
    """The RECORD of an installed distribution."""

    path: str
    version: str
    """Without a local part."""
    digest: str
    files: int


class Measured(TypedDict):
    """The RECORDs of locked distributions, wherever they are installed."""

    records: dict[str, list[InstalledRecord]]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Read the RECORD of each distribution that a claim names."""
    _, start, distributions = installed.of_user()
    environment = os.path.realpath(start.prefix)
    for claim in claims:
        records: dict[str, list[InstalledRecord]] = {}
        for distribution in distributions:
            # One without a RECORD is `files`'s to report.
            if distribution.name in claim.expect["wheels"] and distribution.entries is not None:
                records.setdefault(distribution.name, []).append(_read(distribution, environment))
        yield claim.subject, {"records": records}


def _read(distribution: Distribution, environment: str) -> InstalledRecord:
    rows = wheel_contents.rows_of_installed(distribution, environment)
    return {
        "path": str(distribution.info / "RECORD"),
        "version": without_local(distribution.version),
        "digest": wheel_contents.digest_of(rows),
        "files": len(rows),
    }


def without_local(version: str) -> str:
    """Return `2.7.1` for `2.7.1+cu126`."""
    return version.partition("+")[0]


def judge(_subject: str, expect: Expected, evidence: Measured) -> Finding:
    """Compare each RECORD with those of the locked wheels.

    A distribution that is missing or of another version is `pins`'s to report; a file that is not as in RECORD,
    `files`'s."""
    wheels, unknown = expect["wheels"], expect["unknown"]
    if not wheels:
        return _unknown(unknown) if unknown else failed("the lock has no wheel")

    faults = []
    compared = files = 0
    for name, records in evidence["records"].items():
        wheel = wheels[name]
        for record in records:
            if record["version"] != wheel["version"]:
                continue
            compared += 1
            files += record["files"]
            if record["digest"] not in wheel["records"]:
                faults.append(f"{record['path']} is not the RECORD of the locked wheel of {name}")

    if not compared:
        return failed("no distribution of the lock is installed")
    if unknown and not faults:
        return _unknown(unknown)
    good = f"the RECORDs of {compared} distributions ({files} files) are those of the locked wheels"
    if expect["built"]:
        good += f"; built from source, with no wheel to compare with: {listed(expect['built'])}"
    return conclude(faults, good)


def _unknown(unknown: Mapping[str, str]) -> Finding:
    reasons = sorted(set(unknown.values()))
    return unproven(f"of {listed(list(unknown))} it is not known: {listed(reasons)}")


CLAIMS = {"records": judge}
