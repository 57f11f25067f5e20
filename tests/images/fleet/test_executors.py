"""What Slurm and Ray are asked for, and how their answers are read. Both for real: tests/integration/test_fleet.py."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.errors import UserError
from images.fleet import ray, slurm
from images.fleet.config import Fleet, Machines, RaySettings
from images.fleet.worker import Lost, Task
from validate.claims import Tier

pytest.importorskip("submitit")

TASKS = [Task(image=name, tiers=(Tier.STATIC,)) for name in ("a", "b")]
H100 = Machines.model_validate(
    {
        "gpus": 2,
        "slurm": {"partition": "gpu", "gres": "gpu:h100:2", "exclusive": "true"},
        "ray": {"num_cpus": 4, "accelerator_type": "H100", "resources": {"engine": 1}},
    }
)


class FakeSlurm:
    """Slurm's commands, and submitit's calls of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.queue: list[str] = []
        self.controller_answers = True
        self.cancelled: list[str] = []
        self.names: list[str] = []
        self.refuses: Exception | None = None
        monkeypatch.setattr(slurm.shutil, "which", lambda _name: "/usr/bin/sbatch")
        monkeypatch.setattr(slurm.subprocess, "run", self.command)
        monkeypatch.setattr(slurm.submitit.SlurmExecutor, "affinity", classmethod(lambda _class: 1))
        monkeypatch.setattr(slurm.submitit.SlurmExecutor, "map_array", self.map_array)
        monkeypatch.setattr(slurm, "LOOK_AGAIN", 0)

    def map_array(self, _function: object, tasks: Sequence[Task]) -> list[Any]:
        if self.refuses:
            raise self.refuses
        self.queue = [f"7_{number}" for number in range(len(tasks))]
        return [self.job(job_id) for job_id in self.queue]

    def job(self, job_id: str) -> Any:
        result = self.folder / f"{job_id}.pkl"
        paths = SimpleNamespace(folder=self.folder, result_pickle=result)
        return SimpleNamespace(
            job_id=job_id,
            paths=paths,
            result=result.read_text,
            stderr=lambda: "first\nslurmstepd: killed\n",
        )

    def command(self, words: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        if words[0] == "scancel":
            self.cancelled.append(words[1])
            self.queue.clear()
        return subprocess.CompletedProcess(
            words, 0 if self.controller_answers else 1, "\n".join(self.queue), ""
        )

    def run(self, out: Path) -> Any:
        return slurm.run_tasks(
            TASKS, H100, Fleet(workers={"h100": H100}), out, lambda _task, _text: None
        )


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(monkeypatch, tmp_path)


def test_sbatch_is_asked_in_its_own_words() -> None:
    assert slurm.sbatch_options(H100) == {
        "time": "120",
        "requeue": True,
        "partition": "gpu",
        "gres": "gpu:h100:2",
        "exclusive": True,
    }


def test_a_job_that_left_the_queue_without_a_result_is_lost(
    cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "RESULT_LAG", 0)
    ended = cluster.run(tmp_path / "out")
    (tmp_path / "7_1.pkl").write_text("measured")
    assert next(ended) == (TASKS[1], "measured")
    cluster.queue.clear()
    task, result = next(ended)
    assert task == TASKS[0] and result == Lost(
        cause="Slurm's job 7_0 ended without a result. first slurmstepd: killed"
    )
    assert list(ended) == [] and list((tmp_path / "out").iterdir()) == []


def test_a_controller_that_does_not_answer_loses_no_job(
    cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "RESULT_LAG", 0)
    looks = []

    def sleep(_seconds: float) -> None:
        looks.append(cluster.controller_answers)
        if len(looks) == 3:
            (tmp_path / "7_0.pkl").write_text("measured")

    monkeypatch.setattr(slurm.time, "sleep", sleep)
    cluster.controller_answers = False
    ended = cluster.run(tmp_path / "out")
    assert next(ended) == (TASKS[0], "measured")
    ended.close()


@pytest.mark.parametrize("while_submitting", [False, True])
def test_an_interrupt_cancels_by_name_also_jobs_whose_numbers_never_came_back(
    cluster: FakeSlurm, tmp_path: Path, while_submitting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm.time, "sleep", interrupt)
    if while_submitting:
        cluster.refuses = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        next(cluster.run(tmp_path / "out"))
    (cancelled,) = cluster.cancelled
    assert cancelled.startswith("--name=truetag-") and list((tmp_path / "out").iterdir()) == []


def test_what_sbatch_refuses_is_told(cluster: FakeSlurm, tmp_path: Path) -> None:
    cluster.refuses = slurm.submitit.core.utils.FailedJobError(
        "sbatch: error: invalid partition specified: gpu"
    )
    with pytest.raises(
        UserError, match=r"invalid partition specified: gpu\n    next: correct `slurm`"
    ):
        next(cluster.run(tmp_path / "out"))


def test_a_machine_without_slurm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no sbatch"):
        next(
            slurm.run_tasks(
                TASKS, H100, Fleet(workers={"h100": H100}), tmp_path, lambda _task, _text: None
            )
        )


def test_ray_is_asked_under_its_own_names() -> None:
    assert ray.ray_options(H100, RaySettings(retries=1)) == {
        "num_cpus": 4,
        "num_gpus": 2,
        "accelerator_type": "H100",
        "resources": {"engine": 1},
        "max_retries": 1,
    }
    plain = {"num_cpus": 1, "num_gpus": 0, "resources": {}, "max_retries": 3}
    assert ray.ray_options(Machines(), RaySettings()) == plain
