"""A validation run of an image: its evidence, and the verdict that today's judge gives on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from images.engine import ImageInfo
from images.errors import command, failed, wrong
from images.validation.schemas import VerdictFile, parse_evidence, parse_verdict
from validate.evidence import Evidence, EvidenceChangedError
from validate.judge import Verdict, judge
from validate.judging import listed

VERDICT_FILE, EVIDENCE_FILE = "verdict.json", "evidence.json"


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """A validation run, judged again when it was read."""

    verdict: Verdict
    """By the claims that it was measured for; `ReleasePolicy.judged` gives the one by today's."""
    evidence: Evidence
    evidence_file: bytes


def read(evidence_file: bytes, where: str, verdict_file: bytes | None = None) -> Attestation:
    """Read a validation run and judge it again.

    Raises UserError: a file can't be read or was changed, or the written verdict is not what the evidence says.
    """
    then = f"validate the image again: `{command('validate', 'NAME', '--image', 'REF')}`"
    try:
        written = parse_verdict(verdict_file.decode()) if verdict_file is not None else None
        evidence = parse_evidence(evidence_file.decode())
    except EvidenceChangedError as error:
        raise failed(where, str(error), then) from None
    except (ValidationError, ValueError) as error:
        raise failed(where, f"is no attestation: {str(error).splitlines()[0]}", then) from None
    verdict = judge(evidence.claim_set, evidence)
    if written and (cause := next(_contradictions(written, verdict), "")):
        raise failed(where, cause, then)
    return Attestation(verdict=verdict, evidence=evidence, evidence_file=evidence_file)


def read_folder(folder: Path, name: str, info: ImageInfo) -> Attestation:
    """Read the run in a folder. Raises UserError when it is not of this name and this very image."""
    anew = f"`{command('build', name)}` validates it anew"
    then = f"{anew}; or `{command('validate')}`, and give its folder with --attestation"
    try:
        verdict_file = (folder / VERDICT_FILE).read_bytes()
        evidence_file = (folder / EVIDENCE_FILE).read_bytes()
    except OSError as error:
        raise wrong(str(folder), f"there is no attestation: {error.strerror}: {error.filename}", then) from None
    found = read(evidence_file, str(folder), verdict_file)
    if (found.verdict.image, found.verdict.digest) != (name, info.id):
        attested = f"{found.verdict.image} {found.verdict.digest[:19]}"
        raise failed(str(folder), f"is the attestation of {attested}, the image is {name} {info.id[:19]}", then)
    return found


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
        yield f"the verdict is not what the evidence says: {listed(rows, limit=5)}"
