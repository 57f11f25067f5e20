"""What Slurm and Ray are asked for, and how their answers are read."""

import errno
import os
import stat
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from images.config import paths
from images.errors import Problem, UserError
from images.fleet import worker
from images.fleet.config import RaySettings, SlurmSettings, WorkerType
from images.fleet.executors import Placed, ray, slurm
from images.fleet.executors.slurm import SlurmExecutor, SqueueWatcher
from images.fleet.worker import Task

PLACE = {"partition": "gpu", "gres": "gpu:h100"}
H100 = WorkerType.model_validate(
    {
        "arch": "9.0",
        "gpus": 8,
        "slurm": {**PLACE, "account": "lab", "mem": "64G", "more": {"reservation": "night"}},
        "ray": {"cpus": 4, "accelerator_type": "H100", "resources": {"engine": 1}},
    }
)


def test_sbatch_is_asked_in_its_own_words() -> None:
    asked = slurm.parameters("h100", H100, 2, SlurmSettings(setup=["module load python"], at_once=3))
    assert asked["partition"] == "gpu" and asked["gres"] == "gpu:h100:2" and asked["account"] == "lab"
    assert asked["array_parallelism"] == 3 and asked["setup"][0] == "module load python"
    assert asked["setup"][1].startswith("export PYTHONPATH=")
    assert asked["additional_parameters"] == {"requeue": True, "mem": "64G", "reservation": "night"}
    assert not {"constraint", "qos"} & set(asked)
    assert "gres" not in slurm.parameters("cpu", WorkerType(), 0, SlurmSettings())


def test_submitits_pickles_lie_where_nobody_else_writes(tmp_path: Path) -> None:
    folder = slurm.own_folder(tmp_path / "slurm")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and slurm.own_folder(tmp_path / "slurm") == folder
    folder.chmod(0o770)
    with pytest.raises(UserError, match="you alone can enter"):
        slurm.own_folder(tmp_path / "slurm")


def test_sbatch_gets_no_variable_of_cosign(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives a job all variables of who submits it."""
    monkeypatch.setenv("COSIGN_PASSWORD", "secret")
    with slurm.without_keys():
        assert "COSIGN_PASSWORD" not in os.environ
    assert os.environ["COSIGN_PASSWORD"] == "secret"


def test_ray_is_asked_for_gpus_by_type() -> None:
    assert ray.options(H100, 2, RaySettings(retries=1)) == {
        "num_cpus": 4,
        "num_gpus": 2,
        "accelerator_type": "H100",
        "resources": {"engine": 1},
        "max_retries": 1,
    }
    assert ray.options(WorkerType(), 0, RaySettings()) == {"num_cpus": 1, "max_retries": 3}


def test_what_the_system_refuses_a_task_of_rays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    library = pytest.importorskip("ray")
    where = SimpleNamespace(get_node_id=lambda: "n", get_task_id=lambda: "t")
    monkeypatch.setattr(library, "get_runtime_context", lambda: where)

    def full(_task: Task, **_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "/scratch/x")

    monkeypatch.setattr(worker, "perform", full)
    assert ray.run_there(cast(Task, None)).startswith("/scratch/x: No space left on device")  # type: ignore[union-attr]


@pytest.mark.parametrize("interrupted", [False, True])
def test_jobs_whose_numbers_never_came_back_are_cancelled_by_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """Ctrl-C while sbatch waits for a slow slurmctld, which takes the jobs all the same."""
    submitit = pytest.importorskip("submitit")
    said: list[tuple[str, ...]] = []
    named: list[str] = []

    def map_array(asked: Any, _function: object, tasks: list[object]) -> list[Any]:
        named.append(asked.parameters["job_name"])
        if interrupted:
            raise KeyboardInterrupt
        return [SimpleNamespace(job_id=f"7_{number}") for number in range(len(tasks))]

    monkeypatch.setattr(slurm, "_slurm", lambda *command: said.append(command))
    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda _class: 1))  # this machine has no srun
    monkeypatch.setattr(submitit.SlurmExecutor, "map_array", map_array)
    executor, other = (SlurmExecutor(tmp_path, SlurmSettings()) for _ in range(2))
    jobs = [Placed(key=key, task=cast(Task, None), gpus=0, machines="cpu", on=WorkerType()) for key in "ab"]
    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
        executor.start(jobs)
    said.clear()
    for one in (executor, other, executor):
        one.cancel()
    assert said == [("scancel", f"--name={named[0]}") if interrupted else ("scancel", "7_0", "7_1")]
    assert named[0].startswith("truetag-cpu-") and executor._run != other._run


def test_what_sbatch_refuses_cancels_no_job_of_a_dead_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More jobs than a user may submit, say: those that run count, too."""
    said: list[tuple[str, ...]] = []

    def refuses(*_: object) -> list[str]:
        raise UserError(Problem(where="--on slurm", cause="QOSMaxSubmitJobPerUserLimit"))

    live = SimpleNamespace(job_id="7_0", watcher=SimpleNamespace(is_done=lambda *_a, **_k: False))
    monkeypatch.setattr(slurm, "_slurm", lambda *command: said.append(command))
    monkeypatch.setattr(SlurmExecutor, "_watched", lambda *_: live)
    monkeypatch.setattr(SlurmExecutor, "_submitted", refuses)
    executor = SlurmExecutor(tmp_path, SlurmSettings())
    known = Placed(key="a", task=cast(Task, None), gpus=0, machines="cpu", on=WorkerType(), cluster_id="7_0")
    with pytest.raises(UserError, match="QOSMaxSubmit"):
        executor.start([known, replace(known, key="b", cluster_id="")])
    executor.cancel()
    assert not [command for command in said if "7_0" in command]
    assert executor.start([known]) == {"a": "7_0"}, "a later start watches it"


def test_the_checkout_that_travels_has_all_that_a_worker_imports(tmp_path: Path) -> None:
    ray.stage(tmp_path, paths.CHECKOUT)
    assert {path.name for path in tmp_path.iterdir()} == {*ray.CODE, "matrix.yaml", "locks", "noxfile.py"}
    assert not list(tmp_path.rglob("__pycache__"))


LISTING = """\
12_0|RUNNING|n1
12_1|COMPLETED|n2
12_3|PENDING|
13|CONFIGURING|n3
14|NODE_FAIL|n4
"""


def test_squeue_is_read() -> None:
    states = {"12_0": "RUNNING", "12_1": "COMPLETED", "12_3": "PENDING", "13": "PENDING", "14": "NODE_FAIL"}
    states |= {"99": "GONE", "1_2": "GONE"}
    watcher = SqueueWatcher(delay_s=1)
    for job in states:
        watcher.register_job(job)
    assert {job: found["State"] for job, found in watcher.read_info(LISTING).items()} == states


TRACE = """\
Job (task=0) failed during processing with trace:
----------------------
Traceback (most recent call last):
  File "/x/images/fleet/worker.py", line 1, in judge
images.errors.UserError: a.test/b@sha256:1: can't be pulled: no route to host
    next: check the name

----------------------
You can check full logs with 'job.stderr(0)' and 'job.stdout(0)'or at paths:
"""


def test_a_user_error_of_a_job_is_told_in_its_own_words() -> None:
    assert slurm.cause_in(TRACE) == "a.test/b@sha256:1: can't be pulled: no route to host next: check the name"
    own = TRACE.replace("images.errors.UserError: a.test", "KeyError: a.test").replace("    next: check the name\n", "")
    assert slurm.cause_in(own).endswith("KeyError: a.test/b@sha256:1: can't be pulled: no route to host")
    lost = slurm.cause_in("Job 3 (task: 0) with path /x\nhas not produced any output (state: NODE_FAIL)\nkilled")
    assert "NODE_FAIL" in lost
