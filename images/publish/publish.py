"""`publish`: a validated image of an engine into a registry, with all that belongs to it; tags move last.

Everything can be repeated: what is there already is not sent again, so the same command finishes an interrupted
publication.
"""

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

from images.config.names import ImageName
from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, ignore
from images.engine.buildkit import BuildEvent
from images.errors import command, failed, wrong
from images.publish import attachments, provenance, sbom, signing, statements, tags, verify
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.push import push
from images.publish.release import PublishResult, Release, load_same
from images.publish.statements import CYCLONEDX, PROVENANCE, TEST_RESULT, Attestation, Statement
from images.publish.tags import Action, ImageVersion
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status, listed


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """What holds for every image of a command."""

    repository: Repository
    policy: ReleasePolicy
    cache: Path
    """Where layers pass through, and what they came to is remembered."""
    key: str = ""
    """A private key of cosign; empty: not signed."""
    drop_platforms: bool = False
    """Whether the name of a row may lose a platform."""


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """An image of an engine, with its validation run judged again."""

    name: ImageName
    info: ImageInfo
    run: Attestation
    folder: Path
    """With the record of the build, for the provenance."""
    published: str = ""
    """The date that the same image is published with already."""

    @property
    def created(self) -> str:
        """The date that it is published with: of its validation, as its configuration bears none."""
        return self.published or str(self.run.evidence.host.get("date") or self.info.created)

    @property
    def version(self) -> ImageVersion:
        """Raises UserError for an image without our labels."""
        name = str(self.name)
        found = ImageVersion.require(
            self.info.labels, self.created, name, f"linux/{self.info.architecture}"
        )
        return replace(found, name=name)


def read(engine: Engine, reference: str, name: ImageName, folder: Path) -> LocalImage:
    """An image with the validation run in a folder. Raises UserError: there is none, or it is of another image."""
    info = engine.inspect(reference)
    anew = f"`{command('build', str(name))}` validates it anew"
    then = f"{anew}; or `{command('validate')}`, and give its folder with --attestation"
    try:
        run = statements.attested((folder / statements.EVIDENCE_FILE).read_bytes(), str(folder))
    except OSError as error:
        raise wrong(
            str(folder), f"there is no attestation: {error.strerror}: {error.filename}", then
        ) from None
    if (run.verdict.image, run.verdict.digest) != (str(name), info.id):
        is_of = f"{run.verdict.image} {run.verdict.digest[:19]}"
        raise failed(
            str(folder), f"is the attestation of {is_of}, the image is {name} {info.id[:19]}", then
        )
    return LocalImage(name=name, info=info, run=run, folder=folder)


def publish(
    engine: Engine,
    image: LocalImage,
    options: PublishOptions,
    *,
    say: Callable[[str], None] = lambda _text: None,
    on_event: Callable[[BuildEvent], None] = ignore,
) -> PublishResult:
    """Push an image whose validation runs open the gate; attach, sign, and only then move tags.

    An image of a row of several platforms joins those that are published there. Raises UserError: a run is not enough,
    a tag would go back or lose a platform, no access.
    """
    policy, repository = options.policy, options.repository
    with ExitStack() as stack:
        public = ""
        if options.key:
            public = stack.enter_context(signing.public_file(options.key))
        target = stack.enter_context(Registry(repository))
        target.check_access()

        # What was published of this image before counts: other machines may have judged its other tiers.
        image = _dated(target, image)
        published = _find_published(target, image, public, say)
        _require_open(image, published, policy)

        row = policy.row_of(str(image.name))
        release = Release(
            target=target,
            policy=policy,
            key=public,
            row=row if len(row) > 1 else (),
            drop_platforms=options.drop_platforms,
        )
        release.require_follows([image.version])

        # What this key signed with a counter was compared with the image's layers before it was signed.
        if published is None or not _has_signed(target, published, public):
            manifest, sent = push(
                engine, image.info, target, options.cache, created=image.created, on_event=on_event
            )
            say(f"sent {sent / 1e6:.0f} MB of layers")
            if published is None:
                pushed = load_same(
                    target, manifest, image.info.id, f"{repository}@{manifest.digest}"
                )
                published = attachments.counted(pushed, public)
            else:
                _require_same_layers(published, manifest)
        stored = [_attach(engine, target, image, published, options)]

        changes, left_out = release.plan(stored)
        for digest in dict.fromkeys(change.after.digest for change in changes if options.key):
            moving = [
                one
                for one in changes
                if one.after.digest == digest and one.action is not Action.LEAVE
            ]
            attachments.sign_image(
                target, digest, options.key, public, [change.tag for change in moving]
            )
        return release.move(stored, changes, left_out)


def _find_published(
    target: Registry, image: LocalImage, public: str, say: Callable[[str], None]
) -> PublishedImage | None:
    """Return the same image as it is published already, with the statements that count. Raises UserError."""
    version = image.version
    dated = tags.immutable_tag(version.name, version.created, image.info.id)
    manifest = target.find(dated)
    if manifest is None:
        return None
    published = load_same(target, manifest, image.info.id, f"{target.repository}:{dated}")
    counted = attachments.counted(published, public)
    ignored = len(published.statements) - len(counted.statements)
    if ignored:
        say(
            f"{published.reference}: {ignored} attachments count for nothing: --key did not sign them"
        )
    return counted


def _require_open(
    image: LocalImage, published: PublishedImage | None, policy: ReleasePolicy
) -> None:
    """Raises UserError where the runs of an image, new and attached ones, don't open the gate."""
    runs = [image.run, *(published.attestations if published else ())]
    exception = published.origin_exception if published else ""
    evidence = [run.evidence for run in runs]
    policy.require_open(str(image.name), image.info.labels, evidence, origin_exception=exception)

    # Of a run that is to be added. Those that are attached stay, and keep their failures.
    others = _other_failures(image.run, policy.judged(image.info.labels, image.run.evidence))
    if others:
        names = listed([failure.claim.key for failure in others], limit=5)
        where = (
            f"{image.name}, validated {image.run.evidence.host.get('date', 'on an unknown day')}"
        )
        cause = f"{names} failed by the claims that it was measured for, which are not today's"
        then = f"validate it again (`{command('validate', str(image.name))}`), and publish that run"
        raise failed(where, cause, then)


def _has_signed(target: Registry, image: PublishedImage, key: str) -> bool:
    """Return whether a public key signed an image with a counter, as `publish` does. Raises UserError."""
    if not key:
        return False
    return any(one.counter for one in attachments.signed(target, image.manifest.digest, key))


def _require_same_layers(published: PublishedImage, pushed: Manifest) -> None:
    """See that a published manifest names the layers that the image has here: the same tars give the same blobs.

    A manifest names its layers beside the configuration, and not every client compares the two (podman 4.3.1 does not).
    Raises UserError.
    """
    if published.manifest.layers == pushed.layers:
        return
    cause = "names other layers than those of the image, which are stored beside it now"
    then = (
        "delete the tags that name it: somebody else put it there, or another version of zlib-ng "
        "compressed its layers; then publish again"
    )
    raise failed(published.reference, cause, then)


def _dated(target: Registry, image: LocalImage) -> LocalImage:
    """The image, with the date of its first publication, whenever it was validated again. Raises UserError."""
    tag = re.compile(
        rf"{re.escape(str(image.name))}-\d{{8}}-{image.info.id.removeprefix('sha256:')[:12]}"
    )
    try:
        tags_there = target.tags()
    except RegistryError as error:  # before the first publication there is no repository
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return image
    for one in sorted(filter(tag.fullmatch, tags_there)):
        if manifest := target.find(one):
            known = load_same(target, manifest, image.info.id, f"{target.repository}:{one}")
            date = replace(image, published=known.created).version.created
            # Whoever may push may have written it: a later date would keep every build that follows away.
            if one == tags.immutable_tag(
                str(image.name), date, image.info.id
            ) and date <= datetime.now(UTC):
                return replace(image, published=known.created)
    return image


def _other_failures(run: Attestation, today: Verdict) -> tuple[ClaimVerdict, ...]:
    """What a run found that today's claims do not ask: its verdict by those would not say it."""
    said = {(one.claim.check, one.claim.subject) for one in today.claims_with(Status.FAIL)}
    return tuple(
        one
        for one in run.verdict.claims_with(Status.FAIL)
        if (one.claim.check, one.claim.subject) not in said
    )


def _attach(
    engine: Engine,
    target: Registry,
    local: LocalImage,
    found: PublishedImage,
    options: PublishOptions,
) -> PublishedImage:
    """SBOM and provenance where there is none that counts, and one test result of all validation runs, signed.

    With a key, what others attached is neither copied nor signed. Raises UserError, also for labels that are not true:
    then nothing is attached.
    """
    info, name = local.info, str(local.name)
    runs = {run.evidence_file: run for run in (*found.attestations, local.run)}
    judged = []
    for run in runs.values():  # by today's claims, with what else it found to fail
        today = options.policy.judged(info.labels, run.evidence)
        claims = (*today.claims, *_other_failures(run, today))
        judged.append(replace(run, verdict=replace(today, claims=claims)))
    exception = options.policy.origin_exception or found.origin_exception
    said = {TEST_RESULT: statements.test_result(judged, exception)}
    if not found.of(PROVENANCE):
        said[PROVENANCE] = provenance.predicate(
            provenance.read_build_record(local.folder, name, info.id),
            name=local.name,
            revision=info.labels.get(f"{LABELS}.matrix-revision", ""),
            created=local.created,
        )
    if not found.of(CYCLONEDX):
        created = datetime.fromisoformat(local.created)
        said[CYCLONEDX] = sbom.cyclonedx(
            sbom.read(engine, info.id), name=name, digest=info.id, created=created
        )
    new = [
        Statement.of(
            kind, predicate, repository=str(options.repository), digest=found.manifest.digest
        )
        for kind, predicate in said.items()
    ]
    verify.require_sound(replace(found, statements=(*found.statements, *new)))
    return attachments.attach(target, found, new, options.key)
