"""What may be published, and what a tag may come to mean. Pure: proofs and labels in, reasons out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from images.context.labels import LABELS
from images.errors import Problem, UserError
from images.validation.schemas import parse_evidence, parse_verdict
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import EvidenceChangedError
from validate.judge import ClaimVerdict, Verdict, judge
from validate.judging import Status

_SHORT = 12  # hexadecimal digits of a digest that tell images apart, as Docker shows them
_SHOWN = 5
_ANYWHERE = (Tier.STATIC, Tier.CPU)
"""Tiers whose required claims depend on the matrix alone, not on the GPU that was there."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A trial of an image: its two files, and what today's judge makes of the evidence."""

    verdict: Verdict
    verdict_file: bytes
    evidence_file: bytes


@dataclass(frozen=True, kw_only=True)
class Standing:
    """An image as tags compare it. `created` is when it was built."""

    digest: str
    name: str
    torch: str
    created: datetime

    @classmethod
    def of(cls, digest: str, labels: Mapping[str, str], created: str) -> Standing | None:
        """None for an image that is not ours, or says nothing that can be read."""
        try:
            torch, moment = labels[f"{LABELS}.torch"], datetime.fromisoformat(created)
            Version(torch)
        except (KeyError, ValueError, InvalidVersion):
            return None
        return cls(digest=digest, name=labels.get(f"{LABELS}.image", ""), torch=torch, created=moment.astimezone(UTC))


def proof(verdict_file: bytes, evidence_file: bytes, where: str) -> Proof:
    """Read a trial and judge it again. Raises UserError: unreadable, changed, or a verdict that its evidence denies."""
    then = "prove the image again: `nox -s validate -- NAME --image REF`"
    try:
        written = parse_verdict(verdict_file.decode())
        evidence = parse_evidence(evidence_file.decode())
    except EvidenceChangedError as error:
        raise UserError(Problem(where=where, cause=str(error), then=then), code=1) from None
    except (ValidationError, ValueError) as error:
        cause = f"is no proof: {str(error).splitlines()[0]}"
        raise UserError(Problem(where=where, cause=cause, then=then), code=1) from None
    verdict = judge(evidence.claim_set, evidence)
    said = {(row.id, row.subject): row.verdict for row in written.claims}
    found = {(one.claim.id, one.claim.subject): one.status for one in verdict.claims}
    if (written.image, written.digest) != (verdict.image, verdict.digest):
        cause = f"the verdict is of {written.image} {written.digest[:19]}, the evidence of {verdict.image} "
        raise UserError(Problem(where=where, cause=cause + verdict.digest[:19], then=then), code=1)
    if written.evidence_sha256 != verdict.evidence_sha256:
        cause = "the verdict names another evidence.json by its sha256"
        raise UserError(Problem(where=where, cause=cause, then=then), code=1)
    if said != found:
        differing = sorted(key for key in said.keys() | found.keys() if said.get(key) != found.get(key))
        rows = [f"{' '.join(key)} is {found.get(key, 'not judged')}" for key in differing]
        cause = f"the verdict is not what the evidence says: {_listed(rows)}"
        raise UserError(Problem(where=where, cause=cause, then=then), code=1)
    return Proof(verdict=verdict, verdict_file=verdict_file, evidence_file=evidence_file)


def refusals(verdicts: Sequence[Verdict], tiers: Sequence[Tier], promised: ClaimSet | None) -> tuple[str, ...]:
    """Why these proofs of one image don't open the gate; empty if they do.

    Each tier must be wholly proven by one of them, and no proof may have a required claim that failed. `promised` is
    what the matrix says today: a proof of less is none. None where the matrix doesn't know the image.
    """
    failed = [one for verdict in verdicts for one in verdict.of(Status.FAIL) if one.claim.required]
    reasons = [f"{_claim(one)} is FAIL: {one.reason}" for one in failed if one.claim.tier in tiers]
    for tier in tiers:
        answers = [tuple(_lacking(verdict, tier, promised)) for verdict in verdicts]
        if all(answers):
            reasons += [reason for reason in min(answers, key=len, default=()) if reason not in reasons]
        if not answers:
            reasons.append(f"the {tier} tier was not judged")
    return tuple(dict.fromkeys(reasons))


def _lacking(verdict: Verdict, tier: Tier, promised: ClaimSet | None) -> Iterator[str]:
    judged = {(one.claim.id, one.claim.subject): one for one in verdict.claims if one.claim.tier is tier}
    if not any(one.claim.required for one in judged.values()):
        yield f"the {tier} tier was not judged"
        return
    for one in judged.values():
        if one.claim.required and one.status is not Status.PASS:
            yield f"{_claim(one)} is {one.status}: {one.reason}"
    missing = [claim for claim in promised.of([tier]).claims if not _answers(judged, claim)] if promised else []
    if missing:
        names = _listed([f"{claim.id} {claim.subject}" for claim in missing])
        yield f"the proof is of less than matrix.yaml promises: it lacks {names}"


def _answers(judged: Mapping[tuple[str, str], ClaimVerdict], claim: Claim) -> bool:
    found = judged.get((claim.id, claim.subject))
    if found is None:
        return False
    return found.claim.required or not claim.required or claim.tier not in _ANYWHERE


def backwards(tag: str, new: Standing, old: Standing | None, *, taken: bool) -> str:
    """Why a moving tag must stay where it is; empty if it may move. `taken`: it names something already."""
    if old is None:
        return f"{tag} names an image that is not ours" if taken else ""
    if old.digest == new.digest:
        return ""
    if Version(old.torch) != Version(new.torch):
        return f"{tag} has torch {old.torch}, this is {new.torch}" if Version(old.torch) > Version(new.torch) else ""
    if old.created > new.created:
        return f"{tag} was built on {old.created:%Y-%m-%d %H:%M}, this on {new.created:%Y-%m-%d %H:%M}"
    return ""


def immutable_tag(name: str, created: datetime, image_id: str) -> str:
    """`NAME-YYYYMMDD-SHORTDIGEST`: the day it was built (UTC), and the digest that its verdict names."""
    return f"{name}-{created.astimezone(UTC):%Y%m%d}-{image_id.removeprefix('sha256:')[:_SHORT]}"


def label_faults(labels: Mapping[str, str], verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Where an image's labels are not what was measured in it."""
    faults: list[str] = []
    rows = [one for verdict in verdicts for one in verdict.claims]
    faults += [
        f"the image is called {verdict.image}" for verdict in verdicts if verdict.image != _label(labels, "image")
    ]
    try:
        pins = dict(json.loads(_label(labels, "pins") or "{}"))
    except (ValueError, TypeError):
        return (*faults, "the label of pins can't be read")
    measured = {one.claim.subject: _measured(one) for one in rows if one.claim.id == "S1" and _measured(one)}
    faults += [
        f"{name} {version} is labelled, {measured.get(name, 'nothing')} was found"
        for name, version in sorted(pins.items())
        if measured.get(name) != version
    ]
    for key, claim_id, subject, expected in (
        ("torch", "S1", "torch", "version"),
        ("wheel-cuda", "S1", "torch", "cuda"),
        ("python", "S1", "torch", "python"),
        ("toolkit-cuda", "S6", "toolkit", "version"),
    ):
        proven = {
            str(one.claim.expect.get(expected))
            for one in rows
            if (one.claim.id, one.claim.subject, one.status) == (claim_id, subject, Status.PASS)
        }
        if proven and proven != {_label(labels, key)}:
            faults.append(f"{key} {_label(labels, key)} is labelled, {_listed(sorted(proven))} was proven")
    return tuple(dict.fromkeys(faults))


def sbom_faults(labels: Mapping[str, str], versions: Mapping[str, str]) -> tuple[str, ...]:
    """Where an image's label of pins is not what its SBOM lists (canonical name -> version)."""
    try:
        pins = dict(json.loads(_label(labels, "pins") or "{}"))
    except (ValueError, TypeError):
        return ("the label of pins can't be read",)
    return tuple(
        f"{name} {version} is labelled, the SBOM has {versions.get(name, 'none')}"
        for name, version in sorted(pins.items())
        if versions.get(name) != version
    )


def parse_tiers(text: str) -> tuple[Tier, ...]:
    """Read `static,cpu`. Raises UserError."""
    words = [word.strip() for word in text.split(",")]
    try:
        return tuple(dict.fromkeys(Tier(word) for word in words))
    except ValueError:
        known = ", ".join(map(str, Tier))
        raise UserError(
            Problem(where=f"--gate {text}", cause="names no tiers", then=f"write some of {known}")
        ) from None


def _measured(one: ClaimVerdict) -> str:
    """The version that S1 found of a distribution, without its local part."""
    return installed(one.evidence).partition("+")[0] if one.status is Status.PASS else ""


def installed(evidence: Mapping[str, Any]) -> str:
    """The version in S1's evidence, as the distribution's metadata has it; empty where it has none."""
    found = evidence.get("installed")
    return str(found[0].get("version", "")) if isinstance(found, list) and found and isinstance(found[0], dict) else ""


def _label(labels: Mapping[str, str], key: str) -> str:
    return labels.get(f"{LABELS}.{key}", "")


def _claim(one: ClaimVerdict) -> str:
    return f"{one.claim.id} {one.claim.subject} ({one.claim.tier})"


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
