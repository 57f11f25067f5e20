"""What `publish` and `promote` share: which images of a row stand beside the new ones, and which tags name what.

An image has a variant for each compression of its layers: one image ID, a manifest each.

| published | NAME, NAME-DATE-ID, aliases | the same tags with `-zstd` |
|---|---|---|
| `--compression gzip` | gzip | - |
| `--compression all` | gzip, which every engine takes | zstd |
| `--compression zstd` | zstd | - |

A dated tag never moves, so neither does the compression that it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from images.config.names import ImageName
from images.config.platforms import Platform
from images.errors import Problem, UserError
from images.publish import attachments, checks, signing, tags
from images.publish.attachments import PublishedImage
from images.publish.compression import Compression, compression_of
from images.publish.gate import ReleasePolicy
from images.publish.tags import Action, ImageVersion, TagChange, TagKind
from images.registry.client import Registry
from images.registry.distribution import Manifest

SUFFIXES = ("", "-zstd")
"""What the tags of the plain variant end with, and those of the zstd one beside it."""
Stored = tuple[str, PublishedImage]
"""The suffix of its tags, and a variant of an image that no tag names yet."""


@dataclass(frozen=True, kw_only=True)
class PublishResult:
    """What was published."""

    images: Mapping[str, PublishedImage]
    """By the compression of their layers, the plain variant first; of several images, `NAME COMPRESSION`."""
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
        """`HOST/NAME@sha256:...` of the plain variant."""
        return next(iter(self.images.values())).reference


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is stored, and which tags are to name it."""

    stored: Sequence[Stored]
    changes: Sequence[TagChange]
    left_out: Sequence[str]

    @property
    def manifests(self) -> Mapping[str, Manifest]:
        """Digest -> each image and index that a tag is to name."""
        return {change.after.digest: change.after for change in self.changes}


@dataclass(frozen=True, kw_only=True)
class Release:
    """Images of one row of the matrix, on their way into a repository."""

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

    def require_follows(self, versions: Sequence[ImageVersion]) -> None:
        """Before anything is sent: no name goes back or loses a platform. Raises UserError."""
        for version in versions:
            if version.name not in self.row[:1]:
                tags.require_follows(self.target, [version], version.name)
        if self.row:
            others, absent = self._others([version.name for version in versions], "")
            every = [*versions, *map(tags.version_of, others)]
            if any(one.platform == Platform.AMD64 for one in every):
                why = tuple(absent.values())
                tags.require_follows(self.target, every, self.row[0], keeps=self.keeps, absent=why)

    def plan(self, stored: Sequence[Stored]) -> Plan:
        """Which tags are to name what. Indexes are stored, and no tag moves.

        Raises UserError, with every change that is refused.
        """
        changes = [change for suffix, image in stored for change in self._tags_of_image(suffix, image)]
        left_out: list[str] = []
        for suffix in dict.fromkeys(suffix for suffix, _ in stored) if self.row else ():
            mine = [image for one, image in stored if one == suffix]
            others, absent = self._others([image.name for image in mine], suffix)
            tag, lacks = f"{self.row[0]}{suffix}", "lacks"
            if any(image.platform == Platform.AMD64 for image in (*mine, *others)):
                of_index, lacking = self._tags_of_index(suffix, [*mine, *others], tuple(absent.values()))
                changes += of_index
                left_out += lacking
            elif self.target.find(tag) is not None:
                lacks = "stays as it was: no index goes without"
            left_out += [f"{tag} {lacks} {platform}: {why}" for platform, why in absent.items()]
        left_out += [
            f"{change.tag} had an image for {' and '.join(change.lost)}, and has none now"
            for change in changes
            if change.lost and change.action is Action.MOVE
        ]
        tags.require_allowed(self.target, changes)
        return Plan(stored=stored, changes=changes, left_out=left_out)

    def move(self, plan: Plan, *, signed: bool) -> PublishResult:
        """Let the tags name what is planned: all of them, or none. Raises UserError."""
        tags.move(self.target, plan.changes)
        several = len({image.name for _, image in plan.stored}) > 1
        images = {
            f"{image.name} {kind}" if several else str(kind): image
            for _, image in plan.stored
            for kind in [compression_of(image.manifest)]
        }
        stay = [change for change in plan.changes if change.action is Action.LEAVE]
        return PublishResult(
            images=images,
            tags=tuple(change.tag for change in plan.changes if change not in stay),
            unmoved_aliases=(
                *(f"{change.tag} stays: {change.reason}" for change in stay),
                *self._left_behind(plan.stored),
            ),
            signed=signed,
            indexes={
                change.tag: f"{self.target.repository}@{change.after.digest}"
                for change in plan.changes
                if change.after.is_index and change.kind is TagKind.NAME
            },
            left_out=tuple(plan.left_out),
        )

    def _others(self, mine: Collection[str], suffix: str) -> tuple[list[PublishedImage], dict[str, str]]:
        """Published images of the row beside `mine` that may stand in an index, with the statements that count.

        And for each platform whose image may not, why. Raises UserError: no access.
        """
        found: list[PublishedImage] = []
        absent: dict[str, str] = {}
        for name in [name for name in self.row if self.joins and name not in mine]:
            platform = str(ImageName.parse(name).platform)
            try:
                manifest = self.target.find(f"{name}{suffix}")
                listed = attachments.load_all(self.target, manifest) if manifest else ()
                image = next((one for one in listed if one.platform == platform), None)
                if image is None:
                    absent[platform] = f"{name}{suffix} is not published here"
                elif image.name != name:
                    absent[platform] = f"the image is called {image.name or 'nothing'}, not {name}"
                else:
                    found.append(checks.admitted(image, self.policy, self.key))
            except signing.CosignError:
                raise
            except UserError as error:
                absent[platform] = error.problems[0].cause
        return found, absent

    def _tags_of_image(self, suffix: str, image: PublishedImage) -> list[TagChange]:
        """Of the tags that name an image itself, in the order in which people are told."""
        version = tags.version_of(image)
        kinds = {tags.immutable_tag(version.name, version.created, image.image_id): TagKind.IMMUTABLE}
        if version.name not in self.row[:1]:
            kinds[version.name] = TagKind.NAME
            kinds |= dict.fromkeys(self.policy.aliases_of(version.name), TagKind.ALIAS)
        wanted = {f"{tag}{suffix}": kind for tag, kind in kinds.items()}
        return tags.plan(self.target, image.manifest, [version], wanted, self._alias_refusal(image))

    def _tags_of_index(
        self, suffix: str, images: Sequence[PublishedImage], absent: Sequence[str]
    ) -> tuple[list[TagChange], list[str]]:
        """Of the tags that name every image, and of aliases, which name those that open the gate for aliases.

        And what aliases lack.
        """
        every, versions = self._index(images)
        name = self.row[0]
        fixed = tags.immutable_tag(name, max(one.created for one in versions), every.digest)
        wanted = {f"{fixed}{suffix}": TagKind.IMMUTABLE, f"{name}{suffix}": TagKind.NAME}
        changes = tags.plan(self.target, every, versions, wanted, keeps=self.keeps, absent=absent)
        aliases = {f"{alias}{suffix}": TagKind.ALIAS for alias in self.policy.aliases_of(name)}
        closed = {image.platform: refusal for image in images if (refusal := self._alias_refusal(image))}
        if not aliases:
            return changes, []
        if shut := closed.get(str(Platform.AMD64)):
            return changes + tags.plan(self.target, every, versions, aliases, shut), []
        some, versions = self._index([image for image in images if image.platform not in closed])
        lacks = [f"{', '.join(aliases)} lacks {platform}: {refusal}" for platform, refusal in closed.items()]
        return changes + tags.plan(self.target, some, versions, aliases), lacks

    def _index(self, images: Sequence[PublishedImage]) -> tuple[Manifest, list[ImageVersion]]:
        """The index of some images, stored."""
        made = attachments.index_of(images)
        self.target.put(made)
        return made, [tags.version_of(one) for one in images]

    def _alias_refusal(self, image: PublishedImage) -> str:
        return next(iter(self.policy.refusals(image.labels, image.evidence, self.policy.alias_gate)), "")

    def _left_behind(self, stored: Sequence[Stored]) -> Iterator[str]:
        """Tags of an older build's other variant, which a reader may take for this build's."""
        for suffix, image in stored:
            name = image.name
            beside = [one.name for other, one in stored if other]
            if not suffix and name not in beside and self.target.find(f"{name}{SUFFIXES[1]}") is not None:
                gzip = compression_of(image.manifest) is Compression.GZIP
                how = "moves them too" if gzip else "moves them with the next build"
                yield f"{name}{SUFFIXES[1]} and its like stay on an older build: --compression all {how}"


def variants(registry: Registry, version: ImageVersion, image_id: str) -> dict[str, PublishedImage]:
    """Suffix -> variant of an image that its dated tags name, the plain one first. Raises UserError: another image."""
    found: dict[str, PublishedImage] = {}
    tag = tags.immutable_tag(version.name, version.created, image_id)
    for suffix in SUFFIXES:
        if manifest := registry.find(f"{tag}{suffix}"):
            found[suffix] = load_same(registry, manifest, image_id, f"{registry.repository}:{tag}{suffix}")
    return found


def load_same(registry: Registry, manifest: Manifest, image_id: str, where: str) -> PublishedImage:
    """A stored image, which must be the one that was validated: the one place that compares the two.

    Raises UserError.
    """
    image = attachments.load(registry, manifest)
    if image.image_id != image_id:
        cause = f"is {image.image_id[:19]}, not the image that was validated ({image_id[:19]})"
        raise UserError(Problem(where=where, cause=cause, then="build anew: such tags are never moved"), code=1)
    return image
