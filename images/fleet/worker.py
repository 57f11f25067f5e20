"""What runs on a worker: pull an image by digest or build it, validate it, give back the record. Knows no scheduler."""

import json
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from images.building import validating
from images.building.build import build_all
from images.building.contexts import BuildOptions
from images.config import matrix, paths
from images.config.matrix import Sources
from images.config.names import ImageName
from images.context.hosting import host_settings
from images.context.labels import LABELS
from images.engine import Engine, ImageInfo, connect
from images.engine.gpus import NO_GPU
from images.engine.progress import Progress
from images.errors import UserError, failed
from images.fleet import images
from images.fleet.folder import JobFolder
from images.fleet.model import ON_GPUS, Job, JobRecord, JobResult, WorkerInfo
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from images.registry.reference import Reference, Repository
from images.validation.rows import read_evidence
from images.wheels import prebuilt
from validate.evidence import Evidence, Record


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job, and what the worker must know beside it. Plain data: it is sent to another machine."""

    job: str
    """A Job as JSON."""
    executor: str
    matrix: str
    """The matrix file; empty: the checkout's."""
    folder: str = ""
    """The fleet's folder, where this machine sees it: the record is kept there before anything is given back."""
    gpus: str = "auto"
    """How containers get the GPUs (`--gpus`)."""
    engine: str = ""
    """Address of the engine; empty: the machine's own."""


def perform(
    task: Task, *, job_id: str = "", machine: str = "", on_engine: Callable[[Engine], None] = lambda _engine: None
) -> JobResult:
    """Do a job on this machine. Raises UserError.

    `job_id`: Slurm's job or Ray's task. `machine`: its name in the record; empty: its own. `on_engine` gets the engine,
    to cancel what goes on in it.
    """
    job = Job.model_validate_json(task.job)
    sources = matrix.load(Path(task.matrix) if task.matrix else paths.CHECKOUT.matrix)
    started, build = datetime.now(UTC), dict[str, Any]()
    planned = plan.plan_one(ImageName.parse(job.image), sources)
    if planned.image is None:
        raise _other_checkout(job, f"is refused on this worker: {'; '.join(planned.reasons)}")
    reference, digest = job.reference, job.digest
    if job.context:
        ours = images.context_digest(planned.image, sources)
        if ours != job.context:
            cause = f"its build context is {ours[:12]} in the worker's checkout, and {job.context[:12]} was asked for"
            raise _other_checkout(job, cause)
        built = Reference(Repository.parse(job.staging), images.context_tag(ours))
        if staged := images.in_registry(built, job.platform):  # somebody has built it by now
            reference, digest = staged.reference, staged.digest
    with connect(task.engine or None, builds=not digest) as engine:
        on_engine(engine)
        engine.sweep()
        if digest:
            info = engine.find(reference) or engine.find(digest) or engine.pull(reference, platform=str(job.platform))
            if info.id != digest:
                then = "the engine must name images by their configuration: switch containerd's image store off"
                raise failed(reference, f"is {info.id[:19]} in this engine, the job is about {digest[:19]}", then)
            evidence = _validated(job, planned.image, sources, engine, info, task.gpus)
        else:
            info, evidence, build, reference = _built(job, planned.image, sources, engine)
        version = engine.facts.version
    record = JobRecord(
        key=job.key,
        worker=WorkerInfo(executor=task.executor, node=machine or node(), id=job_id, engine=version),
        started=started,
        ended=datetime.now(UTC),
        digest=info.id,
        reference=reference,
        evidence_sha256=evidence.sha256,
        build=build,
    )
    return JobResult(record=record, evidence=evidence.dumps())


def perform_and_keep(task: Task, job_id: str = "") -> str:
    """The same on a machine that sees the fleet's folder. What another worker has done meanwhile is not repeated.

    Returns this machine's name.
    """
    folder, key = JobFolder(Path(task.folder)), Job.model_validate_json(task.job).key
    with folder.doing(key):
        if folder.record(key) is None:
            folder.keep(perform(task, job_id=job_id))
    return node()


def end_on_sigterm() -> None:
    """Have SIGTERM end the job as Ctrl-C would: containers are removed on the way out.

    Slurm sends it more than once, to the job and through srun: the second must not end the tidying up.
    """

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def node() -> str:
    """This machine's name, as Slurm has it where Slurm does."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _built(job: Job, image: Image, sources: Sources, engine: Engine) -> tuple[ImageInfo, Evidence, dict[str, Any], str]:
    """Build an image as `build` does, and push it by digest. Returns it with evidence, build.json and reference.

    No name is left behind: while it is built, it has one of this user's alone.
    """
    suffix = f"-fleet-u{os.getuid()}"
    name, tag = f"{image.name}{suffix}", f"{image.local_name}{suffix}"
    with tempfile.TemporaryDirectory(prefix="truetag-build-") as scratch, Progress(plain=True) as progress:
        options = BuildOptions(
            sources=sources,
            host=host_settings(),
            out=Path(scratch),
            tiers=job.tiers,
            compiled=prebuilt.wheel_finder(sources.matrix),
            suffix=suffix,
        )
        with engine.alone(f"job {tag}", waiting=lambda: _say(f"waits: another job builds {image.name} here")):
            untag_left(engine)
            try:
                lock = lock_file.read(image, sources.workspace.locks)
                (built,) = build_all(engine, [(image, lock)], options, progress)
                if isinstance(built, UserError):
                    raise built
                staging, tell = Repository.parse(job.staging), progress.job(name)
                reference = images.send(engine, built.info, staging, options.cache / "push", tell, job.context)
            finally:
                engine.untag(tag)
                engine.untag(f"{tag}-candidate")
        evidence = read_evidence(options.out / name / "evidence.json")
        build = json.loads((options.out / name / "build.json").read_text(encoding="utf-8"))
    return built.info, evidence, build, reference


def untag_left(engine: Engine) -> None:
    """Take away the names that killed workers of this user and machine left: whoever is at work holds a lock."""
    names = rf"(?P<name>.+-fleet-u{os.getuid()})(-candidate)?(:latest)?"
    there = engine.sdk.images(filters={"label": f"{LABELS}.image"}) if engine.facts.local else []

    def at_work() -> None:
        raise BlockingIOError

    for tag in [tag for one in there for tag in one["RepoTags"] or ()]:
        if found := re.fullmatch(names, tag):
            with suppress(BlockingIOError), engine.alone(f"job {found['name']}", waiting=at_work):
                engine.untag(tag)


def _validated(job: Job, image: Image, sources: Sources, engine: Engine, info: ImageInfo, gpus: str) -> Evidence:
    """Measure the tiers of a job. Raises UserError: a machine that has not the GPUs that fleet.yaml says of it."""
    attachment, _ = validating.find_gpus(engine, image, gpus, job.tiers, _say)
    if not set(job.tiers) & set(ON_GPUS):
        attachment = NO_GPU
    else:
        # A machine that has not what fleet.yaml says of it: its verdict would be filed under another GPU.
        there = attachment.inventory.gpus if attachment.attached and attachment.inventory else ()
        archs = sorted({".".join(map(str, one.capability)) for one in there})
        if archs != [job.arch] or len(there) < job.gpus:
            have, reason = ", ".join(archs) or "none", "" if attachment.attached else f" ({attachment.reason})"
            cause = f"the job needs {job.gpus} GPU of {job.arch}, the machine has {len(there)} of {have}{reason}"
            then = "correct `arch` and `gpus` in fleet.yaml, or what its machines are asked for by"
            raise failed(node(), cause, then)
    if job.claims and attachment is NO_GPU:
        claims = job.claim_set
    else:
        labels, history = validating.described(engine, info, image.local_name)
        claims = validating.claims_of(image, sources, labels, history, job.tiers, only=job.only, attachment=attachment)

    def measured(record: Record) -> None:
        _say(f"measured {record.probe} in {record.seconds:.1f} s ({record.outcome})")

    evidence, _ = validating.measure_and_judge(engine, info.id, claims, job.tiers, attachment, on_record=measured)
    return evidence


def _other_checkout(job: Job, cause: str) -> UserError:
    then = "leave the checkout as it is until the jobs have ended, or begin anew: the worker needs the same one"
    return failed(job.image, cause, then)


def _say(text: str) -> None:
    """Into the worker's log."""
    sys.stderr.write(f"{text}\n")
