"""What breaks a canary: its regressions against the control, each bisected down to the packages that cause it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from images.nightly import bisect, canary, jobs, report, results
from images.nightly.canary import Locked
from images.nightly.options import NightlyOptions
from images.nightly.results import BUILD, BreakageLine, Change, Expected
from images.nightly.state import Trial
from images.nightly.together import together
from images.planning.plan import Planned
from images.validation.rows import ClaimRow
from validate.claims import Tier
from validate.judging import Status

_HEAD = 60
"""Characters that tell reasons apart."""


def regressions(control: Trial, newer: Trial, expected: Sequence[Expected]) -> list[ClaimRow]:
    """Claims that the control passes and the canary does not, the cheapest tier first; without expected failures."""
    if control.cause:
        return []
    if newer.cause:
        return [_unbuilt(newer.cause)]
    known = {(one.id, one.subject) for one in expected}
    worse = [
        claim
        for claim in newer.claims
        if jobs.is_open(claim) and control.verdict(claim.key) is Status.PASS and (claim.id, claim.subject) not in known
    ]
    return sorted(worse, key=lambda claim: list(Tier).index(claim.tier))


def _unbuilt(cause: str) -> ClaimRow:
    return ClaimRow(id=BUILD, subject="", tier=Tier.STATIC, verdict=Status.FAIL, required=True, reason=cause)


@dataclass(kw_only=True)
class Search:
    """The bisection of one canary."""

    planned: Planned
    control: Locked
    canary: Locked
    changed: Sequence[Change]
    options: NightlyOptions
    built: set[str] = field(default_factory=set)
    """Versions and tiers that the search had built and validated."""

    def breakages(self, worse: Sequence[ClaimRow]) -> Iterator[BreakageLine]:
        """A line for each set of culprits. It names every claim that the set breaks."""
        left = list(worse)
        while left:
            line = self._remembered(left[0], left)
            yield line
            told = {claim.key for claim in line.claims}
            left = [claim for claim in left[1:] if claim.key not in told]

    def _remembered(self, claim: ClaimRow, worse: Sequence[ClaimRow]) -> BreakageLine:
        key = f"breakage {self.planned.name} {self.control.hash} {self.canary.hash} {claim.key}"
        if (known := self.options.state.find(key)) is not None:
            return BreakageLine.model_validate(known)
        line = self._bisected(claim, worse)
        results.append(line, self.options.results)
        self.options.state.keep(key, line.model_dump(mode="json"))
        self.options.tell(self.planned.name, line.sentence)
        return line

    def _bisected(self, claim: ClaimRow, worse: Sequence[ClaimRow]) -> BreakageLine:
        start = time.monotonic()
        self.built.clear()
        movable = [one.name for one in self.changed if one.before and one.after]
        self.options.tell(self.planned.name, f"bisecting {claim.brief} over {len(movable)} packages")
        at_once = self._at_once(claim)
        found = bisect.smallest_together(movable, lambda sets: self._round(sets, claim, at_once), at_once)
        culprits = [one for one in self.changed if one.name in found.changes]
        claims = self._broken_by(found.changes, claim, worse)
        return BreakageLine(
            date=self.options.now(),
            image=self.planned.name,
            versions=self.canary.hash,
            revision=self.options.sources.revision,
            claims=claims,
            culprits=culprits,
            sentence=report.sentence(culprits or list(self.changed), claims),
            key=report.key(culprits or list(self.changed)),
            candidates=len(movable),
            builds=len(self.built),
            unresolved=found.unresolved,
            rounds=found.rounds,
            at_once=at_once,
            seconds=round(time.monotonic() - start, 1),
            ranges=dict(self.options.ranges),
        )

    def _at_once(self, claim: ClaimRow) -> int:
        """How many sets a round tries. Trials on the same GPUs would take each other's memory: one at a time."""
        return self.options.at_once if claim.tier in (Tier.STATIC, Tier.CPU) else 1

    def _round(self, sets: Sequence[frozenset[str]], claim: ClaimRow, at_once: int) -> list[bisect.Outcome]:
        """Try sets side by side: each under a name of its own."""
        if len(sets) > 1:
            self.options.tell(self.planned.name, f"{claim.brief}: {len(sets)} sets at once")
        names = [f"bisect-{number}" for number in range(len(sets))] if at_once > 1 else ["bisect"]
        works = [partial(self._attempt, moved, claim, name) for moved, name in zip(sets, names, strict=True)]
        return together(works, self.options.cancel)

    def _attempt(self, moved: frozenset[str], claim: ClaimRow, label: str) -> bisect.Outcome:
        found = self._trial(moved, [claim.tier], label)
        outcome = _outcome(found, claim) if found else bisect.Outcome.UNRESOLVED
        names = " ".join(one.name for one in self.changed if one.name in moved)
        self.options.tell(self.planned.name, f"{claim.brief} with {len(moved)} moved: {outcome} ({names})")
        return outcome

    def _broken_by(self, culprits: Sequence[str], claim: ClaimRow, worse: Sequence[ClaimRow]) -> list[ClaimRow]:
        """The claims that the culprits break by themselves, the bisected one first."""
        tiers = [tier for tier in Tier if tier in {one.tier for one in worse}]
        found = self._trial(frozenset(culprits), tiers, "bisect")
        if found is None or found.cause:
            return [claim]
        alone = {one.key: one for one in found.claims for wanted in worse if _is_same(one, wanted)}
        others = [alone[one.key] for one in worse if one.key in alone and one.key != claim.key]
        return [alone.get(claim.key, claim), *others]

    def _trial(self, moved: frozenset[str], tiers: Sequence[Tier], label: str) -> Trial | None:
        mixture = canary.mixed(self.control, self.canary, moved, self.options.run)
        if mixture is None:
            return None
        self.built.add(f"{mixture.hash} {tiers}")
        return jobs.tried(mixture, tiers, label, self.options)


def _outcome(found: Trial, claim: ClaimRow) -> bisect.Outcome:
    """Whether a trial shows the failure that is looked for. A failure for another reason does not tell."""
    if claim.id == BUILD:
        return bisect.Outcome.FAIL if found.cause else bisect.Outcome.PASS
    own = next((one for one in found.claims if one.key == claim.key), None)
    if own is None or own.verdict is Status.PASS:
        return bisect.Outcome.PASS if own else bisect.Outcome.UNRESOLVED
    return bisect.Outcome.FAIL if _is_same(own, claim) else bisect.Outcome.UNRESOLVED


def _is_same(one: ClaimRow, other: ClaimRow) -> bool:
    """The same failure: its reason begins alike, numbers aside. The rest may name other failures."""
    return (one.key, one.verdict, _head(one.reason)) == (other.key, other.verdict, _head(other.reason))


def _head(reason: str) -> str:
    return re.sub(r"[\d\s]+", " ", reason)[:_HEAD]
