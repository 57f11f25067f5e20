"""The gate: what must have passed before an image is published. Pure: verdicts in, reasons out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from images.errors import Problem, UserError
from images.publish.text import listed
from validate.claims import Claim, ClaimSet, Tier
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

_ANYWHERE = (Tier.STATIC, Tier.CPU)
"""Tiers whose required claims depend on the matrix alone, not on the GPU that was there."""


def refusals(verdicts: Sequence[Verdict], tiers: Sequence[Tier], claims: ClaimSet | None) -> tuple[str, ...]:
    """Why these verdicts on one image don't open the gate; empty if they do.

    One verdict must have every required claim of a tier PASS, and no verdict may have a required claim FAIL. What ran
    under an emulator opens the gate for the static tier alone, which reads files. `claims`
    are those that the matrix writes today: a verdict on fewer is not enough. None where the matrix doesn't know the
    image.
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


def parse_tiers(text: str) -> tuple[Tier, ...]:
    """Read `static,cpu`. Raises UserError."""
    try:
        return tuple(dict.fromkeys(Tier(word.strip()) for word in text.split(",")))
    except ValueError:
        then = f"write some of {', '.join(map(str, Tier))}"
        raise UserError(Problem(where=f"--gate {text}", cause="names no tiers", then=then)) from None


def _title(one: ClaimVerdict) -> str:
    return f"{one.claim.id} {one.claim.subject} ({one.claim.tier})"
