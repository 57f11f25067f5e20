"""One job of a nightly run: an image, built from one set of versions, validated, and its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

from images.host.hashing import sha256
from images.nightly import results, xfail
from images.nightly.canary import Locked
from images.nightly.options import NightlyOptions
from images.nightly.results import Change, Expected, Job, JobLine, Outcome
from images.nightly.state import Trial
from images.planning.plan import Planned
from images.validation.rows import ClaimRow, TierCount
from images.validation.run import suite_files
from validate.claims import ClaimSet, Tier
from validate.judging import Status


def run(
    planned: Planned, locked: Locked, job: Job, changed: Sequence[Change], options: NightlyOptions
) -> tuple[Trial, JobLine]:
    """Build and validate one job, and append its line."""
    found = tried(locked, options.tiers, str(job), options)
    return found, judged(planned, locked, job, changed, found, options)


def judged(
    planned: Planned, locked: Locked, job: Job, changed: Sequence[Change], found: Trial, options: NightlyOptions
) -> JobLine:
    """The line of a trial, appended."""
    rows = xfail.rows_for(planned, locked.versions, options.sources.matrix.xfail)
    expected = xfail.expected(found.claims, rows)
    failing = [claim for claim in found.claims if is_open(claim)]
    line = plain_line(
        planned, job, _outcome(found, failing, expected), options, versions=locked.hash, cause=found.cause
    )
    line = line.model_copy(
        update={
            "tiers": _counted(found),
            "failing": failing,
            "expected": expected,
            "unexpected_passes": xfail.unexpected_passes(found.claims, rows),
            "digest": found.digest,
            "bytes": found.bytes,
            "seconds": found.seconds,
            "gpus": list(found.gpus),
            "changes": list(changed),
        }
    )
    return appended(line, options)


def tried(locked: Locked, tiers: Sequence[Tier], label: str, options: NightlyOptions) -> Trial:
    """A set of versions, validated once a nightly run."""
    names = ",".join(tiers) or "all"
    key = f"trial {locked.image.name} {locked.hash} {options.sources.revision} {_suite()} {names}"
    return options.remembered(key, lambda: options.judge(locked, tiers, label))


@cache
def _suite() -> str:
    """Short hash of probes and judges. A trial is not reused with another suite."""
    files = suite_files(ClaimSet(image="", claims=()))
    return sha256(b"\0".join(name.encode() + text for name, text in sorted(files.items())))[:12]


def is_open(claim: ClaimRow) -> bool:
    """The claim failed, or it is required and could not be measured."""
    return claim.verdict is Status.FAIL or (claim.required and claim.verdict is Status.UNPROVEN)


def _outcome(found: Trial, failing: Sequence[ClaimRow], expected: Sequence[Expected]) -> Outcome:
    if found.cause:
        return Outcome.NOT_BUILT
    failed = [claim for claim in failing if claim.verdict is Status.FAIL]
    if len(failed) > len(expected):
        return Outcome.FAIL
    if expected:
        return Outcome.XFAIL
    required = any(claim.required for claim in found.claims)
    return Outcome.PASS if required and not failing else Outcome.UNPROVEN


def _counted(found: Trial) -> dict[Tier, TierCount]:
    return {
        tier: TierCount(
            verdict=verdict, counts=dict(Counter(claim.verdict for claim in found.claims if claim.tier is tier))
        )
        for tier, verdict in found.overall.items()
    }


def plain_line(
    planned: Planned, job: Job, outcome: Outcome, options: NightlyOptions, *, versions: str = "", cause: str = ""
) -> JobLine:
    """The line of a job without a trial."""
    return JobLine(
        date=options.now(),
        image=planned.name,
        job=job,
        outcome=outcome,
        versions=versions,
        revision=options.sources.revision,
        tiers={},
        failing=[],
        expected=[],
        unexpected_passes=[],
        digest="",
        bytes=0,
        seconds=0.0,
        gpus=[],
        changes=[],
        ranges=dict(options.ranges),
        cause=cause,
    )


def appended(line: JobLine, options: NightlyOptions) -> JobLine:
    """Append a line once: a resumed run has those that it wrote before."""
    key = f"line {line.image} {line.job} {line.versions} {line.revision} {sorted(options.ranges.items())}"
    if (known := options.state.find(key)) is not None:
        return JobLine.model_validate(known)
    results.append(line, options.results)
    options.state.keep(key, line.model_dump(mode="json"))
    return line
