"""S10 wheels: each distribution's RECORD as its wheel would have it. S2 holds the files to that RECORD.

What the wheel brought is in the claim: it was measured from the index's own file, outside any image.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from validate.claims import Claim
from validate.contracts.provenance import HeldDistribution, WheelsEvidence, WheelsExpect
from validate.environment import installed, interpreter, user_environment, wheel_contents
from validate.environment.installed import Distribution
from validate.environment.wheel_contents import Rows

_MOST_LISTED = 20


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, WheelsEvidence]]:
    start = interpreter.start(user_environment.recorded())
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
