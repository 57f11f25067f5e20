"""Find the packages that break a canary, by bisecting over the versions that changed.

`find_smallest_failing` is pure. It halves prefixes of the changes, as `git bisect` does with
commits, until it finds a change without which its prefix does not fail. With that change fixed it
searches on below it. From what is left it takes out changes one at a time, until none can be taken
out.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from images.nightly import results, sets
from images.nightly.results import BUILD, BreakageLine
from images.nightly.sets import Locked, NightlyOptions, SetResult
from images.planning.plan import Planned
from images.validation.rows import Change as PackageChange
from images.validation.rows import ClaimRow
from validate.claims import Tier
from validate.judging import Status, plural

_HEAD = 60
"""Characters that tell reasons apart."""

Change = TypeVar("Change", bound=Hashable)


class Answer(StrEnum):
    """What a mixture of versions shows about a claim that the canary failed."""

    FAIL = "fail"
    """The claim fails as in the canary."""
    PASS = "pass"
    UNRESOLVED = "unresolved"
    """Nothing: no versions fit, or the claim has no verdict, or it fails for another reason."""


def find_smallest_failing(
    changes: Sequence[Change], attempt: Callable[[frozenset[Change]], bool]
) -> tuple[Change, ...]:
    """Find which of some changes make something fail, such as a check of a mixture of versions.

    Returns a set of changes with which it fails, in the order of `changes`. The set is minimal:
    with any one of its changes left out, it does not fail.

    `attempt` applies a set of changes, and returns whether it fails with just these; False if that
    cannot be decided. It is called at most once for a set. That all changes together fail, and that
    it passes without any change, is assumed and not tried.

    For one culprit among n changes, with every set decided, it takes at most ceil(log2(n)) + 1
    attempts; for k culprits that are needed together, at most k * (ceil(log2(n)) + k + 2).
    """
    # Set of changes -> whether it fails.
    answers = {frozenset[Change](): False, frozenset(changes): True}

    def fails(subset: Sequence[Change]) -> bool:
        """Return whether a set fails. Call `attempt` only for a set that was not tried before."""
        key = frozenset(subset)
        if key not in answers:
            answers[key] = attempt(key)
        return answers[key]

    # Find culprits until those that are known fail by themselves. Each new one comes before those
    # that are known. `candidates` are the changes before all of them, and fail together with them.
    culprits: tuple[Change, ...] = ()
    candidates = tuple(changes)
    while candidates and not fails(culprits):
        # The shortest start of the candidates that fails together with the culprits ends with a
        # change that is needed.
        position = _find_last_needed(candidates, culprits, fails)
        culprits = (candidates[position], *culprits)
        candidates = candidates[:position]

    # A culprit that was found early may be needless beside those that were found later. Take out
    # one at a time, as long as the others still fail.
    while True:
        smaller = _leave_out_one(culprits, fails)
        if not smaller:
            return culprits
        culprits = smaller


def _find_last_needed(
    candidates: tuple[Change, ...],
    culprits: tuple[Change, ...],
    fails: Callable[[Sequence[Change]], bool],
) -> int:
    """Return the position of a candidate that the culprits need to fail, found by halving.

    Culprits are the changes that were found so far; `fails` tries a set of changes. The culprits
    pass by themselves, and fail together with all candidates. They fail with the candidates up to
    and including the returned one, and pass with those before it.
    """
    # The culprits pass with the first `too_few` candidates, and fail with the first `enough`.
    too_few, enough = 0, len(candidates)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if fails((*candidates[:middle], *culprits)):
            enough = middle
        else:
            too_few = middle
    return too_few


def _leave_out_one(
    changes: tuple[Change, ...], fails: Callable[[Sequence[Change]], bool]
) -> tuple[Change, ...]:
    """Return failing changes without one that they do not need to fail; empty if they need each.

    `fails` tries a set of changes. Leaving out the last change is tried first.
    """
    for index in reversed(range(len(changes))):
        others = changes[:index] + changes[index + 1 :]
        if fails(others):
            return others
    return ()


def is_failing(claim: ClaimRow) -> bool:
    """Return whether a claim is FAIL, or UNPROVEN although it is required.

    UNPROVEN means that it could not be measured, for example without a GPU.
    """
    if claim.verdict is Status.UNPROVEN:
        return claim.required
    return claim.verdict is Status.FAIL


def find_regressions(control: SetResult, newer: SetResult) -> list[ClaimRow]:
    """Return the claims that an image passes with its locked versions, but not with newer ones.

    control: what was judged of the image with the locked versions.
    newer: what was judged of it with newer versions. The claims that are returned come from here:
        they are FAIL, or UNPROVEN although they are required.

    Claims that need no GPU come first. If the image could not be built with newer versions, the
    list has a single claim, BUILD, which fails. If it could not even be built with its locked
    versions, nothing can be compared, and the list is empty.
    """
    # A result has a cause only if its image could not be built.
    if control.cause:
        return []
    if newer.cause:
        build_failure = ClaimRow(
            check=BUILD,
            subject="",
            tier=Tier.STATIC,
            verdict=Status.FAIL,
            required=True,
            reason=newer.cause,
        )
        return [build_failure]

    regressions = []
    for claim in newer.claims:
        if is_failing(claim) and control.verdict(claim.key) is Status.PASS:
            regressions.append(claim)
    # The tiers are in the order of what they need, those without a GPU first.
    tiers = list(Tier)
    return sorted(regressions, key=lambda claim: tiers.index(claim.tier))


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search for the packages that break the canary of one image.

    It tries mixtures of versions: the control, with some packages moved to the canary's versions.
    """

    planned: Planned
    control: Locked
    canary: Locked
    changes: Sequence[PackageChange]
    """What differs between control and canary."""
    options: NightlyOptions
    results: dict[tuple[str, tuple[Tier, ...]], SetResult] = field(default_factory=dict)
    """(hash of a mixture's lock, tiers that were judged) -> its result. No mixture is built twice
    for the same tiers."""

    def breakages(self, worse: Sequence[ClaimRow]) -> list[BreakageLine]:
        """Find which new versions of packages break each claim of `worse`.

        `worse` has the claims that fail with the newest versions, those without a GPU first. Each
        line that is returned names packages whose new versions together break something, and the
        claims that they break. The line is also appended to the file of results, as soon as it is
        known.
        """
        lines = []
        remaining = list(worse)
        while remaining:
            line = self._bisect(remaining)
            results.append(line, self.options.results)
            self.options.progress(self.planned.name, line.sentence)
            lines.append(line)

            # These packages were found for the first claim. They may also break others, which then
            # need no bisection of their own.
            explained = {claim.key for claim in line.claims}
            remaining = [claim for claim in remaining[1:] if claim.key not in explained]
        return lines

    def _bisect(self, worse: Sequence[ClaimRow]) -> BreakageLine:
        """Find the packages whose new versions make the first of these claims fail.

        `worse` has the claims that hold with the old versions (the control) and fail with the new
        ones (the canary). For each attempt, an image with some packages at new versions is built
        and tested. The result also names the other claims that these packages break.
        """
        claim = worse[0]
        # Only a package that both sets have can be left at its old version.
        movable = [change.name for change in self.changes if change.before and change.after]
        self.options.progress(
            self.planned.name, f"bisecting {claim.key} over {plural(len(movable), 'package')}"
        )

        def fails_with(moved: frozenset[str]) -> bool:
            """Return whether the claim fails if only the packages in `moved` have new versions.

            All others have their locked versions. Builds and validates an image to find out, and
            reports the answer as progress. False also if no versions fit together, or if the claim
            fails for another reason than with all new versions.
            """
            # None: there is no image, as no versions fit together.
            result = self._validate(moved, (claim.tier,))
            answer = _read_answer(result, claim) if result else Answer.UNRESOLVED
            names = " ".join(name for name in movable if name in moved)
            text = f"{claim.key} with {len(moved)} moved: {answer} ({names})"
            self.options.progress(self.planned.name, text)
            return answer is Answer.FAIL

        names = find_smallest_failing(movable, fails_with)
        claims = self._broken_by(frozenset(names), worse)
        culprits = [change for change in self.changes if change.name in names]
        if not culprits:
            # No package is in both sets at different versions: name all that came or went.
            culprits = list(self.changes)
        return BreakageLine(
            date=self.options.now(),
            image=self.planned.name,
            versions=self.canary.lock.hash,
            revision=self.options.sources.revision,
            claims=claims,
            culprits=culprits,
            sentence=results.describe_breakage(culprits, claims),
            key=results.culprits_key(culprits),
        )

    def _validate(self, moved: frozenset[str], tiers: tuple[Tier, ...]) -> SetResult | None:
        """Build the image with only some packages at their newest versions, and validate it.

        `moved` names these packages; all others keep their locked versions as far as they fit.
        `tiers` are the groups of claims to judge. Returns None if no versions of the others fit.
        The same versions are built only once for the same tiers.
        """
        mixture = sets.mix_versions(self.control, self.canary, moved, self.options.run)
        if mixture is None:
            return None
        key = mixture.lock.hash, tiers
        if key not in self.results:
            self.results[key] = self.options.validate(mixture, tiers, "bisect")
        return self.results[key]

    def _broken_by(self, culprits: frozenset[str], worse: Sequence[ClaimRow]) -> list[ClaimRow]:
        """Return the claims that fail if only the culprits have the canary's versions.

        `worse` are the claims that the canary fails. The culprits were found by bisecting the first
        of them, so this one is always returned, in first place.
        """
        # The bisection judged only the tier of the first claim. Judge the tiers of all.
        tiers = {claim.tier for claim in worse}
        result = self._validate(culprits, tuple(tier for tier in Tier if tier in tiers))
        judged_claims: dict[str, ClaimRow] = {}
        # Without a result, the culprits' new versions fit with no versions of the other packages.
        if result:
            judged_claims = {claim.key: claim for claim in result.claims}

        bisected, *others = worse
        broken = [judged_claims.get(bisected.key, bisected)]
        for claim in others:
            judged = judged_claims.get(claim.key)
            if judged and _is_same_failure(judged, claim):
                broken.append(judged)
        return broken


def _read_answer(result: SetResult, claim: ClaimRow) -> Answer:
    """Return whether an image with mixed versions fails a claim for the same reason as the canary.

    `result` is that of the mixed image. `claim` has the verdict and the reason of the canary, the
    image at the newest versions. If the canary could not be built, the claim is BUILD, and a mixed
    image that can't be built fails it. UNRESOLVED: neither PASS nor the same failure.
    """
    if claim.check == BUILD:
        # There is a cause only if the mixture could not be built.
        return Answer.FAIL if result.cause else Answer.PASS
    for judged in result.claims:
        if judged.key == claim.key and judged.verdict is Status.PASS:
            return Answer.PASS
        if _is_same_failure(judged, claim):
            return Answer.FAIL
    return Answer.UNRESOLVED


def _is_same_failure(claim: ClaimRow, other: ClaimRow) -> bool:
    """Return whether both are the same failure: their reasons begin alike, but for numbers."""
    if (claim.key, claim.verdict) != (other.key, other.verdict):
        return False
    return _reason_head(claim) == _reason_head(other)


def _reason_head(claim: ClaimRow) -> str:
    """Return the beginning of a claim's reason without numbers, such as addresses and sizes."""
    return re.sub(r"[\d\s]+", " ", claim.reason)[:_HEAD]
