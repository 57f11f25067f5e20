"""What Slurm and Ray are asked for, and how their answers are read.

Slurm is a fake here. tests/integration/test_fleet.py uses both clusters for real.
"""

import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import UserError
from images.fleet import ray, slurm
from images.fleet.config import Fleet, Machines, RaySettings
from images.fleet.worker import Lost, Result, Task
from validate.claims import Tier

pytest.importorskip("submitit")

TASK_A = Task(image="a", tiers=(Tier.STATIC,))
TASK_B = Task(image="b", tiers=(Tier.STATIC,))
H100 = Machines.model_validate(
    {
        "gpus": 2,
        "slurm": {"partition": "gpu", "gres": "gpu:h100:2", "exclusive": "true"},
        "ray": {"num_cpus": 4, "accelerator_type": "H100", "resources": {"engine": 1}},
    }
)
ANYTHING: Any = "measured"
"""Stands for a result that a job wrote."""


def run_tasks(folder: Path) -> Generator[tuple[Task, Result], None, None]:
    """Run both tasks on Slurm. `folder`: the one that the nodes share."""
    fleet = Fleet(workers={"h100": H100})
    return slurm.run_tasks([TASK_A, TASK_B], H100, fleet, folder, lambda _task, _text: None)


class FakeSlurm:
    """Slurm's commands, and submitit's calls of them. The jobs are 7_0 and 7_1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.queue: list[str] = []
        self.controller_answers = True
        self.scancel_options: list[str] = []
        self.submission_error: BaseException | None = None
        monkeypatch.setattr(slurm.shutil, "which", lambda _name: "/usr/bin/sbatch")
        monkeypatch.setattr(slurm.subprocess, "run", self.run_command)
        monkeypatch.setattr(slurm.submitit.SlurmExecutor, "affinity", classmethod(lambda _class: 1))
        monkeypatch.setattr(slurm.submitit.SlurmExecutor, "map_array", self.map_array)
        monkeypatch.setattr(slurm, "LOOK_AGAIN", 0)

    def map_array(self, _function: object, tasks: Sequence[Task]) -> list[Any]:
        if self.submission_error:
            raise self.submission_error
        self.queue = [f"7_{number}" for number in range(len(tasks))]
        return [self.job(job_id) for job_id in self.queue]

    def result_file(self, job_id: str) -> Path:
        return self.folder / f"{job_id}.pkl"

    def job(self, job_id: str) -> Any:
        result_file = self.result_file(job_id)
        return SimpleNamespace(
            job_id=job_id,
            paths=SimpleNamespace(folder=self.folder, result_pickle=result_file),
            result=result_file.read_text,
            stderr=lambda: "first\nslurmstepd: killed\n",
        )

    def run_command(
        self, words: Sequence[str], **_options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run `scancel` or `squeue`."""
        if words[0] == "scancel":
            self.scancel_options.append(words[1])
            self.queue.clear()
        if not self.controller_answers:
            return subprocess.CompletedProcess(words, 1, stdout="", stderr="no contact")
        return subprocess.CompletedProcess(words, 0, stdout="\n".join(self.queue), stderr="")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(monkeypatch, tmp_path)


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


# --- Slurm ----------------------------------------------------------------------------------------


def test_sbatch_gets_its_options_by_their_own_names() -> None:
    assert slurm.sbatch_options(H100) == {
        "time": "120",
        "requeue": True,
        "partition": "gpu",
        "gres": "gpu:h100:2",
        "exclusive": True,
    }


def test_a_job_that_left_the_queue_without_a_result_is_lost(
    cluster: FakeSlurm, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "RESULT_LAG", 0)
    results = run_tasks(shared_folder)

    cluster.result_file("7_1").write_text(ANYTHING)
    assert next(results) == (TASK_B, ANYTHING)
    cluster.queue.clear()
    task, result = next(results)

    assert task == TASK_A
    assert result == Lost(cause="Slurm's job 7_0 ended without a result. first slurmstepd: killed")
    assert list(results) == []
    assert list(shared_folder.iterdir()) == []


def test_a_controller_that_does_not_answer_loses_no_job(
    cluster: FakeSlurm, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "RESULT_LAG", 0)
    cluster.controller_answers = False
    looks = 0

    def sleep(_seconds: float) -> None:
        """Pass the time in which the first job writes its result: three looks."""
        nonlocal looks
        looks += 1
        if looks == 3:
            cluster.result_file("7_0").write_text(ANYTHING)

    monkeypatch.setattr(slurm.time, "sleep", sleep)
    results = run_tasks(shared_folder)

    assert next(results) == (TASK_A, ANYTHING)

    results.close()


@pytest.mark.parametrize("while_submitting", [False, True])
def test_an_interrupt_cancels_by_name_also_jobs_whose_ids_never_came_back(
    cluster: FakeSlurm,
    shared_folder: Path,
    while_submitting: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm.time, "sleep", interrupt)
    if while_submitting:
        cluster.submission_error = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        next(run_tasks(shared_folder))

    (option,) = cluster.scancel_options
    assert option.startswith("--name=truetag-")
    assert list(shared_folder.iterdir()) == []


def test_the_reason_why_sbatch_refuses_is_reported(cluster: FakeSlurm, shared_folder: Path) -> None:
    cluster.submission_error = slurm.submitit.core.utils.FailedJobError(
        "sbatch: error: invalid partition specified: gpu"
    )

    message = r"invalid partition specified: gpu\n    next: correct `slurm`"
    with pytest.raises(UserError, match=message):
        next(run_tasks(shared_folder))


def test_a_machine_that_belongs_to_no_cluster_is_named_as_the_reason(
    cluster: FakeSlurm, shared_folder: Path
) -> None:
    cluster.submission_error = slurm.submitit.core.utils.FailedJobError(
        "sbatch: fatal: Could not establish a configuration source"
    )

    with pytest.raises(UserError, match="finds no Slurm cluster") as error:
        next(run_tasks(shared_folder))

    assert "fleet.yaml" not in error.value.problems[0].then


def test_a_machine_without_slurm_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_without_programs = tmp_path
    monkeypatch.setenv("PATH", str(folder_without_programs))

    with pytest.raises(UserError, match="no sbatch"):
        next(run_tasks(tmp_path))


# --- Ray ------------------------------------------------------------------------------------------


def test_ray_gets_its_options_by_their_own_names() -> None:
    assert ray.ray_options(H100, RaySettings(retries=1)) == {
        "num_cpus": 4,
        "num_gpus": 2,
        "accelerator_type": "H100",
        "resources": {"engine": 1},
        "max_retries": 1,
    }


def test_by_default_ray_gives_a_task_one_core_and_three_retries() -> None:
    assert ray.ray_options(Machines(), RaySettings()) == {
        "num_cpus": 1,
        "num_gpus": 0,
        "resources": {},
        "max_retries": 3,
    }
