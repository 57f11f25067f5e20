"""A validated image, stored in a registry with all that belongs to it. No tag is set here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from images.config.names import ImageName
from images.context.labels import LABELS
from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildEvent
from images.publish import attachments, checks, provenance, sbom, signing, variants
from images.publish.attachments import PROVENANCE, SBOM, PublishedImage
from images.publish.attestation import Attestation
from images.publish.compression import Compression
from images.publish.policy import ReleasePolicy
from images.publish.push import PushJob, Tally, known_blobs, push
from images.publish.sbom import Packages
from images.publish.statements import attest
from images.publish.stopwatch import Stopwatch
from images.publish.variants import Variant
from images.registry.client import Registry
from images.registry.distribution import Descriptor, Manifest
from images.registry.reference import Repository

Stored = Sequence[tuple[str, PublishedImage]]
"""Suffix of the tags, and image: the variants of one image, the plain one first."""


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """What to publish where, as the command line says it."""

    name: ImageName
    repository: Repository
    attestation: Path
    """The folder that `nox -s build` or `nox -s validate` wrote."""
    policy: ReleasePolicy
    locks: Mapping[str, bytes]
    """Path below the project's root -> content of a lock file."""
    cache: Path
    """Where layers pass through, and what they came to is remembered."""
    compressions: Sequence[Compression] = (Compression.GZIP, Compression.ZSTD)
    """Of the layers: one variant for each."""
    source: str = ""
    """The checkout's commit; empty where there is none."""
    key: str = ""
    """A private key of cosign; empty: not signed."""
    drop_platforms: bool = False
    """Whether the name of a row may lose a platform."""

    def siblings(self, info: ImageInfo) -> tuple[Repository, ...]:
        """Repositories of the same registry that have layers of an image."""
        return known_blobs(self.cache).siblings(self.repository, self.compressions, info.layers)


class Content(Protocol):
    """An image's layers and packages, wherever they are."""

    def push(self, target: Registry, wanted: Sequence[Compression]) -> Sequence[tuple[Compression, Manifest]]:
        """Store the layers and a manifest for each of these compressions, without a tag. Raises UserError."""
        ...

    def packages(self) -> Packages:
        """What is installed. Raises UserError."""
        ...


@dataclass(frozen=True, kw_only=True)
class EngineContent:
    """In an engine."""

    engine: Engine
    info: ImageInfo
    options: PublishOptions
    say: Callable[[str], None]
    on_event: Callable[[BuildEvent], None]

    def push(self, target: Registry, wanted: Sequence[Compression]) -> Sequence[tuple[Compression, Manifest]]:
        job = PushJob(
            engine=self.engine,
            info=self.info,
            target=target,
            wanted=wanted,
            cache=self.options.cache,
            siblings=self.options.siblings(self.info),
        )
        with Tally(where=str(target.repository), on_event=self.on_event) as tally:
            pushed = push(job, tally)
        self.say(f"sent {tally.sent / 1e6:.0f} MB of layers as {' and '.join(wanted)}")
        return pushed

    def packages(self) -> Packages:
        self.say("reading its packages")
        return sbom.read(self.engine, self.info.id)


@dataclass(frozen=True, kw_only=True)
class UnpublishedImage:
    """An image that nobody has pushed yet, with all that is stored beside it."""

    info: ImageInfo
    content: Content
    attestation: Attestation
    options: PublishOptions
    say: Callable[[str], None]

    def store(
        self, target: Registry, found: Sequence[Variant], stopwatch: Stopwatch
    ) -> tuple[tuple[str, PublishedImage], ...]:
        """Push the variants that are not `found`, attach, sign: suffix of the tags, and image, the plain one first.

        Every attestation of the image that counts is attached to each of its manifests: what one variant holds, all
        hold. With a key, what others attached is neither copied nor signed. Raises UserError, also for labels that are
        not true.
        """
        there = {one.manifest.digest: self._there(target, one.manifest) for one in found}
        attested = [one for image in there.values() for one in image.attestations]
        known = {one.evidence_file: one for one in [*attested, self.attestation]}
        every = variants.merged(found, self._push(target, found), self.options.compressions)
        stopwatch.lap("push")
        packages = functools.cache(self._sbom)
        count: set[str] = set()
        for variant in every:
            image = there.get(variant.manifest.digest) or self._there(target, variant.manifest)
            attached = self._attach(target, image, packages, list(known.values()))
            count |= {one.digest for one in image.attachments} | {one.digest for one in attached}
        target.relist_referrers()
        stopwatch.lap("attach")
        stored = tuple((one.suffix, self._only(attachments.load(target, one.manifest), count)) for one in every)
        for _, image in stored:
            checks.require_sound(image)
        if self.options.key:
            for _, image in stored:
                self._sign(target, image)
            stopwatch.lap("sign")
        return stored

    def _there(self, target: Registry, manifest: Manifest) -> PublishedImage:
        """A variant with what is attached to it already and counts."""
        return attachments.counted_by_signer(attachments.load(target, manifest), self.options.key)

    def _only(self, image: PublishedImage, count: Collection[str]) -> PublishedImage:
        """The image, with a key, with these attachments alone: what others attach meanwhile must not be signed."""
        if not self.options.key:
            return image
        return replace(image, attachments=tuple(one for one in image.attachments if one.digest in count))

    def _sign(self, target: Registry, image: PublishedImage) -> None:
        """The image with its attachments, and the statements that others read."""
        signing.sign(image.reference, self.options.key, [one.digest for one in image.attachments])
        listed = attest.attest(target, image, self.options.key, self.options.policy.claims_of(image.labels))
        for digest in listed:
            self.say(f"the registry deletes no manifest: {digest[:19]}, an earlier statement, stays listed")

    def _push(self, target: Registry, found: Sequence[Variant]) -> Sequence[tuple[Compression, Manifest]]:
        there = {one.compression for one in found}
        wanted = [one for one in self.options.compressions if one not in there]
        return self.content.push(target, wanted) if wanted else ()

    def _attach(
        self, target: Registry, image: PublishedImage, packages: Callable[[], bytes], known: Sequence[Attestation]
    ) -> list[Descriptor]:
        """SBOM and provenance once, and the attestations beside those that are there. Returns what was attached."""
        manifest, attached = image.manifest, []
        if not image.of(PROVENANCE):
            attached.append(attachments.attach_provenance(target, manifest, self._provenance(manifest)))
        if not image.of(SBOM):
            attached.append(attachments.attach_sbom(target, manifest, packages()))
        return [*attached, *(attachments.attach_attestation(target, manifest, one) for one in known)]

    def _sbom(self) -> bytes:
        packages = self.content.packages()
        created = datetime.fromisoformat(self.info.created)
        return sbom.cyclonedx(packages, name=str(self.options.name), digest=self.info.id, created=created)

    def _provenance(self, manifest: Manifest) -> bytes:
        options, info = self.options, self.info
        return provenance.statement(
            provenance.ProvenanceInput(
                name=options.name,
                repository=str(options.repository),
                digest=manifest.digest,
                image_id=info.id,
                revision=info.labels.get(f"{LABELS}.matrix-revision", ""),
                source=options.source,
                locks=options.locks,
                build=provenance.read_build_record(options.attestation, str(options.name), info.id),
                created=info.created,
            )
        )
