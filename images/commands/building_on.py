"""`build --on slurm|ray`: images built and validated by workers, judged again and named here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.building import records, validating
from images.commands import common, executors, trials
from images.commands.executors import ExecutorArguments
from images.commands.options import BuildInputArguments
from images.config.matrix import Sources
from images.context import base_images
from images.engine import Engine
from images.errors import Problem, UserError, problem_of
from images.fleet import booking, config, travel
from images.fleet.builds import description, running, submitting
from images.fleet.builds.ledger import BuildLedger
from images.fleet.builds.model import BuildJob, BuildResult, url_digest
from images.fleet.builds.running import BuildEnd, BuildRun, ElsewhereError
from images.fleet.builds.submitting import UnusableError
from images.fleet.config import Fleet
from images.fleet.submission import Submission
from images.fleet.worker import pulled
from images.locking import lock_file
from images.nightly.canary import Locked
from images.planning.image import Image
from images.registry.reference import Reference
from validate.claims import Tier
from validate.judge import Verdict


@dataclass(frozen=True, kw_only=True)
class BuiltElsewhere:
    """An image that a worker built, with the verdict of this machine."""

    name: str
    verdict: Verdict
    withheld: str
    """Why it has no name; empty if it may have it."""
    reference: str
    named: bool
    """This machine's engine has it, under its name."""


@dataclass(frozen=True, kw_only=True)
class BuildWishes:
    """What is asked for, beside the images."""

    sources: Sources
    inputs: BuildInputArguments
    how: ExecutorArguments
    tiers: Sequence[Tier]
    gpus: str
    strict: bool
    no_cache: bool
    resume: bool
    """Take over what the newest unended run of these jobs left: its submitter was killed, or jobs were lost."""
    out: Path


def build_all(images: Sequence[Image], wishes: BuildWishes) -> list[BuiltElsewhere | UserError]:
    """Every image, as workers built it. One that fails does not stop the others. Raises UserError."""
    fleet = config.read(wishes.how.file)
    through = str(travel.repository(wishes.how.through or fleet.through))
    jobs = [_job(image, through, wishes) for image in images]
    run = _run(jobs, fleet, wishes)
    by_name = {str(image.name): image for image in images}
    with executors.local_engine(None) as engine:
        return run.outcomes(jobs, lambda end: _judged(end, by_name[end.job.image], wishes, engine))


def _run(jobs: Sequence[BuildJob], fleet: Fleet, wishes: BuildWishes) -> BuildRun:
    """A new run, which takes over what another left, or has all built. Raises UserError."""
    ledger, name = BuildLedger(wishes.out / "builds"), wishes.how.on.partition(":")[0]
    keys = [job.key for job in jobs]
    outdated = {} if wishes.resume else ledger.records_of(keys)
    if wishes.resume:
        last = running.left_run(ledger, keys, name)
        left = sum(not ledger.done(key) for key in keys)
        executors.tell(last.id, f"is taken over: {left} of the {len(keys)} jobs that are asked for are left")
    run_of = booking.new_run(name, keys)
    executor = executors.executor(wishes.how.on, wishes.out, fleet)
    seconds = {job.image: records.recorded_seconds(wishes.out / job.image) for job in jobs}
    return BuildRun(
        run_of=run_of,
        ledger=ledger,
        submission=Submission(fleet=fleet, executor=executor, run=run_of.id, say=executors.tell),
        took={image: one for image, one in seconds.items() if one},
        outdated=outdated,
        resumes=wishes.resume,
        wheel_mirror=wishes.inputs.wheel_mirror,
    )


def require_buildable(names: Sequence[str], wishes: BuildWishes, others: Mapping[str, tuple[object, str]]) -> None:
    """Refuse what workers can't do, with the next command. Raises UserError with all of it."""
    inputs, images = wishes.inputs, " ".join(names)
    here = f"`nox -s build -- {images}` on one machine, without --on"
    base = f"push it, and name it by its digest: --base HOST/NAME@sha256:...; or {here}"
    executors.require_none(
        {
            f"--base {inputs.base}": (not is_anywhere(inputs.base), base),
            "--wheelhouse": (
                inputs.wheelhouse,
                f"give workers a server that has the wheels (--wheel-mirror); or {here}",
            ),
            "--offline": (inputs.offline, here),
            **executors.gpus_wanted(wishes.gpus, f"leave it out; `nox -s fleet -- run {images} --on {wishes.how.on}`"),
            **executors.on_gpus(wishes.tiers, images, wishes.how.on),
            **others,
        }
    )


def is_anywhere(base: str) -> bool:
    """Whether every engine has the same image under this name, or can pull it."""
    return base == base_images.AUTO or ("/" in base and "@sha256:" in base)


def _job(image: Image, through: str, wishes: BuildWishes) -> BuildJob:
    """Raises UserError: no lock, or one that is older than the pins."""
    bases = trials.pinned_bases()
    locked = Locked(image=image, lock=lock_file.read(image))
    return BuildJob(
        image=str(image.name),
        context=description.context_digest(locked, wishes.sources, bases),
        tiers=tuple(tier for tier in Tier if tier in (wishes.tiers or validating.ANYWHERE)),
        platform=image.platform,
        through=through,
        base=wishes.inputs.base,
        bases=bases,
        wheel_mirror=url_digest(wishes.inputs.wheel_mirror),
        strict=wishes.strict,
        no_cache=wishes.no_cache,
    )


def _judged(end: BuildEnd, image: Image, wishes: BuildWishes, engine: Engine | None) -> BuiltElsewhere | UserError:
    if isinstance(end.result, UserError):
        if not isinstance(end.result, ElsewhereError):  # who has it was told when it was booked
            executors.tell(end.job.key, f"failed: {end.result.problems[0].cause}{end.left}")
        return end.result
    try:
        return _named(end, end.result, image, wishes, engine)
    except UnusableError as error:
        return error
    except UserError as error:
        failed = error
    except OSError as error:
        failed = UserError(problem_of(error, end.job.image), code=1)
    executors.tell(end.job.key, "has no verdict yet, and is kept: the same command with --resume judges it again")
    return failed


def _named(
    end: BuildEnd, result: BuildResult, image: Image, wishes: BuildWishes, engine: Engine | None
) -> BuiltElsewhere:
    """Judge what came back, keep it in `OUT/NAME`, and name the image if the verdict allows it. Raises UserError."""
    job = end.job
    folder = wishes.out / job.image
    labels = _labels(job, result, image)
    claims = submitting.claims_of(image, lock_file.read(image), labels, wishes.sources, common.cache())
    evidence, verdict = submitting.judged(job, result, claims, folder)
    worker = result.worker
    job_facts = {"node": worker.node, "executor": worker.executor, "seconds": round(result.seconds, 1)}
    build = {**result.build, "worker": job_facts}
    (folder / "build.json").write_text(json.dumps(build, indent=1) + "\n", encoding="utf-8")
    travel.note(folder, result.digest, result.reference)
    shutil.rmtree(folder / "context", ignore_errors=True)  # of an earlier build here: it is another one's
    took = f"on {worker.node} in {result.seconds:.0f} s, {result.bytes / 1e9:.2f} GB"
    executors.tell(job.key, f"{verdict.overall} {took}{end.left}")
    withheld = submitting.why_withheld(job, evidence, verdict)
    if engine and not withheld:
        info = pulled(engine, result.reference, result.digest, str(image.platform))
        validating.give_name(engine, info.id, job.image)
    return BuiltElsewhere(
        name=job.image,
        verdict=verdict,
        withheld=withheld,
        reference=result.reference,
        named=bool(engine and not withheld),
    )


def _labels(job: BuildJob, result: BuildResult, image: Image) -> Mapping[str, str]:
    """What the image in the registry says of itself: labels excuse pins, so a worker's word for them is not enough.

    Raises UnusableError: it is another than the worker built, or says what the job did not allow.
    Raises UserError: the registry does not answer, or does not show it to this user.
    """
    found = travel.in_registry(Reference.parse(result.reference), job.platform)
    if found is None:
        cause = f"{result.reference} is not there, or not for this user"
        then = "`docker login` where that is missing; if it is gone, the same command without --resume builds it again"
        raise UserError(Problem(where=job.key, cause=cause, then=then), code=1)
    if found.digest != result.digest:
        cause = f"{result.reference} is {found.digest[:19]} there; its worker built {result.digest[:19]}"
        then = "the same command with --resume builds it again"
        raise UnusableError(Problem(where=job.key, cause=cause, then=then), code=1)
    labels = found.described.labels
    submitting.require_allowed(job, image, labels)
    return labels


def told(built: BuiltElsewhere, wishes: BuildWishes) -> str:
    """The line of an image without a failure."""
    report = wishes.out / built.name / "report.md"
    if built.named:
        return f"[green]{built.name}[/] is validated as far as its worker can: {report}"
    then = f"`nox -s fleet -- run --image {built.name}={built.reference}` judges it further"
    return (
        f"[green]{built.name}[/] is validated as far as its worker can: {report}; no engine is here to name it: {then}"
    )


def problem(built: BuiltElsewhere, wishes: BuildWishes) -> Problem:
    """Why an image has no name."""
    then = f"read {wishes.out / built.name}/report.md; `docker run --rm -it {built.reference}` looks inside"
    return Problem(where=built.name, cause=f"{built.withheld}: it gets no name, and is {built.reference}", then=then)
