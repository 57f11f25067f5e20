"""Check a published image: its signature, its attachments, its labels, and the gate; of an index, each image."""

from __future__ import annotations

from dataclasses import dataclass, replace

from images.errors import UserError
from images.publish import attachments, gate, index, signing
from images.publish.attachments import PublishedImage
from images.publish.checks import Check, checks
from images.publish.policy import ReleasePolicy
from images.publish.statements import attest, intoto
from images.registry.client import Registry
from images.registry.reference import Reference
from validate.judging import Status


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The image, by digest, and what was checked."""

    reference: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.status is Status.PASS for check in self.checks)


def verify(reference: Reference, policy: ReleasePolicy, *, key: str = "", unsigned: bool = False) -> VerifyReport:
    """Check an image; with a key, only what its signature covers. Raises UserError where it can't be read."""
    if key:
        signing.require(key)
    with Registry(reference.repository) as source:
        named = source.get(reference.identifier)
        images = index.load(source, named)
    found = [index.check(named, images)] if named.is_index else []
    for image in images:
        of_image = _checks(image, policy, key, unsigned=unsigned)
        found += [replace(one, subject=f"{image.platform} {one.subject}") for one in of_image] if found else of_image
    return VerifyReport(reference=f"{reference.repository}@{named.digest}", checks=tuple(found))


def _checks(image: PublishedImage, policy: ReleasePolicy, key: str, *, unsigned: bool) -> list[Check]:
    found: list[Check] = []
    if key:
        image, check = _check_signature(image, key)
        found += [check, _check_statements(image, key)]
    elif not unsigned:
        reason = "not checked: give --key cosign.pub, or say --unsigned"
        found.append(Check(subject="signature", status=Status.UNPROVEN, reason=reason))
    return [*found, *checks(image), _check_gate(image, policy)]


def _check_signature(image: PublishedImage, key: str) -> tuple[PublishedImage, Check]:
    """The image with what its signature covers; the whole image where there is no valid signature."""
    try:
        signed = attachments.signed_only(image, key)
    except UserError as error:
        return image, Check.of("signature", [error.problems[0].cause], "")
    ignored = len(image.attachments) - len(signed.attachments)
    more = f"; {ignored} more are not covered and are ignored" if ignored else ""
    return signed, Check.of("signature", [], f"valid, and covers {len(signed.attachments)} attachments{more}")


def _check_statements(image: PublishedImage, key: str) -> Check:
    """What admission controllers read, against what is attached to the image."""
    subject = "statements"
    try:
        faults = list(attest.faults(image, key))
    except UserError as error:
        return Check.of(subject, [error.problems[0].cause], "")
    if faults:
        faults.append("`nox -s attest` signs what is attached")
    names = ", ".join(intoto.NAMES.values())
    return Check.of(subject, faults, f"cosign accepts {names}; they say what is attached")


def _check_gate(image: PublishedImage, policy: ReleasePolicy) -> Check:
    subject = f"gate {','.join(map(str, policy.gate))}"
    try:
        verdicts = [one.verdict for one in image.attestations]
    except UserError as error:
        return Check.of(subject, [error.problems[0].cause], "")
    claims = policy.claims_of(image.labels)
    passed = sum(len(verdict.of(Status.PASS)) for verdict in verdicts)
    known = "" if claims else f" ({policy.no_claims}: compared with the attestation's own claims alone)"
    return Check.of(subject, gate.refusals(verdicts, policy.gate, claims), f"{passed} claims PASS{known}")
