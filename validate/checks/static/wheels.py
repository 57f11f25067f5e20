"""origin/wheels: a RECORD that was rewritten with its files hides a change from `files`: it is held to the locked
wheel's.

What the wheel brought is in the claim: it was measured from the index's own file, outside any image.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed, wheel_contents
from validate.environment.installed import Distribution
from validate.judging import Finding, Status, conclude, cut, failed, listed, matches, unproven

SETTINGS = Settings(reads_files_only=True)

_MOST_LISTED = 20


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    _, start, everything = installed.of_user()
    for claim in claims:
        expect = claim.expect
        distributions: dict[str, list[Mapping[str, Any]]] = {}
        for one in everything:
            if one.entries is not None and one.name in (*expect["wheels"], *expect["sources"]):
                held = _held(one, os.path.realpath(start.prefix), expect)
                distributions.setdefault(one.name, []).append(held)
        yield claim.subject, {"distributions": distributions}


def _held(distribution: Distribution, environment: str, expect: Mapping[str, Any]) -> Mapping[str, Any]:
    own = wheel_contents.of_installed(distribution, environment)
    digest, launchers = wheel_contents.contents(own.rows).digest, list(own.launchers)
    record = next((entry.path for entry in distribution.entries or () if entry.path.endswith(".dist-info/RECORD")), "")
    if distribution.name in expect["sources"]:
        # Files that the archive does not have: what a build made of it. Metadata always is.
        known, lacking = wheel_contents.knows(expect["sources"][distribution.name]["files"]), 0
        strange = sorted(path for path, held in own.rows.items() if ".dist-info/" not in path and not known("", held))
    else:
        wheels = expect["wheels"][distribution.name]
        differences = (
            (wheel_contents.strange(own.rows, one["tags"]), wheel_contents.lacking(own.rows, one["tags"]))
            for one in wheels
        )
        strange, lacking = ([], 0) if any(one["digest"] == digest for one in wheels) else min(differences)
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


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """origin/wheels. A distribution that is missing or was moved is `pins`'s affair; a file that is not as in RECORD,
    `files`'s.

    expect: {versions: {distribution: its version in the lock, without a local part}, wheels: {distribution: [{digest,
    tags}] of those that the lock has, one of which was installed}, sources: {distribution: {files: long tags of
    contents, made: patterns of what its build makes}}, unknown: {distribution: why its file's contents are not known}}.

    evidence: {distributions: {name: [{record, version, digest, files, strange: files that are in the RECORD and not in
    the wheel, or there with another hash, lacking: how many of the wheel's are not in the RECORD so, launchers:
    commands that are not what an installer writes}]}}.
    """
    versions = expect["versions"]
    found = {
        name: [one for one in copies if one["version"] == versions[name]]
        for name, copies in evidence["distributions"].items()
    }
    if not found and not expect["wheels"] and not expect["sources"]:
        return unproven(_unknown(expect))
    if not found:
        return failed("no distribution of the lock is installed")
    faults: list[str] = []
    for name, copies in found.items():
        for one in copies:
            if name in expect["sources"]:
                faults += _made_otherwise(name, one, expect["sources"][name]["made"])
            else:
                faults += _changed(name, one, expect["wheels"][name])
            faults += [f"{path} is not the launcher of its entry point in {name}" for path in one["launchers"]]
    files = sum(one["files"] for copies in found.values() for one in copies)
    finding = conclude(faults, f"{files} files of {len(found)} distributions are those of the locked wheels")
    if finding.status is Status.PASS and expect["unknown"]:
        return unproven(_unknown(expect))
    return finding


def _unknown(expect: Mapping[str, Any]) -> str:
    unknown = expect["unknown"]
    return f"of {listed(list(unknown))} it is not known: {listed(sorted(set(unknown.values())))}"


def _changed(name: str, one: Mapping[str, Any], wheels: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if one["digest"] in (wheel["digest"] for wheel in wheels):
        return
    yield from (f"{path} is not what the locked wheel of {name} brought" for path in one["strange"])
    yield from cut(one, "strange", f"files are not what the locked wheel of {name} brought")
    if one["lacking"]:
        yield f"{one['record']} lacks {one['lacking']} files of the locked wheel of {name}"
    elif not one["strange"]:
        yield f"{one['record']} is not that of the locked wheel of {name}"


def _made_otherwise(name: str, one: Mapping[str, Any], made: Sequence[str]) -> Iterator[str]:
    for path in one["strange"]:
        if not matches(path, made):
            yield f"{path} is in no file of the locked source of {name}"
    yield from cut(one, "strange", f"files are in no file of the locked source of {name}")


CLAIMS = {"origin": judge}
