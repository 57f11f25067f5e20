"""Promote an image from one repository of a registry into another, by digest: from staging to production.

Nothing is built or sent: blobs are mounted, and manifests are stored as they are.
"""

from __future__ import annotations

from images.errors import Problem, UserError
from images.publish import attachments, checks, signing
from images.publish.attachments import PublishedImage
from images.publish.policy import ReleasePolicy
from images.publish.publication import Publication, PublishResult
from images.publish.tags import ImageVersion
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
        image = attachments.load(source, source.get(reference.identifier))
        image = attachments.signed_only(image, key) if key else image
        version = ImageVersion.require(image.manifest.digest, image.labels, image.created, image.reference)
        publication = Publication(
            target=target,
            version=version,
            policy=policy,
            claims=policy.claims_of(image.labels),
            signed=bool(key),
        )

        def store() -> PublishedImage:
            checks.require_sound(image)
            target.check_access()
            copy(source, target, image.manifest)
            publication.stopwatch.lap("copy")
            return image

        return publication.run(image.reference, [one.verdict for one in image.attestations], store)


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
    if signature := source.find(signature_tag(manifest.digest)):
        _mount_blobs(source, target, signature)
        target.put(signature, signature_tag(manifest.digest))


def signature_tag(digest: str) -> str:
    """Where cosign keeps the signatures of a digest."""
    return f"{referrers_tag(digest)}.sig"


def _mount_blobs(source: Registry, target: Registry, manifest: Manifest) -> None:
    for digest in dict.fromkeys(blob.digest for blob in (manifest.config, *manifest.layers)):
        if not target.mount(digest, source.repository):
            cause = f"the registry does not mount {digest[:19]} of {source.repository}"
            then = "both repositories must be readable with the same login"
            raise UserError(Problem(where=str(target.repository), cause=cause, then=then), code=1)
