"""Slurm: one job array, an image a job, through submitit. Placement, queues and limits are Slurm's own."""

import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import submitit

from images.config import paths
from images.errors import failed
from images.fleet import worker
from images.fleet.config import Fleet, Machines
from images.fleet.worker import Lost, Result, Task

LOOK_AGAIN = 2.0
"""Seconds between two looks for results, which are files, and at the queue."""
RESULT_LAG = 15.0
"""Seconds for a result to be seen here once its job has left the queue: a cluster's file system takes its time."""
GRACE_SECONDS = 60
"""Slurm sends a signal as long before a job's time is over: containers are removed meanwhile."""

Job = submitit.Job[Result]


def run_tasks(
    tasks: Sequence[Task],
    machines: Machines,
    fleet: Fleet,
    folder: Path,
    say: Callable[[Task, str], None],
) -> Generator[tuple[Task, Result], None, None]:
    """Submit the tasks as one array, and yield each with what it brought as it ends. Leaving early cancels them.

    `folder`: one that the nodes see, too. Raises UserError where there is no Slurm, or it refuses the jobs.
    """
    if shutil.which("sbatch") is None:
        raise failed(
            "--on slurm", "this machine has no sbatch", "submit from a login node of the cluster"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Results are pickles, and reading one runs code: mkdtemp makes a folder that only this user can write.
    scratch = Path(tempfile.mkdtemp(prefix="slurm-", dir=folder.absolute()))
    name = f"truetag-{uuid.uuid4().hex[:10]}"
    try:
        executor = submitit.SlurmExecutor(folder=scratch / "%j")
        executor.update_parameters(
            job_name=name,
            setup=[*fleet.slurm.setup, f"export PYTHONPATH={shlex.quote(str(paths.RESOURCES))}"],
            array_parallelism=fleet.slurm.at_once,
            signal_delay_s=GRACE_SECONDS,
            additional_parameters=sbatch_options(machines),
        )
        jobs = executor.map_array(run_here, tasks)
        running = dict(zip(tasks, jobs, strict=True))
        for task, job in running.items():
            say(task, f"is job {job.job_id} of Slurm")
        yield from results(running)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        cause = f"sbatch refuses the jobs: {' '.join(str(error).split())[-400:]}"
        then = (
            "correct `slurm` of these machines in fleet.yaml (`sinfo` shows partitions and nodes)"
        )
        raise failed("--on slurm", cause, then) from None
    finally:
        # By their name, as Slurm may have taken jobs whose numbers never came back.
        subprocess.run(["scancel", f"--name={name}"], check=False)
        shutil.rmtree(scratch, ignore_errors=True)


def sbatch_options(machines: Machines) -> dict[str, str | bool]:
    """Return sbatch's options: two hours and another try where a node fails, and what fleet.yaml says."""
    options: dict[str, str | bool] = {"time": "120", "requeue": True}
    for name, value in machines.slurm.items():
        options[name] = True if value == "true" else value
    return options


def run_here(task: Task) -> Result:
    """Do a task on a node: the function that submitit calls there."""

    def stop(number: int, _frame: object) -> None:
        # Slurm sends it more than once, to the job and through srun: the second must not end the tidying up.
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    return worker.perform(task, worker.node())


def results(running: dict[Task, Job]) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result, as soon as there is one. A job that left the queue without one is lost.

    submitit itself would ask sacct, which many clusters do not have.
    """
    left_queue_at: dict[Task, float] = {}
    while running:
        queue = subprocess.run(
            ["squeue", "--me", "--array", "--noheader", "--format=%i"],
            capture_output=True,
            text=True,
            check=False,
        )
        for task, job in list(running.items()):
            if has_result(job):
                del running[task]
                yield task, job.result()
            # Slurm's controller may be away for minutes, while the jobs go on.
            elif queue.returncode == 0 and job.job_id not in queue.stdout.split():
                left_at = left_queue_at.setdefault(task, time.monotonic())
                if time.monotonic() - left_at > RESULT_LAG:
                    del running[task]
                    yield task, Lost(cause=last_words(job))
        if running:
            time.sleep(LOOK_AGAIN)


def has_result(job: Job) -> bool:
    """Tell whether a job has written its result, which submitit renames into place once it is whole."""
    folder = job.paths.folder
    if folder.is_dir():
        # NFS looks again at a folder whose mode was set.
        folder.chmod(folder.stat().st_mode)
    return job.paths.result_pickle.exists()


def last_words(job: Job) -> str:
    """Say that a job brought no result, with the last lines of its log."""
    log = (job.stderr() or "").strip().splitlines()
    return " ".join([f"Slurm's job {job.job_id} ended without a result.", *log[-2:]])
