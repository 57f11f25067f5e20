"""Find the packages that break a canary, by bisecting over the versions that changed.

`find_smallest_failing` is pure. It halves prefixes of the changes, as `git bisect` does with
commits, until it finds a change without which its prefix does not fail. With that change fixed it
searches on below it. From what is left it takes out changes one at a time, until none can be taken
out.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
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


def find_smallest_failing(
    changes: Sequence[Change], attempt: Callable[[frozenset[Change]], bool]
) -> tuple[Change, ...]:
    """Return a smallest failing set of changes, in their order.

    With any one of its changes left out, the set does not fail. It is assumed, and not tried, that
    all changes together fail and that no change at all passes. `attempt` returns whether a set
    fails; it must return False for a set that cannot be decided. Each set is tried at most once.

    For one culprit among n changes, with every set decided, it takes at most ceil(log2(n)) + 1
    attempts; for k culprits that are needed together, at most k * (ceil(log2(n)) + k + 2).
    """
    answers = {frozenset[Change](): False, frozenset(changes): True}

    def fails(subset: Sequence[Change]) -> bool:
        key = frozenset(subset)
        if key not in answers:
            answers[key] = attempt(key)
        return answers[key]

    # Find one culprit after the other, the last one first, until those that are known fail alone.
    culprits: tuple[Change, ...] = ()
    before = tuple(changes)
    while before and not fails(culprits):
        # Halve: the known culprits fail with the first `high` changes, and pass with the first
        # `low`. In the end the change at `low` makes the difference, so it is a culprit.
        low, high = 0, len(before)
        while high - low > 1:
            middle = (low + high) // 2
            if fails(culprits + before[:middle]):
                high = middle
            else:
                low = middle
        culprits, before = (before[low], *culprits), before[:low]

    # Take out one change at a time, as long as the others still fail.
    while True:
        smaller = _find_failing(fails, combinations(culprits, max(0, len(culprits) - 1)))
        if not smaller:
            return culprits
        culprits = smaller


def _find_failing(
    fails: Callable[[Sequence[Change]], bool], subsets: Iterable[tuple[Change, ...]]
) -> tuple[Change, ...]:
    """Return the first of the subsets that fails; empty if none does."""
    for subset in subsets:
        if fails(subset):
            return subset
    return ()


def is_open(claim: ClaimRow) -> bool:
    """Return whether a claim failed, or is required and could not be measured."""
    return claim.verdict is Status.FAIL or (claim.required and claim.verdict is Status.UNPROVEN)


def regressions(control: SetResult, newer: SetResult) -> list[ClaimRow]:
    """Return the claims that only the control passes, the cheapest tier first.

    Only claims that fail in `newer`, or are required and UNPROVEN there, count. If `newer` could
    not be built, one claim BUILD stands for all; if the control could not, there is no regression.
    """
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
        """Bisect until every claim of `worse` is explained, and return a line for each search.

        A line names a set of culprits and every claim that they break. It is also appended to the
        results, as soon as it is known.
        """
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
        """Find the culprits of the first claim, and return a line with all that they break.

        `worse`: the claims to explain. Builds and validates a mixture of versions for each attempt.
        """
        claim = worse[0]
        # Only a package that both sets have can be left at its old version.
        movable = [change.name for change in self.changes if change.before and change.after]
        self.options.progress(
            self.planned.name, f"bisecting {claim.key} over {len(movable)} packages"
        )

        def attempt(moved: frozenset[str]) -> bool:
            result = self._validate(moved, (claim.tier,))
            answer = _shows_failure(result, claim) if result else None
            names = " ".join(name for name in movable if name in moved)
            text = f"{claim.key} with {len(moved)} moved: {_ANSWERS[answer]} ({names})"
            self.options.progress(self.planned.name, text)
            return answer is True

        names = find_smallest_failing(movable, attempt)
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
            sentence=results.describe_breakage(culprits, claims),
            key=results.culprits_key(culprits),
        )

    def _validate(self, moved: frozenset[str], tiers: tuple[Tier, ...]) -> SetResult | None:
        """Build and validate the control with these packages moved; None where no versions fit."""
        mixture = sets.mix_versions(self.control, self.canary, moved, self.options.run)
        if mixture is None:
            return None
        key = mixture.hash, tiers
        if key not in self.results:
            self.results[key] = self.options.validate(mixture, tiers, "bisect")
        return self.results[key]

    def _broken_by(self, culprits: frozenset[str], worse: Sequence[ClaimRow]) -> list[ClaimRow]:
        """Return the claims that the culprits break by themselves.

        `worse` has the claims to look at. Its first one, which was bisected, always comes first.
        """
        tiers = {claim.tier for claim in worse}
        # None if no versions fit together with the culprits'.
        alone = self._validate(culprits, tuple(tier for tier in Tier if tier in tiers))
        judged = {claim.key: claim for claim in alone.claims} if alone else {}
        claims = [judged.get(worse[0].key, worse[0])]
        for claim in worse[1:]:
            if claim.key in judged and _is_same(judged[claim.key], claim):
                claims.append(judged[claim.key])
        return claims


def _shows_failure(result: SetResult, claim: ClaimRow) -> bool | None:
    """Return whether a result has the same failure as `claim`, which the canary failed.

    False: the claim passes. None: it fails for another reason, or has no verdict.
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
    """Return whether both are the same failure: their reasons begin alike, but for numbers."""
    if (claim.key, claim.verdict) != (other.key, other.verdict):
        return False
    return _reason_head(claim) == _reason_head(other)


def _reason_head(claim: ClaimRow) -> str:
    """Return the beginning of a claim's reason without numbers, such as addresses and sizes."""
    return re.sub(r"[\d\s]+", " ", claim.reason)[:_HEAD]
