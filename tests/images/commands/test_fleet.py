"""`fleet`: what it hands to an executor, what it ends with, and what it refuses."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from images.building import validating
from images.commands import fleet as fleet_command
from images.fleet.worker import Lost, Measured, Result, Task
from tests.support.commands import Called, call
from tests.support.fleet_records import DIGEST, NAME, claim, claims, evidence_of, installed
from validate.claims import Tier

REFERENCE = f"a.test/b@{DIGEST}"
PULL = ("--image", f"{NAME}={REFERENCE}")
YAML = "workers: {cpu: {}, h100: {gpus: 2}}\n"


class Executor:
    """Does as it is told, in the place of Slurm and Ray."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.tasks: list[Task] = []
        self.results: list[Result | BaseException] = []
        self.closed = False
        monkeypatch.setattr(fleet_command, "start_tasks", self.start)
        monkeypatch.setattr(validating, "claims_of", lambda *_, **__: claims(claim("pip")))

    def start(
        self, _on: str, tasks: Sequence[Task], *_: object
    ) -> Generator[tuple[Task, Result], None, None]:
        self.tasks = list(tasks)
        try:
            for task, result in zip(tasks, self.results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                yield task, result
        finally:
            self.closed = True

    def call(self, *arguments: str, on: str = "slurm", workers: str = "cpu") -> Called:
        file = self.folder / "fleet.yaml"
        file.write_text(YAML)
        place = ("--fleet", str(file), "--out", str(self.folder / "out"), "--workers", workers)
        return call("fleet", *arguments, "--on", on, *place)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Executor:
    return Executor(monkeypatch, tmp_path)


def brought(version: str = "25.0") -> Measured:
    evidence = evidence_of(claims(claim("pip")), pip=installed(version)).dumps()
    return Measured(
        machine="n1", reference=REFERENCE, labels={}, steps=(), evidence=evidence, build=""
    )


def test_it_ends_well_where_all_was_judged_and_nothing_failed(
    executor: Executor, tmp_path: Path
) -> None:
    executor.results = [brought()]
    done = executor.call(*PULL, "--tier", "static")
    assert done.returncode == 0, done.stderr
    assert executor.tasks[0].reference == REFERENCE and executor.tasks[0].tiers == (Tier.STATIC,)
    assert (tmp_path / "out/cpu" / executor.tasks[0].key / "verdict.json").is_file()
    assert "PASS" in done.stdout and REFERENCE in done.stdout


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (Lost(cause="its node failed"), "its node failed"),
        (brought("24.0"), "1 claim failed (pins/pip)"),
    ],
)
def test_one_that_failed_or_was_lost_stops_no_other(
    executor: Executor, result: Any, told: str
) -> None:
    other = ("--image", f"{NAME}=a.test/b@sha256:{'cd' * 32}")
    executor.results = [result, brought()]
    done = executor.call(*PULL, *other)
    assert done.returncode == 1 and told in done.stderr and "next:" in done.stderr
    assert "PASS" in done.stdout


def test_an_interrupt_ends_the_executor(executor: Executor) -> None:
    executor.results = [KeyboardInterrupt()]
    assert executor.call(*PULL).returncode == 130 and executor.closed


def test_an_earlier_verdict_goes_before_anything_runs(executor: Executor, tmp_path: Path) -> None:
    executor.results = [brought()]
    executor.call(*PULL)
    executor.results = [Lost(cause="it was killed")]
    executor.call(*PULL)
    assert not list((tmp_path / "out").rglob("verdict.json"))


def test_machines_with_gpus_measure_more_tiers(executor: Executor) -> None:
    executor.results = [brought()]
    executor.call(*PULL, workers="h100")
    assert executor.tasks[0].tiers == tuple(Tier)
    executor.call(*PULL)
    assert executor.tasks[0].tiers == (Tier.STATIC, Tier.CPU)


def test_selected_images_are_built(executor: Executor) -> None:
    executor.results = [Lost(cause="-"), Lost(cause="-")]
    executor.call("cu126-torch25", NAME)
    assert [(task.image, task.reference) for task in executor.tasks] == [
        ("cu126-torch25", ""),
        (NAME, ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "no image is named"),
        (("--image", f"{NAME}=a.test/b:latest"), "is nothing that a worker can pull"),
        (("--image", NAME), "is nothing that a worker can pull"),
        ((NAME, "--claim", "pins"), "is for --image only"),
        ((*PULL, "--tier", "gpu"), "can't be measured on cpu, where a task gets 0 GPUs"),
        (("no-such-image",), "no-such-image"),
    ],
)
def test_what_cannot_be_done_is_told(
    executor: Executor, arguments: Sequence[str], told: str
) -> None:
    done = executor.call(*arguments)
    assert done.returncode == 2 and told in done.stderr and "next:" in done.stderr


def test_an_executor_is_named(executor: Executor) -> None:
    done = executor.call(*PULL, on="local")
    assert done.returncode == 2 and "say slurm|ray" in done.stderr
