"""Check a published image: its signatures, its attachments, its labels, and the gate; of an index, each image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from images.errors import UserError
from images.publish import attachments, signing, tags
from images.publish.attachments import PublishedImage
from images.publish.checks import Check, check_index, checks
from images.publish.gate import ReleasePolicy
from images.publish.statements import NAMES
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Reference, is_digest
from validate.judging import Status, listed


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
        images = attachments.load_all(source, named)
        tag = "" if is_digest(reference.identifier) else reference.identifier
        faults = list(_tag_faults(source, tag, named, images, policy, key)) if tag else []
    found = [check_index(named, images)] if named.is_index else []
    for image in images:
        prefix = f"{image.platform} " if named.is_index else ""
        of_image = _checks(image, policy, key, unsigned=unsigned)
        found += [replace(one, subject=f"{prefix}{one.subject}") for one in of_image]
    if tag and policy.own_claims and not key and not faults:
        reason = "no matrix.yaml is here that tells aliases, and no key that signed the tag"
        found.append(Check(subject="tag", status=Status.UNPROVEN, reason=reason))
    elif tag:
        found.append(Check.of("tag", faults, f"{tag} is to name {named.digest[:19]}"))
    return VerifyReport(reference=f"{reference.repository}@{named.digest}", checks=tuple(found))


def _tag_faults(
    source: Registry, tag: str, named: Manifest, images: Sequence[PublishedImage], policy: ReleasePolicy, key: str
) -> Iterator[str]:
    """A tag must be the image's name, its dated tag or an alias; with a key, the last one that it was signed for."""
    try:
        versions = [tags.version_of(image) for image in images]
    except UserError as error:
        yield error.problems[0].cause
        return
    name, digest = versions[0].name, named.digest
    image_id = digest if named.is_index else images[0].image_id
    own = [name, tags.immutable_tag(name, max(one.created for one in versions), image_id), *policy.aliases_of(name)]
    if tag not in own and not policy.own_claims:  # else a signature tells aliases
        yield f"{tag} names {name} ({digest[:19]}), whose tags are {listed(own, limit=5)}"
    elif key:
        when, last, date = attachments.last_signed(source, digest, tag, key)
        if not when:
            yield f"{tag} names {name} ({digest[:19]}), which the key did not sign for it"
        elif last != digest:
            yield f"{tag} names {digest[:19]}, signed for it {when}; the key signed {last[:19]} for it {date}"


def _checks(image: PublishedImage, policy: ReleasePolicy, key: str, *, unsigned: bool) -> Iterator[Check]:
    """What the key signed, then that alone; all that is attached where something is not signed."""
    if key:
        signed = image
        try:
            signed = attachments.counted(image, key)
            faults = [f"the key signed no {name}" for kind, name in NAMES.items() if not signed.of(kind)]
        except UserError as error:
            faults = [error.problems[0].cause]
        ignored = len(image.statements) - len(signed.statements)
        more = f"; {ignored} more are not, and are ignored" if ignored else ""
        yield Check.of("signature", faults, f"{len(signed.statements)} attachments are signed with the key{more}")
        image = image if faults else signed
    elif not unsigned:
        reason = "not checked: give --key cosign.pub, or say --unsigned"
        yield Check(subject="signature", status=Status.UNPROVEN, reason=reason)
    yield from checks(image)
    subject = f"gate {','.join(map(str, policy.gate))}"
    try:
        closed = policy.refusals(image.labels, image.evidence, policy.gate)
    except UserError as error:
        closed = (error.problems[0].cause,)
    by = "today's matrix"
    if policy.own_claims:
        by = "the attestation's own claims, for which the key stands: no matrix.yaml is here"
        if not key and not closed:
            reason = "no matrix.yaml is here, and no key stands for the claims of the attestation"
            yield Check(subject=subject, status=Status.UNPROVEN, reason=reason)
            return
    yield Check.of(subject, closed, f"judged by {by}")
