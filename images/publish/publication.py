"""From a validated image to a published one: check, store the content, and only then move tags.

`publish` takes the image from an engine, `promote.py` from another repository; the steps are the same. Everything can
be repeated: what is there already is not sent again, so the same command finishes an interrupted publication. Images of
a row of the matrix for several platforms go together, or join those that are there (`index.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from images.config.platforms import Platform
from images.engine import Engine, ignore
from images.engine.buildkit import BuildEvent
from images.errors import Problem, UserError
from images.publish import attachments, attestation, index, signing, tags, variants
from images.publish.attachments import PublishedImage
from images.publish.compression import Compression
from images.publish.index import Admission, Others
from images.publish.policy import ReleasePolicy
from images.publish.row_tags import Move, RowTags
from images.publish.stopwatch import Stopwatch
from images.publish.tags import Action, ImageVersion, Keeps, TagChange, TagKind
from images.publish.unpublished_image import EngineContent, PublishOptions, Stored, UnpublishedImage
from images.publish.variants import Variant
from images.registry.client import Registry
from images.registry.distribution import Manifest
from validate.claims import ClaimSet
from validate.judge import Verdict

_MOVES = 3
"""How often tags move at most when other machines publish the same row: a row has two platforms."""
_ANEW = (
    "publish the other image anew first, or both with --all-platforms, or give a --gate that it opens;"
    " --drop-platforms lets it go"
)


@dataclass(frozen=True, kw_only=True)
class PublishResult:
    """What was published."""

    references: Mapping[str, str]
    """Compression -> `HOST/NAME@sha256:...`, the plain variant's first. Of several images, after the image's name."""
    bytes: Mapping[str, int]
    """The same keys -> all layers, as the registry holds them."""
    tags: tuple[str, ...]
    unmoved_aliases: tuple[str, ...]
    """Why each of them stayed where it was; tags of a variant that was not published, too."""
    seconds: Mapping[str, float]
    """Of each stage."""
    signed: bool
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Tag -> `HOST/NAME@sha256:...` of the index for several platforms that it names."""
    left_out: tuple[str, ...] = ()
    """Why an index goes without a platform, or why there is none."""

    @property
    def reference(self) -> str:
        """Of the plain variant."""
        return next(iter(self.references.values()))


@dataclass(frozen=True, kw_only=True)
class Part:
    """One image on its way into a repository. `where` names it in messages."""

    where: str
    version: ImageVersion
    claims: ClaimSet | None
    """Those that the matrix writes for the image today; None where it doesn't know the image."""
    verdicts: Sequence[Verdict]
    """Those known before anything is stored."""
    suffixes: Sequence[str]
    """Of the tags of its variants."""
    store: Callable[[], Stored]


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One image, or those of a row of the matrix for several platforms, on the way into one repository."""

    target: Registry
    admission: Admission
    signed: bool
    row: Sequence[str] = ()
    """The images of which tags name an index, linux/amd64 first. Empty: tags name the image itself."""
    joins: bool = True
    """Whether an index lists images that are there already, too."""
    keeps: str = ""
    """What to do where the name of a row would lose a platform, which is refused. Empty: it may."""
    on_index: Callable[[Manifest], None] = lambda _manifest: None
    """Called when an index is stored and no tag names it yet."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def policy(self) -> ReleasePolicy:
        return self.admission.policy

    def run(self, parts: Sequence[Part]) -> PublishResult:
        """Check the gate and the tags, store each image, and move all tags, or none. Raises UserError."""
        self.check(parts)
        stored = [(part, suffix, image) for part in parts for suffix, image in part.store()]
        return self._settle(parts, stored)

    def check(self, parts: Sequence[Part]) -> None:
        """See that the gate is open, and that no tag would go back. Nothing changes. Raises UserError."""
        for part in parts:
            self.policy.require_open(part.where, part.verdicts, part.claims)
        beside = self._beside(parts)
        keeps = {f"{self.row[0]}{suffix}": one for suffix, one in self._keeps(beside).items()}
        for version, tag in self._names(parts, beside):
            planned = tags.plan(self.target, version, {tag: TagKind.NAME}, keeps=keeps.get(tag))
            tags.require_allowed(self.target, planned)

    def _keeps(self, beside: Mapping[str, Others]) -> Mapping[str, Keeps]:
        """Suffix -> that the name of the row with it may lose no platform, and why it would."""
        whys = {suffix: "; ".join(others.left_out.values()) for suffix, others in beside.items()}
        return {suffix: Keeps(then=self.keeps, why=why) for suffix, why in whys.items()} if self.keeps else {}

    def _settle(self, parts: Sequence[Part], stored: Sequence[tuple[Part, str, PublishedImage]]) -> PublishResult:
        """Move the tags, again where another machine published an image beside these meanwhile. Raises UserError.

        A registry has no conditional write: an index that another machine planned before this move, and moves after
        this reads again, still takes the place of this one.
        """
        beside = self._beside(parts)
        for _ in range(_MOVES):
            before = _digests(beside)
            try:
                done = self._move_tags(stored, beside)
            except tags.RefusedError:  # a tag may name what the other machine has just published
                beside = self._beside(parts)
                if _digests(beside) == before:
                    raise
                continue
            beside = self._beside(parts)
            if _digests(beside) == before:
                return done
        cause = f"other machines published images for its other platforms {_MOVES} times meanwhile"
        where = f"{self.target.repository}:{self.row[0]}"
        raise UserError(Problem(where=where, cause=cause, then="give the command again"), code=1)

    def _beside(self, parts: Sequence[Part]) -> Mapping[str, Others]:
        """Suffix -> images of the other platforms that the repository has. Empty where no tag names an index."""
        suffixes = dict.fromkeys(suffix for part in parts for suffix in part.suffixes) if self.row else ()
        mine = {suffix: [one.version.name for one in parts if suffix in one.suffixes] for suffix in suffixes}
        if not self.joins:
            return dict.fromkeys(mine, Others())
        return {
            suffix: index.others(self.target, self.row, names, suffix, self.admission) for suffix, names in mine.items()
        }

    def _names(self, parts: Sequence[Part], beside: Mapping[str, Others]) -> Iterator[tuple[ImageVersion, str]]:
        """What each tag without a date is to name. The digest of an index is not known yet."""
        for part in parts:
            if not self._is_index(part.version.name):
                yield from ((part.version, f"{part.version.name}{suffix}") for suffix in part.suffixes)
        for suffix, others in beside.items():
            versions = [part.version for part in parts if suffix in part.suffixes]
            versions += [tags.version_of(image) for image in others.images]
            if any(one.platform == Platform.AMD64 for one in versions):
                yield ImageVersion.of_index("", self.row[0], versions), f"{self.row[0]}{suffix}"

    def _move_tags(
        self, stored: Sequence[tuple[Part, str, PublishedImage]], beside: Mapping[str, Others]
    ) -> PublishResult:
        reasons: list[str] = []
        moves: list[Move] = [(image.manifest, self._changes(part, suffix, image)) for part, suffix, image in stored]
        of_row = RowTags(
            target=self.target,
            name=self.row[0] if self.row else "",
            policy=self.policy,
            keeps=self._keeps(beside),
            on_index=self.on_index,
        )
        for suffix, others in beside.items():
            listed = [*(image for _, at, image in stored if at == suffix), *others.images]
            if index.is_complete(listed):
                moves += of_row.moves(suffix, listed)
            reasons += self._absent(f"{self.row[0]}{suffix}", others, complete=index.is_complete(listed))
        self.target.relist_referrers()
        tags.move(self.target, moves)
        self.stopwatch.lap("tags")
        changes = [change for _, of_one in moves for change in of_one]
        left = [change for change in changes if change.action is Action.LEAVE]
        several = len({part.version.name for part, _, _ in stored}) > 1
        images = {_key(part, image, several=several): image for part, _, image in stored}
        reasons += [
            f"{change.tag} had an image for {' and '.join(change.lost)}, and has none now"
            for change in changes
            if change.lost and change.action is Action.MOVE
        ]
        return PublishResult(
            references={key: image.reference for key, image in images.items()},
            bytes={key: image.compressed_size for key, image in images.items()},
            tags=tuple(change.tag for change in changes if change not in left),
            unmoved_aliases=(
                *(f"{change.tag} stays: {change.reason}" for change in left),
                *self._left_behind(stored),
            ),
            seconds=self.stopwatch.seconds,
            signed=self.signed,
            indexes={tag: f"{self.target.repository}@{one.digest}" for tag, one in of_row.indexes.items()},
            left_out=(*reasons, *of_row.left_out),
        )

    def _absent(self, tag: str, others: Others, *, complete: bool) -> Iterator[str]:
        """Why an index goes without a platform; or why there is none, or none with this image."""
        stays = not complete and self.target.find(tag) is not None
        for platform, why in others.left_out.items():
            said = "stays as it was: no index goes without" if stays else "lacks"
            yield f"{tag} {said} {platform}: {why}"

    def _left_behind(self, stored: Sequence[tuple[Part, str, PublishedImage]]) -> Iterator[str]:
        """Tags of an older build's other variants, which a reader may take for this build's."""
        for part, plain in ((part, image) for part, suffix, image in stored if not suffix):
            gzip = variants.compression_of(plain.manifest) is Compression.GZIP
            for suffix, option in variants.PUBLISHED_BY.items():
                tag = f"{part.version.name}{suffix}"
                if suffix not in part.suffixes and self.target.find(tag) is not None:
                    how = "moves them too" if gzip else "moves them with the next build"
                    yield f"{tag} and its like stay on an older build: --compression {option} {how}"

    def _changes(self, part: Part, suffix: str, image: PublishedImage) -> tuple[TagChange, ...]:
        """Of the tags that name an image itself."""
        version = replace(part.version, digest=image.manifest.digest)
        if self._is_index(version.name):
            fixed = tags.immutable_tag(version.name, version.created, image.image_id)
            return tags.plan(self.target, version, {f"{fixed}{suffix}": TagKind.IMMUTABLE})
        refusal = self.policy.alias_refusal([one.verdict for one in image.attestations], part.claims)
        wanted = tags.tags_of(version, image.image_id, self.policy.aliases_of(version.name), suffix)
        return tags.plan(self.target, version, wanted, refusal)

    def _is_index(self, name: str) -> bool:
        """Whether the tag of this name is an index's."""
        return bool(self.row) and name == self.row[0]


def _digests(beside: Mapping[str, Others]) -> Mapping[str, list[str]]:
    return {suffix: [image.manifest.digest for image in others.images] for suffix, others in beside.items()}


def _key(part: Part, image: PublishedImage, *, several: bool) -> str:
    compression = str(variants.compression_of(image.manifest))
    return f"{part.version.name} {compression}" if several else compression


@dataclass(frozen=True, kw_only=True)
class Source:
    """An image in an engine, by its reference, and what to publish of it."""

    reference: str
    options: PublishOptions


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
    source = Source(reference=reference, options=options)
    return publish_together(engine, [source], say=say, on_event=on_event)


def publish_together(
    engine: Engine,
    sources: Sequence[Source],
    *,
    say: Callable[[str], None],
    on_event: Callable[[BuildEvent], None] = ignore,
) -> PublishResult:
    """The same for images of one row of the matrix into one repository: no tag moves before all are stored."""
    return publish_images([_local(engine, source, say, on_event) for source in sources])


def publish_images(images: Sequence[UnpublishedImage]) -> PublishResult:
    """The same, wherever their layers are. Raises UserError."""
    with opened(images) as (publication, parts):
        return publication.run(parts)


@contextmanager
def opened(images: Sequence[UnpublishedImage]) -> Iterator[tuple[Publication, Sequence[Part]]]:
    """Images of one row on the way into their repository. Nothing is stored yet. Raises UserError: no access."""
    first = images[0].options
    if first.key:
        signing.require(first.key)
    siblings = {one: None for image in images for one in image.options.siblings(image.info)}
    with Registry(first.repository, mount_from=list(siblings)) as target:
        target.check_access()
        row = first.policy.row_of(str(first.name))
        publication = Publication(
            target=target,
            admission=Admission(policy=first.policy, signing_key=first.key),
            signed=bool(first.key),
            row=row if len(row) > 1 else (),
            keeps="" if first.drop_platforms else _ANEW,
            on_index=lambda made: _sign_index(target, made, first.key),
        )
        yield publication, [_part(target, image, publication.stopwatch) for image in images]


def lacking(target: Registry, image: UnpublishedImage) -> tuple[Compression, ...]:
    """The compressions of an image that a repository has no dated tag for. Raises UserError."""
    version = _version(image)
    there = variants.find(target, tags.immutable_tag(version.name, version.created, image.info.id), image.info.id)
    return tuple(one for one in image.options.compressions if one not in {found.compression for found in there})


def _local(
    engine: Engine, source: Source, say: Callable[[str], None], on_event: Callable[[BuildEvent], None]
) -> UnpublishedImage:
    info, options = engine.inspect(source.reference), source.options
    found = attestation.read_folder(options.attestation, str(options.name), info)
    content = EngineContent(engine=engine, info=info, options=options, say=say, on_event=on_event)
    return UnpublishedImage(info=info, content=content, attestation=found, options=options, say=say)


def _version(image: UnpublishedImage) -> ImageVersion:
    info, name = image.info, str(image.options.name)
    found = ImageVersion.require(info.id, info.labels, info.created, name, f"linux/{info.architecture}")
    return replace(found, name=name)


def _part(target: Registry, local: UnpublishedImage, stopwatch: Stopwatch) -> Part:
    info, options = local.info, local.options
    name, version = str(options.name), _version(local)
    tag = tags.immutable_tag(name, version.created, info.id)
    there = variants.find(target, tag, info.id)
    variants.require_possible(there, options.compressions, f"{options.repository}:{tag}")
    every = {*options.compressions, *(one.compression for one in there)}
    return Part(
        where=name,
        version=version,
        claims=options.policy.claims_of(info.labels),
        verdicts=[local.attestation.verdict, *_attached_verdicts(target, there, local)],
        suffixes=sorted(variants.suffix_of(one, every) for one in every),
        store=lambda: local.store(target, there, stopwatch),
    )


def _sign_index(target: Registry, made: Manifest, key: str) -> None:
    """For readers of a tag with cosign alone: what counts here are the signatures of its images."""
    if key:
        signing.sign(f"{target.repository}@{made.digest}", key, [])


def _attached_verdicts(target: Registry, there: Sequence[Variant], local: UnpublishedImage) -> tuple[Verdict, ...]:
    """Verdicts that are attached to this very image already: other machines may have judged its other tiers.

    With a key, those that it signed; how many more there are is said.
    """
    found: list[Verdict] = []
    for variant in there:
        image = attachments.load(target, variant.manifest)
        counted = attachments.counted_by_signer(image, local.options.key)
        found += [one.verdict for one in counted.attestations]
        if ignored := len(image.attachments) - len(counted.attachments):
            local.say(f"{image.reference}: {ignored} attachments count for nothing: --key did not sign them")
    return tuple(found)
