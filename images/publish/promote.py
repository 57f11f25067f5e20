"""Promote an image from one repository of a registry into another, by digest: from staging to production.

Nothing is built or sent: blobs are mounted, and manifests are stored as they are. Of an index all images go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from images.errors import Problem, UserError, command, failed, wrong
from images.publish import attachments, signing, tags, verify
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.release import PublishResult, Release
from images.publish.tags import Action, TagChange, TagKind
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Reference, Repository
from validate.judging import Status


def promote(
    reference: Reference, to: Repository, policy: ReleasePolicy, *, key: str = "", drop_platforms: bool = False
) -> PublishResult:
    """Copy an image with all that is attached to it and signed, and move the tags there.

    With a public key, only statements that it signed count, and tags move alone that it signed for these images.
    `drop_platforms`: an index may take the place of one for more platforms. Raises UserError: the gate is closed, a tag
    would go back or lose a platform or is not signed, another registry.
    """
    if reference.repository.host != to.host:
        then = f"copy it first: `cosign copy {reference} {to}:{reference.identifier}`; then promote there"
        raise wrong(str(to), f"is not on {reference.repository.host}", then)
    if key:
        signing.require(key)
    with Registry(reference.repository) as source, Registry(to, mount_from=[reference.repository]) as target:
        named = source.get(reference.identifier)
        images = attachments.load_all(source, named)
        if named.is_index:  # it must be the same in the other repository
            fault = verify.check_index(named, images)
            if fault.status is not Status.PASS or named.digest != attachments.index_of(images).digest:
                cause = fault.reason if fault.status is not Status.PASS else "is no index as `publish` writes it"
                raise failed(f"{source.repository}@{named.digest}", cause, "publish its images anew")
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
            stored.append(verify.admitted(copied, policy, key))  # what failed in the target alone counts, too

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
    Raises UserError with every other tag that the key did not sign for its image, or signed for another one since.
    """
    changes: list[TagChange] = []
    problems: list[Problem] = []
    for change in planned:
        digest, left = change.after.digest, change.action is Action.LEAVE
        when, last, _ = ("", digest, "") if left else attachments.last_signed(target, digest, change.tag, key)
        if last == digest:
            changes.append(change)
            continue
        cause = f"the key signed {last[:19]} for it since" if when else f"the key did not sign {digest[:19]} for it"
        sign = command("publish", "NAME", "--image", "REF", "--to", str(staging), "--key", "cosign.key")
        then = f"`{sign}` signs it there"
        if joined and change.after.is_index:
            take = command("promote", f"{staging}:{joined}", "--to", str(target.repository))
            then = f"`{take}` takes the index that was signed there"
        elif change.kind is not TagKind.ALIAS:
            problems.append(Problem(where=f"{target.repository}:{change.tag}", cause=cause, then=then))
        changes.append(replace(change, action=Action.LEAVE, reason=f"{cause}; {then}"))
    if problems:
        raise UserError(problems, code=1)
    return changes


def copy(source: Registry, target: Registry, manifest: Manifest, key: str = "") -> None:
    """An image, then what is attached to it. Raises UserError."""
    attachments.mount_blobs(source, target, manifest)
    target.put(manifest)
    attachments.copy(source, target, manifest.digest, key)
