"""Check a published image: its signatures, its attachments, its labels, and the gate; of an index, each image."""

from __future__ import annotations

from dataclasses import dataclass, replace

from images.errors import UserError
from images.publish import attachments, gate, index, signing
from images.publish.attachments import PublishedImage
from images.publish.checks import Check, checks
from images.publish.gate import ReleasePolicy
from images.publish.statements import NAMES
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
    """Check an image; with a public key, only what it signed. Raises UserError where it can't be read."""
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
        image, check = _check_signatures(image, key)
        found.append(check)
    elif not unsigned:
        reason = "not checked: give --key cosign.pub, or say --unsigned"
        found.append(Check(subject="signature", status=Status.UNPROVEN, reason=reason))
    return [*found, *checks(image), _check_gate(image, policy)]


def _check_signatures(image: PublishedImage, key: str) -> tuple[PublishedImage, Check]:
    """The image with what the key signed; the whole image where that lacks something."""
    try:
        signed = attachments.counted(image, key)
    except UserError as error:
        return image, Check.of("signature", [error.problems[0].cause], "")
    faults = [f"the key signed no {name}" for kind, name in NAMES.items() if not signed.of(kind)]
    ignored = len(image.statements) - len(signed.statements)
    more = f"; {ignored} more are not, and are ignored" if ignored else ""
    check = Check.of("signature", faults, f"{len(signed.statements)} attachments are signed with the key{more}")
    return image if faults else signed, check


def _check_gate(image: PublishedImage, policy: ReleasePolicy) -> Check:
    subject = f"gate {','.join(map(str, policy.gate))}"
    try:
        verdicts = image.verdicts
    except UserError as error:
        return Check.of(subject, [error.problems[0].cause], "")
    claims = policy.claims_of(image.labels)
    passed = sum(len(verdict.of(Status.PASS)) for verdict in verdicts)
    known = "" if claims else f" ({policy.no_claims}: compared with the attestation's own claims alone)"
    return Check.of(subject, gate.refusals(verdicts, policy.gate, claims), f"{passed} claims PASS{known}")
