"""From a validated image to a published one: check, store the content, and only then move tags.

`publish` takes the image from an engine, `promote.py` from another repository; the steps are the same. Everything can
be repeated: what is there already is not sent again, so the same command finishes an interrupted publication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from images.engine import Engine, ignore
from images.engine.buildkit import BuildEvent
from images.publish import attachments, attestation, signing, tags, variants
from images.publish.attachments import PublishedImage
from images.publish.local_image import LocalImage, PublishOptions, Stored
from images.publish.policy import ReleasePolicy
from images.publish.stopwatch import Stopwatch
from images.publish.tags import Action, ImageVersion, TagChange, TagKind
from images.publish.variants import ZSTD_SUFFIX, Variant
from images.registry.client import Registry
from validate.claims import ClaimSet
from validate.judge import Verdict


@dataclass(frozen=True, kw_only=True)
class PublishResult:
    """What was published."""

    references: Mapping[str, str]
    """Compression -> `HOST/NAME@sha256:...`, the plain variant's first."""
    bytes: Mapping[str, int]
    """Compression -> all layers, as the registry holds them."""
    tags: tuple[str, ...]
    unmoved_aliases: tuple[str, ...]
    """Why each of them stayed where it was; tags of a variant that was not published, too."""
    seconds: Mapping[str, float]
    """Of each stage."""
    signed: bool

    @property
    def reference(self) -> str:
        """Of the plain variant."""
        return next(iter(self.references.values()))


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One image on its way into one repository."""

    target: Registry
    version: ImageVersion
    policy: ReleasePolicy
    claims: ClaimSet | None
    """Those that the matrix writes for the image today; None where it doesn't know the image."""
    signed: bool
    suffixes: Sequence[str] = ("",)
    """Of the tags of its variants."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def run(self, where: str, verdicts: Sequence[Verdict], store: Callable[[], Stored]) -> PublishResult:
        """Check the gate and the tag, store the image by `store`, and move its tags. Raises UserError.

        `verdicts` are those known before anything is stored. `where` names the image in messages.
        """
        self.policy.require_open(where, verdicts, self.claims)
        names = {f"{self.version.name}{suffix}": TagKind.NAME for suffix in self.suffixes}
        tags.require_allowed(self.target, tags.plan(self.target, self.version, names))
        return self._move_tags(store())

    def _move_tags(self, stored: Stored) -> PublishResult:
        moves = [(image.manifest, self._changes(suffix, image)) for suffix, image in stored]
        tags.move(self.target, moves)
        self.stopwatch.lap("tags")
        changes = [change for _, of_variant in moves for change in of_variant]
        left = [change for change in changes if change.action is Action.LEAVE]
        images = {str(variants.compression_of(image.manifest)): image for _, image in stored}
        return PublishResult(
            references={key: f"{self.target.repository}@{image.manifest.digest}" for key, image in images.items()},
            bytes={key: image.compressed_size for key, image in images.items()},
            tags=tuple(change.tag for change in changes if change not in left),
            unmoved_aliases=(*(f"{change.tag} stays: {change.reason}" for change in left), *self._left_behind()),
            seconds=self.stopwatch.seconds,
            signed=self.signed,
        )

    def _left_behind(self) -> tuple[str, ...]:
        """Tags of an older build's other variant, which a reader may take for this build's."""
        tag = f"{self.version.name}{ZSTD_SUFFIX}"
        if ZSTD_SUFFIX in self.suffixes or self.target.find(tag) is None:
            return ()
        return (f"{tag} and its like stay on an older build: --compression both moves them too",)

    def _changes(self, suffix: str, image: PublishedImage) -> tuple[TagChange, ...]:
        version = replace(self.version, digest=image.manifest.digest)
        alias_refusal = self.policy.alias_refusal([one.verdict for one in image.attestations], self.claims)
        wanted = tags.tags_of(version, image.image_id, self.policy.aliases_of(version.name), suffix)
        return tags.plan(self.target, version, wanted, alias_refusal)


def publish(
    engine: Engine,
    reference: str,
    options: PublishOptions,
    *,
    say: Callable[[str], None],
    on_event: Callable[[BuildEvent], None] = ignore,
) -> PublishResult:
    """Push an image whose attestation opens the gate; attach, sign, and only then move tags.

    Raises UserError: the attestation is of another image or not enough, a tag would go back, a registry's refusal.
    """
    info = engine.inspect(reference)
    name = str(options.name)
    found = attestation.read_folder(options.attestation, name, info)
    if options.key:
        signing.require(options.key)
    version = replace(ImageVersion.require(info.id, info.labels, info.created, reference), name=name)
    tag = tags.immutable_tag(name, version.created, info.id)
    local = LocalImage(engine=engine, info=info, attestation=found, options=options, say=say, on_event=on_event)
    with Registry(options.repository, mount_from=options.siblings(info)) as target:
        target.check_access()
        there = variants.find(target, tag, info.id)
        variants.require_possible(there, options.compressions, f"{options.repository}:{tag}")
        has_two = len({*options.compressions, *(one.compression for one in there)}) > 1
        publication = Publication(
            target=target,
            version=version,
            policy=options.policy,
            claims=options.policy.claims_of(info.labels),
            signed=bool(options.key),
            suffixes=("", ZSTD_SUFFIX) if has_two else ("",),
        )
        verdicts = [found.verdict, *_attached_verdicts(target, there)]
        return publication.run(name, verdicts, lambda: local.store(target, there, publication.stopwatch))


def _attached_verdicts(target: Registry, there: Sequence[Variant]) -> tuple[Verdict, ...]:
    """Verdicts that are attached to this very image already: other machines may have judged its other tiers."""
    images = [attachments.load(target, variant.manifest) for variant in there]
    return tuple(one.verdict for image in images for one in image.attestations)
