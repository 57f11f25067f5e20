"""The verb `fleet`: what it hands to an executor, how it ends, and what it refuses."""

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from images.building import validating
from images.commands import fleet as fleet_command
from images.fleet.worker import Lost, Measured, Result, Task
from tests.support.commands import Called, call
from tests.support.fleet_records import DIGEST, NAME, claim, claims, evidence_of, installed
from validate.claims import Tier

REFERENCE = f"a.test/b@{DIGEST}"
PULL = ("--image", f"{NAME}={REFERENCE}")
PULL_ANOTHER = ("--image", f"{NAME}=a.test/b@sha256:{'cd' * 32}")
FLEET_YAML = "workers: {cpu: {}, h100: {gpus: 2}}\n"


class FakeExecutor:
    """Stands in for Slurm and Ray: it gives the results that a test has set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.tasks: list[Task] = []
        self.results: list[Result | BaseException] = []
        self.is_closed = False
        monkeypatch.setattr(fleet_command, "start_tasks", self.start)
        # The only claim of every image is that about pip.
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
            self.is_closed = True

    def call(self, *arguments: str, on: str = "slurm", workers: str = "cpu") -> Called:
        file = self.folder / "fleet.yaml"
        file.write_text(FLEET_YAML)
        places = ("--fleet", str(file), "--out", str(self.folder / "out"))
        return call("fleet", *arguments, "--on", on, "--workers", workers, *places)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeExecutor:
    return FakeExecutor(monkeypatch, tmp_path)


def measured(pip_version: str = "25.0") -> Measured:
    """Return what a worker sends: evidence about pip, of which 25.0 passes."""
    evidence = evidence_of(claims(claim("pip")), pip=installed(pip_version))
    return Measured(
        machine="n1",
        reference=REFERENCE,
        labels={},
        steps=(),
        evidence=evidence.dumps(),
        build="",
    )


FAILING = measured("24.0")


# --- how it ends ----------------------------------------------------------------------------------


def test_it_ends_with_0_if_everything_was_judged_and_nothing_failed(
    executor: FakeExecutor, tmp_path: Path
) -> None:
    executor.results = [measured()]

    finished = executor.call(*PULL, "--tier", "static")

    assert finished.returncode == 0, finished.stderr
    (task,) = executor.tasks
    assert task.reference == REFERENCE
    assert task.tiers == (Tier.STATIC,)
    assert (tmp_path / "out/cpu" / task.key / "verdict.json").is_file()
    assert "PASS" in finished.stdout
    assert REFERENCE in finished.stdout


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        (
            Lost(cause="on node-3: the task was killed by signal 9 (Killed); it wrote nothing"),
            "on node-3: the task was killed",
        ),
        (FAILING, "1 claim failed (pins/pip)"),
    ],
    ids=["lost", "failed"],
)
def test_a_task_that_failed_or_was_lost_stops_no_other(
    executor: FakeExecutor, result: Result, cause: str
) -> None:
    executor.results = [result, measured()]

    finished = executor.call(*PULL, *PULL_ANOTHER)

    assert finished.returncode == 1
    assert cause in finished.stderr
    assert "next:" in finished.stderr
    assert "PASS" in finished.stdout


def test_an_interrupt_closes_the_executor(executor: FakeExecutor) -> None:
    executor.results = [KeyboardInterrupt()]

    assert executor.call(*PULL).returncode == 130
    assert executor.is_closed


def test_an_earlier_verdict_is_removed_before_anything_runs(
    executor: FakeExecutor, tmp_path: Path
) -> None:
    executor.results = [measured()]
    executor.call(*PULL)
    assert list((tmp_path / "out").rglob("verdict.json"))

    executor.results = [
        Lost(cause="on node-3: the task was killed by signal 9 (Killed); it wrote nothing")
    ]
    executor.call(*PULL)

    assert not list((tmp_path / "out").rglob("verdict.json"))


# --- which tasks it makes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "tiers"),
    [
        ("h100", (Tier.STATIC, Tier.CPU, Tier.GPU, Tier.MULTIGPU)),
        ("cpu", (Tier.STATIC, Tier.CPU)),
    ],
)
def test_a_task_measures_all_tiers_that_its_machine_can(
    executor: FakeExecutor, workers: str, tiers: tuple[Tier, ...]
) -> None:
    executor.results = [measured()]

    executor.call(*PULL, workers=workers)

    assert executor.tasks[0].tiers == tiers


def test_a_selected_image_is_built_by_its_worker(executor: FakeExecutor) -> None:
    executor.results = [Lost(cause="-"), Lost(cause="-")]

    executor.call("cu126-torch25", NAME)

    tasks = [(task.image, task.reference) for task in executor.tasks]
    assert tasks == [("cu126-torch25", ""), (NAME, "")]


# --- what it refuses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ((), "no image is named"),
        (("no-such-image",), "no-such-image"),
        (("--image", f"{NAME}=a.test/b:latest"), "of which registry a worker shall pull"),
        (("--image", NAME), "of which registry a worker shall pull"),
        ((NAME, "--claim", "pins"), "is only for images that are pulled, with --image"),
        (
            (*PULL, "--tier", "gpu"),
            "a task on machines of the kind `cpu` (fleet.yaml) gets 0 GPUs",
        ),
    ],
    ids=[
        "no image",
        "an unknown image",
        "a reference by tag",
        "no reference",
        "a claim of an image to build",
        "a tier without its GPU",
    ],
)
def test_wrong_input_is_refused_with_the_next_step(
    executor: FakeExecutor, arguments: Sequence[str], cause: str
) -> None:
    finished = executor.call(*arguments)

    assert finished.returncode == 2
    assert cause in finished.stderr
    assert "next:" in finished.stderr


def test_an_unknown_executor_is_refused(executor: FakeExecutor) -> None:
    finished = executor.call(*PULL, on="local")

    assert finished.returncode == 2
    assert "give --on slurm|ray" in finished.stderr


def test_the_command_for_this_machine_can_be_pasted_into_a_shell() -> None:
    finished = call("fleet", "torch>=2.7")

    assert finished.returncode == 2
    assert "build -- 'torch>=2.7'`" in " ".join(finished.stderr.split())
