"""A nightly run of one image: as locked (control), with the newest versions (canary), and what broke between them.

What builds and validates is injected (`Judge`), and so are the resolver and the clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from images.building import validating
from images.locking import lock_file, uv
from images.nightly import canary, jobs, report
from images.nightly.canary import Locked
from images.nightly.options import NightlyOptions
from images.nightly.results import BreakageLine, Job, JobLine, Outcome
from images.nightly.search import Search
from images.nightly.search import regressions as regressions_of
from images.nightly.state import Trial
from images.planning.image import Image
from images.planning.plan import Planned
from validate.judging import Status


@dataclass(frozen=True, kw_only=True)
class ImageResult:
    """Both jobs of one image. `proposed`: the lock of a canary that is as good as the control."""

    image: str
    control: JobLine
    canary: JobLine
    breakages: tuple[BreakageLine, ...] = ()
    proposed: Locked | None = None

    @property
    def broken(self) -> bool:
        bad = (Outcome.FAIL, Outcome.NOT_BUILT, Outcome.UNRESOLVED)
        return self.control.outcome in bad or self.canary.outcome in bad


def run(planned: Planned, image: Image, options: NightlyOptions) -> ImageResult:
    """Both jobs of an image, and the bisection of what breaks its canary.

    Appends a line as soon as it is known. Raises UserError: no lock, or an index or an engine that does not answer.
    """
    control = Locked(image=image, lock=lock_file.read(image, options.locks))
    before, control_line = jobs.run(planned, control, Job.CONTROL, (), options)
    options.tell(planned.name, report.job(control_line))
    try:
        newest = _newest(control, options)
    except uv.NoSolution as error:
        line = jobs.plain_line(planned, Job.CANARY, Outcome.UNRESOLVED, options, cause=error.problems[0].cause)
        return ImageResult(image=planned.name, control=control_line, canary=jobs.appended(line, options))
    changed = canary.changes(control, newest)
    if not changed:
        line = jobs.plain_line(planned, Job.CANARY, Outcome.UNCHANGED, options, versions=control.hash)
        return ImageResult(image=planned.name, control=control_line, canary=jobs.appended(line, options))
    options.tell(planned.name, f"canary: {', '.join(str(one) for one in changed if one.pinned)}")
    after, canary_line = jobs.run(planned, newest, Job.CANARY, changed, options)
    options.tell(planned.name, report.job(canary_line))
    regressions = regressions_of(before, after, canary_line.expected)
    search = Search(planned=planned, control=control, canary=newest, changed=changed, options=options)
    return ImageResult(
        image=planned.name,
        control=control_line,
        canary=canary_line,
        breakages=tuple(search.breakages(regressions)),
        proposed=newest if _is_as_good(before, after) else None,
    )


def _newest(control: Locked, options: NightlyOptions) -> Locked:
    """The canary. A resumed run uses the same one, whatever has been published since."""
    name = str(control.image.name)
    key = f"newest {name} {control.hash} {json.dumps(dict(options.ranges), sort_keys=True)}"
    if (known := options.state.find(key)) is not None:
        return canary.relocked(control, known, options.run)
    options.tell(name, "resolving the newest versions")
    refused = canary.refused_by_facts(control.image, options.sources)
    wanted = canary.requirements(control, options.sources.matrix.nightly, refused, options.ranges)
    newest = canary.newest(control, wanted, options.run)
    options.state.keep(key, newest.versions)
    return newest


def _is_as_good(control: Trial, newer: Trial) -> bool:
    """Whether the canary has the control's verdicts or better ones in all tiers that need no GPU."""
    same = all(newer.verdict(one.key) in (one.verdict, Status.PASS) for one in control.claims)
    new = [one for one in newer.claims if one.verdict is Status.FAIL and control.verdict(one.key) is not Status.FAIL]
    judged = all(tier in newer.overall for tier in validating.ANYWHERE)
    return not control.cause and judged and same and not new
