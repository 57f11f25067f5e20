"""Decide how the tags of a published image move, and move all of them or none.

A tag is of one kind: IMMUTABLE (`NAME-YYYYMMDD-DIGEST`), NAME (`cu126-torch27`) or ALIAS
(`latest`). What it names now decides what happens to it:

| the tag names now | IMMUTABLE | NAME | ALIAS |
|---|---|---|---|
| nothing | create | create | create |
| this image | keep | keep | keep |
| an older image | refuse | move | move |
| a higher torch version, or the same one of a later date | refuse | refuse | leave |
| something without our labels | refuse | refuse | leave |

An index is compared platform by platform: it may only be replaced if none of its images is newer
than the new image for the same platform. An ALIAS is also left where its gate is closed or where it
would lose a platform. A NAME is refused where it would lose a platform.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple, Self

from packaging.version import InvalidVersion, Version

from images.config.platforms import Platform
from images.context.labels import LABELS
from images.engine.failures import Cancelled
from images.errors import Problem, UserError, command, failed, wrong
from images.publish.attachments import PublishedImage, load
from images.registry.client import Registry
from images.registry.distribution import Manifest

_SHORT = 12
"""Hexadecimal digits of a digest in a tag: as many as Docker shows."""


class TagKind(StrEnum):
    """What a tag is for, which decides when it may move."""

    IMMUTABLE = "immutable"
    NAME = "name"
    ALIAS = "alias"


class Action(StrEnum):
    """What happens to a tag. KEEP: it names the image already.

    LEAVE skips this tag, REFUSE stops the whole publication.
    """

    CREATE = "create"
    KEEP = "keep"
    MOVE = "move"
    LEAVE = "leave"
    REFUSE = "refuse"


@dataclass(frozen=True, kw_only=True)
class ImageVersion:
    """The facts by which tags compare images. An index is a sequence of them."""

    name: str
    torch: str
    created: datetime
    """`PublishedImage.created`: when the image was validated, in UTC."""
    platform: str = str(Platform.AMD64)

    @classmethod
    def from_labels(
        cls, labels: Mapping[str, str], created: str, platform: str = ""
    ) -> Self | None:
        """Return the version of an image with these labels; None if it is no image of ours.

        An image of this project has a label with a valid version of torch. Its name may be missing.
        `created` is the image's date in ISO 8601; one that can't be read gives None, too. The
        default platform is linux/amd64.
        """
        try:
            torch = labels[f"{LABELS}.torch"]
            moment = datetime.fromisoformat(created)
            # Raises InvalidVersion: `rank` needs a version that can be compared.
            Version(torch)
        except (KeyError, ValueError, InvalidVersion):
            return None
        return cls(
            name=labels.get(f"{LABELS}.image", ""),
            torch=torch,
            created=moment.astimezone(UTC),
            platform=platform or str(Platform.AMD64),
        )

    @classmethod
    def require(
        cls, labels: Mapping[str, str], created: str, where: str, platform: str = ""
    ) -> Self:
        """Return the version of an image with these labels.

        `created` is the image's date (ISO 8601), `where` names the image in the error message. An
        empty platform stands for linux/amd64. Raises UserError for an image without our labels, and
        for labels or a date that cannot be read.
        """
        version = cls.from_labels(labels, created, platform)
        if version is None or not version.name:
            cause = (
                f"the image has no labels {LABELS}.image and {LABELS}.torch that can be read, so "
                "truetag did not build it"
            )
            raise wrong(where, cause, f"publish an image that `{command('build', 'NAME')}` built")
        return version

    @property
    def rank(self) -> tuple[Version, datetime]:
        """Return the key by which versions are ordered: by torch version, then by date."""
        return Version(self.torch), self.created


class StepBack(NamedTuple):
    """A published image, and the older image that would replace it."""

    published: ImageVersion
    replacement: ImageVersion


class Refusal(NamedTuple):
    """Why a tag does not move, and what the user can do about it."""

    reason: str
    then: str


@dataclass(frozen=True, kw_only=True)
class TagChange:
    """What happens to one tag, and why."""

    tag: str
    kind: TagKind
    action: Action
    before: Manifest | None
    """What the tag names now; None if there is no such tag."""
    after: Manifest
    """What the tag shall name."""
    reason: str = ""
    """Why the tag will not name `after`; empty where it will."""
    then: str = ""
    """What the user can do where the change is refused."""


def immutable_tag(name: str, created: datetime, image_id: str) -> str:
    """Return `NAME-YYYYMMDD-DIGEST`, with the day in UTC and 12 digits of the image ID."""
    return f"{name}-{created.astimezone(UTC):%Y%m%d}-{image_id.removeprefix('sha256:')[:_SHORT]}"


def version_of(image: PublishedImage) -> ImageVersion:
    """Return the version of a published image. Raises UserError for one without our labels."""
    return ImageVersion.require(image.labels, image.created, image.reference, image.platform)


# --- planning -------------------------------------------------------------------------------------


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
    """Decide for each tag of an image or index what shall happen to it. Nothing changes yet.

    The table at the top of this module has the rules.

    manifest: what the tags shall name: an image, or an index (a list of images for platforms).
    versions: the image, or each image of the index.
    tags: tag -> its kind: IMMUTABLE (with a date), NAME or ALIAS (`latest`).
    alias_refusal: why aliases must not move; empty if they may.
    drop_platforms: whether a NAME may lose a platform.
    absent: why images for other platforms are missing, for messages.
    """
    changes = []
    for tag, kind in tags.items():
        before = target.find(tag)
        names_other = before is not None and before.digest != manifest.digest

        refusal: Refusal | None = None
        if kind is TagKind.ALIAS and alias_refusal:
            refusal = Refusal(alias_refusal, then="")
        elif before and names_other:
            refusal = find_refusal(target, before, versions, tag, kind, drop_platforms, absent)

        # A refused alias stays where it is (LEAVE); any other refused tag ends the publication.
        if refusal:
            action = Action.LEAVE if kind is TagKind.ALIAS else Action.REFUSE
        elif before is None:
            action = Action.CREATE
        elif names_other:
            action = Action.MOVE
        else:
            action = Action.KEEP

        change = TagChange(tag=tag, kind=kind, action=action, before=before, after=manifest)
        if refusal:
            change = replace(change, reason=refusal.reason, then=refusal.then)
        changes.append(change)
    return changes


def find_refusal(
    target: Registry,
    before: Manifest,
    new: Sequence[ImageVersion],
    tag: str,
    kind: TagKind,
    drop_platforms: bool,
    absent: Sequence[str],
) -> Refusal | None:
    """Return why a tag must not move from the manifest `before` to new images; None if it may.

    `new` has the new image, or each image of a new index: a list of images for several platforms.
    Tags are of a kind: IMMUTABLE (with a date), NAME or ALIAS (`latest`). `drop_platforms` says
    whether a NAME may lose a platform. `absent` has the reasons why images for other platforms are
    missing, for the message.
    """
    # The images that the tag names now, or a sentence why they cannot be compared.
    old = load_versions(target, before)
    if isinstance(old, str):
        then = (
            f"delete the tag {tag} in the registry if nobody needs what it names, then publish "
            "again; or publish to another repository (--to)"
        )
        return Refusal(f"{tag} must not be moved: {old}", then)

    step_back = find_step_back(old, new)
    if step_back:
        return refuse_step_back(tag, step_back)

    # The tag has a name, a day and twelve digits of a digest, and yet it names another manifest.
    if kind is TagKind.IMMUTABLE:
        reason = (
            f"{tag} names another image already ({before.digest[:19]}), and a tag with a date is "
            "never moved"
        )
        then = f"`{command('build', 'NAME')}` again: the new build gets a tag of its own"
        return Refusal(reason, then)

    # An alias may lose no platform, whatever `drop_platforms` says for a NAME.
    new_platforms = [version.platform for version in new]
    lost = [version.platform for version in old if version.platform not in new_platforms]
    if lost and (kind is TagKind.ALIAS or not drop_platforms):
        reason = (
            f"{tag} has an image for {' and '.join(lost)}, and what is to be published has none"
        )
        if absent:
            reason += f": {'; '.join(absent)}"
        then = (
            f"publish the images of these platforms first (`{command('publish', 'NAME')}`, with "
            "`--gate static,cpu` if they have not run on a GPU), then this one again; or let the "
            "tag lose them with --drop-platforms"
        )
        return Refusal(reason, then)
    return None


def refuse_step_back(tag: str, step_back: StepBack) -> Refusal:
    """Return why a tag must not move from its image to an older one, and what to do.

    `step_back` has both images: the published one and the older one that would replace it. An
    image is older by its torch version or, if that is the same, by its date.
    """
    published, replacement = step_back
    reason = (
        f"{tag} names an image with torch {published.torch}, and the one to be published has the "
        f"older torch {replacement.torch}"
    )
    if Version(published.torch) == Version(replacement.torch):
        published_date = f"{published.created:%Y-%m-%d %H:%M}"
        replacement_date = f"{replacement.created:%Y-%m-%d %H:%M}"
        reason = (
            f"{tag} names an image of {published_date}, and the one to be published is older "
            f"({replacement_date})"
        )
    then = (
        f"tags never go back: `{command('build', replacement.name)}` makes a newer build to "
        "publish; the older image can be pulled by the tag that has its date"
    )
    return Refusal(reason, then)


def load_versions(target: Registry, manifest: Manifest) -> list[ImageVersion] | str:
    """Return the version of the image that a manifest names, or of each image of an index.

    If they cannot be compared with new images, return a sentence with the reason instead: one is
    missing, one has no labels of ours, or the index is empty.
    """
    manifests: list[Manifest | None] = [manifest]
    if manifest.is_index:
        manifests = [target.find(entry.digest) for entry in manifest.manifests]

    versions = []
    for image_manifest in manifests:
        if image_manifest is None:
            return "an image of its index is missing in the registry"
        image = load(target, image_manifest, with_statements=False)
        version = ImageVersion.from_labels(image.labels, image.created, image.platform)
        if version is None:
            return f"it names an image without truetag's labels ({image_manifest.digest[:19]})"
        versions.append(version)
    return versions or "its index holds no image"


def find_step_back(old: Sequence[ImageVersion], new: Sequence[ImageVersion]) -> StepBack | None:
    """Return an image that would be replaced by an older one if a tag moved; None if none would.

    `old` has the images that the tag names now, `new` those that it shall name. An image is
    replaced by that for the same platform. If no platform is in both, the newest image of `old` is
    compared with the newest of `new`. Raises ValueError if one of them is empty.
    """
    new_by_platform = {version.platform: version for version in new}
    replacements = []
    for version in old:
        if version.platform in new_by_platform:
            replacements.append(StepBack(version, new_by_platform[version.platform]))
    if not replacements:
        newest_old = max(old, key=lambda version: version.rank)
        newest_new = max(new, key=lambda version: version.rank)
        replacements = [StepBack(newest_old, newest_new)]

    for pair in replacements:
        # `rank` orders by torch version, then by date.
        if pair.published.rank > pair.replacement.rank:
            return pair
    return None


def require_allowed(target: Registry, changes: Sequence[TagChange]) -> None:
    """Raise UserError with every change that is refused, if there is one."""
    problems = []
    for change in changes:
        if change.action is Action.REFUSE:
            where = f"{target.repository}:{change.tag}"
            problems.append(Problem(where=where, cause=change.reason, then=change.then))
    if problems:
        raise UserError(problems, code=1)


# --- moving ---------------------------------------------------------------------------------------


def move(target: Registry, changes: Sequence[TagChange]) -> None:
    """Move tags as planned: all of them, or none.

    An interrupt (Ctrl-C) waits for the request under way, because nobody could tell its effect, and
    then puts back what moved. Raises UserError with every change that is refused (then nothing
    moves), or with the reason why moving failed.
    """
    require_allowed(target, changes)
    stop = threading.Event()
    # An interrupt is raised in the main thread only, so it does not end a request in this one.
    with ThreadPoolExecutor(max_workers=1) as worker:
        moving = worker.submit(move_or_restore, target, changes, stop)
        try:
            moving.result()
        except BaseException:
            # Leaving the `with` block waits until the thread has put back what moved.
            stop.set()
            raise


def move_or_restore(target: Registry, changes: Sequence[TagChange], stop: threading.Event) -> None:
    """Move tags one after the other, and put all of them back if anything fails.

    Registries have no transaction. So tags that exist are moved first, as they can be put back, and
    new ones are created last, as not every registry can delete a tag. In the end every tag is read
    back. Raises Cancelled after the request during which `stop` is set, and UserError where a
    request fails, where another machine moved a tag, or where a tag could not be put back.
    """
    to_move = [change for change in changes if change.action is Action.MOVE]
    to_create = [change for change in changes if change.action is Action.CREATE]
    touched: list[TagChange] = []
    try:
        for change in (*to_move, *to_create):
            require_unchanged(target, change)
            # Before the request: it may arrive although its answer does not.
            touched.append(change)
            target.put(change.after, change.tag)
            if stop.is_set():
                # Caught below, like any other failure.
                raise Cancelled
        # Read every tag back: another machine may have moved it meanwhile.
        for change in changes:
            if change.action is Action.LEAVE:
                continue
            if target.get(change.tag).digest != change.after.digest:
                raise moved_by_others(target, change.tag)
    except Exception as error:
        # Go on after a tag that can't be put back: the others may still be.
        stuck = []
        for change in reversed(touched):
            if not restore(target, change):
                stuck.append(change.tag)
        if not stuck:
            raise
        reason, first_step = _explain(error)
        cause = f"moving tags failed ({reason}), and {', '.join(stuck)} could not be put back"
        then = f"{first_step}give the same command again, which finishes the move of the tags"
        raise failed(str(target.repository), cause, then) from error


def _explain(error: Exception) -> tuple[str, str]:
    """Return why moving tags failed, and what to do first: `do this, then `, or an empty text."""
    if not isinstance(error, UserError):
        return str(error) or type(error).__name__, ""
    problem = error.problems[0]
    return problem.cause, f"{problem.then}, then " if problem.then else ""


def require_unchanged(target: Registry, change: TagChange) -> None:
    """Raise UserError if another machine moved a tag since its change was planned.

    That may be seconds ago: images are signed in between. It is no error if the tag is gone, or if
    it names the new image already.
    """
    current = target.find(change.tag)
    if current is None:
        return
    expected = [change.after.digest]
    if change.before:
        expected.append(change.before.digest)
    if current.digest not in expected:
        raise moved_by_others(target, change.tag)


def restore(target: Registry, change: TagChange) -> bool:
    """Let a tag name again what it named before. Return whether it is back.

    A tag that never moved, or that somebody else moved on, counts as back. So does a new tag that
    could be deleted. False if the registry refuses or does not answer.
    """
    try:
        current = target.find(change.tag)
        if current is None or current.digest != change.after.digest:
            return True
        if change.before is None:
            return target.delete_tag(change.tag)
        target.put(change.before, change.tag)
    except UserError:
        return False
    return True


def moved_by_others(target: Registry, tag: str) -> UserError:
    """Return the error for a tag that another machine moved meanwhile."""
    where = f"{target.repository}:{tag}"
    cause = "another process or machine moved this tag while this command ran"
    return failed(where, cause, "give the command again: it looks at the tag anew")
