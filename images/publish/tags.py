"""How tags move: what a tag names now decides what happens to it, and all tags of an image move, or none.

A tag of an image is of one kind: IMMUTABLE (`NAME-YYYYMMDD-DIGEST`), NAME (`cu126-torch27`) or ALIAS (`latest`).

| what the tag names now | IMMUTABLE | NAME | ALIAS |
|---|---|---|---|
| nothing | create | create | create |
| this image | keep | keep | keep |
| an older image | refuse | move | move |
| a higher torch version, or the same one of a later date | refuse | refuse | leave |
| something without our labels | refuse | refuse | leave |

An index is older where none of its images is newer than the one of its platform here, and none of ours where one of
them is not. An alias is left, too, where its gate is closed or it would lose a platform; a NAME is then refused.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

from packaging.version import InvalidVersion, Version

from images.config.platforms import Platform
from images.context.labels import LABELS
from images.engine.failures import Cancelled
from images.errors import Problem, UserError, command, failed, wrong
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
    """An image as tags compare it; an index is a sequence of them. `created`: `PublishedImage.created`."""

    name: str
    torch: str
    created: datetime
    platform: str = str(Platform.AMD64)

    @classmethod
    def of(cls, labels: Mapping[str, str], created: str, platform: str = "") -> Self | None:
        """None for an image without our labels, or whose labels can't be read."""
        try:
            torch, moment = labels[f"{LABELS}.torch"], datetime.fromisoformat(created)
            Version(torch)
        except (KeyError, ValueError, InvalidVersion):
            return None
        name, platform = labels.get(f"{LABELS}.image", ""), platform or str(Platform.AMD64)
        return cls(name=name, torch=torch, created=moment.astimezone(UTC), platform=platform)

    @classmethod
    def require(
        cls, labels: Mapping[str, str], created: str, where: str, platform: str = ""
    ) -> Self:
        """The version of an image that is to be published. Raises UserError."""
        found = cls.of(labels, created, platform)
        if found is None or not found.name:
            cause = f"has no readable label {LABELS}.image and {LABELS}.torch"
            raise wrong(where, cause, f"build it with `{command('build')}`")
        return found

    @property
    def rank(self) -> tuple[Version, datetime]:
        return Version(self.torch), self.created


def step_back(
    old: Sequence[ImageVersion], new: Sequence[ImageVersion]
) -> tuple[ImageVersion, ImageVersion] | None:
    """Old and new image of the first platform whose old one is newer: by torch version, then by date.

    Where no platform is in both, the newest images are compared themselves.
    """
    own = {one.platform: one for one in new}
    pairs = [(one, own[one.platform]) for one in old if one.platform in own]
    pairs = pairs or [(max(old, key=lambda one: one.rank), max(new, key=lambda one: one.rank))]
    return next(((before, after) for before, after in pairs if before.rank > after.rank), None)


@dataclass(frozen=True, kw_only=True)
class TagChange:
    """What happens to one tag, and why. `before` is what it names now, `after` what it is to name."""

    tag: str
    kind: TagKind
    action: Action
    before: Manifest | None
    after: Manifest
    reason: str = ""
    """Why it does not end up there; empty where it does."""
    then: str = ""
    """What to do where it is refused."""


def immutable_tag(name: str, created: datetime, image_id: str) -> str:
    """`NAME-YYYYMMDD-DIGEST`: its day (UTC), and 12 digits of the digest that its verdict names."""
    return f"{name}-{created.astimezone(UTC):%Y%m%d}-{image_id.removeprefix('sha256:')[:_SHORT]}"


def version_of(image: PublishedImage) -> ImageVersion:
    """Of a published image. Raises UserError for one without our labels."""
    return ImageVersion.require(image.labels, image.created, image.reference, image.platform)


def plan(
    target: Registry,
    manifest: Manifest,
    versions: Sequence[ImageVersion],
    tags: Mapping[str, TagKind],
    alias_refusal: str = "",
    *,
    drop_platforms: bool = True,
    absent: Sequence[str] = (),
) -> list[TagChange]:
    """Decide by the table above what happens to each tag of an image or an index of images; nothing changes yet.

    `alias_refusal` is why the gate for aliases is closed. `drop_platforms`: whether a NAME may lose a platform.
    `absent`: why images for other platforms are not there.
    """
    found = []
    for tag, kind in tags.items():
        before = target.find(tag)
        action = Action.CREATE if before is None else Action.MOVE
        reason, then = alias_refusal if kind is TagKind.ALIAS else "", ""
        if before and before.digest == manifest.digest:
            action = Action.KEEP
        elif before and not reason:
            reason, then = refusal(target, before, versions, tag, kind, drop_platforms, absent)
        if reason:
            action = Action.LEAVE if kind is TagKind.ALIAS else Action.REFUSE
        change = TagChange(
            tag=tag,
            kind=kind,
            action=action,
            before=before,
            after=manifest,
            reason=reason,
            then=then,
        )
        found.append(change)
    return found


def refusal(
    target: Registry,
    before: Manifest,
    new: Sequence[ImageVersion],
    tag: str,
    kind: TagKind,
    drop_platforms: bool,
    absent: Sequence[str],
) -> tuple[str, str]:
    """Why a tag must not leave what it names for a new image, and what to do then."""
    listed = [target.find(one.digest) for one in before.manifests] if before.is_index else [before]
    there = [load(target, one, with_statements=False) for one in listed if one]
    old = [
        one
        for image in there
        if (one := ImageVersion.of(image.labels, image.created, image.platform))
    ]
    if not old or len(old) != len(
        listed
    ):  # one of them is not ours: no build of ours may ever follow it
        then = "delete this tag if nobody needs what it names, then publish again; or publish to another repository"
        return f"{tag} names an image that is not ours", then
    lost = [one.platform for one in old if one.platform not in [image.platform for image in new]]
    if back := step_back(old, new):
        newer, own = back
        cause = f"{tag} has torch {newer.torch}, this is {own.torch}"
        if Version(newer.torch) == Version(own.torch):
            cause = (
                f"{tag} is of {newer.created:%Y-%m-%d %H:%M}, this of {own.created:%Y-%m-%d %H:%M}"
            )
        anew = "moving tags never go back: build and validate anew, or pull the older image by its dated tag"
        return cause, anew
    if kind is TagKind.IMMUTABLE:
        return (
            f"{tag} names {before.digest[:19]} already, and such tags are never moved",
            "build anew",
        )
    if lost and (kind is TagKind.ALIAS or not drop_platforms):
        why = f": {'; '.join(absent)}" if absent else ""
        then = "publish that image anew, too, or give a --gate that it opens; --drop-platforms lets it go"
        return f"it has an image for {' and '.join(lost)}, and this has none{why}", then
    return "", ""


def require_allowed(target: Registry, changes: Sequence[TagChange]) -> None:
    """Raises UserError with every change that is refused."""
    if refused := [change for change in changes if change.action is Action.REFUSE]:
        problems = [
            Problem(where=f"{target.repository}:{one.tag}", cause=one.reason, then=one.then)
            for one in refused
        ]
        raise UserError(problems, code=1)


def move(target: Registry, changes: Sequence[TagChange]) -> None:
    """Let tags name manifests as planned: all of them, or none. Raises UserError, with every change that is refused.

    Registries have no transaction. So tags that exist are moved first, as they can be put back; new ones are created
    last, as not every registry can delete a tag; then every tag is read back. Since the plan, cosign signed for
    seconds: each tag is looked at again right before it moves. Any failure puts back what moved. An interrupt waits for
    the request under way, whose effect nobody could tell.
    """
    require_allowed(target, changes)
    stop = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as worker:
        moving = worker.submit(_move, target, changes, stop)
        try:
            moving.result()
        except BaseException:
            stop.set()
            raise


def _move(target: Registry, changes: Sequence[TagChange], stop: threading.Event) -> None:
    in_order = [
        one for action in (Action.MOVE, Action.CREATE) for one in changes if one.action is action
    ]
    touched: list[TagChange] = []
    try:
        for change in in_order:
            now = target.find(change.tag)
            if now and now.digest not in (
                change.after.digest,
                change.before.digest if change.before else "",
            ):
                raise _moved_by_others(target, change.tag)  # since its move was planned
            touched.append(change)  # before the request: it may arrive although its answer does not
            target.put(change.after, change.tag)
            if stop.is_set():
                raise Cancelled
        for change in changes:
            if (
                change.action is not Action.LEAVE
                and target.get(change.tag).digest != change.after.digest
            ):
                raise _moved_by_others(target, change.tag)
    except Exception as error:
        if left := [change.tag for change in reversed(touched) if not _restored(target, change)]:
            cause = f"moving tags failed ({str(error) or type(error).__name__})"
            cause += f", and {', '.join(left)} could not be put back"
            raise failed(
                str(target.repository), cause, "give the same command again: it finishes the move"
            ) from error
        raise


def _restored(target: Registry, change: TagChange) -> bool:
    try:
        now = target.find(change.tag)
        if now is None or now.digest != change.after.digest:
            return True  # it never moved, or somebody else moved it on
        if change.before is None:
            return target.delete_tag(change.tag)
        target.put(change.before, change.tag)
    except UserError:
        return False
    return True


def _moved_by_others(target: Registry, tag: str) -> UserError:
    return failed(
        f"{target.repository}:{tag}",
        "somebody else moved it at the same time",
        "give the command again",
    )
