"""How tags move: what a tag names now decides what happens to it, and all tags of an image move, or none.

A tag of an image is of one kind: IMMUTABLE (`NAME-YYYYMMDD-DIGEST`), NAME (`cu126-torch27`) or ALIAS (`latest`). The
state of a tag compares what it names now with the image that is published. State and kind decide the action:

| state | what the tag names now | IMMUTABLE | NAME | ALIAS |
|---|---|---|---|---|
| FREE | nothing | create | create | create |
| CURRENT | this image | keep | keep | keep |
| OLDER | an image that this one may follow | refuse | move | move |
| NEWER | a higher torch version, or the same one built later | refuse | refuse | leave |
| FOREIGN | something without our labels | refuse | refuse | leave |

An index of images for several platforms is OLDER where none of its images is newer than the one of its platform here,
and FOREIGN where one of them is not ours. An alias is left, too, where an image for one of its platforms is not here;
a NAME is then refused (`publish`, `promote` of an index; not with --drop-platforms), and moved and told elsewhere.

After `create` and `move` the state is CURRENT. `keep` and `leave` change nothing. `refuse` stops the publication before
any tag changes. An alias is also left where the gate for aliases is closed. TRANSITIONS is this table as data.

The protocol has no transaction. So `move` goes in this order, and any failure or interrupt puts back what it changed:

1. Tags that exist are moved: they can be put back.
2. New tags are created. They come last, as not every registry can delete a tag.
3. Every tag is read back: somebody else may have moved it meanwhile.

Between the plan and the move cosign signs, for seconds. So each tag is looked at again right before it is moved.
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
from images.errors import Problem, UserError
from images.publish.attachments import PublishedImage, load
from images.registry.client import Registry
from images.registry.distribution import Manifest

_SHORT = 12  # hexadecimal digits of a digest that tell images apart, as Docker shows them


class TagKind(StrEnum):
    IMMUTABLE = "immutable"
    NAME = "name"
    ALIAS = "alias"


class TagState(StrEnum):
    FREE = "free"
    CURRENT = "current"
    OLDER = "older"
    NEWER = "newer"
    FOREIGN = "foreign"


class Action(StrEnum):
    CREATE = "create"
    KEEP = "keep"
    MOVE = "move"
    LEAVE = "leave"
    REFUSE = "refuse"


def _row(immutable: Action, name: Action, alias: Action) -> Mapping[TagKind, Action]:
    return {TagKind.IMMUTABLE: immutable, TagKind.NAME: name, TagKind.ALIAS: alias}


TRANSITIONS: Mapping[TagState, Mapping[TagKind, Action]] = {
    TagState.FREE: _row(Action.CREATE, Action.CREATE, Action.CREATE),
    TagState.CURRENT: _row(Action.KEEP, Action.KEEP, Action.KEEP),
    TagState.OLDER: _row(Action.REFUSE, Action.MOVE, Action.MOVE),
    TagState.NEWER: _row(Action.REFUSE, Action.REFUSE, Action.LEAVE),
    TagState.FOREIGN: _row(Action.REFUSE, Action.REFUSE, Action.LEAVE),
}


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
            raise UserError(Problem(where=where, cause=cause, then="build it with `nox -s build`"))
        return found

    @property
    def images(self) -> Mapping[str, ImageVersion]:
        """Platform -> the image for it."""
        return {one.platform: one for one in self.parts or (self,)}

    def follows(self, old: ImageVersion) -> bool:
        """Whether a tag may move from the old image to this one: by torch version, then by time of the build."""
        return next(self.steps_back(old), None) is None

    def steps_back(self, old: ImageVersion) -> Iterator[tuple[ImageVersion, ImageVersion]]:
        """Old and new image of each platform whose old one is newer. An image and one of another platform: of both."""
        mine, theirs = self.images, old.images
        pairs = [(theirs[platform], mine[platform]) for platform in theirs if platform in mine] or [(old, self)]
        for before, after in pairs:
            torch = Version(before.torch), Version(after.torch)
            if (torch[0], before.created) > (torch[1], after.created):
                yield before, after

    def lost(self, old: ImageVersion) -> list[str]:
        """Platforms that the old one has an image for, and this one not."""
        return [platform for platform in old.images if platform not in self.images]


@dataclass(frozen=True, kw_only=True)
class TagChange:
    """What happens to one tag, and why. `before` is what it names now."""

    tag: str
    kind: TagKind
    state: TagState
    action: Action
    reason: str
    """Empty where the tag ends up on the image."""
    before: Manifest | None
    lost: Sequence[str] = ()
    """Platforms that it has an image for now, and not when it moves."""
    then: str = ""
    """What to do where it is refused for those."""


@dataclass(frozen=True, kw_only=True)
class Keeps:
    """The name of a row may not lose a platform. `why` its image is not here, and what to do `then`."""

    then: str
    why: str = ""


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


def state_of(new: ImageVersion, digest: str | None, old: ImageVersion | None) -> TagState:
    """The state of a tag that names `digest`, an image of version `old`; both None where there is none. Pure."""
    if digest is None:
        return TagState.FREE
    if digest == new.digest:
        return TagState.CURRENT
    if old is None:
        return TagState.FOREIGN
    return TagState.OLDER if new.follows(old) else TagState.NEWER


def plan(
    target: Registry,
    new: ImageVersion,
    tags: Mapping[str, TagKind],
    alias_refusal: str = "",
    *,
    keeps: Keeps | None = None,
) -> tuple[TagChange, ...]:
    """Decide what happens to each tag; nothing changes yet.

    `alias_refusal` is why the gate for aliases is closed. `keeps`: refuse that a NAME loses a platform.
    """
    return tuple(_change(target, new, tag, kind, alias_refusal, keeps) for tag, kind in tags.items())


def _change(
    target: Registry, new: ImageVersion, tag: str, kind: TagKind, alias_refusal: str, keeps: Keeps | None
) -> TagChange:
    before = target.find(tag)
    old = _version(target, before)
    state = state_of(new, before.digest if before else None, old)
    action = TRANSITIONS[state][kind]
    reason = _reason(tag, new, old, state) if action in (Action.LEAVE, Action.REFUSE) else ""
    lost = new.lost(old) if old and action is Action.MOVE else []
    if lost and (keeps or kind is TagKind.ALIAS):
        why = f": {keeps.why}" if keeps and keeps.why else ""
        action = Action.LEAVE if kind is TagKind.ALIAS else Action.REFUSE
        reason = f"it has an image for {' and '.join(lost)}, and this has none{why}"
    if kind is TagKind.ALIAS and alias_refusal:
        action, reason = Action.LEAVE, alias_refusal
    then = keeps.then if keeps and lost else ""
    return TagChange(tag=tag, kind=kind, state=state, action=action, reason=reason, before=before, lost=lost, then=then)


def _version(target: Registry, manifest: Manifest | None) -> ImageVersion | None:
    if manifest is None:
        return None
    if manifest.is_index:
        parts = [_version(target, target.find(entry.digest)) for entry in manifest.manifests]
        known = [one for one in parts if one]
        return ImageVersion.of_index(manifest.digest, "", known) if known and len(known) == len(parts) else None
    found = load(target, manifest, attachments=False)
    return ImageVersion.of(manifest.digest, found.labels, found.created, found.platform)


def version_of(image: PublishedImage) -> ImageVersion:
    """Of a published image. Raises UserError for one without our labels."""
    return ImageVersion.require(image.manifest.digest, image.labels, image.created, image.reference, image.platform)


def _reason(tag: str, new: ImageVersion, old: ImageVersion | None, state: TagState) -> str:
    if old is None:
        return f"{tag} names an image that is not ours"
    if state is TagState.OLDER:
        return f"{tag} names {old.digest[:19]} already, and such tags are never moved"
    before, after = next(new.steps_back(old), (old, new))
    if Version(before.torch) != Version(after.torch):
        return f"{tag} has torch {before.torch}, this is {after.torch}"
    return f"{tag} was built on {before.created:%Y-%m-%d %H:%M}, this on {after.created:%Y-%m-%d %H:%M}"


class RefusedError(UserError):
    """Tags that must not move. None did."""


def require_allowed(target: Registry, changes: Sequence[TagChange]) -> None:
    """Raises RefusedError for every change that is refused."""
    refused = [change for change in changes if change.action is Action.REFUSE]
    if refused:
        raise RefusedError([_refusal(target, change) for change in refused], code=1)


def _refusal(target: Registry, change: TagChange) -> Problem:
    older = "moving tags never go back: build and validate anew, or pull the older image by its dated tag"
    then = "build anew" if change.kind is TagKind.IMMUTABLE else change.then or older
    if change.state is TagState.FOREIGN:  # no build of ours may ever follow it
        then = "delete this tag if nobody needs what it names, then publish again; or publish to another repository"
    return Problem(where=f"{target.repository}:{change.tag}", cause=change.reason, then=then)


Moves = Sequence[tuple[Manifest, Sequence[TagChange]]]
"""Manifests (the variants of an image), and the tags that are to name each."""


def move(target: Registry, moves: Moves) -> None:
    """Let tags name manifests as planned: all of them, or none. Raises UserError; RefusedError where none was moved.

    An interrupt waits for the request under way, whose effect nobody could tell, and then has everything put back.
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


def _move(target: Registry, moves: Moves, stop: threading.Event) -> None:
    every = [(manifest, change) for manifest, changes in moves for change in changes]
    in_order = [one for action in (Action.MOVE, Action.CREATE) for one in every if one[1].action is action]
    touched: list[tuple[Manifest, TagChange]] = []
    try:
        for manifest, change in in_order:
            _require_as_planned(target, manifest, change)
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
            raise _half_moved(target, left, error) from error
        raise


def _require_as_planned(target: Registry, manifest: Manifest, change: TagChange) -> None:
    """Raises RefusedError for a tag that has come to name something since its move was planned."""
    now = target.find(change.tag)
    if now and now.digest not in (manifest.digest, change.before.digest if change.before else ""):
        raise _moved_by_others(target, change.tag)


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


def _moved_by_others(target: Registry, tag: str) -> RefusedError:
    cause = "somebody else moved it at the same time"
    return RefusedError(Problem(where=f"{target.repository}:{tag}", cause=cause, then="give the command again"), code=1)


def _half_moved(target: Registry, left: Sequence[str], error: BaseException) -> UserError:
    cause = f"moving tags failed ({str(error) or type(error).__name__}), and {', '.join(left)} could not be put back"
    then = "give the same command again: it finishes the move"
    return UserError(Problem(where=str(target.repository), cause=cause, then=then), code=1)
