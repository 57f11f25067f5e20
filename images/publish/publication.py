"""From a validated image to a published one: check, store the content, and only then move tags.

`publish` takes the image from an engine, `promote.py` from another repository; the steps are the same. Everything can
be repeated: what is there already is not sent again, so the same command finishes an interrupted publication. Images of
a row of the matrix for several platforms go together, or join those that are there (`index.py`).

An image has a variant for each compression of its layers: one image ID, a manifest each.

| published | NAME, NAME-DATE-ID, aliases | the same tags with `-zstd` |
|---|---|---|
| `--compression gzip` | gzip | - |
| `--compression all` | gzip, which every engine takes | zstd |
| `--compression zstd` | zstd | - |

A dated tag never moves, so neither does the compression that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from images.config.names import ImageName
from images.config.platforms import Platform
from images.context.labels import LABELS
from images.errors import Problem, UserError
from images.publish import attachments, checks, index, signing, tags
from images.publish.attachments import PublishedImage
from images.publish.compression import Compression, compression_of
from images.publish.gate import ReleasePolicy
from images.publish.tags import Action, ImageVersion, TagChange, TagKind
from images.registry.client import Registry
from images.registry.distribution import Manifest, require_one_image
from validate.claims import ClaimSet
from validate.judge import Verdict

SUFFIXES = ("", "-zstd")
"""What the tags of the plain variant end with, and those of the zstd one beside it."""
_MOVES = 3
"""How often tags move at most when other machines publish the same row: a row has two platforms."""


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
    suffixes: Collection[str]
    """Of the tags of its variants."""
    store: Callable[[], Mapping[str, PublishedImage]]
    """Stores its variants without a tag: suffix -> image."""


class Stored(NamedTuple):
    """A variant of an image, stored without a tag."""

    part: Part
    suffix: str
    image: PublishedImage


@dataclass(frozen=True, kw_only=True)
class Others:
    """What the registry has of the other platforms of a row: the images that open the gate, and why others don't."""

    images: Sequence[PublishedImage] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Platform -> why its image is not among them."""


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One image, or those of a row of the matrix for several platforms, on the way into one repository."""

    target: Registry
    policy: ReleasePolicy
    key: str = ""
    """The public key: what it signed counts. Empty: all that is attached."""
    row: Sequence[str] = ()
    """The images of which tags name an index, linux/amd64 first. Empty: tags name the image itself."""
    joins: bool = True
    """Whether an index lists images that are there already, too."""
    keeps: str = ""
    """What to do where the name of a row would lose a platform, which is refused. Empty: it may."""
    on_index: Callable[[Manifest], None] = lambda _manifest: None
    """Called when an index is stored and no tag names it yet."""

    def run(self, parts: Sequence[Part]) -> PublishResult:
        """Check the gate and the tags, store each image, and move all tags, or none. Raises UserError."""
        for part in parts:
            self.policy.require_open(part.where, part.verdicts, part.claims)
        beside = self._beside(parts)
        self._require_no_step_back(parts, beside)
        stored = [Stored(part, suffix, image) for part in parts for suffix, image in part.store().items()]
        # A registry has no conditional write: an index that another machine planned before this move, and moves after
        # this reads again, still takes the place of this one.
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

    def _require_no_step_back(self, parts: Sequence[Part], beside: Mapping[str, Others]) -> None:
        """See that no tag without a date would go back. The digest of an index is not known yet. Raises UserError."""
        names: list[tuple[ImageVersion, str, str, Sequence[str]]] = [
            (part.version, f"{part.version.name}{suffix}", "", ())
            for part in parts
            if not self._is_index(part.version.name)
            for suffix in part.suffixes
        ]
        for suffix, others in beside.items():
            versions = [part.version for part in parts if suffix in part.suffixes]
            versions += [tags.version_of(image) for image in others.images]
            if any(one.platform == Platform.AMD64 for one in versions):
                whole = ImageVersion.of_index("", self.row[0], versions)
                names.append((whole, f"{self.row[0]}{suffix}", self.keeps, tuple(others.left_out.values())))
        for version, tag, keeps, absent in names:
            planned = tags.plan(self.target, version, {tag: TagKind.NAME}, keeps=keeps, absent=absent)
            tags.require_allowed(self.target, planned)

    def _is_index(self, name: str) -> bool:
        """Whether the tag of this name is an index's."""
        return bool(self.row) and name == self.row[0]

    def _beside(self, parts: Sequence[Part]) -> Mapping[str, Others]:
        """Suffix -> images of the other platforms that the repository has. Empty where no tag names an index."""
        suffixes = dict.fromkeys(suffix for part in parts for suffix in part.suffixes) if self.row else ()
        mine = {suffix: [one.version.name for one in parts if suffix in one.suffixes] for suffix in suffixes}
        return {suffix: self._others(names, suffix) if self.joins else Others() for suffix, names in mine.items()}

    def _others(self, mine: Sequence[str], suffix: str) -> Others:
        """The images of the row beside `mine` that may stand in an index. Raises UserError: no access."""
        found: list[PublishedImage] = []
        left_out: dict[str, str] = {}
        for name in (name for name in self.row if name not in mine):
            platform = ImageName.parse(name).platform
            image = _published(self.target, f"{name}{suffix}", platform)
            try:
                if image is None:
                    left_out[platform] = f"{name}{suffix} is not published here"
                else:
                    found.append(self._admitted(image, name))
            except signing.CosignError:
                raise
            except UserError as error:
                left_out[platform] = error.problems[0].cause
        return Others(images=found, left_out=left_out)

    def _admitted(self, image: PublishedImage, name: str) -> PublishedImage:
        """An image that was published before, with the statements that count. Raises UserError with all against it."""
        called = image.labels.get(f"{LABELS}.image", "")
        if called != name:
            cause = f"the image is called {called or 'nothing'}, not {name}"
            raise UserError(Problem(where=image.reference, cause=cause, then="publish it anew"), code=1)
        counted = attachments.require_signed(image, self.key)
        checks.require_good(counted, self.policy)
        return counted

    def _move_tags(self, stored: Sequence[Stored], beside: Mapping[str, Others]) -> PublishResult:
        moves = [(one.image.manifest, self._tags_of_image(one)) for one in stored]
        indexes: dict[str, Manifest] = {}
        left_out: list[str] = []
        for suffix, others in beside.items():
            tag = f"{self.row[0]}{suffix}"
            listed = [*(one.image for one in stored if one.suffix == suffix), *others.images]
            lacks = "lacks"
            if index.is_complete(listed):
                moves += self._tags_of_index(suffix, listed, others, indexes, left_out)
            elif self.target.find(tag) is not None:
                lacks = "stays as it was: no index goes without"
            left_out += [f"{tag} {lacks} {platform}: {why}" for platform, why in others.left_out.items()]
        tags.move(self.target, moves)
        changes = [change for _, of_one in moves for change in of_one]
        left_out += [
            f"{change.tag} had an image for {' and '.join(change.lost)}, and has none now"
            for change in changes
            if change.lost and change.action is Action.MOVE
        ]
        several = len({one.part.version.name for one in stored}) > 1
        images = {
            f"{one.part.version.name} {compression}" if several else str(compression): one.image
            for one in stored
            for compression in [compression_of(one.image.manifest)]
        }
        left = [f"{change.tag} stays: {change.reason}" for change in changes if change.action is Action.LEAVE]
        return PublishResult(
            references={key: image.reference for key, image in images.items()},
            bytes={key: image.compressed_size for key, image in images.items()},
            tags=tuple(change.tag for change in changes if change.action is not Action.LEAVE),
            unmoved_aliases=(*left, *self._left_behind(stored)),
            signed=bool(self.key),
            indexes={tag: f"{self.target.repository}@{one.digest}" for tag, one in indexes.items()},
            left_out=tuple(left_out),
        )

    def _tags_of_image(self, one: Stored) -> tuple[TagChange, ...]:
        """Of the tags that name an image itself."""
        version = replace(one.part.version, digest=one.image.manifest.digest)
        if self._is_index(version.name):
            fixed = tags.immutable_tag(version.name, version.created, one.image.image_id)
            return tags.plan(self.target, version, {f"{fixed}{one.suffix}": TagKind.IMMUTABLE})
        refusal = self.policy.alias_refusal([run.verdict for run in one.image.attestations], one.part.claims)
        wanted = tags.tags_of(version, one.image.image_id, self.policy.aliases_of(version.name), one.suffix)
        return tags.plan(self.target, version, wanted, refusal)

    def _tags_of_index(
        self,
        suffix: str,
        images: Sequence[PublishedImage],
        others: Others,
        indexes: dict[str, Manifest],
        left_out: list[str],
    ) -> Iterator[tuple[Manifest, tuple[TagChange, ...]]]:
        """Of the tags that name every image, and of aliases, which name those that open the gate for aliases."""

        def composed(some: Sequence[PublishedImage]) -> tuple[Manifest, ImageVersion]:
            made = index.compose(some)
            self.target.put(made)
            self.on_index(made)
            return made, ImageVersion.of_index(made.digest, self.row[0], [tags.version_of(one) for one in some])

        every, version = composed(images)
        indexes[f"{self.row[0]}{suffix}"] = every
        names = tags.tags_of(version, every.digest, (), suffix)
        absent = tuple(others.left_out.values())
        yield every, tags.plan(self.target, version, names, keeps=self.keeps, absent=absent)
        aliases = {f"{alias}{suffix}": TagKind.ALIAS for alias in self.policy.aliases_of(self.row[0])}
        closed = {one.platform: self._alias_refusal(one) for one in images}
        open_to_aliases = [one for one in images if not closed[one.platform]]
        if not aliases:
            return
        if not index.is_complete(open_to_aliases):
            yield every, tags.plan(self.target, version, aliases, closed[str(Platform.AMD64)])
            return
        names_of = ", ".join(aliases)
        left_out += [f"{names_of} lacks {platform}: {refusal}" for platform, refusal in closed.items() if refusal]
        some, version = composed(open_to_aliases)
        yield some, tags.plan(self.target, version, aliases)

    def _alias_refusal(self, image: PublishedImage) -> str:
        verdicts = [one.verdict for one in image.attestations]
        return self.policy.alias_refusal(verdicts, self.policy.claims_of(image.labels))

    def _left_behind(self, stored: Sequence[Stored]) -> Iterator[str]:
        """Tags of an older build's other variant, which a reader may take for this build's."""
        zstd = SUFFIXES[1]
        for part, suffix, image in stored:
            tag = f"{part.version.name}{zstd}"
            if not suffix and zstd not in part.suffixes and self.target.find(tag) is not None:
                gzip = compression_of(image.manifest) is Compression.GZIP
                how = "moves them too" if gzip else "moves them with the next build"
                yield f"{tag} and its like stay on an older build: --compression all {how}"


def _digests(beside: Mapping[str, Others]) -> Mapping[str, list[str]]:
    return {suffix: [image.manifest.digest for image in others.images] for suffix, others in beside.items()}


def _published(target: Registry, tag: str, platform: Platform) -> PublishedImage | None:
    manifest = target.find(tag)
    if manifest is None or (manifest.is_index and platform not in [one.platform for one in manifest.manifests]):
        return None
    image = attachments.load(target, index.select(target, manifest, platform))
    return image if image.platform == platform else None


def find_variants(target: Registry, tag: str, image_id: str) -> dict[str, Manifest]:
    """Suffix -> variant of an image that its dated tag names, the plain one first. Raises UserError: another image."""
    found: dict[str, Manifest] = {}
    for suffix in SUFFIXES:
        manifest = target.find(f"{tag}{suffix}")
        if manifest is None:
            continue
        where = f"{target.repository}:{tag}{suffix}"
        require_one_image(manifest, where)
        if image_id not in (manifest.config.digest, manifest.digest):
            cause = f"is {manifest.config.digest[:19]}, not the image that was validated ({image_id[:19]})"
            raise UserError(Problem(where=where, cause=cause, then="build anew: such tags are never moved"), code=1)
        found[suffix] = manifest
    return found
