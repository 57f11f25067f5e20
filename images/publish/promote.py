"""Promote an image from one repository of a registry into another, by digest: from staging to production.

Nothing is built or sent: blobs are mounted, and manifests are stored as they are. All variants of the image go, and of
an index all images.
"""

from __future__ import annotations

from collections.abc import Sequence

from images.context.labels import LABELS
from images.errors import Problem, UserError
from images.publish import attachments, checks, index, signing, tags, variants
from images.publish.attachments import PublishedImage
from images.publish.index import Admission
from images.publish.policy import ReleasePolicy
from images.publish.publication import Part, Publication, PublishResult
from images.publish.statements import store
from images.publish.unpublished_image import Stored
from images.registry.client import Registry
from images.registry.distribution import Manifest, referrers_tag
from images.registry.reference import Reference, Repository
from validate.claims import ClaimSet
from validate.judging import Status

_JOIN = "promote the image by its dated tag: it joins those that are there; or give --drop-platforms"


def promote(
    reference: Reference, to: Repository, policy: ReleasePolicy, *, key: str = "", drop_platforms: bool = False
) -> PublishResult:
    """Copy an image with its attachments and signature, and move the tags there.

    With a key, only attachments that its signature covers count. `drop_platforms`: an index may take the place of one
    for more platforms. Raises UserError: the gate is closed, a tag would go back or lose a platform, another registry.
    """
    _require_one_registry(reference, to)
    if key:
        signing.require(key)
    with Registry(reference.repository) as source, Registry(to, mount_from=[reference.repository]) as target:
        named = source.get(reference.identifier)
        images = [_variants(source, one, key) for one in index.load(source, named)]
        if named.is_index:
            _require_ours(source, named, images)
        names = [image.labels[f"{LABELS}.image"] for ((_, image), *_) in images]
        row = policy.row_of(names[0])
        publication = Publication(
            target=target,
            admission=Admission(policy=policy, key=key),
            signed=bool(key),
            row=names if named.is_index else row if len(row) > 1 else (),
            joins=not named.is_index,
            keeps="" if drop_platforms or not named.is_index else _JOIN,
            on_index=lambda made: _copy_what_refers(source, target, made.digest),
        )
        return publication.run([_part(source, publication, stored) for stored in images])


def _part(source: Registry, publication: Publication, stored: Stored) -> Part:
    image = stored[0][1]
    claims = publication.policy.claims_of(image.labels)

    def store() -> Stored:
        for _, one in stored:
            _require_good(publication, one, claims)
            _require_good_there(publication, one, claims)
        publication.target.check_access()
        for _, one in stored:
            copy(source, publication.target, one.manifest)
        publication.stopwatch.lap("copy")
        copied = tuple((suffix, _counted_there(publication, one.manifest)) for suffix, one in stored)
        for _, one in copied:
            _require_good(publication, one, claims)
        return copied

    return Part(
        where=image.reference,
        version=tags.version_of(image),
        claims=claims,
        verdicts=[one.verdict for one in image.attestations],
        suffixes=[suffix for suffix, _ in stored],
        store=store,
    )


def _require_good(publication: Publication, image: PublishedImage, claims: ClaimSet | None) -> None:
    """Raises UserError for an image that `verify` would not pass."""
    checks.require_sound(image)
    publication.policy.require_open(image.reference, [one.verdict for one in image.attestations], claims)


def _require_good_there(publication: Publication, image: PublishedImage, claims: ClaimSet | None) -> None:
    """Raises UserError where what is attached in the target alone closes the gate: a trial that failed there, say.

    Before anything is copied: the source's statements take the place of those that the same key signed there.
    """
    if manifest := publication.target.find(image.manifest.digest):
        there = _counted_there(publication, manifest)
        verdicts = [one.verdict for one in (*image.attestations, *there.attestations)]
        publication.policy.require_open(there.reference, verdicts, claims)


def _counted_there(publication: Publication, manifest: Manifest) -> PublishedImage:
    """An image as the target has it, with what counts of all that is attached to it there."""
    return attachments.counted(attachments.load(publication.target, manifest), publication.admission.key)


def _require_ours(source: Registry, named: Manifest, images: Sequence[Stored]) -> None:
    """Raises UserError for an index that would not be the same in the other repository."""
    by_suffix: dict[str, list[PublishedImage]] = {}
    for stored in images:
        for suffix, image in stored:
            by_suffix.setdefault(suffix, []).append(image)
    listed = [next(one for _, one in stored if one.manifest.digest in _digests(named)) for stored in images]
    found = index.check(named, listed)
    if found.status is Status.PASS and named.digest in [index.compose(of_one).digest for of_one in by_suffix.values()]:
        return
    cause = found.reason if found.status is not Status.PASS else "is no index as `publish` writes it"
    where = f"{source.repository}@{named.digest}"
    raise UserError(Problem(where=where, cause=cause, then="publish its images anew"), code=1)


def _digests(named: Manifest) -> list[str]:
    return [entry.digest for entry in named.manifests]


def _variants(source: Registry, image: PublishedImage, key: str) -> Stored:
    """The image with its other variants, where its dated tags name it too; else as it is. With what a key signed."""
    version = tags.version_of(image)
    tag = tags.immutable_tag(version.name, version.created, image.image_id)
    found = variants.find(source, tag, image.image_id)
    stored: Stored = (("", image),)
    if image.manifest.digest in [one.manifest.digest for one in found]:
        stored = tuple((one.suffix, attachments.load(source, one.manifest)) for one in found)
    return tuple((suffix, attachments.signed_only(one, key) if key else one) for suffix, one in stored)


def _require_one_registry(reference: Reference, to: Repository) -> None:
    if reference.repository.host != to.host:
        command = f"`oras cp -r {reference} {to}:{reference.identifier}`"
        then = f"copy it with its attachments first: {command}; then promote there"
        raise UserError(Problem(where=str(to), cause=f"is not on {reference.repository.host}", then=then))


def copy(source: Registry, target: Registry, manifest: Manifest) -> None:
    """An image, then what refers to it, signatures last. Raises UserError."""
    _mount_blobs(source, target, manifest)
    target.put(manifest)
    _copy_what_refers(source, target, manifest.digest)


def _copy_what_refers(source: Registry, target: Registry, digest: str) -> None:
    """To an image or an index that is the same in both repositories: cosign 3 keeps signatures as referrers."""
    for entry in source.referrers(digest):
        artifact = source.get(entry.digest)
        _mount_blobs(source, target, artifact)
        target.put_referrer(artifact)
    signatures = {signature_tag(digest): source.find(signature_tag(digest))}
    signatures[store.tag(digest)] = store.copy(source, target, digest)
    for tag, signature in signatures.items():
        if signature:
            _mount_blobs(source, target, signature)
            store.join(target, signature, tag)


def signature_tag(digest: str) -> str:
    """Where cosign keeps the signatures of a digest."""
    return f"{referrers_tag(digest)}.sig"


def _mount_blobs(source: Registry, target: Registry, manifest: Manifest) -> None:
    sizes = {blob.digest: blob.size for blob in (manifest.config, *manifest.layers)}
    for digest, size in sizes.items():
        if not target.mount(digest, source.repository, size):
            cause = f"the registry does not mount {digest[:19]} of {source.repository}"
            then = "both repositories must be readable with the same login"
            raise UserError(Problem(where=str(target.repository), cause=cause, then=then), code=1)
