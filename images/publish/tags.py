"""How tags move: what a tag names now decides what happens to it, and all tags of an image move, or none.

A tag of an image is of one kind: IMMUTABLE (`NAME-YYYYMMDD-DIGEST`), NAME (`cu126-torch27`) or ALIAS (`latest`).

| what the tag names now | IMMUTABLE | NAME | ALIAS |
|---|---|---|---|
| nothing | create | create | create |
| this image | keep | keep | keep |
| an older image | refuse | move | move |
| a higher torch version, or the same one built later | refuse | refuse | leave |
| something without our labels | refuse | refuse | leave |

An index is older where none of its images is newer than the one of its platform here, and none of ours where one of
them is not. An alias is left, too, where its gate is closed or it would lose a platform; a NAME is then refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from packaging.version import InvalidVersion, Version

from images.config.platforms import Platform
from images.context.labels import LABELS
from images.engine.failures import Cancelled
from images.errors import Problem, UserError, command
from images.publish.attachments import PublishedImage, load
from images.registry.client import Registry
from images.registry.distribution import Manifest

_SHORT = 12  # hexadecimal digits of a digest that tell images apart, as Docker shows them


class TagKind(StrEnum):
    IMMUTABLE = "immutable"
    NAME = "name"
    ALIAS = "alias"


class Action(StrEnum):
    CREATE = "create"
    KEEP = "keep"
    MOVE = "move"
    LEAVE = "leave"
    REFUSE = "refuse"


@dataclass(frozen=True, kw_only=True)
class ImageVersion:
    """An image as tags compare it. `digest` is the manifest's, `created` when it was built."""

    digest: str
    name: str
    torch: str
    created: datetime
    platform: str = str(Platform.AMD64)
    parts: tuple[ImageVersion, ...] = ()
    """Of an index: its images."""

    @classmethod
    def of_index(cls, digest: str, name: str, parts: Sequence[ImageVersion]) -> ImageVersion:
        """An index is as new as the newest of its images."""
        torch = max((one.torch for one in parts), key=Version)
        created = max(one.created for one in parts)
        return cls(digest=digest, name=name, torch=torch, created=created, parts=tuple(parts))

    @classmethod
    def of(cls, digest: str, labels: Mapping[str, str], created: str, platform: str = "") -> ImageVersion | None:
        """None for an image without our labels, or whose labels can't be read."""
        try:
            torch, moment = labels[f"{LABELS}.torch"], datetime.fromisoformat(created)
            Version(torch)
        except (KeyError, ValueError, InvalidVersion):
            return None
        return cls(
            digest=digest,
            name=labels.get(f"{LABELS}.image", ""),
            torch=torch,
            created=moment.astimezone(UTC),
            platform=platform or str(Platform.AMD64),
        )

    @classmethod
    def require(
        cls, digest: str, labels: Mapping[str, str], created: str, where: str, platform: str = ""
    ) -> ImageVersion:
        """The version of an image that is to be published. Raises UserError."""
        found = cls.of(digest, labels, created, platform)
        if found is None or not found.name:
            cause = f"has no readable label {LABELS}.image and {LABELS}.torch"
            raise UserError(Problem(where=where, cause=cause, then=f"build it with `{command('build')}`"))
        return found

    @property
    def images(self) -> Mapping[str, ImageVersion]:
        """Platform -> the image for it."""
        return {one.platform: one for one in self.parts or (self,)}

    def steps_back(self, old: ImageVersion) -> Iterator[tuple[ImageVersion, ImageVersion]]:
        """Old and new image of each platform whose old one is newer: by torch version, then by time of the build.

        An image and one of another platform are compared themselves.
        """
        mine, theirs = self.images, old.images
        pairs = [(theirs[platform], mine[platform]) for platform in theirs if platform in mine] or [(old, self)]
        for before, after in pairs:
            torch = Version(before.torch), Version(after.torch)
            if (torch[0], before.created) > (torch[1], after.created):
                yield before, after


@dataclass(frozen=True, kw_only=True)
class TagChange:
    """What happens to one tag, and why. `before` is what it names now."""

    tag: str
    kind: TagKind
    action: Action
    before: Manifest | None
    reason: str = ""
    """Why it does not end up on the image; empty where it does."""
    then: str = ""
    """What to do where it is refused."""
    lost: Sequence[str] = ()
    """Platforms that it has an image for now, and not when it moves."""


def immutable_tag(name: str, created: datetime, image_id: str) -> str:
    """`NAME-YYYYMMDD-DIGEST`: the day it was built (UTC), and 12 digits of the digest that its verdict names."""
    return f"{name}-{created.astimezone(UTC):%Y%m%d}-{image_id.removeprefix('sha256:')[:_SHORT]}"


def tags_of(version: ImageVersion, image_id: str, aliases: Sequence[str], suffix: str = "") -> dict[str, TagKind]:
    """Every tag of a variant of an image, in the order in which people are told."""
    kinds = {
        immutable_tag(version.name, version.created, image_id): TagKind.IMMUTABLE,
        version.name: TagKind.NAME,
        **dict.fromkeys(aliases, TagKind.ALIAS),
    }
    return {f"{tag}{suffix}": kind for tag, kind in kinds.items()}


def version_of(image: PublishedImage) -> ImageVersion:
    """Of a published image. Raises UserError for one without our labels."""
    return ImageVersion.require(image.manifest.digest, image.labels, image.created, image.reference, image.platform)


def plan(
    target: Registry,
    new: ImageVersion,
    tags: Mapping[str, TagKind],
    alias_refusal: str = "",
    *,
    keeps: str = "",
    absent: Sequence[str] = (),
) -> tuple[TagChange, ...]:
    """Decide what happens to each tag, by the table above; nothing changes yet.

    `alias_refusal` is why the gate for aliases is closed. `keeps`: refuse that a NAME loses a platform, and what to do
    then. `absent`: why images for other platforms are not there.
    """
    found = []
    for tag, kind in tags.items():
        before = target.find(tag)
        moves = before is not None and before.digest != new.digest
        lost: Sequence[str] = ()
        reason, then = alias_refusal if kind is TagKind.ALIAS else "", ""
        if before and moves and not reason:
            reason, then, lost = _refusal(new, _version(target, before), tag, kind, keeps, absent)
        action = Action.CREATE if before is None else Action.MOVE if moves else Action.KEEP
        if reason:
            action = Action.LEAVE if kind is TagKind.ALIAS else Action.REFUSE
        found.append(TagChange(tag=tag, kind=kind, action=action, before=before, reason=reason, then=then, lost=lost))
    return tuple(found)


def _refusal(
    new: ImageVersion, old: ImageVersion | None, tag: str, kind: TagKind, keeps: str, absent: Sequence[str]
) -> tuple[str, str, Sequence[str]]:
    """Why a tag must not leave what it names for a new image, what to do then, and the platforms that it would lose."""
    if old is None:  # no build of ours may ever follow it
        then = "delete this tag if nobody needs what it names, then publish again; or publish to another repository"
        return f"{tag} names an image that is not ours", then, ()
    lost = [platform for platform in old.images if platform not in new.images]
    anew = "moving tags never go back: build and validate anew, or pull the older image by its dated tag"
    for before, after in new.steps_back(old):
        if Version(before.torch) != Version(after.torch):
            return f"{tag} has torch {before.torch}, this is {after.torch}", anew, lost
        built = f"{tag} was built on {before.created:%Y-%m-%d %H:%M}, this on {after.created:%Y-%m-%d %H:%M}"
        return built, anew, lost
    if kind is TagKind.IMMUTABLE:
        return f"{tag} names {old.digest[:19]} already, and such tags are never moved", "build anew", lost
    if lost and (keeps or kind is TagKind.ALIAS):
        why = f": {'; '.join(absent)}" if absent else ""
        return f"it has an image for {' and '.join(lost)}, and this has none{why}", keeps, lost
    return "", "", lost


def _version(target: Registry, manifest: Manifest) -> ImageVersion | None:
    """None for what is not ours."""
    if manifest.is_index:
        entries = [target.find(entry.digest) for entry in manifest.manifests]
        parts = [_version(target, entry) if entry else None for entry in entries]
        known = [one for one in parts if one]
        return ImageVersion.of_index(manifest.digest, "", known) if known and len(known) == len(parts) else None
    found = load(target, manifest, with_statements=False)
    return ImageVersion.of(manifest.digest, found.labels, found.created, found.platform)


def require_allowed(target: Registry, changes: Sequence[TagChange]) -> None:
    """Raises UserError with every change that is refused."""
    if refused := [change for change in changes if change.action is Action.REFUSE]:
        problems = [Problem(where=f"{target.repository}:{one.tag}", cause=one.reason, then=one.then) for one in refused]
        raise UserError(problems, code=1)


Move = tuple[Manifest, Sequence[TagChange]]
"""A manifest, and what happens to the tags that are to name it."""


def move(target: Registry, moves: Sequence[Move]) -> None:
    """Let tags name manifests as planned: all of them, or none. Raises UserError.

    Registries have no transaction. So tags that exist are moved first, as they can be put back; new ones are created
    last, as not every registry can delete a tag; then every tag is read back. Since the plan, cosign signed for
    seconds: each tag is looked at again right before it moves. Any failure puts back what moved. An interrupt waits for
    the request under way, whose effect nobody could tell.
    """
    require_allowed(target, [change for _, changes in moves for change in changes])
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as worker:
        moving = worker.submit(_move, target, moves, stop)
        try:
            moving.result()
        except BaseException:
            stop.set()
            raise


def _move(target: Registry, moves: Sequence[Move], stop: threading.Event) -> None:
    every = [(manifest, change) for manifest, changes in moves for change in changes]
    in_order = [one for action in (Action.MOVE, Action.CREATE) for one in every if one[1].action is action]
    touched: list[tuple[Manifest, TagChange]] = []
    try:
        for manifest, change in in_order:
            now = target.find(change.tag)
            if now and now.digest not in (manifest.digest, change.before.digest if change.before else ""):
                raise _moved_by_others(target, change.tag)  # since its move was planned
            touched.append((manifest, change))  # before the request: it may arrive although its answer does not
            target.put(manifest, change.tag)
            if stop.is_set():
                raise Cancelled
        for manifest, change in every:
            if change.action is not Action.LEAVE and target.get(change.tag).digest != manifest.digest:
                raise _moved_by_others(target, change.tag)
    except Exception as error:
        left = [change.tag for manifest, change in reversed(touched) if not _restored(target, change, manifest)]
        if left:
            cause = f"moving tags failed ({str(error) or type(error).__name__})"
            cause += f", and {', '.join(left)} could not be put back"
            then = "give the same command again: it finishes the move"
            raise UserError(Problem(where=str(target.repository), cause=cause, then=then), code=1) from error
        raise


def _restored(target: Registry, change: TagChange, ours: Manifest) -> bool:
    try:
        now = target.find(change.tag)
        if now is None or now.digest != ours.digest:
            return True  # it never moved, or somebody else moved it on
        if change.before is None:
            return target.delete_tag(change.tag)
        target.put(change.before, change.tag)
    except UserError:
        return False
    return True


def _moved_by_others(target: Registry, tag: str) -> UserError:
    cause = "somebody else moved it at the same time"
    return UserError(Problem(where=f"{target.repository}:{tag}", cause=cause, then="give the command again"), code=1)
