"""What is attached to a published image, against the image: signatures, attestations, SBOM, provenance, tag, gate."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from images.config.names import ImageName
from images.config.platforms import Platform
from images.context.labels import LABELS
from images.errors import Problem, UserError, failed
from images.publish import attachments, provenance, sbom, signing, statements, tags
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.statements import CYCLONEDX, NAMES, PROVENANCE
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Reference, is_digest
from validate.judging import Status, listed


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was checked."""

    subject: str
    status: Status
    reason: str

    @classmethod
    def of(cls, subject: str, faults: Sequence[str], passed: str) -> Self:
        """FAIL with the faults, or PASS with the reason `passed`."""
        return cls(
            subject=subject,
            status=Status.FAIL if faults else Status.PASS,
            reason="; ".join(faults) or passed,
        )


def checks(image: PublishedImage) -> tuple[Check, ...]:
    """What is attached, against the image. Whether its labels are true is a claim of its own (`image/labels`)."""
    faults = [f"there is no {name}" for kind, name in NAMES.items() if not image.of(kind)]
    counts = ", ".join(f"{len(image.of(kind))} {name}" for kind, name in NAMES.items())
    attached = Check.of("attachments", faults, counts)
    if faults:
        return (attached,)
    try:
        _ = image.attestations
    except UserError as error:
        return (attached, Check.of("attestation", [error.problems[0].cause], ""))
    of_image = (
        f"of this very image ({image.image_id[:19]}); the test result says what the evidence says"
    )
    return (
        attached,
        Check.of("attestation", [], of_image),
        Check.of(
            "SBOM",
            _statement_faults(image, CYCLONEDX),
            "has every pin of the label, in its version",
        ),
        Check.of(
            "provenance",
            _statement_faults(image, PROVENANCE),
            "of this digest, matrix revision and base",
        ),
    )


def check_index(manifest: Manifest, images: Sequence[PublishedImage]) -> Check:
    """An index against the images that it lists."""
    platforms = [entry.platform for entry in manifest.manifests]
    faults = [
        f"two images are for {one}"
        for one in sorted({one for one in platforms if platforms.count(one) > 1})
    ]
    faults += [
        f"{image.manifest.digest[:19]} is listed for {platform or 'no platform'}, and is for {image.platform or 'none'}"
        for platform, image in zip(platforms, images, strict=True)
        if platform != image.platform
    ]
    rows = {_row_name(image) for image in images}
    if len(rows) > 1 or "" in rows:
        called = ", ".join(image.name or "nothing" for image in images)
        faults.append(f"its images are not one row of the matrix: they are called {called}")
    if Platform.AMD64 not in [image.platform for image in images]:
        faults.append(f"it has no image for {Platform.AMD64}")
    return Check.of(
        "index",
        faults,
        f"of {', '.join(sorted(rows))}: {', '.join(platforms)}, each as it is labelled",
    )


def _row_name(image: PublishedImage) -> str:
    """The row of an image: its name without the platform. Empty where its label is no name for its platform."""
    try:
        name = ImageName.parse(image.name)
    except UserError:
        return ""
    return str(replace(name, platform=Platform.AMD64)) if name.platform == image.platform else ""


def require_sound(image: PublishedImage) -> None:
    """Raises UserError with every check that does not pass."""
    failed = [check for check in checks(image) if check.status is not Status.PASS]
    if failed:
        remove = f"`cosign clean --type attestation {image.reference}`"
        then = f"publish it anew; remove what others attached ({remove}), or publish with --key"
        causes = [f"{check.subject}: {check.reason}" for check in failed]
        raise UserError(
            [Problem(where=image.reference, cause=cause, then=then) for cause in causes], code=1
        )


def admitted(image: PublishedImage, policy: ReleasePolicy, key: str) -> PublishedImage:
    """An image with the statements that count. Raises UserError for one that `verify` would not pass."""
    counted = attachments.counted(image, key)
    if key and not counted.statements:
        cause = "the key signed nothing that is attached to it"
        raise failed(image.reference, cause, "is it the key of who published it?")
    require_sound(counted)
    exception = counted.origin_exception
    policy.require_open(image.reference, image.labels, counted.evidence, origin_exception=exception)
    return counted


def _statement_faults(image: PublishedImage, predicate_type: str) -> list[str]:
    """Where SBOMs or provenances are not about this image, or not what it is labelled as."""
    faults: list[str] = []
    for one in image.of(predicate_type):
        if image.manifest.digest not in one.subjects:
            faults.append(
                f"is of {', '.join(sorted(one.subjects))}, the image is {image.manifest.digest}"
            )
        try:
            if predicate_type == CYCLONEDX:
                pins, versions = _pins(image.labels), sbom.versions(one.predicate)
                faults += [
                    f"{name} {version} is labelled, the SBOM has {versions.get(name, 'none')}"
                    for name, version in sorted(pins.items())
                    if versions.get(name) != version
                ]
            else:
                faults += [
                    f"it says {key} {value or 'nothing'}, the image {_label(image.labels, key) or 'nothing'}"
                    for key, value in provenance.read(one.predicate).items()
                    if value != _label(image.labels, key)
                ]
        except statements.UNREADABLE as error:
            faults.append(f"can't be read: {type(error).__name__}: {error}")
    return list(dict.fromkeys(faults))


def _pins(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(json.loads(_label(labels, "pins") or "{}"))


def _label(labels: Mapping[str, str], key: str) -> str:
    return labels.get(f"{LABELS}.{key}", "")


def verify(
    reference: Reference, policy: ReleasePolicy, *, key: str = "", unsigned: bool = False
) -> tuple[str, list[Check]]:
    """The image by its digest, and what was checked; with a public key, only what that signed. Raises UserError."""
    if key:
        signing.require(key)
    with Registry(reference.repository) as source:
        named = source.get(reference.identifier)
        images = attachments.load_all(source, named)
        tag = "" if is_digest(reference.identifier) else reference.identifier
        faults = list(tag_faults(source, tag, named, images, policy, key)) if tag else []
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
    return f"{reference.repository}@{named.digest}", found


def tag_faults(
    source: Registry,
    tag: str,
    named: Manifest,
    images: Sequence[PublishedImage],
    policy: ReleasePolicy,
    key: str,
) -> Iterator[str]:
    """A tag must be the image's name, its dated tag or an alias; with a key, the last one that it was signed for."""
    try:
        versions = [tags.version_of(image) for image in images]
    except UserError as error:
        yield error.problems[0].cause
        return
    name, digest = versions[0].name, named.digest
    image_id = digest if named.is_index else images[0].image_id
    own = [
        name,
        tags.immutable_tag(name, max(one.created for one in versions), image_id),
        *policy.aliases_of(name),
    ]
    if tag not in own and not policy.own_claims:  # else a signature tells aliases
        yield f"{tag} names {name} ({digest[:19]}), whose tags are {listed(own, limit=5)}"
    elif key:
        last, of = attachments.last_signed(source, key, tag)
        if not of:
            yield f"{tag} names {name} ({digest[:19]}), which the key did not sign for it"
        elif of != digest:
            yield f"{tag} names {digest[:19]}; the key signed {of[:19]} for it last, {last.date}"


def _checks(
    image: PublishedImage, policy: ReleasePolicy, key: str, *, unsigned: bool
) -> Iterator[Check]:
    """What the key signed, then that alone; all that is attached where something is not signed."""
    if key:
        signed = image
        try:
            signed = attachments.counted(image, key)
            faults = [
                f"the key signed no {name}" for kind, name in NAMES.items() if not signed.of(kind)
            ]
        except UserError as error:
            faults = [error.problems[0].cause]
        ignored = len(image.statements) - len(signed.statements)
        more = f"; {ignored} more are not, and are ignored" if ignored else ""
        yield Check.of(
            "signature",
            faults,
            f"{len(signed.statements)} attachments are signed with the key{more}",
        )
        image = image if faults else signed
    elif not unsigned:
        reason = "not checked: give --key cosign.pub, or say --unsigned"
        yield Check(subject="signature", status=Status.UNPROVEN, reason=reason)
    yield from checks(image)
    subject = f"gate {','.join(map(str, policy.gate))}"
    try:
        exception = image.origin_exception
        closed = policy.refusals(
            image.labels, image.evidence, policy.gate, origin_exception=exception
        )
    except UserError as error:
        closed, exception = (error.problems[0].cause,), ""
    by = "today's matrix"
    if policy.own_claims:
        by = "the attestation's own claims, for which the key stands: no matrix.yaml is here"
        if not key and not closed:
            reason = "no matrix.yaml is here, and no key stands for the claims of the attestation"
            yield Check(subject=subject, status=Status.UNPROVEN, reason=reason)
            return
    excepted = (
        f"; the origin of its layers is UNPROVEN, by an exception: {exception}" if exception else ""
    )
    yield Check.of(subject, closed, f"judged by {by}{excepted}")
