"""Publish a validated image of a local engine: push it, attach statements, sign, move its tags.

Everything can be repeated: nothing is sent that the registry has. So the same command finishes an
interrupted publication.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from images.config.names import ImageName
from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, Stopped, ignore
from images.engine.buildkit import BuildEvent
from images.errors import command, failed, wrong
from images.publish import attachments, provenance, sbom, signing, statements, tags, verify
from images.publish.attachments import PublishedImage
from images.publish.gate import ReleasePolicy
from images.publish.push import push
from images.publish.release import PublishResult, Release, load_validated
from images.publish.statements import CYCLONEDX, PROVENANCE, TEST_RESULT, Attestation, Statement
from images.publish.tags import Action, ImageVersion, TagChange
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.errors import RegistryError
from images.registry.reference import Repository
from validate.judging import plural


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """Options that are the same for every image of a command."""

    repository: Repository
    policy: ReleasePolicy
    cache: Path
    """A folder for layers under way and for records of compressed layers."""
    key: str = ""
    """A private key of cosign; empty: nothing is signed."""
    drop_platforms: bool = False
    """Whether the name of a row may lose a platform."""


@dataclass(frozen=True, kw_only=True)
class LocalImage:
    """An image of a local engine, with its validation run."""

    name: ImageName
    info: ImageInfo
    run: Attestation
    folder: Path
    """The output folder of `build` or `validate`. The provenance needs its build.json."""
    published: str = ""
    """The date with which this same image is published already; empty: it is not."""

    @property
    def created(self) -> str:
        """Return the date to publish it with: that of its first publication or of its validation.

        The configuration of an image has no date of its own.
        """
        return self.published or str(self.run.evidence.host.get("date") or self.info.created)

    @property
    def version(self) -> ImageVersion:
        """Return its name, torch, date and platform, by which tags compare images.

        Raises UserError for an image without our labels.
        """
        name = str(self.name)
        platform = f"linux/{self.info.architecture}"
        version = ImageVersion.require(self.info.labels, self.created, name, platform)
        return replace(version, name=name)


def read_local_image(engine: Engine, reference: str, name: ImageName, folder: Path) -> LocalImage:
    """Return an image of the engine together with the validation run in a folder.

    The run is the folder's evidence.json: what was measured of the image. `reference` is what the
    engine calls the image, `name` what the matrix calls it. Raises UserError if the folder has no
    readable evidence.json, or that of another image.
    """
    info = engine.inspect(reference)
    then = (
        f"`{command('build', str(name))}` validates it anew; "
        f"or `{command('validate', str(name))}`, then give --attestation out/validate/{name}"
    )
    try:
        evidence_file = (folder / statements.EVIDENCE_FILE).read_bytes()
    except OSError as error:
        cause = f"this folder has no evidence of a validation: {error.strerror}: {error.filename}"
        raise wrong(str(folder), cause, then) from None
    run = statements.read_attestation(evidence_file, str(folder))
    if (run.verdict.image, run.verdict.digest) != (str(name), info.digest):
        measured = f"{run.verdict.image} {run.verdict.digest[:19]}"
        cause = (
            f"this folder has the evidence of {measured}, and the image to be published is {name} "
            f"{info.digest[:19]}"
        )
        raise failed(str(folder), cause, then)
    return LocalImage(name=name, info=info, run=run, folder=folder)


def publish(
    engine: Engine,
    image: LocalImage,
    options: PublishOptions,
    *,
    say: Callable[[str], None] = lambda _text: None,
    on_event: Callable[[BuildEvent], None] = ignore,
) -> PublishResult:
    """Publish an image that passed its validation: push it, attach statements, sign, and move tags.

    If matrix.yaml has the image for several platforms, it joins those that the repository has
    already. `say` gets messages for the user, `on_event` the progress of the push. Raises UserError
    if the image has not passed what `options.policy` requires, if a tag would go back to an older
    image or lose a platform, or without access to the registry.
    """
    policy = options.policy
    name = str(image.name)
    with ExitStack() as stack:
        public_key = ""
        if options.key:
            public_key = stack.enter_context(signing.public_file(options.key))
        target = stack.enter_context(Registry(options.repository))
        target.check_access()

        # Before anything is sent, check the gate and the tags. Other machines may have validated
        # and published this image: their runs count, too.
        image = with_published_date(target, image)
        published = find_published(target, image, public_key, say)
        # The reason, if one was given at an earlier publication, to publish the image although
        # nobody can prove where its layers come from.
        attached = published.attestations if published else ()
        exception = published.origin_exception if published else ""
        runs = [run.evidence for run in (image.run, *attached)]
        policy.require_open(name, image.info.labels, runs, origin_exception=exception)

        # Names of the same image for each platform. Several of them share an index; a single one
        # has none.
        row = policy.row_of(name)
        if len(row) == 1:
            row = ()
        release = Release(
            target=target,
            policy=policy,
            key=public_key,
            row=row,
            drop_platforms=options.drop_platforms,
        )
        release.require_follows([image.version])

        # A published image is pushed again to compare its layers with those here, unless this key
        # signed it with a counter: then they were compared before it signed.
        if published is None or not has_counted_signature(target, published, public_key):
            manifest, sent = push(
                engine, image.info, target, options.cache, created=image.created, on_event=on_event
            )
            say(f"sent {sent / 1e6:.0f} MB of layers")
            if published is None:
                where = f"{target.repository}@{manifest.digest}"
                pushed = load_validated(target, manifest, image.info.digest, where)
                published = attachments.drop_untrusted(pushed, public_key)
            else:
                require_same_layers(published, manifest)

        # Tags move last, so whatever somebody pulls by them has its statements and signatures.
        stored = [attach_statements(engine, target, image, published, options)]
        changes, left_out = release.plan(stored)
        if options.key:
            sign_changes(target, changes, options.key, public_key)
        return release.move(stored, changes, left_out)


def with_published_date(target: Registry, image: LocalImage) -> LocalImage:
    """Return the image with the date of its first publication; unchanged if it is not published.

    An image keeps this date, however often it is validated and published again. The date is in the
    manifest that its dated tag (`NAME-YYYYMMDD-DIGEST`) names; the oldest such tag counts, of those
    whose manifest has the same date. Raises UserError if a dated tag of this image names another
    one, or without access to the registry.
    """
    try:
        published_tags = target.tags()
    except RegistryError as error:
        # Before the first publication, there is no repository.
        if error.status == HTTPStatus.NOT_FOUND:
            return image
        raise

    # The day is not known, but the rest of the tag is.
    short_id = image.info.digest.removeprefix("sha256:")[:12]
    dated_tag = re.compile(rf"{re.escape(str(image.name))}-\d{{8}}-{short_id}")
    for tag in sorted(filter(dated_tag.fullmatch, published_tags)):
        manifest = target.find(tag)
        if manifest is None:
            continue
        where = f"{target.repository}:{tag}"
        published = load_validated(target, manifest, image.info.digest, where)
        dated_image = replace(image, published=published.created)

        # Whoever may push may have written any date into the manifest. It must be that of the tag,
        # and not in the future: then every build that follows would be older.
        date = dated_image.version.created
        is_date_of_tag = tag == tags.immutable_tag(str(image.name), date, image.info.digest)
        if is_date_of_tag and date <= datetime.now(UTC):
            return dated_image
    return image


def find_published(
    target: Registry, image: LocalImage, public_key: str, say: Callable[[str], None]
) -> PublishedImage | None:
    """Return the same image as it is published already, with the statements that count.

    With a public key, these are the statements that it signed: `say` gets a sentence about how many
    others there are. Without a key (empty), all of them count. None if the image is not published.
    Raises UserError if its dated tag names another image.
    """
    version = image.version
    tag = tags.immutable_tag(version.name, version.created, image.info.digest)
    manifest = target.find(tag)
    if manifest is None:
        return None
    where = f"{target.repository}:{tag}"
    published = load_validated(target, manifest, image.info.digest, where)
    trusted = attachments.drop_untrusted(published, public_key)
    ignored = len(published.statements) - len(trusted.statements)
    if ignored:
        say(f"{published.reference}: {plural(ignored, 'attachment')} ignored: not signed by --key")
    return trusted


def has_counted_signature(target: Registry, image: PublishedImage, public_key: str) -> bool:
    """Return whether a public key signed an image with a counter, as only `publish` does.

    False without a key (empty). Raises UserError.
    """
    if not public_key:
        return False
    signatures = attachments.find_signatures(target, image.manifest.digest, public_key)
    return any(signature.counter for signature in signatures)


def require_same_layers(published: PublishedImage, pushed: Manifest) -> None:
    """Raise UserError unless a published manifest names the same layers as the one just pushed.

    Both have the same configuration, and the same tars always give the same compressed blobs. So
    other blobs are not the layers of the image. Clients would not notice: podman 4.3.1, for one,
    does not compare layers with the configuration.
    """
    if published.manifest.layers == pushed.layers:
        return
    cause = (
        "this manifest in the registry has other layers than the image that is to be published "
        "(somebody else pushed it, or another version of zlib-ng compressed its layers)"
    )
    then = "delete this manifest and its tags in the registry, then publish again"
    raise failed(published.reference, cause, then)


def attach_statements(
    engine: Engine,
    target: Registry,
    local: LocalImage,
    published: PublishedImage,
    options: PublishOptions,
) -> PublishedImage:
    """Attach what a published image lacks: a test result of all runs, provenance and SBOM.

    `local` is the image in the engine with its new validation run, `published` the same image in
    the registry. Provenance (what it was built from) and SBOM (its packages) are made only once. If
    `options` has a private key, the new statements are signed. Returns the published image with its
    statements. Raises UserError, also if they contradict the image's labels: then nothing is
    attached.
    """
    new = []
    for predicate_type, predicate in make_predicates(engine, local, published, options).items():
        statement = Statement.of(
            predicate_type,
            predicate,
            repository=str(options.repository),
            digest=published.manifest.digest,
        )
        new.append(statement)
    # Nothing is attached that `verify` would refuse later.
    verify.require_sound(replace(published, statements=(*published.statements, *new)))
    return attachments.attach(target, published, new, options.key)


def make_predicates(
    engine: Engine, local: LocalImage, published: PublishedImage, options: PublishOptions
) -> dict[str, dict[str, Any]]:
    """Return the statements to attach to a published image: type (of in-toto) -> content.

    There is always a new test result, made of the run of today and those attached before.
    Provenance (what it was built from) and SBOM (what is in it) are made only if the image has none
    yet. Raises UserError, for example without a usable build.json for the provenance.
    """
    info = local.info
    # A reason to publish an image of UNPROVEN origin stays with it.
    exception = options.policy.origin_exception or published.origin_exception
    runs = judge_runs_today(local, published, options.policy)
    predicates = {TEST_RESULT: statements.make_test_result(runs, exception)}

    if not published.statements_of(PROVENANCE):
        build_record = provenance.read_build_record(local.folder, str(local.name), info.digest)
        revision = info.labels.get(f"{LABELS}.matrix-revision", "")
        predicates[PROVENANCE] = provenance.make_predicate(
            build_record, name=local.name, revision=revision, created=local.created
        )
    if not published.statements_of(CYCLONEDX):
        packages = read_packages(engine, local, published)
        created = datetime.fromisoformat(local.created)
        predicates[CYCLONEDX] = sbom.make_sbom(
            packages, name=str(local.name), digest=info.digest, created=created
        )
    return predicates


def read_packages(engine: Engine, local: LocalImage, published: PublishedImage) -> sbom.Packages:
    """Return the packages of an image for its SBOM, after its layers were pushed.

    `local` is the image in the engine, `published` the same image in the registry. Raises UserError
    if they can't be read.
    """
    try:
        return sbom.read_packages(engine, local.info.handle)
    except Stopped as error:
        cause = (
            f"the container that reads its packages for the SBOM {error.problems[0].cause}; the "
            f"layers are in the registry ({published.reference}), and no tag was moved"
        )
        then = (
            "give the same command again when this machine has less to do: it sends no layer again"
        )
        raise failed(str(local.name), cause, then) from None


def judge_runs_today(
    local: LocalImage, published: PublishedImage, policy: ReleasePolicy
) -> list[Attestation]:
    """Return the attached validation runs and the new one, each judged by today's claims.

    Raises UserError if an attached run cannot be used, or if the matrix makes no claims for the
    image.
    """
    # The new run may be attached already. Runs with the same evidence file (its bytes) are one run.
    runs = {run.evidence_file: run for run in (*published.attestations, local.run)}
    labels = local.info.labels
    return [replace(run, verdict=policy.judge_run(labels, run.evidence)) for run in runs.values()]


def sign_changes(target: Registry, changes: Sequence[TagChange], key: str, public_key: str) -> None:
    """Sign every image and index that tags shall name, each once for all of its tags.

    `changes` is the plan: which tag shall name what. `key` is the private key, `public_key` its
    public one. Tags that stay where they are (LEAVE) are not signed. An image is signed even if all
    of its tags stay. Raises UserError where cosign or the registry fails.
    """
    tags_by_digest: dict[str, list[str]] = {}
    for change in changes:
        signed_tags = tags_by_digest.setdefault(change.after.digest, [])
        if change.action is not Action.LEAVE:
            signed_tags.append(change.tag)
    for digest, signed_tags in tags_by_digest.items():
        attachments.sign_image(target, digest, key, public_key, signed_tags)
