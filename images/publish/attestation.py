"""A validation run of an image: its evidence, and the verdict that today's judge gives on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from images.engine import ImageInfo
from images.errors import command, failed, wrong
from images.validation.schemas import parse_evidence
from validate.evidence import Evidence
from validate.judge import Verdict, judge

EVIDENCE_FILE = "evidence.json"


@dataclass(frozen=True, kw_only=True)
class Attestation:
    """A validation run, judged again when it was read."""

    verdict: Verdict
    """By the claims that it was measured for; `ReleasePolicy.judged` gives the one by today's."""
    evidence: Evidence
    evidence_file: bytes


def read(evidence_file: bytes, where: str) -> Attestation:
    """Judge the evidence of a validation run again. Raises UserError: it can't be read, or was changed."""
    try:
        evidence = parse_evidence(evidence_file.decode())
    except ValueError as error:
        then = f"validate the image again: `{command('validate', 'NAME', '--image', 'REF')}`"
        raise failed(where, f"is no attestation: {str(error).splitlines()[0]}", then) from None
    return Attestation(verdict=judge(evidence.claim_set, evidence), evidence=evidence, evidence_file=evidence_file)


def read_folder(folder: Path, name: str, info: ImageInfo) -> Attestation:
    """Read the run in a folder. Raises UserError when it is not of this name and this very image."""
    anew = f"`{command('build', name)}` validates it anew"
    then = f"{anew}; or `{command('validate')}`, and give its folder with --attestation"
    try:
        found = read((folder / EVIDENCE_FILE).read_bytes(), str(folder))
    except OSError as error:
        raise wrong(str(folder), f"there is no attestation: {error.strerror}: {error.filename}", then) from None
    if (found.verdict.image, found.verdict.digest) != (name, info.id):
        attested = f"{found.verdict.image} {found.verdict.digest[:19]}"
        raise failed(str(folder), f"is the attestation of {attested}, the image is {name} {info.id[:19]}", then)
    return found
