"""records/locked: the RECORD of each installed wheel is the one inside the wheel that is locked.

A tool that changes packages and rewrites their RECORDs hides its damage from the check `files`. Our
own pruner is such a tool, and so is every `strip` or "slim" step that keeps RECORD current. The
claim has one digest for each wheel of the lock, of the RECORD inside that wheel, measured from the
index and outside any image.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed, wheel_contents
from validate.environment.installed import Distribution
from validate.judging import Finding, conclude, failed, listed, unproven
from validate.next_steps import BUILD, BUILD_ANEW, LOCK, VALIDATE_AGAIN

SETTINGS = Settings(reads_files_only=True)


class LockedWheel(TypedDict):
    """A distribution of the lock."""

    version: str
    """Without a local part."""
    records: list[str]
    """Digests of the RECORDs inside its wheels. The image should have one of these."""


class Expected(TypedDict):
    """What a claim about RECORDs expects."""

    wheels: Mapping[str, LockedWheel]
    """Name of a distribution -> its locked wheel."""
    built: list[str]
    """Distributions that the image's build compiles from source, or takes code for other GPUs out
    of: there is no wheel to compare with."""
    unknown: Mapping[str, str]
    """Distribution -> why the RECORDs of its wheels are not known."""


class InstalledRecord(TypedDict):
    """The RECORD of an installed distribution."""

    path: str
    version: str
    """Without a local part."""
    digest: str
    """See wheel_contents.digest_of."""
    files: int
    """How many files it lists."""


class Measured(TypedDict):
    """The RECORDs of locked distributions, wherever they are installed."""

    records: dict[str, list[InstalledRecord]]
    """Name of a distribution -> its RECORDs, one for each place where it is installed."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Yield the RECORDs of the installed distributions that each claim names.

    A RECORD lists the files of an installed distribution, with their hashes. Yields the subject of
    each claim with its evidence: a distribution's name -> its RECORDs. A distribution may be
    installed in several places, and has a RECORD in each.
    """
    _, start, distributions = installed.read_user_python()
    environment = os.path.realpath(start.prefix)
    for claim in claims:
        wheels = claim.expect["wheels"]
        records: dict[str, list[InstalledRecord]] = {}
        for distribution in distributions:
            name = distribution.name
            # A distribution without a RECORD is reported by the check `files`.
            if name not in wheels or distribution.entries is None:
                continue
            # Its scripts and headers lie below this folder.
            prefix = prefix_of(distribution.location, environment)
            record = _read_record(distribution, prefix)
            records.setdefault(name, []).append(record)

        evidence: Measured = {"records": records}
        yield claim.subject, evidence


def prefix_of(location: str, environment: str) -> str:
    """Return the folder of the environment that a distribution is installed in: `/opt/venv`.

    `location` is the distribution's folder, `/opt/venv/lib/python3.11/site-packages`. For a folder
    of another form, `environment` is returned.
    """
    # Python may import packages of a second environment. These lie below the folder of that one.
    prefix, separator, _ = os.path.realpath(location).rpartition("/lib/python")
    return prefix if separator else environment


def _read_record(distribution: Distribution, environment: str) -> InstalledRecord:
    """Return the RECORD of a distribution that is installed in the environment of this folder."""
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
    """Judge whether each installed RECORD is that of its locked wheel.

    A distribution of the lock is in one of three tables: `wheels`; `unknown`, if the RECORDs of its
    wheels are not known; or `built`, if the build compiles or changes it. UNPROVEN: some
    are unknown, and the others show no fault. A distribution that is missing or of another version
    is reported by the check `pins`, a file that is not as RECORD says by `files`.
    """
    if not expect["wheels"]:
        if expect["unknown"]:
            return _unproven_wheels(expect["unknown"])
        return failed(
            "the lock of this image lists no wheel at all",
            f"lock the image again and build it from the new lock: `{LOCK}`, then `{BUILD}`",
        )

    faults = []
    compared = 0
    files = 0
    for name, records in evidence["records"].items():
        wheel = expect["wheels"][name]
        for record in records:
            if record["version"] != wheel["version"]:
                continue
            compared += 1
            files += record["files"]
            # The lock may have several wheels of a version. Any of them may be installed.
            if record["digest"] not in wheel["records"]:
                faults.append(
                    f"{record['path']} lists other files than the wheel of {name} that is locked, "
                    "so the installed package is not from that wheel"
                )

    if not compared:
        return failed(
            "the Python that the image's user gets has none of the lock's packages at the locked "
            "version",
            "if `docker run --rm IMAGE which python` prints another path than "
            "/opt/venv/bin/python, put /opt/venv/bin first on the PATH again (`ENV "
            "PATH=/opt/venv/bin:$PATH` in your Dockerfile), and build the image again; if it "
            f"prints that path, {BUILD_ANEW}",
        )
    if expect["unknown"] and not faults:
        return _unproven_wheels(expect["unknown"])
    good = f"the RECORDs of {compared} distributions ({files} files) are those of the locked wheels"
    if expect["built"]:
        good += f"; made by the build, with no wheel to compare with: {listed(expect['built'])}"
    return conclude(faults, good)


def _unproven_wheels(unknown: Mapping[str, str]) -> Finding:
    """Return UNPROVEN, with the distributions of whose wheels nothing is known, and the reasons."""
    reasons = sorted(set(unknown.values()))
    return unproven(
        "the lists of files (RECORD) of these locked wheels are not known, so the installed "
        f"packages were not compared with them: {listed(list(unknown))} ({listed(reasons)})",
        f"nothing needs to be done for the image to work; to have them compared, `{LOCK}` reads "
        f"these lists, then validate again: {VALIDATE_AGAIN}",
    )


CLAIMS = {"records": judge}
NEXT_STEPS = {
    "records": "take the step that changes installed packages (`strip`, a tool that makes images "
    "smaller, a local build of the same version) out of your Dockerfile, or install the package "
    "that the reason names from the index below that step, and build the image again; if you have "
    f"no such step, {BUILD_ANEW}"
}
