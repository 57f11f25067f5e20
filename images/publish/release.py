"""Promote published images to another repository, and plan which tags name which image or index.

Images of one row of the matrix, one for each platform, share an index: a list of images from which
Docker pulls the one for its platform. Promotion sends no layers: the registry links them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

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
    """What was published, and what was not."""

    images: Sequence[PublishedImage]
    tags: tuple[str, ...]
    unmoved_tags: tuple[str, ...]
    """For each tag that stayed where it was, a sentence with the reason. It is an alias, or after a
    promotion any tag of an index that nobody signed (`leave_unsigned_tags`)."""
    signed: bool
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Tag -> `HOST/NAME@sha256:...` of the index for several platforms that it names."""
    left_out: tuple[str, ...] = ()
    """For each platform that an index lacks, a sentence with the reason."""


class TagPlan(NamedTuple):
    """What shall happen to tags."""

    changes: list[TagChange]
    left_out: list[str]
    """For each platform that a new index lacks, a sentence with the reason."""


class OtherImages(NamedTuple):
    """The images of a row that are published already and that are not being published now."""

    usable: list[PublishedImage]
    absent: dict[str, str]
    """Platform -> why its image cannot be used."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """Images of one row of the matrix on their way into a repository."""

    target: Registry
    policy: ReleasePolicy
    key: str = ""
    """The public key whose statements count. Empty: all attached statements count."""
    row: Sequence[str] = ()
    """Names of the images that share an index, linux/amd64 first: its name is also that of the
    index. Empty: there is no index, and tags name the image itself."""
    drop_platforms: bool = False
    """Whether the name of the index may lose a platform."""

    def require_follows(self, versions: Sequence[ImageVersion]) -> None:
        """Raise UserError if publishing these images would make a name go back or lose a platform.

        A name is a tag like `cu126-torch27`. It would go back if, in the repository, it names a
        newer image than the one to publish. The images of a row, one for each platform, share an
        index: a list of them, which is published under a name too. That name must not lose a
        platform either. Dated tags and aliases are not checked. Call this before anything is sent.
        """
        # First the names that single images have. The name of the index is checked below.
        for version in versions:
            if not self._is_index_name(version.name):
                self._require_name_follows(version.name, [version])
        # Images without a row have no index.
        if not self.row:
            return

        # The index will list these images, and those that were published earlier for other
        # platforms. It is only written if one of them is for linux/amd64. `others.absent` says for
        # each platform that the index will lack why it has no usable image.
        others = self._find_others([version.name for version in versions])
        listed_versions = [*versions]
        for image in others.usable:
            listed_versions.append(tags.version_of(image))
        has_amd64 = any(version.platform == Platform.AMD64 for version in listed_versions)
        if has_amd64:
            index_name = self.row[0]
            reasons = tuple(others.absent.values())
            self._require_name_follows(index_name, listed_versions, reasons)

    def _is_index_name(self, name: str) -> bool:
        """Return whether the tag `name` names the index of the row and not an image."""
        return bool(self.row) and name == self.row[0]

    def _require_name_follows(
        self, tag: str, versions: Sequence[ImageVersion], absent: Sequence[str] = ()
    ) -> None:
        """Raise UserError if a name (a tag like `cu126-torch27`) must not move to these versions.

        They are the single image, or the images of the index, that the tag shall name. `absent` has
        the reasons why images for other platforms are missing, for the message. A tag that does not
        exist yet is never refused.
        """
        before = self.target.find(tag)
        if before is None:
            return
        # Only an index has platforms to lose.
        drop_platforms = self.drop_platforms or not self._is_index_name(tag)
        refusal = tags.find_refusal(
            self.target, before, versions, tag, TagKind.NAME, drop_platforms, absent
        )
        if refusal:
            raise failed(f"{self.target.repository}:{tag}", refusal.reason, refusal.then)

    def plan(self, stored: Sequence[PublishedImage]) -> TagPlan:
        """Decide which tags shall name the stored images and their index.

        `stored` are images that the repository has, still without their new tags. New indexes are
        stored, but no tag moves. The plan also says which platforms a new index lacks, and why.
        Raises UserError with every change that is refused.
        """
        changes = []
        for image in stored:
            changes += self._plan_image_tags(image)
        left_out: list[str] = []
        # Without a row of matrix.yaml there is no index, so only the images get tags.
        if self.row:
            index_changes, left_out = self._plan_index(stored)
            changes += index_changes
        tags.require_allowed(self.target, changes)
        return TagPlan(changes, left_out)

    def move(
        self,
        stored: Sequence[PublishedImage],
        changes: Sequence[TagChange],
        left_out: Sequence[str],
    ) -> PublishResult:
        """Move the tags as planned, all of them or none, and return what was published.

        `stored` are the images that were published, `changes` and `left_out` those of the plan.
        Raises UserError if a change is refused, or if a tag cannot be moved or put back.
        """
        tags.move(self.target, changes)

        named_tags = []
        unmoved_tags = []
        indexes = {}
        for change in changes:
            # LEAVE: the tag stays where it is. Only aliases do, and the tags of an index that
            # nobody signed.
            if change.action is Action.LEAVE:
                unmoved_tags.append(f"{change.tag} stays: {change.reason}")
            else:
                named_tags.append(change.tag)
            if change.after.is_index and change.kind is TagKind.NAME:
                indexes[change.tag] = f"{self.target.repository}@{change.after.digest}"
        return PublishResult(
            images=stored,
            tags=tuple(named_tags),
            unmoved_tags=tuple(unmoved_tags),
            signed=bool(self.key),
            indexes=indexes,
            left_out=tuple(left_out),
        )

    def _find_others(self, new_names: Collection[str]) -> OtherImages:
        """Find the images of the row that are published in the target already.

        Images in `new_names` are left out: they are being published now. Each other image is either
        usable in an index, or absent with a reason: it is not published, `verify` would not pass
        it, or its own label has another name than its tag. Raises CosignError where cosign cannot
        tell who signed.
        """
        usable: list[PublishedImage] = []
        absent: dict[str, str] = {}
        for name in self.row:
            if name in new_names:
                continue
            platform = str(ImageName.parse(name).platform)
            try:
                image = self._find_published(name, platform)
                if image is None:
                    absent[platform] = f"{name} is not published here"
                elif image.name != name:
                    absent[platform] = f"the image is called {image.name or 'nothing'}, not {name}"
                else:
                    usable.append(verify.require_publishable(image, self.policy, self.key))
            except signing.CosignError:
                # The error says nothing about the image, so do not call the image absent.
                raise
            except UserError as error:
                absent[platform] = error.problems[0].cause
        return OtherImages(usable, absent)

    def _find_published(self, tag: str, platform: str) -> PublishedImage | None:
        """Return the image for a platform that a tag names, directly or through an index."""
        manifest = self.target.find(tag)
        if manifest is None:
            return None
        for image in attachments.load_all(self.target, manifest):
            if image.platform == platform:
                return image
        return None

    def _plan_image_tags(self, image: PublishedImage) -> list[TagChange]:
        """Return what shall happen to each tag of one image. No tag changes yet.

        An image gets three kinds of tags: a dated one that never moves, its name such as
        `cu126-torch27`, and aliases such as `latest`. Where an index (a list of images for several
        platforms) has the image's name, the name and the aliases are for the index, and the image
        gets only the dated tag. Tags that may not name the image are returned with the reason.
        """
        version = tags.version_of(image)
        dated_tag = tags.immutable_tag(version.name, version.created, image.image_id)
        kinds = {dated_tag: TagKind.IMMUTABLE}
        if not self._is_index_name(version.name):
            kinds[version.name] = TagKind.NAME
            for alias in self.policy.aliases_of(version.name):
                kinds[alias] = TagKind.ALIAS

        # Why aliases may not name this image; empty if they may.
        alias_refusal = self._find_alias_refusal(image)
        return tags.plan(self.target, image.manifest, [version], kinds, alias_refusal)

    def _plan_index(self, stored: Sequence[PublishedImage]) -> TagPlan:
        """Store the row's new index, and plan the tags that shall name it.

        An index is the list of a row's images, one for each platform. It has the images in `stored`
        (just stored), and for other platforms those that are published already. Without an image
        for linux/amd64 there is no new index, and no tag of it changes. The plan also says which
        platforms the index lacks, and why.
        """
        others = self._find_others([image.name for image in stored])
        images = [*stored, *others.usable]
        name = self.row[0]

        changes: list[TagChange] = []
        left_out: list[str] = []
        has_new_index = any(image.platform == Platform.AMD64 for image in images)
        if has_new_index:
            absent = tuple(others.absent.values())
            changes += self._store_index_and_plan_name(images, absent)
            alias_changes, left_out = self._plan_index_aliases(images)
            changes += alias_changes

        # A sentence about each absent platform, such as `NAME lacks linux/arm64: REASON`.
        keeps_old_index = not has_new_index and self.target.find(name) is not None
        for platform, reason in others.absent.items():
            if keeps_old_index:
                left_out.append(
                    f"{name} stays as it was: no index goes without {platform}: {reason}"
                )
            else:
                left_out.append(f"{name} lacks {platform}: {reason}")
        return TagPlan(changes, left_out)

    def _store_index_and_plan_name(
        self, images: Sequence[PublishedImage], absent: Sequence[str]
    ) -> list[TagChange]:
        """Store the index of these images, and return what shall happen to two of its tags.

        An index is a list of images, one for each platform. The tags are its name, such as
        `cu126-torch27`, and a dated one that never moves. Neither changes yet. `absent` has the
        reasons why images for other platforms are missing; they are for messages.
        """
        index, versions = self._store_index(images)
        name = self.row[0]
        # The index has the date of its newest image.
        created = max(version.created for version in versions)
        dated_tag = tags.immutable_tag(name, created, index.digest)
        kinds = {dated_tag: TagKind.IMMUTABLE, name: TagKind.NAME}
        return tags.plan(
            self.target,
            index,
            versions,
            kinds,
            drop_platforms=self.drop_platforms,
            absent=absent,
        )

    def _plan_index_aliases(self, images: Sequence[PublishedImage]) -> TagPlan:
        """Decide what happens to the aliases of an index, such as `latest`. No tag moves yet.

        `images` has the image of each platform. Aliases must not name some images, such as those
        with a known fault (`_find_alias_refusal`). So they get an index of their own without these,
        which is stored here. Without an image for linux/amd64 there is no such index, and every
        alias stays as it is.

        The plan also says which platforms the aliases' index lacks, and why. It is empty if the
        matrix gives this index no alias.
        """
        aliases = self.policy.aliases_of(self.row[0])
        if not aliases:
            return TagPlan(changes=[], left_out=[])
        kinds = dict.fromkeys(aliases, TagKind.ALIAS)

        # Platform -> why aliases may not name its image.
        refusals = {}
        for image in images:
            refusal = self._find_alias_refusal(image)
            if refusal:
                refusals[image.platform] = refusal

        amd64_refusal = refusals.get(str(Platform.AMD64), "")
        if amd64_refusal:
            # Even an alias that stays needs a change, which says what the alias would have named:
            # the index of all images. It is not stored.
            refused_index = attachments.make_index(images)
            versions = [tags.version_of(image) for image in images]
            changes = tags.plan(self.target, refused_index, versions, kinds, amd64_refusal)
            return TagPlan(changes, left_out=[])

        allowed_images = [image for image in images if image.platform not in refusals]
        index, versions = self._store_index(allowed_images)
        changes = tags.plan(self.target, index, versions, kinds)
        left_out = []
        for platform, refusal in refusals.items():
            left_out.append(f"{', '.join(kinds)} lacks {platform}: {refusal}")
        return TagPlan(changes, left_out)

    def _store_index(self, images: Sequence[PublishedImage]) -> tuple[Manifest, list[ImageVersion]]:
        """Store the index of these images without a tag. Return it, and the images' versions.

        The same images give the same index, so it may be stored again.
        """
        index = attachments.make_index(images)
        self.target.put(index)
        return index, [tags.version_of(image) for image in images]

    def _find_alias_refusal(self, image: PublishedImage) -> str:
        """Return the first reason why aliases must not name an image; empty if they may.

        Aliases are tags such as `latest`, which users pull without knowing what is behind them.
        """
        # Aliases avoid images whose torch computes wrong numbers, without an error, in plain
        # training.
        known_faults = image.labels.get(f"{LABELS}.silent-faults", "")
        torch = image.labels.get(f"{LABELS}.torch", "")
        faults = silent.describe_faults_of_plain_training(known_faults, torch)

        # The gate for aliases may ask for more tiers than the gate for publishing.
        refusals = self.policy.refusals(
            image.labels,
            image.evidence,
            self.policy.alias_gate,
            origin_exception=image.origin_exception,
        )
        reasons = [*faults, *refusals]
        return reasons[0] if reasons else ""


def load_validated(
    registry: Registry, manifest: Manifest, image_id: str, where: str
) -> PublishedImage:
    """Load a stored image, and raise UserError unless it is the one that was validated.

    `manifest` is the stored image's. `image_id` is the ID of the validated image: the digest of its
    configuration. `where` names the stored one in the message: by its dated tag, as a rule.
    """
    image = attachments.load(registry, manifest)
    if image.image_id != image_id:
        cause = (
            f"this tag names {image.image_id[:19]} already, not the image that was validated "
            f"({image_id[:19]})"
        )
        then = (
            "`publish` never moves a tag with a date, so somebody pushed another image to it by "
            "hand: delete this tag in the registry, if nobody needs it, and give the command "
            "again; or publish to another repository (--to)"
        )
        raise failed(where, cause, then)
    return image


# --- promotion ------------------------------------------------------------------------------------


def promote(
    reference: Reference,
    to: Repository,
    policy: ReleasePolicy,
    *,
    key: str = "",
    drop_platforms: bool = False,
) -> PublishResult:
    """Copy an image or index, with its statements and signatures, to a repository; move tags there.

    An index lists a row's images, one for each platform. `policy` has the gate: what must have
    passed. With a public key, only statements count that it signed, and a tag only moves to an
    image for which the key signed it last. `drop_platforms` says whether an index may replace one
    for more platforms. Raises UserError if the gate is closed, if a tag is not signed or would go
    back or lose a platform, and if the repositories are in different registries.
    """
    if reference.repository.host != to.host:
        cause = f"is not on {reference.repository.host}"
        copy_command = f"cosign copy {reference} {to}:{reference.identifier}"
        raise wrong(str(to), cause, f"copy it first: `{copy_command}`; then promote there")
    if key:
        signing.require_key(key)
    with (
        Registry(reference.repository) as source,
        Registry(to, mount_from=[reference.repository]) as target,
    ):
        # Check everything before anything is stored in the target.
        manifest = source.get(reference.identifier)
        images = attachments.load_all(source, manifest)
        require_promotable(source, reference, manifest, images, policy, key)
        versions = [tags.version_of(image) for image in images]

        # An index is promoted as it is. A single image joins the images of its row that the target
        # has; if its row has no other platform, there is no index.
        if manifest.is_index:
            row = [version.name for version in versions]
            has_index = True
        else:
            row = list(policy.row_of(versions[0].name))
            has_index = len(row) > 1
            # The index may lose a platform whose image in the target cannot be used.
            drop_platforms = True
        release = Release(
            target=target,
            policy=policy,
            key=key,
            row=row if has_index else (),
            drop_platforms=drop_platforms,
        )
        release.require_follows(versions)

        # Copy the images without tags: the checks that follow may still refuse them.
        target.check_access()
        stored: list[PublishedImage] = []
        for image in images:
            copy_image(source, target, image.manifest, key)
            copied = attachments.load(target, image.manifest)
            # A failed run may be attached in the target only: it counts, too.
            stored.append(verify.require_publishable(copied, policy, key))

        # The signatures of indexes are copied before `leave_unsigned_tags` looks for them in the
        # target. Those of images came with `copy_image`.
        changes, left_out = release.plan(stored)
        for digest in {change.after.digest for change in changes if change.after.is_index}:
            attachments.copy_attachments(source, target, digest, key)
        if key:
            new_index = "" if manifest.is_index else row[0]
            changes = leave_unsigned_tags(changes, target, source.repository, key, new_index)
        return release.move(stored, changes, left_out)


def require_promotable(
    source: Registry,
    reference: Reference,
    manifest: Manifest,
    images: Sequence[PublishedImage],
    policy: ReleasePolicy,
    key: str,
) -> None:
    """Raise UserError if what a reference names must not be promoted to another repository.

    `manifest` is what it names: an image, or an index of `images`. An index must be as `publish`
    writes it. With a public key (else empty), the key must have signed the tag. Each image must be
    one that `verify` passes.
    """
    if manifest.is_index:
        require_own_index(source, manifest, images)
    if key and not is_digest(reference.identifier):
        require_signed_tag(source, reference, manifest, images, policy, key)
    for image in images:
        verify.require_publishable(image, policy, key)


def require_own_index(source: Registry, index: Manifest, images: Sequence[PublishedImage]) -> None:
    """Raise UserError unless an index of these images is as `publish` writes it.

    A promotion does not copy the index: it makes one anew from the images. The new one has the same
    digest, which was signed, only if the old one was made in the same way.
    """
    where = f"{source.repository}@{index.digest}"
    names = " ".join(image.name or "NAME" for image in images)
    publishing = command("publish", names, "--to", str(source.repository))
    then = (
        f"`{publishing}` publishes its images again, which writes the index anew; then give the "
        "command again with the tag, or with the digest of the new index"
    )
    check = verify.check_index(index, images)
    if check.status is not Status.PASS:
        raise failed(where, check.reason, then)
    if index.digest != attachments.make_index(images).digest:
        raise failed(where, "something else than `publish` wrote this index of images", then)


def require_signed_tag(
    source: Registry,
    reference: Reference,
    manifest: Manifest,
    images: Sequence[PublishedImage],
    policy: ReleasePolicy,
    key: str,
) -> None:
    """Raise UserError if a reference's tag should not name what it names, or if nobody signed it.

    `manifest` is what the tag names now: an image, or an index of `images`. The key must have
    signed the tag for it, and for nothing else since.
    """
    tag = reference.identifier
    faults = verify.find_tag_faults(source, tag, manifest, images, policy, key)
    if faults:
        by_digest = f"{source.repository}@{manifest.digest}"
        then = (
            f"if you want the image that the tag names, promote it by its digest: {by_digest}; if "
            "you want the signed one, publish that one again"
        )
        raise failed(str(reference), "; ".join(faults), then)


def leave_unsigned_tags(
    planned: Sequence[TagChange],
    target: Registry,
    staging: Repository,
    key: str,
    new_index: str,
) -> list[TagChange]:
    """Return the planned changes of tags; those that the publisher did not sign become LEAVE.

    A promotion copies images from the repository `staging` to `target`. It has only the publisher's
    public key, `key`, and so cannot sign: the publisher signed in `staging` what each tag shall
    name. A tag without such a signature stays as it is. That is an error (UserError with all of
    them), but not for aliases, and not for tags of a new index.

    `new_index`: empty if an index (a list of images for platforms) is promoted as a whole. Else the
    promotion made an index in `target`, of the promoted image and of images that were there, which
    nobody can have signed; `new_index` is its name in `staging`, for the advice.
    """
    changes: list[TagChange] = []
    problems: list[Problem] = []
    for change in planned:
        cause = explain_unsigned(target, change, key)
        is_signed = not cause
        if is_signed or change.action is Action.LEAVE:
            changes.append(change)
            continue

        names_new_index = bool(new_index) and change.after.is_index
        if names_new_index:
            then = advise_to_promote_index(staging, new_index, target.repository)
        else:
            then = advise_to_sign(staging)
        changes.append(replace(change, action=Action.LEAVE, reason=f"{cause}; {then}"))

        may_be_unsigned = names_new_index or change.kind is TagKind.ALIAS
        if not may_be_unsigned:
            where = f"{target.repository}:{change.tag}"
            problems.append(Problem(where=where, cause=cause, then=then))
    if problems:
        raise UserError(problems, code=1)
    return changes


def explain_unsigned(target: Registry, change: TagChange, key: str) -> str:
    """Return why a tag must not move to the image of a change; empty if it may.

    It may if the last signature that the public key `key` made for this tag is of that image. An
    older signature does not count: it may be of an image that the tag was moved away from. Raises
    UserError where cosign or the registry fails.
    """
    digest = change.after.digest
    last = attachments.find_last_signature(target, key, change.tag)
    if last is None:
        return f"the key did not sign {digest[:19]} for this tag"
    if last.digest != digest:
        return f"the key signed another image, {last.digest[:19]}, for this tag last"
    return ""


def advise_to_promote_index(staging: Repository, index: str, target: Repository) -> str:
    """Return the advice to promote an index as a whole, with the tags that were signed for it."""
    promote_index = command("promote", f"{staging}:{index}", "--to", str(target))
    return f"`{promote_index}` takes the index that was signed there"


def advise_to_sign(staging: Repository) -> str:
    """Return the advice to sign an image's tags, where it was published first."""
    sign = command("publish", "NAME", "--image", "REF", "--to", str(staging), "--key", "cosign.key")
    return (
        "if you did not build this image, do not use it; if you did, sign its tag where it comes "
        f"from (`{sign}`, with the image's name and reference for NAME and REF), then promote it "
        "again"
    )


def copy_image(source: Registry, target: Registry, manifest: Manifest, key: str = "") -> None:
    """Copy an image to another repository of its registry, with what is attached to it.

    With a public key, only the statements that it signed can supersede older ones. Raises
    UserError.
    """
    attachments.mount_blobs(source, target, manifest)
    target.put(manifest)
    attachments.copy_attachments(source, target, manifest.digest, key)
