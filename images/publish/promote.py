"""Promote an image from one repository of a registry into another, by digest: from staging to production.

Nothing is built or sent: blobs are mounted, and manifests are stored as they are. All variants of the image go.
"""

from __future__ import annotations

from images.errors import Problem, UserError
from images.publish import attachments, checks, signing, variants
from images.publish.attachments import PublishedImage
from images.publish.local_image import Stored
from images.publish.policy import ReleasePolicy
from images.publish.publication import Publication, PublishResult
from images.publish.statements import store
from images.publish.tags import ImageVersion, immutable_tag
from images.registry.client import Registry
from images.registry.distribution import Manifest, referrers_tag
from images.registry.reference import Reference, Repository


def promote(reference: Reference, to: Repository, policy: ReleasePolicy, *, key: str = "") -> PublishResult:
    """Copy an image with its attachments and signature, and move the tags there.

    With a key, only attachments that its signature covers count. Raises UserError: the gate is closed, a tag would go
    back, another registry.
    """
    _require_one_registry(reference, to)
    if key:
        signing.require(key)
    with Registry(reference.repository) as source, Registry(to, mount_from=[reference.repository]) as target:
        stored = _variants(source, attachments.load(source, source.get(reference.identifier)))
        stored = tuple((suffix, attachments.signed_only(image, key) if key else image) for suffix, image in stored)
        image = stored[0][1]
        publication = Publication(
            target=target,
            version=_version(image),
            policy=policy,
            claims=policy.claims_of(image.labels),
            signed=bool(key),
            suffixes=[suffix for suffix, _ in stored],
        )

        def store() -> Stored:
            for _, one in stored:
                checks.require_sound(one)
                policy.require_open(one.reference, [found.verdict for found in one.attestations], publication.claims)
            target.check_access()
            for _, one in stored:
                copy(source, target, one.manifest)
            publication.stopwatch.lap("copy")
            return stored

        return publication.run(image.reference, [one.verdict for one in image.attestations], store)


def _version(image: PublishedImage) -> ImageVersion:
    return ImageVersion.require(image.manifest.digest, image.labels, image.created, image.reference)


def _variants(source: Registry, image: PublishedImage) -> Stored:
    """The image with its other variant, where its dated tags name both; else as it is."""
    version = _version(image)
    tag = immutable_tag(version.name, version.created, image.image_id)
    found = variants.find(source, tag, image.image_id)
    if image.manifest.digest not in [one.manifest.digest for one in found]:
        return (("", image),)
    return tuple((one.suffix, attachments.load(source, one.manifest)) for one in found)


def _require_one_registry(reference: Reference, to: Repository) -> None:
    if reference.repository.host != to.host:
        command = f"`oras cp -r {reference} {to}:{reference.identifier}`"
        then = f"copy it with its attachments first: {command}; then promote there"
        raise UserError(Problem(where=str(to), cause=f"is not on {reference.repository.host}", then=then))


def copy(source: Registry, target: Registry, manifest: Manifest) -> None:
    """An image, then what refers to it, signatures last. Raises UserError."""
    _mount_blobs(source, target, manifest)
    target.put(manifest)
    for entry in source.referrers(manifest.digest):
        artifact = source.get(entry.digest)
        _mount_blobs(source, target, artifact)
        target.put_referrer(artifact)
    signatures = {signature_tag(manifest.digest): source.find(signature_tag(manifest.digest))}
    signatures[store.tag(manifest.digest)] = store.copy(source, target, manifest.digest)
    for tag, signature in signatures.items():
        if signature:
            _mount_blobs(source, target, signature)
            target.put(signature, tag)


def signature_tag(digest: str) -> str:
    """Where cosign keeps the signatures of a digest."""
    return f"{referrers_tag(digest)}.sig"


def _mount_blobs(source: Registry, target: Registry, manifest: Manifest) -> None:
    for digest in dict.fromkeys(blob.digest for blob in (manifest.config, *manifest.layers)):
        if not target.mount(digest, source.repository):
            cause = f"the registry does not mount {digest[:19]} of {source.repository}"
            then = "both repositories must be readable with the same login"
            raise UserError(Problem(where=str(target.repository), cause=cause, then=then), code=1)
