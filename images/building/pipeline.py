"""From a planned image to a validated one: context -> engine -> trial -> name. One at a time, or many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from images.building import contexts, records, validating
from images.building.contexts import ContextOptions, PreparedContext
from images.config import paths
from images.config.facts import Facts
from images.context import base_images
from images.context.base_images import AcquiredBase
from images.context.hosting import HostSettings
from images.context.render import Context
from images.engine import Engine, ImageInfo, gpus
from images.engine.buildkit import BuildResult
from images.engine.gpus import Attachment
from images.engine.progress import Progress
from images.engine.runtime import CLASSIC_STORE
from images.errors import Problem, UserError, problem_of
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning.image import Image
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from images.wheels.prebuilt import FindWheel
from validate import report
from validate.claims import Tier
from validate.evidence import Evidence, Record
from validate.judge import Verdict

ROOM_NEEDED = 11 * 1000**3
"""Bytes a cold build wants free where the engine keeps its data: images have 6 to 9 GB, and the installer keeps the
wheels of the smaller layers, less than 2 GB. The largest layers are unpacked in place."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How to build, from the command line."""

    out: Path
    cache: Path
    facts: Facts
    base: str = "auto"
    wheelhouse: Path | None = None
    wheel_mirror: str = ""
    """Where official wheels are fetched from; empty: their releases."""
    strict: bool = False
    no_cache: bool = False
    offline: bool = False
    """No step reaches a network: all that is installed lies in the wheelhouse."""
    tiers: Sequence[Tier] = ()
    """What to judge; empty: what this machine can."""
    gpus: str = gpus.AUTO
    pinned_bases: Mapping[str, str] = field(default_factory=dict)
    compiled: FindWheel = lambda _image, _pin: None
    """Where wheels lie that were compiled here (`wheels.cache.wheel_finder`)."""
    locks: Path = field(default_factory=lambda: paths.workspace().locks)
    suffix: str = ""
    """Added to an image's name (-canary), so that a trial build never takes the name itself."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """The result of building one image."""

    name: str
    info: ImageInfo
    result: BuildResult
    verdict: Verdict
    withheld: str
    """Why it stays `NAME-candidate`; empty if it got its name."""


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One image that is being built."""

    engine: Engine
    image: Image
    options: BuildOptions
    host: HostSettings
    progress: Progress

    @property
    def name(self) -> str:
        return f"{self.image.name}{self.options.suffix}"

    @property
    def folder(self) -> Path:
        return self.options.out / self.name

    def say(self, text: str, style: str = "dim") -> None:
        self.progress.say(self.name, text, style)

    def warn(self, text: str) -> None:
        self.say(text, "yellow")


def build(engine: Engine, image: Image, options: BuildOptions, host: HostSettings, progress: Progress) -> Built:
    """Build one image, validate it, and name it if no claim failed and each probe ran to its end.

    The steps are those of "How one image is built" in docs/architecture.md. Writes `out/NAME/`. Raises UserError: no
    lock, no base, a contradiction with the base, a failed step, a driver below the image's minimum.
    """
    job = _Job(engine=engine, image=image, options=options, host=host, progress=progress)
    with engine.alone(f"build {job.name}", lambda: job.say("waits: another process builds this name on this engine")):
        return _build(job)


def _build(job: _Job) -> Built:
    engine, image, options = job.engine, job.image, job.options
    locked = lock_file.read(image, options.locks)
    validating.require_platform(engine, image, job.warn)
    if engine.facts.containerd_images:
        job.warn(f"no build was tried with containerd's image store, and publish and fleet refuse it: {CLASSIC_STORE}")
    attachment, tiers = _find_gpus(job)
    base = base_images.acquire_for(
        engine, image, options.base, pinned=options.pinned_bases, host=job.host, say=job.warn
    )
    prepared = _prepare(job, locked, base)
    result = _build_candidate(job, prepared.files)
    evidence, verdict = _validate(job, result.image_id, prepared.claimed, attachment, tiers)
    info = _record(job, result, base, prepared)
    records.record_trial(job.folder, evidence, verdict)
    withheld = _name_unless_withheld(job, info, (evidence, verdict), tiers)
    return Built(name=job.name, info=info, result=result, verdict=verdict, withheld=withheld)


def _find_gpus(job: _Job) -> tuple[Attachment, Sequence[Tier]]:
    """GPUs and tiers of the trial. Asked first: if GPUs can't be attached as told, nothing is built."""
    attachment, tiers = validating.find_gpus(job.engine, job.image, job.options.gpus, job.options.tiers)
    job.say(str(attachment))
    return attachment, tiers


def _prepare(job: _Job, locked: Lock, base: AcquiredBase) -> PreparedContext:
    """Prepare the build context, and write it to `out/NAME/context`."""
    prepared = contexts.prepare(job.image, locked, base_images.base_context(base), _context_options(job))
    _tell_missing(job, prepared.gathered.missing)
    records.write_context(prepared.files, job.folder / "context")
    return prepared


def _context_options(job: _Job) -> ContextOptions:
    return ContextOptions(
        facts=job.options.facts,
        host=job.host,
        cache=job.options.cache,
        compiled=job.options.compiled,
        wheelhouse=job.options.wheelhouse,
        wheel_mirror=job.options.wheel_mirror,
        offline=job.options.offline,
    )


def _build_candidate(job: _Job, files: Context) -> BuildResult:
    """Build `NAME-candidate` with the engine."""
    candidate = f"{job.name}-candidate"
    network = job.host.network(local=job.engine.facts.local, offline=job.options.offline)
    job.engine.untag(candidate)  # what an earlier build left: from here on the tag is this one's, or nobody's
    return job.engine.build(
        files,
        candidate,
        network=network,
        no_cache=job.options.no_cache,
        platform=job.image.platform,
        on_event=job.progress.job(job.name),
        redact=job.host.redact,
    )


def _validate(
    job: _Job, image_id: str, claimed: ClaimContext, attachment: Attachment, tiers: Sequence[Tier]
) -> tuple[Evidence, Verdict]:
    """Write the claims, run the trial, judge."""

    def tell(found: Record) -> None:
        job.say(f"measured {found.probe} in {found.seconds:.1f} s ({found.outcome})")

    claims = image_claims(claimed.on_host(attachment))
    return validating.validate_image(job.engine, image_id, claims, tiers, attachment, tell)


def _record(job: _Job, result: BuildResult, base: AcquiredBase, prepared: PreparedContext) -> ImageInfo:
    """Write build.json."""
    info = job.engine.inspect(result.image_id)
    built = records.BuildRecord(
        image=str(job.image.name), info=info, result=result, base=base, gathered=prepared.gathered
    )
    records.record_build(job.folder, built, job.engine)
    return info


def _name_unless_withheld(job: _Job, info: ImageInfo, found: tuple[Evidence, Verdict], tiers: Sequence[Tier]) -> str:
    """Name the image if evidence and verdict allow it. Returns why not; empty if it was named."""
    evidence, verdict = found
    withheld = validating.why_withheld(verdict, evidence, tiers)
    if not withheld:
        validating.give_name(job.engine, info.id, job.name)
    return withheld


def build_all(
    engine: Engine, images: Sequence[Image], options: BuildOptions, host: HostSettings, progress: Progress, jobs: int
) -> list[Built | UserError]:
    """Build several images, `jobs` at once. One that fails does not stop the others; an interrupt stops all."""

    def one(image: Image) -> Built | UserError:
        name = f"{image.name}{options.suffix}"
        try:
            built = build(engine, image, options, host, progress)
        except UserError as error:
            return _given_up(name, error, progress)
        except OSError as error:
            return _given_up(name, UserError(problem_of(error, name), code=1), progress)
        progress.finish(built.name, _summary(built), ok=not built.withheld)
        return built

    cold = [image for image in images if engine.find(str(image.name)) is None]
    _room(engine, min(jobs, len(cold)))
    running: list[Future[Built | UserError]] = []
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:  # around the start, too: a build may wait for another before `submit` has returned
            running += (pool.submit(one, image) for image in images)
            wait(running, return_when=FIRST_EXCEPTION)
        except BaseException:
            for future in running:
                future.cancel()
            engine.cancel()
            raise
    return [future.result() for future in running]


def _given_up(name: str, error: UserError, progress: Progress) -> UserError:
    progress.finish(name, error.problems[0].cause, ok=False)
    return error


def _room(engine: Engine, at_once: int) -> None:
    free, needed = engine.free_bytes(), ROOM_NEEDED * at_once
    if free is not None and free < needed:
        builds = f"{at_once} cold builds at once" if at_once > 1 else "a cold build"
        cause = f"{free / 1e9:.1f} GB free, {builds} may need {needed / 1e9:.0f} GB"
        then = "`docker system df` shows what to remove, `docker builder prune` empties the build cache"
        raise UserError(Problem(where=engine.facts.data_root, cause=cause, then=then), code=1)


def _tell_missing(job: _Job, missing: Mapping[str, str]) -> None:
    """Warn of optional packages that can't be had. Raises UserError where they are asked for (strict)."""
    if missing and job.options.strict:
        then = f"`nox -s wheels -- {job.name}` compiles what `sources` in matrix.yaml has, or give --wheelhouse"
        raise UserError(
            [Problem(where=job.name, cause=f"lacks {reason}", then=then) for reason in missing.values()], code=1
        )
    for reason in missing.values():
        job.warn(f"lacks {reason}")


def _summary(built: Built) -> str:
    counts = report.summary(built.verdict).partition("(")[2].removesuffix(")")
    size = f"{built.info.size / 1e9:.2f} GB"
    state = f"stays {built.name}-candidate: {built.withheld}" if built.withheld else "named"
    return f"{built.verdict.overall} ({counts}), {size}, built in {built.result.seconds:.0f} s, {state}"
