"""Builds planned images: from a plan and its lock to a validated image with a name."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from images.building import contexts, earlier_run, naming, run_files, validating
from images.building.contexts import BuildOptions
from images.context import base_images
from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildResult
from images.engine.failures import Cancelled, classify
from images.engine.progress import Progress
from images.errors import Problem, UserError, failed, problem_of
from images.locking.lock_file import Lock
from images.planning.image import Image
from images.validation.claims import image_claims
from images.wheels.prebuilt import UNLESS_USED, Gathered
from validate import report
from validate.evidence import Record
from validate.judge import Verdict

ROOM_NEEDED = 11 * 1000**3
"""Bytes that a cold build needs free: images have 6 to 9 GB, the wheels that the installer caches
less than 2 GB."""

ROOM_NEEDED_CONTAINERD = 19 * 1000**3
"""ROOM_NEEDED for the containerd image store, which keeps each layer compressed and unpacked beside
the build cache: cu126-torch25, an image of 6.8 GB, took 18 GB."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """The result of building one image."""

    name: str
    tag: str
    """What the engine calls it, or would if it had its name."""
    info: ImageInfo
    payload: Mapping[str, str]
    """Its layers and a digest of its settings: what recorded runs of this name are compared
    with."""
    result: BuildResult
    measured: str
    """How long the validation took, which follows the build, or how long ago it was."""
    is_reused: bool
    """Whether the evidence is that of an earlier run with the same inputs."""
    verdict: Verdict
    withheld: str
    """Why it stays `NAME-candidate`; empty if it got its name."""


def build_all(
    engine: Engine,
    images: Sequence[tuple[Image, Lock]],
    options: BuildOptions,
    progress: Progress,
    jobs: int = 1,
) -> list[Built | UserError]:
    """Build several images, `jobs` at once, and return for each its result or its error.

    An image that fails does not stop the others. An interrupt stops all of them. Raises UserError
    if the engine's disk has no room for so many cold builds.
    """
    require_room(engine, [image for image, _lock in images], jobs)

    def build_or_fail(image: Image, lock: Lock) -> Built | UserError:
        """Build one image, show how it ended, and return the result, or the error if it failed.

        A UserError or OSError is returned, so that it does not end the builds of other images. Any
        other exception is raised, and ends them all.
        """
        name = f"{image.name}{options.suffix}"
        try:
            built = build_image(engine, image, lock, options, progress)
        except UserError as error:
            # Ctrl-C in a terminal also ends the programs that this process started, such as
            # mmdebstrap: what they say then is no error of the build.
            if engine.is_cancelled:
                raise Cancelled from error
            progress.finish(name, error.problems[0].cause, ok=False)
            return error
        except OSError as error:
            # For example, a file can't be written. That is a step that failed, and no wrong input.
            problem = problem_of(error, name)
            progress.finish(name, problem.cause, ok=False)
            return UserError(problem, code=1)
        # An image that was built but did not get its name (`withheld` says why) is shown as failed.
        progress.finish(name, sentence_about(built), ok=not built.withheld)
        return built

    futures: list[Future[Built | UserError]] = []
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        # An interrupt may come while a build runs already and others are still submitted.
        try:
            for image, lock in images:
                futures.append(pool.submit(build_or_fail, image, lock))
            # `build_or_fail` returns the error of an image. What it raises ends all builds.
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            # `future.cancel` only stops builds that have not begun, `engine.cancel` those that run.
            for future in futures:
                future.cancel()
            engine.cancel()
            raise
    return [future.result() for future in futures]


def require_room(engine: Engine, images: Sequence[Image], jobs: int) -> None:
    """Raise UserError if the engine's disk has no room for the cold builds that run at once.

    A build is cold if the engine does not have the image yet. Of those, at most `jobs` run at once.
    Nothing is raised if the disk belongs to another machine, which can't be looked at. Raises
    OSError if the free room of a local disk can't be read.
    """
    if not engine.facts.local:
        return
    cold = [image for image in images if engine.find(image.local_name) is None]
    room = ROOM_NEEDED_CONTAINERD if engine.facts.containerd_images else ROOM_NEEDED
    needed_bytes = room * min(jobs, len(cold))
    free_bytes = shutil.disk_usage(engine.facts.data_root).free
    if free_bytes < needed_bytes:
        cause = (
            f"the disk on which Docker stores images has {free_bytes / 1e9:.1f} GB free, and this "
            f"build may take {needed_bytes / 1e9:.0f} GB"
        )
        # The same advice as for a build that fails with this error of the system.
        then = classify("no space left on device", ()).then
        raise failed(engine.facts.data_root, cause, then)


def build_image(
    engine: Engine, image: Image, lock: Lock, options: BuildOptions, progress: Progress
) -> Built:
    """Build one image, validate it, and name it if no claim failed and each probe ran to its end.

    The steps are those of "How one image is built" in docs/architecture.md. Writes `OUT/NAME/`.
    Raises UserError: there is no base, the base contradicts the image, a step failed, the driver is
    below the image's minimum.
    """
    name = f"{image.name}{options.suffix}"
    tag = f"{image.prefix}{name}"
    candidate = f"{tag}-candidate"
    folder = options.out / name
    warn = partial(progress.say, name, style="yellow")

    def say_waiting() -> None:
        warn("waits: another process is building the image of this name on this engine")

    def say_measured(record: Record) -> None:
        progress.say(name, record.progress_line(), "dim")

    with engine.hold_lock(f"build {tag}", say_waiting):
        # The machine first: if GPUs can't be attached as asked, or build steps can't reach an index
        # or proxy on its loopback, nothing is built.
        network = options.host.network(
            local=engine.facts.local, rootless=engine.facts.rootless, offline=options.offline
        )
        attachment, tiers = validating.find_gpus(engine, image, options.gpus, options.tiers, warn)
        progress.say(name, str(attachment), "dim")

        # The base comes before the context, which leaves out what the base has already.
        root = options.sources.workspace.root
        base = base_images.acquire(
            engine, image.base, options.base, root=root, host=options.host, on_progress=warn
        )

        # The context: lock, wheels that no index has, suite, Dockerfile. With --strict, a lacking
        # wheel raises here, before anything is built.
        source = run_files.build_source(root, lock)
        wheels, claim_context, files = contexts.prepare(image, lock, base, options)
        report_missing(name, wheels, strict=options.strict, warn=warn)
        run_files.write_context(files, folder / "context")

        # The build. From here on the candidate's tag, and the verdict in the folder, belong to this
        # build, or to none: if a step breaks off, no earlier verdict looks like that of this build.
        engine.untag(candidate)
        earlier = earlier_run.read(folder) if options.reuse else None
        run_files.remove_validation(folder)
        result = engine.build(
            files,
            candidate,
            network=network,
            no_cache=options.no_cache,
            unpack=False,  # fix_id does it
            platform=image.name.platform,
            on_event=progress.job(name),
            redact=options.host.redact,
        )
        info = engine.fix_id(result.image_id, candidate)

        # The verdict, by the claims for this machine; those that the image carries are for any.
        claims = image_claims(claim_context.on_host(attachment, tiers))
        started = time.monotonic()
        try:
            evidence, verdict = validating.measure_and_judge(
                engine,
                info.handle,
                claims,
                tiers,
                attachment,
                other_base=base_images.other_base(image, info.labels),
                earlier=earlier,
                compare=options.compare,
                say=warn,
                on_record=say_measured,
            )
        except Cancelled:
            # Nobody has judged this image, so not even the candidate's tag stays.
            engine.untag(candidate)
            raise
        is_reused = evidence is earlier
        measured = f"measured in {time.monotonic() - started:.0f} s"
        if is_reused:
            measured = earlier_run.describe_age(evidence)

        # Reports are written whatever the verdict is: they say what stands between image and name.
        run_files.record_build(folder, str(image.name), engine, info, result, base, wheels, source)
        run_files.record_validation(folder, evidence, verdict)

        withheld = naming.why_withheld(verdict, evidence, tiers)
        if not withheld:
            naming.give_name(engine, info.handle, tag)
    return Built(
        name=name,
        tag=tag,
        info=info,
        payload=evidence.host["payload"],
        result=result,
        measured=measured,
        is_reused=is_reused,
        verdict=verdict,
        withheld=withheld,
    )


def report_missing(
    name: str, wheels: Gathered, *, strict: bool, warn: Callable[[str], None]
) -> None:
    """Warn about each optional wheel that an image lacks; raise UserError instead if `strict`."""
    problems = []
    for package, reason in wheels.missing.items():
        problems.append(Problem(where=name, cause=f"lacks {reason}", then=wheels.details[package]))
    if strict and problems:
        raise UserError(problems, code=1)
    for problem in problems:
        warn(f"{problem.cause}: {problem.then}; {UNLESS_USED}")


def sentence_about(built: Built) -> str:
    """Return what became of a build: verdict, size, time, and whether it has its name."""
    # The summary is `NAME: VERDICT (COUNTS)`.
    counts = report.summary(built.verdict).partition("(")[2].removesuffix(")")
    verdict = f"{built.verdict.overall} ({counts})"
    size = f"{built.info.size / 1e9:.2f} GB"
    state = f"stays {built.tag}-candidate: {built.withheld}" if built.withheld else "named"
    times = f"built in {built.result.seconds:.0f} s, {built.measured}"
    return f"{verdict}, {size}, {times}, {state}"
