"""The gate: what must have passed before an image is published, and which tags follow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from images.errors import Problem, UserError
from validate.claims import Claim, ClaimSet, Tier
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

_ANYWHERE = (Tier.STATIC, Tier.CPU)
"""Tiers whose required claims depend on the matrix alone, not on the GPU that was there."""
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class ReleasePolicy:
    """What the matrix and the command line ask of an image."""

    gate: Sequence[Tier]
    """Tiers that must have passed before the image is published at all."""
    alias_gate: Sequence[Tier]
    """Tiers that must have passed before aliases (`latest`) follow: the matrix's gate."""
    aliases_of: Callable[[str], Sequence[str]]
    """Image name -> its aliases."""
    claims_of: Callable[[Mapping[str, str]], ClaimSet | None]
    """Labels of an image -> the claims that the matrix writes today; None where the matrix doesn't know the image."""
    no_claims: str = "matrix.yaml makes another image of this name, or none"
    """Why `claims_of` answers None."""
    row_of: Callable[[str], Sequence[str]] = lambda name: (name,)
    """Image name -> the images of its row in the matrix, one a platform. Of several, one tag names an index."""

    def require_open(self, where: str, verdicts: Sequence[Verdict], claims: ClaimSet | None) -> None:
        """Raises UserError with every reason why the gate is closed."""
        if reasons := refusals(verdicts, self.gate, claims):
            asked = ",".join(map(str, self.gate))
            staging = f"the gate asks for {asked}; for a staging repository, give --gate static,cpu"
            then = staging if Tier.GPU in self.gate else "fix the image, or validate it again"
            raise UserError([Problem(where=where, cause=reason, then=then) for reason in reasons], code=1)

    def alias_refusal(self, verdicts: Sequence[Verdict], claims: ClaimSet | None) -> str:
        """Why aliases don't follow; empty if they do."""
        return next(iter(refusals(verdicts, self.alias_gate, claims)), "")


def refusals(verdicts: Sequence[Verdict], tiers: Sequence[Tier], claims: ClaimSet | None) -> tuple[str, ...]:
    """Why these verdicts on one image don't open the gate; empty if they do.

    One verdict must have every required claim of a tier PASS, and no verdict may have a required claim FAIL. What ran
    under an emulator opens the gate for the static tier alone, which reads files. `claims`: those that the matrix
    writes today; a verdict on fewer is not enough. None where the matrix doesn't know the image.
    """
    failed = [one for verdict in verdicts for one in verdict.of(Status.FAIL) if one.claim.required]
    reasons = [f"{_title(one)} is FAIL: {one.reason}" for one in failed if one.claim.tier in tiers]
    for tier in tiers:
        answers = [tuple(_lacking(verdict, tier, claims)) for verdict in verdicts]
        if all(answers):
            reasons += [reason for reason in min(answers, key=len, default=()) if reason not in reasons]
        if not answers:
            reasons.append(f"the {tier} tier was not judged")
    return tuple(dict.fromkeys(reasons))


def parse_tiers(text: str) -> tuple[Tier, ...]:
    """Read `static,cpu`. Raises UserError."""
    try:
        return tuple(dict.fromkeys(Tier(word.strip()) for word in text.split(",")))
    except ValueError:
        then = f"write some of {', '.join(map(str, Tier))}"
        raise UserError(Problem(where=f"--gate {text}", cause="names no tiers", then=then)) from None


def listed(items: Sequence[str]) -> str:
    """The first five, and how many more there are."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


def _lacking(verdict: Verdict, tier: Tier, claims: ClaimSet | None) -> Iterator[str]:
    judged = {(one.claim.id, one.claim.subject): one for one in verdict.claims if one.claim.tier is tier}
    if not any(one.claim.required for one in judged.values()):
        yield f"the {tier} tier was not judged"
        return
    for one in judged.values():
        if one.claim.required and one.status is not Status.PASS:
            yield f"{_title(one)} is {one.status}: {one.reason}"
    if tier is not Tier.STATIC and (emulated := [one for one in judged.values() if one.emulated]):
        yield f"the {tier} tier was measured under {emulated[0].emulated}, and not on the processor that it is for"
    missing = [claim for claim in claims.of([tier]).claims if not _is_judged(judged, claim)] if claims else []
    if missing:
        names = listed([f"{claim.id} {claim.subject}" for claim in missing])
        yield f"the attestation has fewer claims than matrix.yaml today: it lacks {names}"


def _is_judged(judged: Mapping[tuple[str, str], ClaimVerdict], claim: Claim) -> bool:
    found = judged.get((claim.id, claim.subject))
    if found is None:
        return False
    return found.claim.required or not claim.required or claim.tier not in _ANYWHERE


def _title(one: ClaimVerdict) -> str:
    return f"{one.claim.id} {one.claim.subject} ({one.claim.tier})"
