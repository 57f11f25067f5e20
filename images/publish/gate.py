"""The gate: what must have passed before an image is published, and which tags follow. Pure.

Evidence is judged by the claims that today's matrix writes, never by those that lie beside it: whoever measured an
image may have expected less of it.
"""

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from images.errors import Problem, UserError, failed, wrong
from images.validation.validation_run import with_host_limits
from validate.claims import ORIGIN_PROBE, Claim, ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict, judge
from validate.judging import Status, listed

_OF_STAGING = (Tier.STATIC, Tier.CPU)
_RECORDS = "static.records"
_BOUNDS = frozenset(
    "at_most baseline fault known least most peak peak_operations times tolerance".split()
)
"""What judges of `silent-faults`, `speed` and `step` alone read: the same is measured whatever is recorded or told
meanwhile."""
_NOT_ASKED = "the attestation has no such claim"
_TOLD = {"revision", "claims"}
"""Of `image` and `hygiene`: another revision of the matrix, which is told, and the digest of claims, which hold it."""


@dataclass(frozen=True, kw_only=True)
class ReleasePolicy:
    """What the matrix and the command line ask of an image."""

    gate: Sequence[Tier]
    """Tiers that must have passed before the image is published at all."""
    alias_gate: Sequence[Tier]
    """Tiers that must have passed before aliases (`latest`) follow: the matrix's gate."""
    aliases_of: Callable[[str], Sequence[str]]
    """Image name -> its aliases."""
    claims_of: Callable[[Mapping[str, str], Evidence], ClaimSet | None]
    """Labels of an image, and a validation run -> the claims that the matrix writes today for that run's machine; None
    where the matrix doesn't know the image."""
    own_claims: bool = False
    """No matrix is here: an image is judged by the claims of its own evidence, which only a signature vouches for."""
    origin_exception: str = ""
    """Why an image is published although its origin (`origin`) is UNPROVEN; empty: it is not. The attestation names
    it."""
    row_of: Callable[[str], Sequence[str]] = lambda name: (name,)
    """Image name -> the images of its row in the matrix, one a platform. Of several, one tag names an index."""

    def judged(self, labels: Mapping[str, str], run: Evidence) -> Verdict:
        """A validation run of an image, by today's claims. Raises UserError where there are none for it."""
        claims = self.claims_of(labels, run)
        if claims is None or claims.image != run.image:
            then = "use the checkout that it was built from (its provenance names the commit), or build it anew"
            raise failed(run.image, "matrix.yaml makes another image of this name, or none", then)
        return judged(run, claims)

    def refusals(
        self,
        labels: Mapping[str, str],
        runs: Sequence[Evidence],
        tiers: Sequence[Tier],
        *,
        origin_exception: str = "",
    ) -> tuple[str, ...]:
        """Why an image's validation runs don't open the gate of these tiers; empty if they do.

        `origin_exception`: what an attestation of the image has of that, beside the policy's own.
        """
        exception = self.origin_exception or origin_exception
        try:
            return refusals(
                [self.judged(labels, one) for one in runs], tiers, origin_exception=exception
            )
        except UserError as error:
            return (error.problems[0].cause,)

    def require_open(
        self,
        where: str,
        labels: Mapping[str, str],
        runs: Sequence[Evidence],
        *,
        origin_exception: str = "",
    ) -> None:
        """Raises UserError with every reason why the gate is closed."""
        reasons = self.refusals(labels, runs, self.gate, origin_exception=origin_exception)
        if not reasons:
            return
        then = "fix the image, or validate it again"
        opens_staging = not self.refusals(
            labels, runs, _OF_STAGING, origin_exception=origin_exception
        )
        if Tier.GPU in self.gate and opens_staging:
            asked = ",".join(map(str, self.gate))
            then = f"the gate asks for {asked}; for a staging repository, give --gate static,cpu"
        raise UserError(
            [Problem(where=where, cause=reason, then=then) for reason in reasons], code=1
        )


def judged(run: Evidence, claims: ClaimSet, tiers: Sequence[Tier] = ()) -> Verdict:
    """Tiers of a validation run, by other claims than its own. `tiers`: none means those that it measured.

    What a probe records depends on what is expected (variables that nobody denies are not looked for), so evidence
    answers a claim that it was measured for alone: every other is unproven until the image is validated again.
    """
    own = {(one.check, one.subject): one for one in run.claims}
    not_here = {one.subject for one in claims.claims if one.probe == _RECORDS and one.unproven}
    asked = [
        replace(
            one,
            unproven=one.unproven
            or _not_measured(one, own.get((one.check, one.subject)), not_here),
        )
        for one in claims.in_tiers(tiers or [one.tier for one in run.claims]).claims
    ]
    return judge(with_host_limits(ClaimSet(image=claims.image, claims=tuple(asked)), run.host), run)


def _not_measured(claim: Claim, own: Claim | None, not_here: Collection[str]) -> str:
    """Why evidence that was measured for `own` does not answer a claim; empty if it does.

    `not_here`: distributions whose wheels only the machine that built the image knows: they may be expected there.
    """
    if own is None or own.unproven:
        return own.unproven if own else _NOT_ASKED
    if claim.probe == own.probe == ORIGIN_PROBE:
        return ""  # layers are measured whatever is recorded of them: a later record answers for the same evidence
    today, then = _plain(claim.expect), _plain(own.expect)
    if claim.probe == _RECORDS:
        tables = [rows for rows in then.values() if isinstance(rows, dict)]
        for rows, name in itertools.product(tables, not_here):
            rows.pop(name, None)
    keys = today.keys() | then.keys()
    if claim.check in ("image", "hygiene"):
        keys -= _TOLD
    if claim.check in ("silent-faults", "speed", "step"):
        keys -= _BOUNDS
    differing = listed(sorted(key for key in keys if today.get(key) != then.get(key)), limit=5)
    if claim.probe == own.probe and not differing:
        return ""
    return f"it was measured for other expectations than today's ({differing}): validate the image again"


def _plain(expect: Mapping[str, Any]) -> dict[str, Any]:
    """As it is read back from JSON."""
    return dict(json.loads(json.dumps(expect)))


def refusals(
    verdicts: Sequence[Verdict], tiers: Sequence[Tier], *, origin_exception: str = ""
) -> tuple[str, ...]:
    """Why these verdicts on one image don't open the gate of these tiers; empty if they do.

    No verdict may have a required claim FAIL, of whatever tier: an image that is known to be broken is published by no
    gate. And one verdict must have every required claim of a tier PASS. With an `origin_exception`, the origin may be
    UNPROVEN.
    """
    failures = [
        row
        for verdict in verdicts
        for row in verdict.claims_with(Status.FAIL)
        if row.claim.required
    ]
    reasons = [f"{_title(row)} is FAIL: {row.reason}" for row in failures]
    for tier in tiers:
        reasons += tier_refusals(verdicts, tier, origin_exception=origin_exception)
    return tuple(dict.fromkeys(reasons))


def tier_refusals(
    verdicts: Sequence[Verdict], tier: Tier, *, origin_exception: str = ""
) -> tuple[str, ...]:
    """Why an image did not pass a tier, whatever was found of the others; empty if it did."""
    if not verdicts:
        return (f"the {tier} tier was not judged",)
    failures = [
        row
        for verdict in verdicts
        for row in verdict.claims_with(Status.FAIL)
        if row.claim.required
    ]
    reasons = [f"{_title(row)} is FAIL: {row.reason}" for row in failures if row.claim.tier is tier]
    lacking = [tuple(_lacking(verdict, tier, origin_exception)) for verdict in verdicts]
    if all(lacking):
        fewest = min(lacking, key=len)
        reasons += fewest
    return tuple(dict.fromkeys(reasons))


def parse_tiers(text: str) -> tuple[Tier, ...]:
    """Read `static,cpu`. Raises UserError."""
    try:
        return tuple(dict.fromkeys(Tier(word.strip()) for word in text.split(",")))
    except ValueError:
        raise wrong(
            f"--gate {text}", "names no tiers", f"write some of {', '.join(map(str, Tier))}"
        ) from None


def _lacking(verdict: Verdict, tier: Tier, origin_exception: str) -> Iterator[str]:
    there = [one for one in verdict.claims if one.claim.tier is tier]
    if not any(one.claim.required for one in there):
        yield f"the {tier} tier was not judged"
        return
    lacking = [one for one in there if one.claim.required and one.status is not Status.PASS]
    if origin_exception:
        lacking = [one for one in lacking if not _is_unproven_origin(one)]
    yield from (
        f"{_title(one)} is {one.status}: {one.reason}"
        for one in lacking
        if one.reason != _NOT_ASKED
    )
    if missing := [one.claim.key for one in lacking if one.reason == _NOT_ASKED]:
        yield f"the attestation has fewer claims than matrix.yaml today: it lacks {listed(missing, limit=5)}"


def _is_unproven_origin(one: ClaimVerdict) -> bool:
    return one.claim.probe == ORIGIN_PROBE and one.status is Status.UNPROVEN


def _title(one: ClaimVerdict) -> str:
    return f"{one.claim.key} ({one.claim.tier})"
