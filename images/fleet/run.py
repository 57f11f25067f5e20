"""One run of a fleet: lease jobs, hand them to an executor, judge what comes back. It leaves nothing behind."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from images.building.records import record_validation
from images.config import paths
from images.config.matrix import Sources
from images.errors import UserError
from images.fleet import images
from images.fleet.config import Fleet
from images.fleet.executors import Ended, Executor, Placed
from images.fleet.folder import JobFolder
from images.fleet.model import Failure, FleetRun, Job, JobRecord, Lease
from images.fleet.worker import Task
from validate.judge import Verdict, explain

_LINE = 200
"""Characters of a cause in the line of progress; `status` and the summary have it whole."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a job: a record with its verdict, or why there is none."""

    job: Job
    record: JobRecord | None = None
    verdict: Verdict | None = None
    cause: str = ""

    def __str__(self) -> str:
        if self.record is None or self.verdict is None:
            return f"no verdict: {self.cause[:_LINE]}"
        built = " (built there)" if self.record.build else ""
        return f"{self.verdict.overall} on {self.record.worker.node} in {self.record.seconds:.0f} s{built}"


def run(
    jobs: Mapping[str, Sequence[Job]],
    outdated: Mapping[str, JobRecord],
    *,
    fleet: Fleet,
    folder: JobFolder,
    executor: Executor,
    sources: Sources,
    progress: Callable[[str, str], None],
    gpus: str = "auto",
    engine: str = "",
) -> list[Outcome]:
    """Do the jobs (machines -> jobs) that nobody else has, and return what came of them.

    `outdated`: job's key -> its record that the plan found too old, or not good enough; all others answer for their
    jobs. `progress` gets a job's key and a sentence. `engine`: address of the engine, for workers in this process;
    empty: each finds its machine's. Raises UserError, KeyboardInterrupt after cleaning up.
    """
    by_key = {job.key: job for group in jobs.values() for job in group}
    machines = {job.key: name for name, group in jobs.items() for job in group}
    run_of = FleetRun.new(executor.name)
    outcomes: list[Outcome] = []
    with folder.running(run_of):
        leases: dict[str, Lease] = {}
        for key, job in by_key.items():
            lease = folder.take(run_of, job)
            if lease.run != run_of.id:
                who = f"{lease.owner}, who leased it on {lease.executor} at {lease.since:%H:%M:%S} UTC"
                progress(key, f"is left to {who}")
                continue
            if key in outdated and folder.record(key) == outdated[key]:
                folder.put_aside(key)  # it has ended: nothing is watched that a dead run submitted of it
                folder.submitted(key, run_of.id, "")
                lease = lease.model_copy(update={"cluster_id": ""})
            leases[key] = lease
        there = [key for key in leases if folder.record(key)]
        waiting, matrix = [], sources.workspace.matrix
        for key in (key for key in leases if key not in there):
            task = Task(
                job=by_key[key].model_dump_json(),
                executor=run_of.executor,
                matrix=str(matrix) if matrix != paths.CHECKOUT.matrix else "",
                folder=str(folder.path.absolute()),
                gpus=gpus,
                engine=engine,
            )
            one = Placed(
                key=key,
                task=task,
                gpus=by_key[key].gpus,
                machines=machines[key],
                on=fleet.workers[machines[key]],
                cluster_id=leases[key].cluster_id,
            )
            waiting.append(one)
        watched = False
        try:
            ids = executor.start(waiting)
            for key, cluster_id in ids.items():
                folder.submitted(key, run_of.id, cluster_id)
            watched = True
            outcomes += [_finished(run_of, by_key[key], Ended(key=key), folder, sources) for key in there]
            for one in waiting:
                progress(one.key, " ".join(filter(None, ["was handed to", executor.name, ids.get(one.key, "")])))
            for left, ended in zip(reversed(range(len(waiting))), executor.ended(), strict=True):
                outcome = _finished(run_of, by_key[ended.key], ended, folder, sources)
                outcomes.append(outcome)
                progress(ended.key, f"{outcome}; {left} wait or run" if left else str(outcome))
        finally:
            executor.cancel()
            for key, lease in leases.items():
                if watched or not lease.cluster_id:  # what could not be watched stays: the next run finds it
                    folder.release(key, run_of.id)
    return outcomes


def _finished(run_of: FleetRun, job: Job, ended: Ended, folder: JobFolder, sources: Sources) -> Outcome:
    """What a job came to: its record with the verdict and its reports, or a note of why there is none.

    A record counts even where its job was lost after it was written. Evidence is judged here, by the claims that this
    checkout writes; evidence that can't be used is a failure of its job alone.
    """
    key, cause = job.key, ended.cause or "it ended without a record"
    if ended.result and ended.result.record.key == key:
        with folder.doing(key):
            folder.keep(ended.result)
    elif ended.result:
        cause = f"its worker gave back the record of {ended.result.record.key}"
    try:
        if record := folder.record(key):
            if job.context:
                job = images.resolved(job, record, sources)
            claims = images.claims_for(job, folder.evidence(record), sources)
            verdict = folder.verdict(record, job, claims)
            folder.note(job.model_copy(update={"claims": json.loads(claims.of(job.tiers).dumps())}))
            # Before the verdict, which ends the job: a submitter that is killed later leaves no lease of it.
            folder.release(key, run_of.id)
            record_validation(folder.job_path(key), folder.evidence(record), explain(verdict))
            return Outcome(job=job, record=record, verdict=verdict)
    except UserError as error:
        cause = str(error.problems[0])
    folder.put_aside(key)
    folder.fail(key, Failure(at=datetime.now(UTC), cause=cause, node=ended.node))
    return Outcome(job=job, cause=cause)
