"""Promote an image from one repository of a registry into another, by digest: from staging to production.

Nothing is built or sent: blobs are mounted, and manifests are stored as they are. All variants of the image go, and of
an index all images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from images.context.labels import LABELS
from images.errors import Problem, UserError
from images.publish import attachments, checks, index, signing, tags
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.publication import Part, Publication, PublishResult, find_variants
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Reference, Repository
from validate.judging import Status

_JOIN = "promote the image by its dated tag: it joins those that are there; or give --drop-platforms"
_Variants = Mapping[str, PublishedImage]
"""Suffix of the tags -> variant of one image."""


def promote(
    reference: Reference, to: Repository, policy: ReleasePolicy, *, key: str = "", drop_platforms: bool = False
) -> PublishResult:
    """Copy an image with all that is attached to it and signed, and move the tags there.

    With a public key, only statements that it signed count. `drop_platforms`: an index may take the place of one for
    more platforms. Raises UserError: the gate is closed, a tag would go back or lose a platform, another registry.
    """
    if reference.repository.host != to.host:
        then = f"copy it first: `cosign copy {reference} {to}:{reference.identifier}`; then promote there"
        raise UserError(Problem(where=str(to), cause=f"is not on {reference.repository.host}", then=then))
    if key:
        signing.require(key)
    with Registry(reference.repository) as source, Registry(to, mount_from=[reference.repository]) as target:
        named = source.get(reference.identifier)
        images = [_variants(source, one, key) for one in index.load(source, named)]
        if named.is_index:
            _require_ours(source, named, images)
        names = [next(iter(one.values())).labels[f"{LABELS}.image"] for one in images]
        row = policy.row_of(names[0])
        publication = Publication(
            target=target,
            policy=policy,
            key=key,
            row=names if named.is_index else row if len(row) > 1 else (),
            joins=not named.is_index,
            keeps="" if drop_platforms or not named.is_index else _JOIN,
            on_index=lambda made: attachments.copy(source, target, made.digest, key),
        )
        return publication.run([_part(source, publication, one) for one in images])


def _part(source: Registry, publication: Publication, variants: _Variants) -> Part:
    target, policy, key = publication.target, publication.policy, publication.key
    image = next(iter(variants.values()))

    def store() -> _Variants:
        for one in variants.values():
            checks.require_good(one, policy)
            # What is attached in the target alone counts, too: a run that failed there, say.
            if there := target.find(one.manifest.digest):
                held = attachments.counted(attachments.load(target, there), key)
                verdicts = [run.verdict for run in (*one.attestations, *held.attestations)]
                policy.require_open(held.reference, verdicts, policy.claims_of(one.labels))
        target.check_access()
        for one in variants.values():
            copy(source, target, one.manifest, key)
        copied = {
            suffix: attachments.counted(attachments.load(target, one.manifest), key) for suffix, one in variants.items()
        }
        for one in copied.values():
            checks.require_good(one, policy)
        return copied

    return Part(
        where=image.reference,
        version=tags.version_of(image),
        claims=policy.claims_of(image.labels),
        verdicts=[one.verdict for one in image.attestations],
        suffixes=tuple(variants),
        store=store,
    )


def _variants(source: Registry, image: PublishedImage, key: str) -> _Variants:
    """The image with its other variants, where its dated tags name it too; else as it is. With what counts."""
    version = tags.version_of(image)
    tag = tags.immutable_tag(version.name, version.created, image.image_id)
    found = find_variants(source, tag, image.image_id)
    variants = {"": image}
    if image.manifest.digest in [one.digest for one in found.values()]:
        variants = {suffix: attachments.load(source, one) for suffix, one in found.items()}
    return {suffix: attachments.require_signed(one, key) for suffix, one in variants.items()}


def _require_ours(source: Registry, named: Manifest, images: Sequence[_Variants]) -> None:
    """Raises UserError for an index that would not be the same in the other repository."""
    listed = {entry.digest for entry in named.manifests}
    found = index.check(
        named, [next(one for one in variants.values() if one.manifest.digest in listed) for variants in images]
    )
    suffixes = {suffix for variants in images for suffix in variants}
    whole = [[variants[suffix] for variants in images if suffix in variants] for suffix in suffixes]
    if found.status is Status.PASS and named.digest in [index.compose(one).digest for one in whole]:
        return
    cause = found.reason if found.status is not Status.PASS else "is no index as `publish` writes it"
    where = f"{source.repository}@{named.digest}"
    raise UserError(Problem(where=where, cause=cause, then="publish its images anew"), code=1)


def copy(source: Registry, target: Registry, manifest: Manifest, key: str = "") -> None:
    """An image, then what is attached to it. Raises UserError."""
    attachments.mount_blobs(source, target, manifest)
    target.put(manifest)
    attachments.copy(source, target, manifest.digest, key)
