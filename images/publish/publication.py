"""From a validated image to a published one: check, store the content, and only then move tags.

`publish` takes the image from an engine, `promote.py` from another repository; the steps are the same. Everything can
be repeated: what is there already is not sent again, so the same command finishes an interrupted publication.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from images.config.names import ImageName
from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, ignore
from images.engine.buildkit import BuildEvent
from images.publish import attachments, attestation, checks, provenance, sbom, signing, tags
from images.publish.attachments import PROVENANCE, SBOM, PublishedImage
from images.publish.attestation import Attestation
from images.publish.policy import ReleasePolicy
from images.publish.push import push
from images.publish.tags import Action, ImageVersion, TagKind
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Repository
from validate.claims import ClaimSet
from validate.judge import Verdict


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
    source: str = ""
    """The checkout's commit; empty where there is none."""
    key: str = ""
    """A private key of cosign; empty: not signed."""


@dataclass(frozen=True, kw_only=True)
class PublishResult:
    """What was published. `bytes` of all layers, compressed, as the registry holds them."""

    reference: str
    tags: tuple[str, ...]
    unmoved_aliases: tuple[str, ...]
    """Why each of them stayed where it was."""
    bytes: int
    seconds: Mapping[str, float]
    """Of each stage."""
    signed: bool


@dataclass(kw_only=True)
class Stopwatch:
    """Seconds of each stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.monotonic)

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self.seconds[stage], self._since = round(now - self._since, 1), now


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One image on its way into one repository."""

    target: Registry
    version: ImageVersion
    policy: ReleasePolicy
    claims: ClaimSet | None
    """Those that the matrix writes for the image today; None where it doesn't know the image."""
    signed: bool
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def run(self, where: str, verdicts: Sequence[Verdict], store: Callable[[], PublishedImage]) -> PublishResult:
        """Check the gate and the tag, store the image by `store`, and move its tags. Raises UserError.

        `verdicts` are those known before anything is stored. `where` names the image in messages.
        """
        self.policy.require_open(where, verdicts, self.claims)
        tags.require_allowed(self.target, tags.plan(self.target, self.version, {self.version.name: TagKind.NAME}))
        return self._move_tags(store())

    def _move_tags(self, image: PublishedImage) -> PublishResult:
        version = replace(self.version, digest=image.manifest.digest)
        alias_refusal = self.policy.alias_refusal([one.verdict for one in image.attestations], self.claims)
        wanted = tags.tags_of(version, image.image_id, self.policy.aliases_of(version.name))
        changes = tags.plan(self.target, version, wanted, alias_refusal)
        tags.move(self.target, image.manifest, changes)
        self.stopwatch.lap("tags")
        left = [change for change in changes if change.action is Action.LEAVE]
        return PublishResult(
            reference=f"{self.target.repository}@{image.manifest.digest}",
            tags=tuple(change.tag for change in changes if change not in left),
            unmoved_aliases=tuple(f"{change.tag} stays: {change.reason}" for change in left),
            bytes=image.compressed_size,
            seconds=self.stopwatch.seconds,
            signed=self.signed,
        )


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """An image in an engine, with all that is stored beside it."""

    engine: Engine
    info: ImageInfo
    attestation: Attestation
    options: PublishOptions
    say: Callable[[str], None]
    on_event: Callable[[BuildEvent], None]

    def store(self, target: Registry, tag: str, stopwatch: Stopwatch) -> PublishedImage:
        """Push it under its immutable tag, attach, sign. Raises UserError, also for labels that are not true."""
        manifest = push(self.engine, self.info, target, tag, self.on_event)
        stopwatch.lap("push")
        self._attach(target, manifest)
        stopwatch.lap("attach")
        image = attachments.load(target, manifest)
        checks.require_sound(image)
        if self.options.key:
            signing.sign(image.reference, self.options.key, [one.digest for one in image.attachments])
            stopwatch.lap("sign")
        return image

    def _attach(self, target: Registry, manifest: Manifest) -> None:
        """SBOM and provenance once, and this attestation beside those that are there."""
        there = {one.artifact_type for one in target.referrers(manifest.digest)}
        if PROVENANCE not in there:
            attachments.attach_provenance(target, manifest, self._provenance(manifest))
        if SBOM not in there:
            attachments.attach_sbom(target, manifest, self._sbom())
        attachments.attach_attestation(target, manifest, self.attestation)

    def _sbom(self) -> bytes:
        self.say("reading its packages")
        packages = sbom.read(self.engine, self.info.id)
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
    with Registry(options.repository) as target:
        publication = Publication(
            target=target,
            version=version,
            policy=options.policy,
            claims=options.policy.claims_of(info.labels),
            signed=bool(options.key),
        )
        target.check_access()
        verdicts = [found.verdict, *_attached_verdicts(target, tag)]
        return publication.run(name, verdicts, lambda: local.store(target, tag, publication.stopwatch))


def _attached_verdicts(target: Registry, tag: str) -> tuple[Verdict, ...]:
    """Verdicts that are attached to this very image already: other machines may have judged its other tiers."""
    found = target.find(tag)
    return tuple(one.verdict for one in attachments.load(target, found).attestations) if found else ()
