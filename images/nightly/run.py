"""A night: each tracked image as it is locked (control) and at the newest versions (canary), and what broke between.

What builds and judges is injected (`Judge`), and so are the resolver and the clock: the rest decides and keeps books.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from pathlib import Path

from images.building import pipeline
from images.config import paths
from images.config.matrix import Sources
from images.context.hosting import HostSettings
from images.engine import Engine, ImageInfo
from images.engine.failures import BuildFailed, FailureKind
from images.engine.progress import Progress
from images.errors import UserError
from images.host.hashing import sha256
from images.locking import lock_file, uv
from images.nightly import bisect, canary, results, xfail
from images.nightly import report as nightly_report
from images.nightly.canary import Locked
from images.nightly.results import BUILD, BreakageLine, Change, ClaimRow, Expected, Leg, LegLine, Outcome, TierCount
from images.nightly.state import State, Trial
from images.planning.image import Image
from images.planning.plan import Planned
from images.validation import schemas, trial
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

Judge = Callable[[Locked, Sequence[Tier], str], Trial]
"""Builds these versions and judges these tiers (none: all that the machine can), under a name with this suffix.

Raises UserError for trouble that is not the versions' fault: a network, a disk, an engine.
"""

_ELSEWHERE = frozenset(
    {
        FailureKind.NETWORK,
        FailureKind.TLS,
        FailureKind.ACCESS,
        FailureKind.DISK,
        FailureKind.MEMORY,
        FailureKind.APT,
        FailureKind.BASE,
    }
)
"""Why a build fails whatever its versions are."""
_REASON = 600
"""Characters of a reason that a line keeps."""
_HEAD = 60
"""Characters that tell reasons apart."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """How a night goes."""

    sources: Sources
    judge: Judge
    state: State
    now: Callable[[], datetime]
    results: Path = field(default_factory=lambda: paths.workspace().results / "nightly")
    ranges: Mapping[str, str] = field(default_factory=dict)
    """Distribution -> range, over the matrix's, for this run."""
    tiers: Sequence[Tier] = ()
    run: uv.Runner = uv.run
    locks: Path = field(default_factory=lambda: paths.workspace().locks)
    tell: Callable[[str, str], None] = lambda _image, _text: None

    def remembered(self, key: str, work: Callable[[], Trial]) -> Trial:
        """A trial, made once: what this night or the one it resumes has judged is taken from the state."""
        known = self.state.find(key)
        if known is not None:
            return Trial.model_validate(known)
        made = work()
        self.state.keep(key, made.model_dump(mode="json"))
        return made


@dataclass(frozen=True, kw_only=True)
class Night:
    """What came of one image. `offered`: the canary holds all that the control holds."""

    image: str
    control: LegLine
    canary: LegLine
    breakages: tuple[BreakageLine, ...] = ()
    offered: Locked | None = None

    @property
    def broken(self) -> bool:
        bad = (Outcome.FAIL, Outcome.NOT_BUILT, Outcome.UNRESOLVED)
        return self.control.outcome in bad or self.canary.outcome in bad


def night(planned: Planned, image: Image, order: Order) -> Night:
    """Both legs of an image, and the bisection of what breaks its canary.

    Appends a line as soon as it is known. Raises UserError: no lock, an index or an engine that gives no answer.
    """
    control = Locked(image=image, lock=lock_file.read(image, order.locks))
    before, control_line = _leg(planned, control, Leg.CONTROL, (), order)
    order.tell(planned.name, nightly_report.leg(control_line))
    try:
        newest = _newest(control, order)
    except uv.NoSolution as error:
        line = _plain_line(planned, Leg.CANARY, Outcome.UNRESOLVED, order, cause=error.problems[0].cause)
        return Night(image=planned.name, control=control_line, canary=_appended(line, order))
    changed = canary.changes(control, newest)
    if not changed:
        line = _plain_line(planned, Leg.CANARY, Outcome.UNCHANGED, order, versions=control.hash)
        return Night(image=planned.name, control=control_line, canary=_appended(line, order))
    order.tell(planned.name, f"canary: {', '.join(str(one) for one in changed if one.pinned)}")
    after, canary_line = _leg(planned, newest, Leg.CANARY, changed, order)
    order.tell(planned.name, nightly_report.leg(canary_line))
    worse = _worse(before, after, canary_line.expected)
    search = _Search(planned=planned, control=control, canary=newest, changed=changed, order=order)
    return Night(
        image=planned.name,
        control=control_line,
        canary=canary_line,
        breakages=tuple(search.breakages(worse)),
        offered=newest if _holds(before, after) else None,
    )


def _newest(control: Locked, order: Order) -> Locked:
    """The canary; the same again on resumption, whatever has been published since."""
    name = str(control.image.name)
    key = f"newest {name} {control.hash} {json.dumps(dict(order.ranges), sort_keys=True)}"
    if (known := order.state.find(key)) is not None:
        return canary.relocked(control, known, order.run)
    order.tell(name, "resolving the newest versions")
    refused = canary.refused_by_facts(control.image, order.sources)
    wanted = canary.requirements(control, order.sources.matrix.nightly, refused, order.ranges)
    newest = canary.newest(control, wanted, order.run)
    order.state.keep(key, newest.versions)
    return newest


# --- legs -----------------------------------------------------------------------------------------------------------


def _leg(planned: Planned, locked: Locked, leg: Leg, changed: Sequence[Change], order: Order) -> tuple[Trial, LegLine]:
    """Build and judge one leg, and append its line."""
    found = _tried(locked, order.tiers, str(leg), order)
    rows = xfail.rows_for(planned, locked.versions, order.sources.matrix.xfail)
    expected = xfail.expected(found.claims, rows)
    failing = [claim for claim in found.claims if _not_well(claim)]
    line = _plain_line(planned, leg, _outcome(found, failing, expected), order, versions=locked.hash, cause=found.cause)
    line = line.model_copy(
        update={
            "tiers": _counted(found),
            "failing": failing,
            "expected": expected,
            "passing_again": xfail.passing_again(found.claims, rows),
            "digest": found.digest,
            "bytes": found.bytes,
            "seconds": found.seconds,
            "gpus": list(found.gpus),
            "changes": list(changed),
        }
    )
    return found, _appended(line, order)


def _tried(locked: Locked, tiers: Sequence[Tier], label: str, order: Order) -> Trial:
    """A set of versions, judged once a night."""
    names = ",".join(tiers) or "all"
    key = f"trial {locked.image.name} {locked.hash} {order.sources.revision} {_suite()} {names}"
    return order.remembered(key, lambda: order.judge(locked, tiers, label))


@cache
def _suite() -> str:
    """Short hash of what measures and judges: another suite may answer otherwise."""
    files = trial.suite_files(ClaimSet(image="", claims=()))
    return sha256(b"\0".join(name.encode() + text for name, text in sorted(files.items())))[:12]


def _not_well(claim: ClaimRow) -> bool:
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


def _plain_line(
    planned: Planned, leg: Leg, outcome: Outcome, order: Order, *, versions: str = "", cause: str = ""
) -> LegLine:
    return LegLine(
        date=order.now(),
        image=planned.name,
        leg=leg,
        outcome=outcome,
        versions=versions,
        revision=order.sources.revision,
        tiers={},
        failing=[],
        expected=[],
        passing_again=[],
        digest="",
        bytes=0,
        seconds=0.0,
        gpus=[],
        changes=[],
        ranges=dict(order.ranges),
        cause=cause,
    )


def _appended(line: LegLine, order: Order) -> LegLine:
    """A line is appended once: a resumed night has those that it wrote before."""
    key = f"line {line.image} {line.leg} {line.versions} {line.revision} {sorted(order.ranges.items())}"
    if (known := order.state.find(key)) is not None:
        return LegLine.model_validate(known)
    results.append(line, order.results)
    order.state.keep(key, line.model_dump(mode="json"))
    return line


def _worse(control: Trial, newer: Trial, expected: Sequence[Expected]) -> list[ClaimRow]:
    """What the control keeps and the canary does not, the cheapest tier first; what is expected is no news."""
    if control.cause:
        return []
    if newer.cause:
        return [_unbuilt(newer.cause)]
    known = {(one.id, one.subject) for one in expected}
    worse = [
        claim
        for claim in newer.claims
        if _not_well(claim) and control.verdict(claim.key) is Status.PASS and (claim.id, claim.subject) not in known
    ]
    return sorted(worse, key=lambda claim: list(Tier).index(claim.tier))


def _unbuilt(cause: str) -> ClaimRow:
    return ClaimRow(id=BUILD, subject="", tier=Tier.STATIC, verdict=Status.FAIL, required=True, reason=cause)


def _holds(control: Trial, newer: Trial) -> bool:
    """Whether the canary has the control's verdicts or better ones in all tiers that any machine can judge."""
    same = all(newer.verdict(one.key) in (one.verdict, Status.PASS) for one in control.claims)
    new = [one for one in newer.claims if one.verdict is Status.FAIL and control.verdict(one.key) is not Status.FAIL]
    judged = all(tier in newer.overall for tier in pipeline.ANYWHERE)
    return not control.cause and judged and same and not new


# --- bisection ------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Search:
    """The bisection of one canary."""

    planned: Planned
    control: Locked
    canary: Locked
    changed: Sequence[Change]
    order: Order
    built: set[str] = field(default_factory=set)
    """Versions and tiers that the search had built and judged."""

    def breakages(self, worse: Sequence[ClaimRow]) -> Iterator[BreakageLine]:
        """A line for each set of culprits: a claim that a set found before breaks as well is told with it."""
        left = list(worse)
        while left:
            line = self._remembered(left[0], left)
            yield line
            told = {claim.key for claim in line.claims}
            left = [claim for claim in left[1:] if claim.key not in told]

    def _remembered(self, claim: ClaimRow, worse: Sequence[ClaimRow]) -> BreakageLine:
        key = f"breakage {self.planned.name} {self.control.hash} {self.canary.hash} {claim.key}"
        if (known := self.order.state.find(key)) is not None:
            return BreakageLine.model_validate(known)
        line = self._bisected(claim, worse)
        results.append(line, self.order.results)
        self.order.state.keep(key, line.model_dump(mode="json"))
        self.order.tell(self.planned.name, line.sentence)
        return line

    def _bisected(self, claim: ClaimRow, worse: Sequence[ClaimRow]) -> BreakageLine:
        start = time.monotonic()
        self.built.clear()
        movable = [one.name for one in self.changed if one.before and one.after]
        self.order.tell(self.planned.name, f"bisecting {claim.brief} over {len(movable)} packages")
        found = bisect.smallest(movable, lambda moved: self._attempt(moved, claim))
        culprits = [one for one in self.changed if one.name in found.changes]
        claims = self._broken_by(found.changes, claim, worse)
        return BreakageLine(
            date=self.order.now(),
            image=self.planned.name,
            versions=self.canary.hash,
            revision=self.order.sources.revision,
            claims=claims,
            culprits=culprits,
            sentence=nightly_report.sentence(culprits or list(self.changed), claims),
            key=nightly_report.key(culprits or list(self.changed)),
            candidates=len(movable),
            builds=len(self.built),
            unresolved=found.unresolved,
            seconds=round(time.monotonic() - start, 1),
            ranges=dict(self.order.ranges),
        )

    def _attempt(self, moved: frozenset[str], claim: ClaimRow) -> bisect.Outcome:
        found = self._trial(moved, [claim.tier])
        outcome = _told(found, claim) if found else bisect.Outcome.UNRESOLVED
        names = " ".join(one.name for one in self.changed if one.name in moved)
        self.order.tell(self.planned.name, f"{claim.brief} with {len(moved)} moved: {outcome} ({names})")
        return outcome

    def _broken_by(self, culprits: Sequence[str], claim: ClaimRow, worse: Sequence[ClaimRow]) -> list[ClaimRow]:
        """The claims that the culprits break by themselves, the bisected one first."""
        tiers = [tier for tier in Tier if tier in {one.tier for one in worse}]
        found = self._trial(frozenset(culprits), tiers)
        if found is None or found.cause:
            return [claim]
        alone = {one.key: one for one in found.claims for wanted in worse if _is_same(one, wanted)}
        others = [alone[one.key] for one in worse if one.key in alone and one.key != claim.key]
        return [alone.get(claim.key, claim), *others]

    def _trial(self, moved: frozenset[str], tiers: Sequence[Tier]) -> Trial | None:
        mixture = canary.mixed(self.control, self.canary, moved, self.order.run)
        if mixture is None:
            return None
        self.built.add(f"{mixture.hash} {tiers}")
        return _tried(mixture, tiers, "bisect", self.order)


def _told(found: Trial, claim: ClaimRow) -> bisect.Outcome:
    """Whether a trial shows the failure that is looked for: one that fails for another reason says nothing of it."""
    if claim.id == BUILD:
        return bisect.Outcome.FAIL if found.cause else bisect.Outcome.PASS
    own = next((one for one in found.claims if one.key == claim.key), None)
    if own is None or own.verdict is Status.PASS:
        return bisect.Outcome.PASS if own else bisect.Outcome.UNRESOLVED
    return bisect.Outcome.FAIL if _is_same(own, claim) else bisect.Outcome.UNRESOLVED


def _is_same(one: ClaimRow, other: ClaimRow) -> bool:
    """The same failure: its reason begins alike, numbers aside. The rest may tell of others that fail beside it."""
    return (one.key, one.verdict, _head(one.reason)) == (other.key, other.verdict, _head(other.reason))


def _head(reason: str) -> str:
    return re.sub(r"[\d\s]+", " ", reason)[:_HEAD]


# --- the engine -----------------------------------------------------------------------------------------------------


def on_engine(engine: Engine, order: pipeline.BuildOptions, host: HostSettings, progress: Progress) -> Judge:
    """The real judge: builds with the engine, judges, and leaves no image behind."""

    def judge(locked: Locked, tiers: Sequence[Tier], label: str) -> Trial:
        start = time.monotonic()
        folder, name = order.out / "locks", f"{locked.image.name}-{label}"
        files = lock_file.written(locked.lock).items()
        lock_file.write({f"{locked.image.lock_name}/{path}": content for path, content in files}, folder)
        own = replace(order, locks=folder, suffix=f"-{label}", tiers=tiers or order.tiers)
        try:
            (result,) = pipeline.build_all(engine, [locked.image], own, host, progress, 1)
        finally:
            for tag in (name, f"{name}-candidate"):
                engine.untag(tag)
        if isinstance(result, UserError):
            return Trial(claims=(), cause=own_fault(result), seconds=round(time.monotonic() - start, 1))
        evidence = schemas.read_evidence(order.out / name / "evidence.json")
        found = trial_of(result.info, evidence, result.verdict)
        return found.model_copy(update={"seconds": round(time.monotonic() - start, 1)})

    return judge


def own_fault(error: UserError) -> str:
    """Why these versions can't be built. Raises the error again where it is not their fault."""
    if not isinstance(error, BuildFailed) or error.failure.kind in _ELSEWHERE:
        raise error
    return f"{error.problems[0].where}: {error.problems[0].cause}"


def trial_of(info: ImageInfo, evidence: Evidence, verdict: Verdict) -> Trial:
    """A verdict as a night keeps it."""
    return Trial(
        claims=tuple(map(_row, verdict.claims)),
        overall={tier: _tier(verdict, tier).overall for tier in Tier if _tier(verdict, tier).claims},
        digest=info.id,
        bytes=info.size,
        gpus=tuple(str(gpu["name"]) for gpu in evidence.host.get("gpus", ())),
    )


def _tier(verdict: Verdict, tier: Tier) -> Verdict:
    return replace(verdict, claims=tuple(one for one in verdict.claims if one.claim.tier is tier))


def _row(one: ClaimVerdict) -> ClaimRow:
    return ClaimRow(
        id=one.claim.id,
        subject=one.claim.subject,
        tier=one.claim.tier,
        verdict=one.status,
        required=one.claim.required,
        reason=one.reason[:_REASON],
    )
