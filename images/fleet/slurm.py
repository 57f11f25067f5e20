"""Run the tasks of `fleet` on a Slurm cluster: one job array, with a job for each image.

The package submitit submits the jobs. Where and when they run is Slurm's decision.
"""

import re
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
"""Seconds between two looks at the queue and at the files with results."""
RESULT_LAG = 15.0
"""Seconds to wait for the result of a job that has left the queue. A shared file system may show it
late."""
GRACE_SECONDS = 60
"""Slurm sends a signal this many seconds before a job's time is over, to remove its containers."""

_NO_CLUSTER = re.compile("configuration source|contact slurm controller", re.IGNORECASE)
"""What sbatch says where no controller of Slurm is known or answers."""

Job = submitit.Job[Result]


def run_tasks(
    tasks: Sequence[Task],
    machines: Machines,
    fleet: Fleet,
    folder: Path,
    say: Callable[[Task, str], None],
) -> Generator[tuple[Task, Result], None, None]:
    """Run the tasks as one job array, and yield each with its result as soon as it ends.

    `machines` and `fleet` are from fleet.yaml: what machines a job gets, and the settings of Slurm.
    Closing the generator early cancels the jobs. `folder` must be on a file system that the nodes
    share. `say` gets messages about a task. Raises UserError if this machine has no Slurm, or if
    Slurm refuses the jobs.
    """
    if shutil.which("sbatch") is None:
        then = "submit from a login node of the cluster"
        raise failed("--on slurm", "this machine has no sbatch", then)
    folder.mkdir(parents=True, exist_ok=True)
    # Results are pickles, and reading one runs code. Only this user can write to mkdtemp's folder.
    scratch = Path(tempfile.mkdtemp(prefix="slurm-", dir=folder.absolute()))
    name = f"truetag-{uuid.uuid4().hex[:10]}"
    try:
        executor = submitit.SlurmExecutor(folder=scratch / "%j")
        executor.update_parameters(
            job_name=name,
            # Shell commands of each job, before it starts Python.
            setup=[*fleet.slurm.setup, f"export PYTHONPATH={shlex.quote(str(paths.RESOURCES))}"],
            array_parallelism=fleet.slurm.at_once,
            signal_delay_s=GRACE_SECONDS,
            additional_parameters=sbatch_options(machines),
        )
        jobs = executor.map_array(run_here, tasks)
        running = dict(zip(tasks, jobs, strict=True))
        for task, job in running.items():
            say(task, f"is job {job.job_id} of Slurm")
        yield from wait_for_results(running)
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        cause = f"sbatch refuses the jobs: {' '.join(str(error).split())[-400:]}"
        then = (
            "correct `slurm` of these machines in fleet.yaml (`sinfo` shows partitions and nodes)"
        )
        # Such as `Could not establish a configuration source`: no partition would help.
        if _NO_CLUSTER.search(str(error)):
            cause = f"sbatch finds no Slurm cluster: {' '.join(str(error).split())[-400:]}"
            then = "submit from a login node of the cluster, where `sinfo` shows its nodes"
        raise failed("--on slurm", cause, then) from None
    finally:
        # Cancel by name: Slurm may have accepted jobs whose IDs it could not report any more.
        subprocess.run(["scancel", f"--name={name}"], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(scratch, ignore_errors=True)


def sbatch_options(machines: Machines) -> dict[str, str | bool]:
    """Return the options of sbatch from fleet.yaml, with defaults.

    By default a job has 120 minutes, and is queued again if its node fails.
    """
    options: dict[str, str | bool] = {"time": "120", "requeue": True}
    for name, value in machines.slurm.items():
        options[name] = True if value == "true" else value
    return options


def run_here(task: Task) -> Result:
    """Do a task on the node where submitit calls this function, and return its result.

    A SIGTERM from Slurm is handled like Ctrl-C: containers are removed first.
    """

    def stop(number: int, _frame: object) -> None:
        # Slurm sends the signal more than once, to the job and through srun. The second one must
        # not interrupt the removal of containers.
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    return worker.perform(task, worker.node_name())


def wait_for_results(running: dict[Task, Job]) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result as soon as its job ends, and remove it from `running`.

    A job that leaves Slurm's queue without a result is Lost: the result then only has a reason.
    """
    # Task -> when its job was first seen to be out of the queue.
    left_queue_at: dict[Task, float] = {}
    while running:
        # The queue is read by squeue. submitit would ask sacct, which many clusters do not have.
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
            # If squeue fails, Slurm's controller may be away for minutes, while the jobs go on.
            elif queue.returncode == 0 and job.job_id not in queue.stdout.split():
                # The result of a job that is no longer in the queue may take a while to be seen.
                left_at = left_queue_at.setdefault(task, time.monotonic())
                if time.monotonic() - left_at > RESULT_LAG:
                    del running[task]
                    yield task, Lost(cause=last_words(job))
        if running:
            time.sleep(LOOK_AGAIN)


def has_result(job: Job) -> bool:
    """Return whether a job has written its whole result: submitit renames the file at the end."""
    folder = job.paths.folder
    if folder.is_dir():
        # Setting the mode, even to the same value, makes NFS read the folder again.
        folder.chmod(folder.stat().st_mode)
    return job.paths.result_pickle.exists()


def last_words(job: Job) -> str:
    """Return a sentence that a job ended without a result, with the last two lines of its log."""
    log = (job.stderr() or "").strip().splitlines()
    return " ".join([f"Slurm's job {job.job_id} ended without a result.", *log[-2:]])
