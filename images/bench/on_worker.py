"""The sequence of images measured by a worker: one job, so that its engine holds what the images before brought.

It counts bytes, which are the same on any machine. Times belong to the machine where they are compared, and stay there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from images.bench import results
from images.bench.accounting import Layer
from images.bench.data import Entry
from images.bench.parts import sizes
from images.bench.parts.session import BenchmarkRun
from images.config import matrix, paths
from images.config.paths import Workspace
from images.config.platforms import Platform
from images.context.hosting import host_settings
from images.engine import Engine, connect
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.fleet import submission as submitted
from images.fleet.executors.executor import Ended, Placed
from images.fleet.results import JobResult, error_of, told
from images.fleet.submission import Submission
from images.fleet.task import TaskContext
from images.fleet.worker import worker_info
from images.nightly.results import Row

PART = "sequence"
_Bytes = Annotated[int, Field(ge=0)]


class LayerRow(Row):
    """A layer as results have it (images/bench/data.py, LayerBytes)."""

    digest: str
    tar: _Bytes
    gzip: _Bytes
    zstd: _Bytes

    def as_layer(self) -> Layer:
        return Layer(digest=self.digest, tar=self.tar, gzip=self.gzip, zstd=self.zstd)


class ImageRow(Row):
    """An image as results have it (ImageBytes)."""

    made_from: str
    bytes: _Bytes
    layers: tuple[str, ...]


class SequenceRow(Row):
    """What the part measures (SizesData)."""

    images: dict[str, ImageRow]
    layers: dict[str, LayerRow]
    order: tuple[str, ...]


class MachineRow(Row):
    """What it was measured on (MachineData)."""

    processor: str
    cores: int
    memory: int
    engine: str
    storage: str
    python: str


class SequenceJob(Row):
    """All that a worker is told."""

    schema_version: Literal[1] = 1
    commit: str
    """The submitter's checkout: a worker with another one measures nothing."""
    bases: dict[str, str] = {}
    """Base image -> digest that is pinned for it."""
    layers: tuple[LayerRow, ...] = ()
    """Those that any run measured: a digest stands for the same bytes, and they are not compressed again."""

    @property
    def key(self) -> str:
        return f"bench-{PART}"


class SequenceResult(JobResult):
    """What was measured, or `problems`."""

    machine: MachineRow | None = None
    data: SequenceRow | None = None


@dataclass(frozen=True, kw_only=True)
class SequenceAssignment:
    """A job, and what the worker must know beside it. Plain data: it is sent to another machine."""

    job: str
    """A SequenceJob as JSON."""
    run: str
    executor: str
    matrix: str
    """The matrix file; empty: the checkout's."""

    def elsewhere(self) -> SequenceAssignment:
        """The checkout that travels has the matrix."""
        return replace(self, matrix="")

    def perform(self, context: TaskContext) -> SequenceResult:
        return measure(self, context)

    def perform_and_keep(self, context: TaskContext) -> SequenceResult:
        return measure(self, context)


def measure(given: SequenceAssignment, context: TaskContext) -> SequenceResult:
    """Measure the sequence with this machine's engine. What goes wrong there is told in the result. Raises UserError:
    another checkout, no engine that builds.
    """
    job = SequenceJob.model_validate_json(given.job)
    paths.use(Workspace(Path(given.matrix)) if given.matrix else paths.workspace())
    _require_same_commit(job, results.revision())
    started = datetime.now(UTC)
    with connect(None) as engine:
        context.on_engine(engine)
        engine.sweep()
        made = _made(engine, job)
        version = engine.facts.version
    return SequenceResult(
        key=job.key,
        run=given.run,
        worker=worker_info(context, given.executor, version),
        started=started,
        ended=datetime.now(UTC),
        **made,
    )


def _made(engine: Engine, job: SequenceJob) -> Mapping[str, Any]:
    """Fields of the result."""
    with Progress(plain=True) as progress:
        bench = BenchmarkRun(
            engine=engine,
            host=host_settings(),
            sources=matrix.load(),
            progress=progress,
            repeat=1,
            pinned_bases=job.bases,
            known_layers=[row.as_layer() for row in job.layers],
        )
        try:
            return {"machine": results.machine(engine).as_json(), "data": sizes.sequence(bench)}
        except UserError as error:
            return {"problems": told(error)}


def _require_same_commit(job: SequenceJob, here: str) -> None:
    """Raises UserError. A checkout that travelled (Ray) has no commit, and is the submitter's."""
    if here and here != job.commit:
        cause = f"the worker's checkout is at {here}, and {job.commit or 'no commit'} was to be measured"
        then = "leave the checkout as it is until the job has ended; give the same command again"
        raise UserError(Problem(where=job.key, cause=cause, then=then), code=1)
    require_no_changes(here)


def require_no_changes(commit: str) -> None:
    """Refuse a checkout that has not travelled, and whose files no commit names. Raises UserError."""
    if commit.endswith(results.DIRTY):
        cause = f"the checkout is at {commit}: two checkouts can differ from one commit in different ways"
        then = "commit the changes, or put them aside (`git stash`); then give the same command again"
        raise UserError(Problem(where=f"--only {PART}", cause=cause, then=then), code=1)


def placed(job: SequenceJob, submission: Submission) -> Placed:
    """The job with its machines. Raises UserError: fleet.yaml has none of linux/amd64."""
    task = SequenceAssignment(
        job=job.model_dump_json(),
        run=submission.run,
        executor=submission.executor.name,
        matrix=submitted.matrix_file(),
    )
    return submission.placed(job.key, task, Platform.AMD64, f"--only {PART}")


def result_of(ended: Ended, run: str) -> SequenceResult:
    """What a worker measured. Raises UserError: nothing."""
    again = "give the same command again: it begins anew, as a worker keeps nothing of a measurement"
    answer = submitted.answer_of(ended, run, SequenceResult, again)
    if isinstance(answer, UserError):
        raise answer
    if lost := error_of(answer):
        raise lost
    return answer


def entry_of(result: SequenceResult, commit: str) -> Entry:
    """The entry for the file of results, as a measurement on this machine has it. Raises UserError: it is not whole."""
    machine, data = result.machine, result.data
    weighed = data.layers.keys() if data else set()
    if not machine or not data or any(not weighed >= set(image.layers) for image in data.images.values()):
        then = "give the same command again; does the worker have the same checkout?"
        raise UserError(Problem(where=result.key, cause="its worker did not weigh every layer", then=then), code=1)
    return results.entry(
        data.model_dump(mode="json"),
        results.Machine(**machine.model_dump()),
        commit,
        began=result.started.isoformat(timespec="minutes"),
        seconds=result.seconds,
        finished=True,
    )
