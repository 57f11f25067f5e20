"""Attestations: the verdict on an image and the evidence for it, judged anew each time they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from images.engine import ImageInfo
from images.errors import Problem, UserError
from images.publish.text import listed
from images.validation.schemas import VerdictFile, parse_evidence, parse_verdict
from validate.evidence import EvidenceChangedError
from validate.judge import Verdict, judge

VERDICT_FILE, EVIDENCE_FILE = "verdict.json", "evidence.json"


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """A trial of an image: its two files, and the verdict of today's judge on the evidence."""

    verdict: Verdict
    verdict_file: bytes
    evidence_file: bytes
    host: Mapping[str, Any]
    """The machine of the trial, and its `date`, as evidence.json has them."""


def read(verdict_file: bytes, evidence_file: bytes, where: str) -> Attestation:
    """Read a trial and judge it again.

    Raises UserError: a file can't be read or was changed, or the verdict is not what the evidence says.
    """
    then = "validate the image again: `nox -s validate -- NAME --image REF`"
    try:
        written = parse_verdict(verdict_file.decode())
        evidence = parse_evidence(evidence_file.decode())
    except EvidenceChangedError as error:
        raise UserError(Problem(where=where, cause=str(error), then=then), code=1) from None
    except (ValidationError, ValueError) as error:
        cause = f"is no attestation: {str(error).splitlines()[0]}"
        raise UserError(Problem(where=where, cause=cause, then=then), code=1) from None
    verdict = judge(evidence.claim_set, evidence)
    if cause := next(_contradictions(written, verdict), ""):
        raise UserError(Problem(where=where, cause=cause, then=then), code=1)
    return Attestation(verdict=verdict, verdict_file=verdict_file, evidence_file=evidence_file, host=evidence.host)


def _contradictions(written: VerdictFile, verdict: Verdict) -> Iterator[str]:
    """Where a written verdict is not the one that the evidence gives."""
    if (written.image, written.digest) != (verdict.image, verdict.digest):
        evidence = f"the evidence of {verdict.image} {verdict.digest[:19]}"
        yield f"the verdict is of {written.image} {written.digest[:19]}, {evidence}"
    if written.evidence_sha256 != verdict.evidence_sha256:
        yield "the verdict names another evidence.json by its sha256"
    said = {(row.id, row.subject): row.verdict for row in written.claims}
    found = {(one.claim.id, one.claim.subject): one.status for one in verdict.claims}
    if said != found:
        differing = sorted(key for key in said.keys() | found.keys() if said.get(key) != found.get(key))
        rows = [f"{' '.join(key)} is {found.get(key, 'not judged')}" for key in differing]
        yield f"the verdict is not what the evidence says: {listed(rows)}"


def read_folder(folder: Path, name: str, info: ImageInfo) -> Attestation:
    """Read the trial in a folder. Raises UserError when it is not of this name and this very image."""
    found = in_folder(folder, name)
    if (found.verdict.image, found.verdict.digest) != (name, info.id):
        attested = f"{found.verdict.image} {found.verdict.digest[:19]}"
        cause = f"is the attestation of {attested}, the image is {name} {info.id[:19]}"
        raise UserError(Problem(where=str(folder), cause=cause, then=_validate(name)), code=1)
    return found


def in_folder(folder: Path, name: str) -> Attestation:
    """Read the trial in a folder, whatever image it is of. Raises UserError."""
    try:
        verdict_file = (folder / VERDICT_FILE).read_bytes()
        evidence_file = (folder / EVIDENCE_FILE).read_bytes()
    except OSError as error:
        cause = f"there is no attestation: {error.strerror}: {error.filename}"
        raise UserError(Problem(where=str(folder), cause=cause, then=_validate(name))) from None
    return read(verdict_file, evidence_file, str(folder))


def _validate(name: str) -> str:
    return f"`nox -s build -- {name}` validates it anew; or `nox -s validate`, and give its folder with --attestation"
