"""What breaks a canary: its regressions against the control, each bisected down to the packages that cause it.

`smallest` is pure. Prefixes are halved, as `git bisect` does with commits, until one change is found without which its
prefix does not fail; with it fixed the search goes on below it. From what is left, changes are taken out one at a time
until no single one can be.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeVar

from images.nightly import results, sets
from images.nightly.results import BUILD, BreakageLine
from images.nightly.results import Change as PackageChange
from images.nightly.sets import Locked, NightlyOptions, SetResult
from images.planning.plan import Planned
from images.validation.rows import ClaimRow
from validate.claims import Tier
from validate.judging import Status

_HEAD = 60
"""Characters that tell reasons apart."""

Change = TypeVar("Change", bound=Hashable)
_ANSWERS = {True: "fail", False: "pass", None: "unresolved"}


def smallest(
    changes: Sequence[Change], attempt: Callable[[frozenset[Change]], bool]
) -> tuple[Change, ...]:
    """Return a smallest failing set, in the order of the changes: without any one of its changes it does not fail.

    Given are that without any change all is well, and that all changes together fail. `attempt` says whether a set
    fails; one that can't be decided counts as one that passes. It gets each set at most once.

    One culprit among n changes, with every set decided, takes at most ceil(log2(n)) + 1 attempts; k of them that are
    needed together at most k * (ceil(log2(n)) + k + 2).
    """
    answers = {frozenset[Change](): False, frozenset(changes): True}

    def fails(subset: Sequence[Change]) -> bool:
        key = frozenset(subset)
        if key not in answers:
            answers[key] = attempt(key)
        return answers[key]

    culprits, before = tuple[Change, ...](), tuple(changes)
    while before and not fails(culprits):
        # With the change at `low`, prefixes together with the known culprits begin to fail.
        low, high = 0, len(before)
        while high - low > 1:
            middle = (low + high) // 2
            if fails(culprits + before[:middle]):
                high = middle
            else:
                low = middle
        culprits, before = (before[low], *culprits), before[:low]

    smaller = culprits
    while smaller:
        culprits = smaller
        smaller = next(filter(fails, combinations(culprits, len(culprits) - 1)), ())
    return culprits


def is_open(claim: ClaimRow) -> bool:
    """The claim failed, or it is required and could not be measured."""
    return claim.verdict is Status.FAIL or (claim.required and claim.verdict is Status.UNPROVEN)


def regressions(control: SetResult, newer: SetResult) -> list[ClaimRow]:
    """Return the claims that the control passes and the canary does not, the cheapest tier first."""
    if control.cause:
        return []
    if newer.cause:
        return [
            ClaimRow(
                check=BUILD,
                subject="",
                tier=Tier.STATIC,
                verdict=Status.FAIL,
                required=True,
                reason=newer.cause,
            )
        ]
    worse = []
    for claim in newer.claims:
        if is_open(claim) and control.verdict(claim.key) is Status.PASS:
            worse.append(claim)
    return sorted(worse, key=lambda claim: list(Tier).index(claim.tier))


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search for the packages that break the canary of one image."""

    planned: Planned
    control: Locked
    canary: Locked
    changes: Sequence[PackageChange]
    options: NightlyOptions
    results: dict[tuple[str, tuple[Tier, ...]], SetResult] = field(default_factory=dict)
    """Hash of a mixture's lock, and tiers -> its result."""

    def breakages(self, worse: Sequence[ClaimRow]) -> list[BreakageLine]:
        """Return a line for each set of culprits, appended as it is found; it names every claim that they break."""
        lines = []
        remaining = list(worse)
        while remaining:
            line = self._bisect(remaining)
            results.append(line, self.options.results)
            self.options.progress(self.planned.name, line.sentence)
            lines.append(line)
            named = {claim.key for claim in line.claims}
            remaining = [claim for claim in remaining[1:] if claim.key not in named]
        return lines

    def _bisect(self, worse: Sequence[ClaimRow]) -> BreakageLine:
        """Bisect the first claim, and look which of the others its culprits break."""
        claim = worse[0]
        movable = [change.name for change in self.changes if change.before and change.after]
        self.options.progress(
            self.planned.name, f"bisecting {claim.key} over {len(movable)} packages"
        )

        def attempt(moved: frozenset[str]) -> bool:
            result = self._validate(moved, (claim.tier,))
            answer = _fails(result, claim) if result else None
            names = " ".join(name for name in movable if name in moved)
            text = f"{claim.key} with {len(moved)} moved: {_ANSWERS[answer]} ({names})"
            self.options.progress(self.planned.name, text)
            return answer is True

        names = smallest(movable, attempt)
        claims = self._broken_by(frozenset(names), worse)
        culprits = [change for change in self.changes if change.name in names]
        if not culprits:
            # Nothing moved from one version to another: all that came or went is named.
            culprits = list(self.changes)
        return BreakageLine(
            date=self.options.now(),
            image=self.planned.name,
            versions=self.canary.hash,
            revision=self.options.sources.revision,
            claims=claims,
            culprits=culprits,
            sentence=results.sentence(culprits, claims),
            key=results.culprits_key(culprits),
        )

    def _validate(self, moved: frozenset[str], tiers: tuple[Tier, ...]) -> SetResult | None:
        """Build and validate the control with these packages moved; None where no versions fit."""
        mixture = sets.mixed(self.control, self.canary, moved, self.options.run)
        if mixture is None:
            return None
        key = mixture.hash, tiers
        if key not in self.results:
            self.results[key] = self.options.validate(mixture, tiers, "bisect")
        return self.results[key]

    def _broken_by(self, culprits: frozenset[str], worse: Sequence[ClaimRow]) -> list[ClaimRow]:
        """Return the claims that the culprits break by themselves; the first is the one that was bisected."""
        tiers = {claim.tier for claim in worse}
        alone = self._validate(culprits, tuple(tier for tier in Tier if tier in tiers))
        judged = {claim.key: claim for claim in alone.claims} if alone else {}
        claims = [judged.get(worse[0].key, worse[0])]
        for claim in worse[1:]:
            if claim.key in judged and _is_same(judged[claim.key], claim):
                claims.append(judged[claim.key])
        return claims


def _fails(result: SetResult, claim: ClaimRow) -> bool | None:
    """Return whether a result shows the failure that is looked for.

    None: a failure for another reason, or no verdict on this claim.
    """
    if claim.check == BUILD:
        return bool(result.cause)
    for judged in result.claims:
        if judged.key == claim.key and judged.verdict is Status.PASS:
            return False
        if _is_same(judged, claim):
            return True
    return None


def _is_same(claim: ClaimRow, other: ClaimRow) -> bool:
    """Return whether both are the same failure: their reasons begin alike, numbers aside."""
    first, second = (re.sub(r"[\d\s]+", " ", row.reason)[:_HEAD] for row in (claim, other))
    return (claim.key, claim.verdict, first) == (other.key, other.verdict, second)
