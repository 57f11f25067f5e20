"""Which images of a row stand beside the new ones, and which tags name what; promotion, which sends nothing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from images.config.names import ImageName
from images.config.platforms import Platform
from images.context.labels import LABELS
from images.errors import Problem, UserError, command, failed, wrong
from images.planning import silent
from images.publish import attachments, signing, tags, verify
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.tags import Action, ImageVersion, TagChange, TagKind
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Reference, Repository, is_digest
from validate.judging import Status


@dataclass(frozen=True, kw_only=True)
class PublishResult:
    """What was published."""

    images: Sequence[PublishedImage]
    tags: tuple[str, ...]
    unmoved_aliases: tuple[str, ...]
    """Why each of them stayed where it was."""
    signed: bool
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Tag -> `HOST/NAME@sha256:...` of the index for several platforms that it names."""
    left_out: tuple[str, ...] = ()
    """Why an index goes without a platform, or why there is none."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """Images of one row of the matrix, on their way into a repository."""

    target: Registry
    policy: ReleasePolicy
    key: str = ""
    """The public key: what it signed counts. Empty: all that is attached."""
    row: Sequence[str] = ()
    """The images of which tags name an index, linux/amd64 first. Empty: tags name the image itself."""
    drop_platforms: bool = False
    """Whether the name of a row may lose a platform."""

    def require_follows(self, versions: Sequence[ImageVersion]) -> None:
        """Before anything is sent: no name goes back or loses a platform. Raises UserError."""
        alone = [version for version in versions if version.name not in self.row[:1]]
        follows: list[tuple[str, Sequence[ImageVersion], Sequence[str]]] = [
            (one.name, [one], ()) for one in alone
        ]
        if self.row:
            others, absent = self._others([version.name for version in versions])
            every = [*versions, *map(tags.version_of, others)]
            if any(one.platform == Platform.AMD64 for one in every):
                follows.append((self.row[0], every, tuple(absent.values())))
        for tag, new, why in follows:
            drops = self.drop_platforms or tag not in self.row[:1]
            if before := self.target.find(tag):
                reason, then = tags.refusal(self.target, before, new, tag, TagKind.NAME, drops, why)
                if reason:
                    raise failed(f"{self.target.repository}:{tag}", reason, then)

    def plan(self, stored: Sequence[PublishedImage]) -> tuple[list[TagChange], list[str]]:
        """Which tags are to name what, and what an index goes without. Indexes are stored, and no tag moves.

        Raises UserError, with every change that is refused.
        """
        changes = [change for image in stored for change in self._tags_of_image(image)]
        left_out: list[str] = []
        if self.row:
            others, absent = self._others([image.name for image in stored])
            tag, lacks = self.row[0], "lacks"
            if any(image.platform == Platform.AMD64 for image in (*stored, *others)):
                of_index, left_out = self._tags_of_index([*stored, *others], tuple(absent.values()))
                changes += of_index
            elif self.target.find(tag) is not None:
                lacks = "stays as it was: no index goes without"
            left_out += [f"{tag} {lacks} {platform}: {why}" for platform, why in absent.items()]
        tags.require_allowed(self.target, changes)
        return changes, left_out

    def move(
        self,
        stored: Sequence[PublishedImage],
        changes: Sequence[TagChange],
        left_out: Sequence[str],
    ) -> PublishResult:
        """Let the tags name what is planned: all of them, or none. Raises UserError."""
        tags.move(self.target, changes)
        stay = [change for change in changes if change.action is Action.LEAVE]
        return PublishResult(
            images=stored,
            tags=tuple(change.tag for change in changes if change not in stay),
            unmoved_aliases=tuple(f"{change.tag} stays: {change.reason}" for change in stay),
            signed=bool(self.key),
            indexes={
                change.tag: f"{self.target.repository}@{change.after.digest}"
                for change in changes
                if change.after.is_index and change.kind is TagKind.NAME
            },
            left_out=tuple(left_out),
        )

    def _others(self, mine: Collection[str]) -> tuple[list[PublishedImage], dict[str, str]]:
        """Published images of the row beside `mine` that may stand in an index, with the statements that count.

        And for each platform whose image may not, why. Raises UserError: no access.
        """
        found: list[PublishedImage] = []
        absent: dict[str, str] = {}
        for name in [name for name in self.row if name not in mine]:
            platform = str(ImageName.parse(name).platform)
            try:
                manifest = self.target.find(name)
                listed = attachments.load_all(self.target, manifest) if manifest else ()
                image = next((one for one in listed if one.platform == platform), None)
                if image is None:
                    absent[platform] = f"{name} is not published here"
                elif image.name != name:
                    absent[platform] = f"the image is called {image.name or 'nothing'}, not {name}"
                else:
                    found.append(verify.admitted(image, self.policy, self.key))
            except signing.CosignError:
                raise
            except UserError as error:
                absent[platform] = error.problems[0].cause
        return found, absent

    def _tags_of_image(self, image: PublishedImage) -> list[TagChange]:
        """Of the tags that name an image itself, in the order in which people are told."""
        version = tags.version_of(image)
        kinds = {
            tags.immutable_tag(version.name, version.created, image.image_id): TagKind.IMMUTABLE
        }
        if version.name not in self.row[:1]:
            kinds[version.name] = TagKind.NAME
            kinds |= dict.fromkeys(self.policy.aliases_of(version.name), TagKind.ALIAS)
        return tags.plan(self.target, image.manifest, [version], kinds, self._alias_refusal(image))

    def _tags_of_index(
        self, images: Sequence[PublishedImage], absent: Sequence[str]
    ) -> tuple[list[TagChange], list[str]]:
        """Of the tags that name every image, and of aliases, which name those that open theirs; what aliases lack."""
        every, versions = self._index(images)
        name = self.row[0]
        fixed = tags.immutable_tag(name, max(one.created for one in versions), every.digest)
        wanted = {fixed: TagKind.IMMUTABLE, name: TagKind.NAME}
        changes = tags.plan(
            self.target, every, versions, wanted, drop_platforms=self.drop_platforms, absent=absent
        )
        aliases = dict.fromkeys(self.policy.aliases_of(name), TagKind.ALIAS)
        closed = {
            image.platform: refusal for image in images if (refusal := self._alias_refusal(image))
        }
        if not aliases:
            return changes, []
        if shut := closed.get(str(Platform.AMD64)):
            return changes + tags.plan(self.target, every, versions, aliases, shut), []
        some, versions = self._index([image for image in images if image.platform not in closed])
        lacks = [
            f"{', '.join(aliases)} lacks {platform}: {refusal}"
            for platform, refusal in closed.items()
        ]
        return changes + tags.plan(self.target, some, versions, aliases), lacks

    def _index(self, images: Sequence[PublishedImage]) -> tuple[Manifest, list[ImageVersion]]:
        """The index of some images, stored."""
        made = attachments.index_of(images)
        self.target.put(made)
        return made, [tags.version_of(one) for one in images]

    def _alias_refusal(self, image: PublishedImage) -> str:
        faults, torch = (
            image.labels.get(f"{LABELS}.{name}", "") for name in ("silent-faults", "torch")
        )
        met = silent.ordinary(faults, torch)
        refused = self.policy.refusals(
            image.labels,
            image.evidence,
            self.policy.alias_gate,
            origin_exception=image.origin_exception,
        )
        return next(iter([*met, *refused]), "")


def load_same(registry: Registry, manifest: Manifest, image_id: str, where: str) -> PublishedImage:
    """A stored image, which must be the one that was validated: the one place that compares the two.

    Raises UserError.
    """
    image = attachments.load(registry, manifest)
    if image.image_id != image_id:
        cause = f"is {image.image_id[:19]}, not the image that was validated ({image_id[:19]})"
        raise failed(where, cause, "build anew: such tags are never moved")
    return image


# --- promotion: blobs are mounted, manifests stored as they are -------------------------------------------------------


def promote(
    reference: Reference,
    to: Repository,
    policy: ReleasePolicy,
    *,
    key: str = "",
    drop_platforms: bool = False,
) -> PublishResult:
    """Copy an image with all that is attached to it and signed, and move the tags there.

    With a public key, only statements that it signed count, and only tags move that it signed for these images, and
    signed for no other since. `drop_platforms`: an index may take the place of one for more platforms. Raises
    UserError: the gate is closed, a tag would go back or lose a platform or is not signed, another registry.
    """
    if reference.repository.host != to.host:
        then = f"copy it first: `cosign copy {reference} {to}:{reference.identifier}`; then promote there"
        raise wrong(str(to), f"is not on {reference.repository.host}", then)
    if key:
        signing.require(key)
    with (
        Registry(reference.repository) as source,
        Registry(to, mount_from=[reference.repository]) as target,
    ):
        named = source.get(reference.identifier)
        images = attachments.load_all(source, named)
        if named.is_index:  # it must be the same in the other repository
            fault = verify.check_index(named, images)
            if (
                fault.status is not Status.PASS
                or named.digest != attachments.index_of(images).digest
            ):
                cause = (
                    fault.reason
                    if fault.status is not Status.PASS
                    else "is no index as `publish` writes it"
                )
                raise failed(
                    f"{source.repository}@{named.digest}", cause, "publish its images anew"
                )
        tag = "" if is_digest(reference.identifier) or not key else reference.identifier
        if faults := list(
            verify.tag_faults(source, tag, named, images, policy, key) if tag else ()
        ):
            raise failed(
                str(reference),
                "; ".join(faults),
                f"promote what is meant by digest ({named.digest}: this)",
            )
        for image in images:
            verify.admitted(image, policy, key)
        versions = [tags.version_of(image) for image in images]
        names = [version.name for version in versions]
        row = names if named.is_index else policy.row_of(names[0])
        release = Release(
            target=target,
            policy=policy,
            key=key,
            row=row if named.is_index or len(row) > 1 else (),
            drop_platforms=drop_platforms or not named.is_index,
        )
        release.require_follows(versions)

        target.check_access()
        stored: list[PublishedImage] = []
        for image in images:
            copy(source, target, image.manifest, key)
            copied = attachments.load(target, image.manifest)
            stored.append(
                verify.admitted(copied, policy, key)
            )  # what failed in the target alone counts, too

        planned, left_out = release.plan(stored)
        for digest in {change.after.digest for change in planned if change.after.is_index}:
            attachments.copy(source, target, digest, key)
        joined = "" if named.is_index else row[0]
        changes = _signed(planned, target, source.repository, key, joined) if key else planned
        return release.move(stored, changes, left_out)


def _signed(
    planned: Sequence[TagChange], target: Registry, staging: Repository, key: str, joined: str
) -> list[TagChange]:
    """The changes, of the tags alone that the key signed, for `verify --key`: this side has the public key.

    An alias stays where it is, and so do the tags of an index that was put together here (`joined`: its row's name).
    Raises UserError with every other tag that the key did not sign for its image, or signed for another one since, as
    far as anybody can tell who sees the repository now.
    """
    changes: list[TagChange] = []
    problems: list[Problem] = []
    for change in planned:
        digest, where = change.after.digest, f"{target.repository}:{change.tag}"
        _, last = attachments.last_signed(target, key, change.tag)
        if change.action is Action.LEAVE or last == digest:
            changes.append(change)
            continue
        cause = (
            f"the key signed {last[:19]} for it last"
            if last
            else f"the key did not sign {digest[:19]} for it"
        )
        sign = command(
            "publish", "NAME", "--image", "REF", "--to", str(staging), "--key", "cosign.key"
        )
        then = f"`{sign}` signs it there"
        if joined and change.after.is_index:
            take = command("promote", f"{staging}:{joined}", "--to", str(target.repository))
            then = f"`{take}` takes the index that was signed there"
        elif change.kind is not TagKind.ALIAS:
            problems.append(Problem(where=where, cause=cause, then=then))
        changes.append(replace(change, action=Action.LEAVE, reason=f"{cause}; {then}"))
    if problems:
        raise UserError(problems, code=1)
    return changes


def copy(source: Registry, target: Registry, manifest: Manifest, key: str = "") -> None:
    """An image, then what is attached to it. Raises UserError."""
    attachments.mount_blobs(source, target, manifest)
    target.put(manifest)
    attachments.copy(source, target, manifest.digest, key)
