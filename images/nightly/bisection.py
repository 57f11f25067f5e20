"""What breaks a canary: its regressions against the control, each bisected down to the packages that cause it.

`smallest` is pure. Prefixes are halved, as `git bisect` does with commits, until one change is found without which its
prefix does not fail; with it fixed the search goes on below it. What is left is shrunk until no single change can be
taken out (ddmin: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002).
"""

import re
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from images.nightly import results, sets
from images.nightly.results import BUILD, BreakageLine, Expected
from images.nightly.results import Change as PackageChange
from images.nightly.sets import Locked, NightlyOptions, SetResult
from images.planning.plan import Planned
from images.validation.rows import STEP, ClaimRow
from validate.checks.gpu.step import PEAK_SLACK
from validate.claims import Tier
from validate.harness import timing
from validate.judging import Status

_HEAD = 60
"""Characters that tell reasons apart."""

Change = TypeVar("Change", bound=Hashable)
_SAID = {True: "fail", False: "pass", None: "unresolved"}


def smallest(changes: Sequence[Change], attempt: Callable[[frozenset[Change]], bool]) -> tuple[Change, ...]:
    """A smallest failing set, in the order of the changes: it fails, and without any one of its changes it does not.

    Given are that without any change all is well, and that all changes together fail. Likely culprits come first in
    `changes`: what stands behind the last culprit is never looked at alone. `attempt` says whether a set fails; one
    that can't be decided counts as one that passes. It gets each set at most once; what it raises ends the search, and
    a second one with its answers remembered asks the same sets in the same order.

    One culprit among n changes, with every set decided, takes at most ceil(log2(n)) + 1 attempts; k of them that are
    needed together at most k * (ceil(log2(n)) + k + 2).
    """
    answers = {frozenset[Change](): False, frozenset(changes): True}

    def fails(wanted: Sequence[Change]) -> bool:
        key = frozenset(wanted)
        if key not in answers:
            answers[key] = attempt(key)
        return answers[key]

    fixed, rest = tuple[Change, ...](), tuple(changes)
    while rest and not fails(fixed):
        low, high = 0, len(rest)
        while high - low > 1:  # with the change at `low`, prefixes of `rest` together with `fixed` begin to fail
            middle = (low + high) // 2
            low, high = (low, middle) if fails(fixed + rest[:middle]) else (middle, high)
        fixed, rest = (rest[low], *fixed), rest[:low]
    size = len(fixed) // 2
    while size:  # parts of half the size are taken out, then smaller ones, at last single changes
        parts = (fixed[:start] + fixed[start + size :] for start in range(0, len(fixed), size))
        less = next((smaller for smaller in parts if fails(smaller)), None)
        if less is None:
            size //= 2
        else:
            fixed, size = less, min(size, len(less) // 2)
    return fixed


def is_open(claim: ClaimRow) -> bool:
    """The claim failed, or it is required and could not be measured."""
    return claim.verdict is Status.FAIL or (claim.required and claim.verdict is Status.UNPROVEN)


def regressions(control: SetResult, newer: SetResult, expected: Sequence[Expected]) -> list[ClaimRow]:
    """Claims that the control passes and the canary does not, the cheapest tier first; without expected failures."""
    if control.cause:
        return []
    if newer.cause:
        return [
            ClaimRow(check=BUILD, subject="", tier=Tier.STATIC, verdict=Status.FAIL, required=True, reason=newer.cause)
        ]
    known = {(one.check, one.subject) for one in expected}
    worse = [
        claim
        for claim in newer.claims
        if is_open(claim) and control.verdict(claim.key) is Status.PASS and (claim.check, claim.subject) not in known
    ]
    return sorted(worse, key=lambda claim: list(Tier).index(claim.tier))


def beside(control: SetResult, found: SetResult) -> SetResult:
    """The same with its training steps (`step`) held against the control's, of the same night and machine: one that is
    slower or hungrier fails, whatever is recorded, and one that is not is well."""
    claims = []
    for claim in found.claims:
        before, now = control.steps.get(claim.subject), found.steps.get(claim.subject)
        if claim.check == STEP and claim.verdict is not Status.FAIL and before and now:
            slower = now.seconds > timing.allowed(before.timed, now.timed, timing.SAME_MACHINE)
            verdict, reason = Status.PASS, claim.reason
            if slower or now.peak > PEAK_SLACK * before.peak:
                took, takes = (f"{one.seconds * 1e3:.1f} ms and {one.peak / 1e9:.2f} GB" for one in (before, now))
                how = "slower" if slower else "hungrier"
                verdict, reason = Status.FAIL, f"a step is {how} than the control's: {takes}, where it took {took}"
            claim = claim.model_copy(update={"verdict": verdict, "reason": reason})
        claims.append(claim)
    return found.model_copy(update={"claims": tuple(claims)})


def breakages(
    planned: Planned,
    control: Locked,
    newer: Locked,
    changed: Sequence[PackageChange],
    worse: Sequence[ClaimRow],
    before: SetResult,
    options: NightlyOptions,
) -> list[BreakageLine]:
    """What breaks these claims of a canary: a line for each set of culprits, appended as it is found. It names every
    claim that the set breaks. `before`: the control's result."""

    def bisected(claim: ClaimRow, left: Sequence[ClaimRow]) -> BreakageLine:
        start, built, unresolved = time.monotonic(), set[str](), list[frozenset[str]]()
        movable = [one.name for one in changed if one.before and one.after]
        options.progress(planned.name, f"bisecting {claim.key} over {len(movable)} packages")

        def validated(moved: frozenset[str], tiers: Sequence[Tier]) -> SetResult | None:
            mixture = sets.mixed(control, newer, moved, options.run)
            if mixture is None:
                return None
            built.add(f"{mixture.hash} {tiers}")
            return beside(before, sets.validated(mixture, tiers, "bisect", options))

        def attempt(moved: frozenset[str]) -> bool:
            found = validated(moved, [claim.tier])
            told = _fails(found, claim) if found else None
            unresolved.extend([moved] if told is None else [])
            names = " ".join(one.name for one in changed if one.name in moved)
            options.progress(planned.name, f"{claim.key} with {len(moved)} moved: {_SAID[told]} ({names})")
            return told is True

        found = smallest(movable, attempt)
        tiers = [tier for tier in Tier if tier in {one.tier for one in left}]
        alone, claims = validated(frozenset(found), tiers), [claim]
        if alone and not alone.cause:  # the claims that the culprits break by themselves, the bisected one first
            broken = {one.key: one for one in alone.claims for other in left if _is_same(one, other)}
            others = [broken[one.key] for one in left if one.key in broken and one.key != claim.key]
            claims = [broken.get(claim.key, claim), *others]
        culprits = [one for one in changed if one.name in found]
        return BreakageLine(
            date=options.now(),
            image=planned.name,
            versions=newer.hash,
            revision=options.sources.revision,
            claims=claims,
            culprits=culprits,
            sentence=results.sentence(culprits or changed, claims),
            key=results.culprits_key(culprits or changed),
            candidates=len(movable),
            builds=len(built),
            unresolved=len(unresolved),
            seconds=round(time.monotonic() - start, 1),
        )

    lines, left = list[BreakageLine](), list(worse)
    while left:
        key = f"breakage {planned.name} {control.hash} {newer.hash} {left[0].key}"
        if (known := options.state.find(key)) is not None:
            line = BreakageLine.model_validate(known)
        else:
            line = bisected(left[0], left)
            results.append(line, options.results)
            options.state.keep(key, line.model_dump(mode="json"))
            options.progress(planned.name, line.sentence)
        lines.append(line)
        told = {claim.key for claim in line.claims}
        left = [claim for claim in left[1:] if claim.key not in told]
    return lines


def _fails(found: SetResult, claim: ClaimRow) -> bool | None:
    """Whether a validation run shows the failure that is looked for. None: a failure for another reason, or no verdict
    on this claim, does not tell."""
    if claim.check == BUILD:
        return bool(found.cause)
    own = next((one for one in found.claims if one.key == claim.key), None)
    if own is None or own.verdict is Status.PASS:
        return False if own else None
    return True if _is_same(own, claim) else None


def _is_same(one: ClaimRow, other: ClaimRow) -> bool:
    """The same failure: its reason begins alike, numbers aside. The rest may name other failures."""
    first, second = (re.sub(r"[\d\s]+", " ", each.reason)[:_HEAD] for each in (one, other))
    return (one.key, one.verdict, first) == (other.key, other.verdict, second)
