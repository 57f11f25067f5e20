"""Slurm, through submitit: one array of jobs for each kind of machine. Requeuing and limits are Slurm's own."""

from __future__ import annotations

import logging
import os
import shlex
import stat
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import submitit
from submitit.slurm.slurm import SlurmInfoWatcher

from images.config import paths
from images.errors import UserError, failed
from images.fleet import worker
from images.fleet.config import SlurmSettings, WorkerType
from images.fleet.executors import Ended, Placed
from images.fleet.worker import Task

_LOOK_AGAIN = 1.0
"""Seconds between two looks for results, which are files; squeue is asked less often."""
_GRACE_SECONDS = 60
"""Given by Slurm between the signal and the end: containers are removed meanwhile."""


def run_here(task: Task) -> str:
    """The function that submitit calls on a node. Returns the node where the record is in the ledger by then."""
    worker.end_on_sigterm()
    try:
        return worker.perform_and_keep(task, submitit.JobEnvironment().job_id)
    except UserError as error:  # of whatever class: `cause_in` finds it by its name
        raise UserError(error.problems, code=error.code) from None


class SlurmExecutor:
    """A cluster that this machine may submit to. `folder` must be one that the nodes see, too."""

    name = "slurm"

    def __init__(self, folder: Path, settings: SlurmSettings) -> None:
        """Raises UserError where there is no Slurm."""
        logging.getLogger("submitit").setLevel(logging.ERROR)
        _slurm("squeue", "--version")
        self._folder, self._settings = own_folder(folder.absolute() / "slurm") / "%j", settings
        self._jobs: dict[str, WatchedJob] = {}
        self._run = uuid.uuid4().hex[:10]
        """Ends the name of every job: Slurm may have taken those whose numbers never came back."""
        self._submitting: list[str] = []
        """Names of jobs whose numbers are still to come."""

    def start(self, jobs: Sequence[Placed]) -> Mapping[str, str]:
        by_machines: dict[tuple[str, int], list[Placed]] = {}
        live: dict[str, WatchedJob] = {}
        for job in jobs:
            known = self._watched(job.cluster_id) if job.cluster_id else None
            if known and not known.watcher.is_done(known.job_id, mode="force"):
                live[job.key] = known
            else:
                by_machines.setdefault((job.machines, job.gpus), []).append(job)
        for (machines, gpus), group in by_machines.items():
            asked = parameters(machines, group[0].on, gpus, self._settings)
            name = asked["job_name"] = f"{asked['job_name']}-{self._run}"
            self._submitting.append(name)
            ids = self._submitted(machines, group, asked)
            self._jobs.update((job.key, self._watched(one)) for job, one in zip(group, ids, strict=True))
            self._submitting.remove(name)
        self._jobs.update(live)  # last: what sbatch refuses now cancels no job that a dead run left
        return {key: job.job_id for key, job in self._jobs.items()}

    def ended(self) -> Iterator[Ended]:
        while self._jobs:
            for key, job in list(self._jobs.items()):
                if job.done():
                    del self._jobs[key]
                    if error := job.exception():
                        cause = f"Slurm's job {job.job_id}: {cause_in(str(error))}"
                        yield Ended(key=key, node=job.node, cause=cause)
                    else:
                        yield Ended(key=key, node=job.result())
            if self._jobs:
                time.sleep(_LOOK_AGAIN)

    def cancel(self) -> None:
        ids = [job.job_id for job in self._jobs.values()]
        names, self._submitting = self._submitting, []
        if ids:
            self._jobs.clear()
            _slurm("scancel", *ids)
        for name in sorted(set(names)):
            _slurm("scancel", f"--name={name}")  # it takes one name, and none of that name is no error

    def _submitted(self, machines: str, group: Sequence[Placed], asked: Mapping[str, Any]) -> list[str]:
        executor = submitit.SlurmExecutor(folder=self._folder)
        executor.update_parameters(**asked)
        try:
            with without_keys():
                return [job.job_id for job in executor.map_array(run_here, [job.task for job in group])]
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            cause = f"sbatch refuses the jobs for {machines}: {' '.join(str(error).split())[-400:]}"
            then = f"correct workers.{machines}.slurm in fleet.yaml (`sinfo` shows partitions and nodes)"
            raise failed("--on slurm", cause, then) from None

    def _watched(self, job_id: str) -> WatchedJob:
        return WatchedJob(folder=self._folder, job_id=job_id)


@contextmanager
def without_keys() -> Iterator[None]:
    """Take the variables of cosign away meanwhile: sbatch gives jobs all that it has, and `publish` signs."""
    held = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("COSIGN_")}
    try:
        yield
    finally:
        os.environ.update(held)


def own_folder(folder: Path) -> Path:
    """A folder for submitit's files that this user alone can enter: they are pickles, which run code where read.

    Raises UserError where it is another's, or open to others.
    """
    own = folder / f"uid-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        then = "take it away (`ls -ld` says whose it is), or choose another --out"
        raise failed(str(own), "is not a folder that you alone can enter, and who writes there runs code as you", then)
    return own


def parameters(machines: str, on: WorkerType, gpus: int, settings: SlurmSettings) -> dict[str, Any]:
    """What sbatch is asked for, under submitit's names. Pure."""
    asked = on.slurm
    wanted = asked.model_dump(include={"partition", "constraint", "account", "qos"})
    wanted["gres"] = f"{asked.gres}:{gpus}" if asked.gres and gpus else ""
    return {
        "job_name": f"truetag-{machines}",
        "time": asked.minutes,
        "cpus_per_task": asked.cpus,
        "ntasks_per_node": 1,
        "array_parallelism": settings.at_once,
        "signal_delay_s": _GRACE_SECONDS,
        "setup": [*settings.setup, f"export PYTHONPATH={shlex.quote(str(paths.RESOURCES))}"],
        **{name: value for name, value in wanted.items() if value},
        "additional_parameters": {"requeue": True, **({"mem": asked.mem} if asked.mem else {}), **asked.more},
    }


def cause_in(text: str) -> str:
    """What a job raised, without its traceback: a UserError's own words, else the last line. Pure."""
    told_by_job = text.partition("You can check full logs")[0]
    lines = [line.strip() for line in told_by_job.strip().splitlines() if line.strip().strip("-")]
    for number, line in enumerate(lines):
        if (told := line.partition("images.errors.UserError: "))[1]:
            return " ".join([told[2], *lines[number + 1 :]])
    return " ".join(lines[:1] + lines[-2:])


def _slurm(*command: str) -> str:
    """What a command of Slurm's prints. Raises UserError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        cause, then = f"{command[0]}: {error.strerror}", "submit where Slurm's commands are: on a login node"
        raise failed("--on slurm", cause, then) from None
    if done.returncode:
        cause = f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}"
        raise failed("--on slurm", cause, "`sinfo` must answer")
    return done.stdout


_OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY REVOKED TIMEOUT".split()  # squeue(1)
)
_ASK_AGAIN = 20
"""Between two questions, once a job has run for a while; submitit asks more often at first."""


class SqueueWatcher(SlurmInfoWatcher):
    """One question for all jobs of this user. A job that squeue no longer lists is over."""

    def _make_command(self) -> list[str] | None:
        command = "squeue --me --array --states=all --noheader --format=%i|%T|%N"
        return command.split() if self._registered - self._finished else None

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Job -> what squeue says of it; one of an array is `12_3`. What it does not list is GONE.

        A state on the way (CONFIGURING, SUSPENDED, ...) is PENDING, as submitit knows few.
        """
        found = {job: {"State": "GONE"} for job in self._registered}
        for line in (string if isinstance(string, str) else string.decode()).splitlines():
            job, state, node = [*(word.strip() for word in line.split("|")), "", ""][:3]
            if job in found:
                known = state if state in {*_OVER, "RUNNING"} else "PENDING"
                found[job] = {"State": known, "NodeList": node}
        return found


class WatchedJob(submitit.SlurmJob[str]):
    """A job whose state comes from squeue."""

    watcher = SqueueWatcher(delay_s=_ASK_AGAIN)

    @property
    def node(self) -> str:
        """Where it ran; empty: squeue has forgotten it."""
        return self.watcher.get_info(self.job_id, mode="force").get("NodeList", "")
