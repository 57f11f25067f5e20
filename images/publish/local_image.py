"""`publish`: an image of an engine into a registry, with all that belongs to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from images.config.names import ImageName
from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, ignore
from images.engine.buildkit import BuildEvent
from images.errors import Problem, UserError
from images.publish import attachments, attestation, checks, provenance, push, sbom, signing, statements, tags
from images.publish.attachments import PublishedImage
from images.publish.attestation import Attestation
from images.publish.compression import Compression, compression_of
from images.publish.gate import ReleasePolicy
from images.publish.publication import SUFFIXES, Part, Publication, PublishResult, find_variants
from images.publish.sbom import Packages
from images.publish.statements import CYCLONEDX, PROVENANCE, TEST_RESULT, Statement
from images.publish.tags import ImageVersion
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Repository

_ANEW = (
    "publish the other image anew first, or both with --all-platforms, or give a --gate that it opens;"
    " --drop-platforms lets it go"
)


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """What to publish where, as the command line says it."""

    name: ImageName
    repository: Repository
    attestation: Path
    """The folder with the verdict, the evidence and the record of the build."""
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


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """A validated image, and how its content is pushed and its packages are read: neither sets a tag."""

    info: ImageInfo
    attestation: Attestation
    options: PublishOptions
    push: Callable[[Registry, Sequence[Compression]], Mapping[Compression, Manifest]]
    packages: Callable[[], Packages]
    staged: Repository | None = None
    """Another repository of the same registry that has it."""
    say: Callable[[str], None] = lambda _text: None


def in_engine(
    engine: Engine,
    reference: str,
    options: PublishOptions,
    *,
    staged: Repository | None = None,
    say: Callable[[str], None] = lambda _text: None,
    on_event: Callable[[BuildEvent], None] = ignore,
) -> LocalImage:
    """An image of an engine, with its validation run judged again. `staged`: a repository that has it, too.

    Raises UserError: the run is of another image.
    """
    info = engine.inspect(reference)
    near = staged if staged and staged != options.repository and staged.host == options.repository.host else None

    def pushed(target: Registry, wanted: Sequence[Compression]) -> Mapping[Compression, Manifest]:
        manifests, sent = push.push(engine, info, target, wanted, options.cache, source=near, on_event=on_event)
        say(f"sent {sent / 1e6:.0f} MB of layers as {' and '.join(wanted)}")
        return manifests

    return LocalImage(
        info=info,
        attestation=attestation.read_folder(options.attestation, str(options.name), info),
        options=options,
        push=pushed,
        packages=lambda: sbom.read(engine, info.id),
        staged=near,
        say=say,
    )


def publish(images: Sequence[LocalImage]) -> PublishResult:
    """Push images of one row of the matrix whose validation runs open the gate; attach, sign, and only then move tags.

    No tag moves before all are stored. Raises UserError: a run is not enough, a tag would go back, no access.
    """
    first = images[0].options
    staged = {image.staged: None for image in images if image.staged}
    with ExitStack() as stack:
        public = ""
        if first.key:
            signing.require(first.key)
            public = stack.enter_context(signing.public_file(first.key))
        target = stack.enter_context(Registry(first.repository, mount_from=list(staged)))
        target.check_access()

        def sign(digest: str) -> None:
            if first.key:
                attachments.sign_image(target, digest, first.key, public)

        row = first.policy.row_of(str(first.name))
        publication = Publication(
            target=target,
            policy=first.policy,
            key=public,
            row=row if len(row) > 1 else (),
            keeps="" if first.drop_platforms else _ANEW,
            on_index=lambda made: sign(made.digest),
        )
        return publication.run([_part(target, image, public, sign) for image in images])


def _part(target: Registry, local: LocalImage, public: str, sign: Callable[[str], None]) -> Part:
    info, options = local.info, local.options
    name = str(options.name)
    found = ImageVersion.require(info.id, info.labels, info.created, name, f"linux/{info.architecture}")
    version = replace(found, name=name)
    tag = tags.immutable_tag(name, version.created, info.id)
    there = {
        suffix: _counted(target, one, local, public) for suffix, one in find_variants(target, tag, info.id).items()
    }
    if "" in there:
        _require_plain(compression_of(there[""].manifest), options.compressions, f"{options.repository}:{tag}")
    every = {*options.compressions, *(compression_of(one.manifest) for one in there.values())}
    return Part(
        where=name,
        version=version,
        claims=options.policy.claims_of(info.labels),
        # Other machines may have judged its other tiers.
        verdicts=[local.attestation.verdict, *(run.verdict for one in there.values() for run in one.attestations)],
        suffixes=SUFFIXES if len(every) > 1 else SUFFIXES[:1],
        store=functools.partial(_store, target, local, there, public, sign),
    )


def _counted(target: Registry, manifest: Manifest, local: LocalImage, public: str) -> PublishedImage:
    """A variant that is there, with the statements that count; how many more there are is said."""
    image = attachments.load(target, manifest)
    counted = attachments.counted(image, public)
    if ignored := len(image.statements) - len(counted.statements):
        local.say(f"{image.reference}: {ignored} attachments count for nothing: --key did not sign them")
    return counted


def _require_plain(plain: Compression, wanted: Sequence[Compression], where: str) -> None:
    """Raises UserError where the variant without a suffix is there and would have to become another one."""
    if plain is (Compression.GZIP if Compression.GZIP in wanted else Compression.ZSTD):
        return
    may = "add to it with --compression all" if plain is Compression.GZIP else "give --compression zstd"
    cause = f"names the image with {plain} layers, and such tags are never moved"
    raise UserError(Problem(where=where, cause=cause, then=f"{may}; or build anew"), code=1)


def _store(
    target: Registry,
    local: LocalImage,
    there: Mapping[str, PublishedImage],
    public: str,
    sign: Callable[[str], None],
) -> Mapping[str, PublishedImage]:
    """Push the variants that are not there, attach, sign: suffix of the tags -> image, the plain one first.

    What one variant holds of validation runs, all hold. With a key, what others attached is neither copied nor signed.
    Raises UserError, also for labels that are not true: then nothing is attached.
    """
    had = {compression_of(one.manifest) for one in there.values()}
    wanted = [one for one in local.options.compressions if one not in had]
    images = dict(there)
    for compression, manifest in (local.push(target, wanted) if wanted else {}).items():
        gzip_beside = Compression.GZIP in {*had, *wanted}
        suffix = SUFFIXES[1] if compression is Compression.ZSTD and gzip_beside else SUFFIXES[0]
        images[suffix] = attachments.counted(attachments.load(target, manifest), public)
    runs = {run.evidence_file: run for one in images.values() for run in one.attestations}
    runs[local.attestation.evidence_file] = local.attestation
    packages = functools.cache(local.packages)
    stored = {
        suffix: _attach(target, local, images[suffix], list(runs.values()), packages) for suffix in sorted(images)
    }
    for image in stored.values():
        sign(image.manifest.digest)
    return stored


def _attach(
    target: Registry,
    local: LocalImage,
    image: PublishedImage,
    runs: Sequence[Attestation],
    packages: Callable[[], Packages],
) -> PublishedImage:
    """SBOM and provenance where there is none that counts, and one test result of all validation runs."""
    info, options = local.info, local.options

    def say(predicate_type: str, predicate: Mapping[str, object]) -> Statement:
        place, digest = str(options.repository), image.manifest.digest
        return Statement.of(predicate_type, predicate, repository=place, digest=digest)

    new = [say(TEST_RESULT, statements.test_result(runs, options.policy.claims_of(info.labels)))]
    if not image.of(PROVENANCE):
        made = provenance.predicate(
            provenance.read_build_record(options.attestation, str(options.name), info.id),
            name=options.name,
            revision=info.labels.get(f"{LABELS}.matrix-revision", ""),
            created=info.created,
            locks=options.locks,
            source=options.source,
        )
        new.append(say(PROVENANCE, made))
    if not image.of(CYCLONEDX):
        created = datetime.fromisoformat(info.created)
        bom = sbom.cyclonedx(packages(), name=str(options.name), digest=info.id, created=created)
        new.append(say(CYCLONEDX, bom))
    checks.require_sound(replace(image, statements=(*image.statements, *new)))
    return attachments.attach(target, image, new, options.key)
