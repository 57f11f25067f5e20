"""What runs on a worker: pull by digest, judge by the checkout's suite, give back the record. Knows no scheduler."""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from images.apptainer import open_runtime
from images.building import validating
from images.config import matrix, paths
from images.config.names import ImageName
from images.config.paths import Workspace
from images.engine import ImageInfo
from images.engine.gpus import NO_GPU, Attachment
from images.engine.runtime import Runtime
from images.errors import Problem, UserError
from images.fleet.ledger import Ledger
from images.fleet.model import ON_GPUS, FleetRecord, Job, Judged, WorkerInfo
from images.fleet.task import TaskContext
from images.planning import plan
from images.planning.image import Image
from images.site import records
from validate.claims import ClaimSet
from validate.evidence import Record


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A job, and what the worker must know beside it. Plain data: it is sent to another machine."""

    job: str
    """A Job as JSON."""
    run: str
    executor: str
    matrix: str
    """The matrix file; empty: the checkout's."""
    ledger: str = ""
    """The fleet's folder, where this machine sees it: the record is kept there before anything is given back."""
    gpus: str = "auto"
    """How containers get the GPUs (`--gpus`)."""
    engine: str = ""
    """Address of the engine, or `apptainer`; empty: the machine's own."""

    def read(self) -> Job:
        return Job.model_validate_json(self.job)

    def elsewhere(self) -> Assignment:
        """The checkout that travels has the matrix; the fleet's folder is the submitter's."""
        return replace(self, matrix="", ledger="")

    def perform(self, context: TaskContext) -> Judged:
        return judge(self, context)

    def perform_and_keep(self, context: TaskContext) -> str:
        judge_into(self, context)
        return node()


def judge(given: Assignment, context: TaskContext) -> Judged:
    """Judge a job on this machine. Raises UserError."""
    job = given.read()
    paths.use(Workspace(Path(given.matrix)) if given.matrix else paths.workspace())
    started = datetime.now(UTC)
    with open_runtime(given.engine or None) as engine:
        context.on_engine(engine)
        engine.sweep()
        image = _image(job)
        info = pulled(engine, job.reference, job.digest, str(image.platform))
        validating.require_platform(engine, image, _say)
        claims, attachment = _claims(engine, info, job, given.gpus)
        evidence, verdict = validating.measure_and_judge(
            engine, info.id, claims, job.tiers, attachment, on_record=_told
        )
        version = engine.facts.version
    ended = datetime.now(UTC)
    where = f"fleet-{ended:%Y%m%d.%H%M%S}-{job.digest.removeprefix('sha256:')[:12]}"
    record = FleetRecord(
        key=job.key,
        run=given.run,
        worker=worker_info(context, given.executor, version),
        started=started,
        ended=ended,
        line=records.line_of(evidence, verdict, where, size=info.size),
    )
    return Judged(record=record, evidence=evidence.dumps())


def judge_into(given: Assignment, context: TaskContext) -> None:
    """The same, on a machine that sees the fleet's folder. What another worker has judged meanwhile is not repeated."""
    ledger, key = Ledger(Path(given.ledger)), given.read().key
    with ledger.judging(key):
        if ledger.record(key) is None:
            ledger.commit(judge(given, context))


def end_on_sigterm() -> None:
    """Have SIGTERM end the job as Ctrl-C would: containers are removed on the way out.

    Slurm sends it more than once, to the job and through srun: the second must not end the tidying up.
    """

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)


def worker_info(context: TaskContext, executor: str, engine: str) -> WorkerInfo:
    """This machine, as results name it. `engine`: its version."""
    return WorkerInfo(executor=executor, node=context.machine or node(), id=context.id, engine=engine)


def node() -> str:
    """This machine's name, as Slurm has it where Slurm does."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def pulled(engine: Runtime, reference: str, digest: str, platform: str) -> ImageInfo:
    """The image of a job; layers that are here are not fetched again. Raises UserError, also for another image."""
    info = engine.find(reference) or engine.find(digest) or engine.pull(reference, platform=platform)
    if info.id == digest:
        return info
    cause = f"is {info.id[:19]} in this engine, the job is about {digest[:19]}"
    then = "the engine must name images by their configuration: switch containerd's image store off"
    raise UserError(Problem(where=reference, cause=cause, then=then), code=1)


def _claims(engine: Runtime, info: ImageInfo, job: Job, gpus: str) -> tuple[ClaimSet, Attachment]:
    if not set(job.tiers) & set(ON_GPUS):
        return job.claim_set, NO_GPU
    image, sources = _image(job), matrix.load()
    attachment, _ = validating.find_gpus(engine, image, gpus, job.tiers)
    _require_gpus(job, attachment)
    found = validating.described(engine, info)
    return validating.claims_of(image, sources, found, job.tiers, only=job.only, attachment=attachment), attachment


def _image(job: Job) -> Image:
    planned = plan.plan_one(ImageName.parse(job.image), matrix.load())
    if planned.image is None:
        cause = f"is refused on this worker: {'; '.join(planned.reasons)}"
        then = "do the worker and the submitter have the same checkout?"
        raise UserError(Problem(where=job.image, cause=cause, then=then), code=1)
    return planned.image


def _require_gpus(job: Job, attachment: Attachment) -> None:
    """Refuse a machine that has not what fleet.yaml says of it: its verdict would be filed under another GPU."""
    found = attachment.inventory.gpus if attachment.attached and attachment.inventory else ()
    there = sorted({".".join(map(str, one.capability)) for one in found})
    if there != [job.arch] or len(found) < job.gpus:
        have = ", ".join(there) or "none"
        cause = f"the job needs {job.gpus} GPU of {job.arch}, the machine has {len(found)} of {have}"
        reason = "" if attachment.attached else f" ({attachment.reason})"
        then = "correct `arch` and `gpus` in fleet.yaml, or what its machines are asked for by"
        raise UserError(Problem(where=node(), cause=cause + reason, then=then), code=1)


def _told(record: Record) -> None:
    _say(f"measured {record.probe} in {record.seconds:.1f} s ({record.outcome})")


def _say(text: str) -> None:
    """Into the worker's log."""
    sys.stderr.write(f"{text}\n")
