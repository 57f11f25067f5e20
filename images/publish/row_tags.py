"""The tags of a row of the matrix with several platforms: which index each is to name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from images.config.platforms import Platform
from images.publish import index, tags
from images.publish.attachments import PublishedImage
from images.publish.policy import ReleasePolicy
from images.publish.tags import ImageVersion, Keeps, TagChange, TagKind
from images.registry.client import Registry
from images.registry.distribution import Manifest

Move = tuple[Manifest, tuple[TagChange, ...]]
"""A manifest, and what happens to the tags that are to name it."""


@dataclass(frozen=True, kw_only=True)
class RowTags:
    """The tags of one row in one repository. Indexes are stored by their digest; no tag is set here."""

    target: Registry
    name: str
    """Of the row: its image for linux/amd64 has the same."""
    policy: ReleasePolicy
    keeps: Mapping[str, Keeps] = field(default_factory=dict)
    """Suffix -> that the name with it may lose no platform."""
    on_index: Callable[[Manifest], None] = lambda _manifest: None
    """Called when an index is stored."""
    indexes: dict[str, Manifest] = field(default_factory=dict)
    """Tag -> index, of those that `moves` planned."""
    left_out: list[str] = field(default_factory=list)
    """Why aliases go without a platform."""

    def moves(self, suffix: str, images: Sequence[PublishedImage]) -> tuple[Move, Move]:
        """Of the tags of one variant: those that name every image, and aliases, which name those of the whole gate."""
        refusals = {image.platform: self._alias_refusal(image) for image in images}
        whole_gate = [image for image in images if not refusals[image.platform]]
        aliases = {f"{alias}{suffix}": TagKind.ALIAS for alias in self.policy.aliases_of(self.name)}
        every = self._index(images)
        self.indexes[f"{self.name}{suffix}"] = every
        version = self._version(every, images)
        kinds = {
            f"{tags.immutable_tag(self.name, version.created, every.digest)}{suffix}": TagKind.IMMUTABLE,
            f"{self.name}{suffix}": TagKind.NAME,
        }
        named = every, tags.plan(self.target, version, kinds, keeps=self.keeps.get(suffix))
        if not index.is_complete(whole_gate):
            return named, (every, tags.plan(self.target, version, aliases, refusals[str(Platform.AMD64)]))
        self._tell(aliases, refusals)
        some = self._index(whole_gate) if aliases else every
        return named, (some, tags.plan(self.target, self._version(some, whole_gate), aliases))

    def _alias_refusal(self, image: PublishedImage) -> str:
        verdicts = [one.verdict for one in image.attestations]
        return self.policy.alias_refusal(verdicts, self.policy.claims_of(image.labels))

    def _index(self, images: Sequence[PublishedImage]) -> Manifest:
        made = index.compose(images)
        self.target.put(made)
        self.on_index(made)
        return made

    def _version(self, made: Manifest, images: Sequence[PublishedImage]) -> ImageVersion:
        return ImageVersion.of_index(made.digest, self.name, [tags.version_of(image) for image in images])

    def _tell(self, aliases: Collection[str], refusals: Mapping[str, str]) -> None:
        closed = [f"{platform}: {refusal}" for platform, refusal in refusals.items() if refusal]
        self.left_out.extend(f"{', '.join(aliases)} lacks {one}" for one in closed if aliases)
