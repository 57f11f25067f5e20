"""Where the images of a plan are: in this machine's engine, in the staging repository, or yet to be built."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

from images.building import contexts, validating
from images.config.matrix import Sources
from images.config.names import ImageName
from images.config.platforms import Platform
from images.context import base_images, render
from images.context import labels as image_labels
from images.engine import Engine, ImageInfo, host_gpus
from images.engine.buildkit import BuildEvent
from images.engine.gpus import NO_GPU
from images.errors import UserError, command, failed, wrong
from images.fleet import planning
from images.fleet.folder import JobFolder
from images.fleet.model import ON_GPUS, Job, JobRecord, MatrixCell
from images.fleet.planning import FleetImage, Known
from images.host.hashing import sha256
from images.locking import debian, lock_file
from images.planning import plan
from images.planning.image import Image
from images.publish import attachments
from images.publish.push import push
from images.registry.client import Registry
from images.registry.reference import Reference, Repository
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.validation.containers import suite_files
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence
from validate.judging import Status


@dataclass(frozen=True, kw_only=True)
class Found:
    """An image that is there. `local`: this machine's engine has it, and the registry is yet to get it."""

    digest: str
    labels: Mapping[str, str]
    history: Sequence[str]
    """Its steps, newest first."""
    reference: str = ""
    local: ImageInfo | None = None


def locate(
    image: Image,
    reference: str,
    engine: Engine | None,
    staging: Repository | None,
    sources: Sources,
    only: Sequence[str] = (),
    begun: Collection[str] = (),
) -> FleetImage:
    """An image with what it is held to, and where it was found.

    `reference`: where it is, if not under its name. `only`: texts of `--claim`. `begun`: as that function gives it.

    It is looked for in the engine, then in the staging repository, without which it can't be built.
    Raises UserError: no access, a reference that names nothing, unknown claims, no lock.
    """
    name, context = str(image.name), context_digest(image, sources) if staging and not reference else ""
    if not reference:
        found = _by_name(image, context, engine, None if context in begun else staging)
    else:
        found = in_engine(engine, reference, image.local_name) if engine else None
        if found is None and "/" in reference:
            found = in_registry(Reference.parse(reference), image.name.platform)
        if found is None:
            then = "name an image of this machine's engine, or HOST/NAME:TAG, or HOST/NAME@sha256:..."
            raise wrong(f"--image {name}={reference}", "is nowhere", then)
    labels, history = (found.labels, found.history) if found else ({}, ())
    return FleetImage(
        name=name,
        digest=found.digest if found else context,
        archs=image.archs,
        ptx=image.ptx,
        platform=image.name.platform,
        claims=validating.claims_of(image, sources, labels, history, tuple(Tier), only=only, attachment=NO_GPU),
        described={"labels": dict(labels), "history": list(history)},
        reference=found.reference if found else "",
        local=found.local if found else None,
        staging=str(staging) if staging and not found else "",
        why_not=""
        if found or staging
        else f"it is in no engine here: `{command('build', name)}`, or `--staging REPOSITORY` for workers to build it",
    )


def begun(folder: JobFolder) -> set[str]:
    """Contexts whose builds have a job and no verdict: that job goes on, whatever a worker has pushed by now."""
    jobs = map(folder.job, folder.job_keys())
    return {job.context for job in jobs if job and job.context and not job.digest}


def context_digest(image: Image, sources: Sources) -> str:
    """sha256 of the build context without wheels that no index has and without settings of a machine.

    Dockerfile, steps, lock, suite and claims are in it. Reads the lock and the pinned bases. Raises UserError.
    """
    locked = lock_file.read(image, sources.workspace.locks)
    claimed = ClaimContext.of(image, locked, sources.facts, missing={}, custom_base=False)
    base = contexts.base_context(image.base, base_images.AUTO, base_images.pinned(sources.workspace.root))
    files = render.render(image, locked.files, base, suite=suite_files(image_claims(claimed)))
    digests = {path: sha256(render.content_of(content)) for path, content in files.items()}
    if packages := debian.find(image.base, sources.workspace.locks):
        digests["debian"] = sha256(debian.written(packages))
    return sha256(json.dumps(digests, sort_keys=True).encode())


def _by_name(image: Image, context: str, engine: Engine | None, staging: Repository | None) -> Found | None:
    """What this machine's engine has under a name, or as its candidate (published ones may be older); else what staging
    has of the context, or under the name if its labels are those of today's image."""
    for tag in (image.local_name, f"{image.local_name}-candidate"):
        if engine and (found := in_engine(engine, tag, image.local_name)):
            return found
    if staging is None:
        return None
    if found := in_registry(Reference(staging, context_tag(context)), image.name.platform):
        return found
    found = in_registry(Reference(staging, str(image.name)), image.name.platform)
    return found if found and image_labels.describe(found.labels, image) else None


def context_tag(context: str) -> str:
    """Where staging has the image that was built from a context. It says nothing of a verdict, as names do."""
    return f"context-{context[:32]}"


def in_engine(engine: Engine, reference: str, name: str) -> Found | None:
    """What an engine has under a reference, of the image that it calls `name`; None: nothing."""
    if not (info := engine.find(reference)):
        return None
    labels, history = validating.described(engine, info, name)
    return Found(digest=info.id, labels=labels, history=history, local=info)


def in_registry(reference: Reference, platform: Platform) -> Found | None:
    """What a registry has under a name or a digest; of an index, for a platform. None: nothing. Raises UserError."""
    with Registry(reference.repository) as registry:
        manifest = registry.find(reference.identifier)
        if manifest is None:
            return None
        image = attachments.load(registry, manifest, platform=platform, with_statements=False)
    steps = [str(one.get("created_by", "")) for one in image.config.get("history") or ()]
    return Found(digest=image.image_id, labels=image.labels, history=steps[::-1], reference=image.reference)


def send(
    engine: Engine,
    info: ImageInfo,
    repository: Repository,
    cache: Path,
    on_event: Callable[[BuildEvent], None] = lambda _event: None,
    context: str = "",
) -> str:
    """Store an image in a registry by its digest: nothing gets a name before its verdict. Returns the reference.

    Layers that are there are neither read nor sent. `context`: what it was built from, by which it is found again.
    Raises UserError.
    """
    if engine.facts.podman:
        name = info.tags[0] if info.tags else info.id
        then = f"`podman push {name} docker://{repository}:TAG`, then `--image NAME={repository}:TAG`"
        raise wrong(engine.facts.url, "Podman's layers are not sent from here", then)
    with Registry(repository) as registry:
        manifest, _sent = push(engine, info, registry, cache, on_event=on_event)
        if context:
            registry.put(manifest, context_tag(context))
    return f"{repository}@{manifest.digest}"


def resolved(job: Job, record: JobRecord, sources: Sources) -> Job:
    """A job that built its image, with that image's digest, reference and claims: by what the registry has of it.

    Raises UserError: the registry has another image than the record says, or one whose labels excuse more than a build
    of this checkout would.
    """
    found = in_registry(Reference.parse(record.reference), job.platform)
    image = plan.plan_one(ImageName.parse(job.image), sources).image
    cause = ""
    if Reference.parse(record.reference).repository != Repository.parse(job.staging):
        cause = f"{record.reference} is not in {job.staging}, where it was to be pushed"
    elif found is None or found.digest != record.digest:
        cause = f"{record.reference} is {found.digest[:19] if found else 'nothing'} in the registry"
    elif image is None:
        cause = "is refused by this checkout's matrix"
    elif image_labels.on_custom_base(found.labels):
        cause = "stands on a custom base, and none was asked for"
    if found is None or image is None or cause:
        raise failed(job.key, cause, "begin a new run, which builds it again; does the worker have the same checkout?")
    claims = validating.claims_of(image, sources, found.labels, found.history, job.tiers, attachment=NO_GPU)
    known = {"digest": found.digest, "reference": found.reference, "claims": json.loads(claims.of(job.tiers).dumps())}
    return job.model_copy(update=known)


def claims_for(job: Job, evidence: Evidence, sources: Sources) -> ClaimSet:
    """What this checkout's matrix writes for a job: for its GPU tiers, on the machine that the evidence names.

    Raises UserError.
    """
    image = plan.plan_one(ImageName.parse(job.image), sources).image
    if image is None or not set(job.tiers) & set(ON_GPUS):
        return job.claim_set
    labels, history = job.described.get("labels", {}), job.described.get("history", ())
    there = host_gpus.of_host(evidence.host)
    return validating.claims_of(image, sources, labels, history, job.tiers, only=job.only, attachment=there)


def known(
    folder: JobFolder, judged_before: Mapping[str, JobRecord], planned: Iterable[FleetImage], sources: Sources
) -> dict[MatrixCell, Known]:
    """The newest that this fleet judged of each cell of these images before. `judged_before`: job's key -> record.

    Evidence is judged by today's claims: a claim may have changed since its record was written.
    """
    found: dict[MatrixCell, Known] = {}
    today = {(one.name, one.digest): one.claims for one in planned}
    for key, record in sorted(judged_before.items(), key=lambda one: one[1].ended):
        job = folder.job(key)
        if job is None or (job.image, job.digest) not in today:
            continue
        date, source = record.ended.astimezone(UTC), f"{record.worker.node}, {record.worker.executor}"
        try:
            claims = today[job.image, job.digest]
            if set(job.tiers) & set(ON_GPUS):
                claims = claims_for(job, folder.evidence(record), sources)
            verdict = folder.verdict(record, job, claims)
            found |= planning.of_verdict(job, verdict, date, source)
        except UserError as error:
            nothing = Known(date=date, verdict=Status.UNPROVEN, source=source, unusable=error.problems[0].cause)
            found |= dict.fromkeys(job.cells, nothing)
    return found


def leased(folder: JobFolder) -> dict[MatrixCell, str]:
    """What somebody else does now: who, and since when."""
    found: dict[MatrixCell, str] = {}
    for key in folder.job_keys():
        lease, job = folder.lease(key), folder.job(key)
        if lease and job and folder.lives(lease.run):
            found.update(dict.fromkeys(job.cells, f"{lease.owner}, since {lease.since:%H:%M:%S} UTC"))
    return found
