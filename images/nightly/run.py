"""A nightly run of one image: as locked (control), with the newest versions (canary), and what broke between them.

What builds and validates is injected (`ValidateSet`), and so are the resolver and the clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from images.building import validating
from images.config import selectors
from images.config.schema import ExpectedFailure
from images.locking import lock_file, uv
from images.nightly import bisection, results, sets
from images.nightly.bisection import is_open
from images.nightly.results import BreakageLine, Change, Expected, Job, JobLine, Outcome
from images.nightly.sets import Gap, Locked, NightlyOptions, SetResult
from images.planning.image import Image
from images.planning.plan import Planned
from images.validation.rows import ClaimRow, tier_counts
from validate.judging import Status


@dataclass(frozen=True, kw_only=True)
class ImageResult:
    """Both jobs of one image. `proposed`: the lock of a canary that is as good as the control; `gaps`: what even the
    canary has not at its newest."""

    image: str
    control: JobLine
    canary: JobLine
    breakages: tuple[BreakageLine, ...] = ()
    gaps: tuple[Gap, ...] = ()
    proposed: Locked | None = None

    @property
    def broken(self) -> bool:
        bad = (Outcome.FAIL, Outcome.NOT_BUILT, Outcome.UNRESOLVED)
        return self.control.outcome in bad or self.canary.outcome in bad


def run(planned: Planned, image: Image, options: NightlyOptions) -> ImageResult:
    """Both jobs of an image, and the bisection of what breaks its canary.

    Appends a line as soon as it is known. Raises UserError: no lock, or an index or an engine that does not answer.
    """
    control = Locked(image=image, lock=lock_file.read(image, options.sources.workspace.locks))
    before = sets.validated(control, options.tiers, str(Job.CONTROL), options)
    before = bisection.beside(before, before)
    people_have = options.debian_before(planned.name)  # the Debian packages of the image that they have
    moved = sets.moves(people_have, before.debian) if people_have and before.debian else ()
    control_line = _line(planned, control, Job.CONTROL, moved, before, options)
    if kept := options.sources.matrix.nightly.why_kept(str(image.name.torch), options.now().date()):
        line = _appended(planned, Job.CANARY, Outcome.UNCHANGED, options, versions=control.hash, cause=kept)
        return ImageResult(image=planned.name, control=control_line, canary=line)
    try:
        newest, gaps = _newest(control, options)
    except uv.NoSolution as error:
        line = _appended(planned, Job.CANARY, Outcome.UNRESOLVED, options, cause=error.problems[0].cause)
        return ImageResult(image=planned.name, control=control_line, canary=line)
    changed = sets.moves(control.versions, newest.versions, [pin.name for pin in image.pins])
    if not changed:
        line = _appended(planned, Job.CANARY, Outcome.UNCHANGED, options, versions=control.hash)
        return ImageResult(image=planned.name, control=control_line, canary=line, gaps=gaps)
    options.progress(planned.name, f"canary: {', '.join(str(one) for one in changed if one.pinned)}")
    after = bisection.beside(before, sets.validated(newest, options.tiers, str(Job.CANARY), options))
    canary_line = _line(planned, newest, Job.CANARY, changed, after, options)
    worse = bisection.regressions(before, after, canary_line.expected)
    # As good: the control's verdicts or better ones, in all tiers that need no GPU.
    same = all(after.verdict(one.key) in (one.verdict, Status.PASS) for one in before.claims)
    failed = [one for one in after.claims if one.verdict is Status.FAIL and before.verdict(one.key) is not Status.FAIL]
    judged = {one.tier for one in after.claims} >= set(validating.ANYWHERE)
    return ImageResult(
        image=planned.name,
        control=control_line,
        canary=canary_line,
        breakages=tuple(bisection.breakages(planned, control, newest, changed, worse, before, options)),
        gaps=gaps,
        proposed=newest if not before.cause and judged and same and not failed else None,
    )


def _newest(control: Locked, options: NightlyOptions) -> tuple[Locked, tuple[Gap, ...]]:
    """The canary, and what it leaves behind. A resumed run uses the same one, whatever has been published since.

    Raises NoSolution where no versions fit together, UserError where the index can't be asked.
    """
    name = str(control.image.name)
    key = f"newest {name} {control.hash} {options.sources.revision}"
    if (known := options.state.find(key)) is not None:
        return sets.relocked(control, known["versions"], options.run), tuple(Gap(**one) for one in known["gaps"])
    options.progress(name, "resolving the newest versions")
    refused = sets.refused_by_facts(control.image, options.sources)
    wanted = sets.requirements(control, options.sources.matrix.nightly, refused)
    chosen = uv.versions(wanted, control.lock.inputs, preferred={}, run=options.run, where=name)
    newest = sets.relocked(control, chosen, options.run)
    pythons = sorted({str(base.python) for base in options.sources.matrix.bases.values()}, key=Version)
    gaps = sets.gaps(control, newest, wanted, refused, pythons, options.run)
    options.state.keep(key, {"versions": newest.versions, "gaps": [asdict(one) for one in gaps]})
    return newest, gaps


def _line(
    planned: Planned, locked: Locked, job: Job, changed: Sequence[Change], found: SetResult, options: NightlyOptions
) -> JobLine:
    """The line of a job, appended and told."""
    rows = rows_for(planned, locked.versions, options.sources.matrix.xfail)
    expect = expected(found.claims, rows)
    failing = [claim for claim in found.claims if is_open(claim)]
    if found.cause:
        outcome = Outcome.NOT_BUILT
    elif sum(claim.verdict is Status.FAIL for claim in failing) > len(expect):
        outcome = Outcome.FAIL
    elif expect:
        outcome = Outcome.XFAIL
    else:
        proven = any(claim.required for claim in found.claims) and not failing
        outcome = Outcome.PASS if proven else Outcome.UNPROVEN
    line = _appended(
        planned,
        job,
        outcome,
        options,
        versions=locked.hash,
        cause=found.cause,
        tiers=tier_counts(found.claims),
        failing=failing,
        expected=expect,
        unexpected_passes=unexpected_passes(found.claims, rows),
        digest=found.digest,
        bytes=found.bytes,
        seconds=found.seconds,
        gpus=list(found.gpus),
        steps=dict(found.steps),
        changes=list(changed),
    )
    options.progress(planned.name, results.told(line))
    return line


def _appended(planned: Planned, job: Job, outcome: Outcome, options: NightlyOptions, **more: Any) -> JobLine:
    """The line of a job, appended once: a resumed run has those that it wrote before."""
    line = JobLine(
        date=options.now(),
        image=planned.name,
        job=job,
        outcome=outcome,
        revision=options.sources.revision,
        **more,
    )
    key = f"line {line.image} {line.job} {line.versions} {line.revision}"
    if (known := options.state.find(key)) is not None:
        return JobLine.model_validate(known)
    results.append(line, options.results)
    options.state.keep(key, line.model_dump(mode="json"))
    return line


def rows_for(image: Any, versions: Mapping[str, str], rows: Sequence[ExpectedFailure]) -> list[ExpectedFailure]:
    """The rows that speak of an image with these versions (distribution -> version)."""
    found = []
    for row in (row for row in rows if selectors.parse(row.select)(image)):
        wanted = Requirement(row.when) if row.when else None
        version = versions.get(canonicalize_name(wanted.name)) if wanted else None
        if wanted is None or (version and wanted.specifier.contains(version, prereleases=True)):
            found.append(row)
    return found


def expected(claims: Sequence[ClaimRow], rows: Sequence[ExpectedFailure]) -> list[Expected]:
    """The claims that failed as a row says they do."""
    found = []
    for claim in (one for one in claims if one.verdict is Status.FAIL):
        if row := next((row for row in rows if row.claim in (claim.check, claim.key)), None):
            found.append(Expected(check=claim.check, subject=claim.subject, issue=row.issue, reason=claim.reason))
    return found


def unexpected_passes(claims: Sequence[ClaimRow], rows: Sequence[ExpectedFailure]) -> list[Expected]:
    """Claims of rows whose every claim was measured and is PASS."""
    found: list[Expected] = []
    for row in rows:
        about = [claim for claim in claims if row.claim in (claim.check, claim.key)]
        if all(claim.verdict is Status.PASS for claim in about):
            found += [Expected(check=one.check, subject=one.subject, issue=row.issue, reason="") for one in about]
    return found
