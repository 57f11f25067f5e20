"""`bench --on`: the sequence measured by a worker comes to the entry that a measurement here would leave."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.bench import on_worker, results
from images.bench.data import SizesData
from images.bench.on_worker import LayerRow, SequenceJob, SequenceResult
from images.bench.parts import BenchmarkRun, sizes
from images.commands import executors, trials
from images.context.hosting import HostSettings
from images.errors import Problem, UserError
from images.fleet.executors.executor import Ended, Placed
from images.fleet.executors.local import LocalExecutor
from tests.images.fleet.test_builds import Obedient
from tests.support.bench import ON, layer
from tests.support.commands import call

DATA: SizesData = {
    "images": {"cu126-torch27": {"made_from": "ab", "bytes": 9, "layers": ["sha256:a", "sha256:b"]}},
    "layers": {name: layer(name, 5).as_json() for name in ("sha256:a", "sha256:b")},
    "order": ["cu126-torch27"],
}
WORDS = ("bench", "--only", "sequence", "--on", "slurm")


class Holder:
    """A worker's engine, which is asked for nothing."""

    facts = SimpleNamespace(version="28.5")

    def sweep(self) -> tuple[str, ...]:
        return ()

    def __enter__(self) -> "Holder":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


def measures(monkeypatch: pytest.MonkeyPatch, found: SizesData | UserError = DATA) -> list[BenchmarkRun]:
    """Have a worker in this process measure so. Gets what the part was called with."""
    called: list[BenchmarkRun] = []

    def sequence(bench: BenchmarkRun) -> SizesData:
        called.append(bench)
        if isinstance(found, UserError):
            raise found
        return found

    monkeypatch.setattr(sizes, "sequence", sequence)
    monkeypatch.setattr(on_worker, "connect", lambda *_: Holder())
    monkeypatch.setattr(on_worker, "host_settings", HostSettings)
    monkeypatch.setattr(results, "machine", lambda _engine: ON)
    monkeypatch.setattr(results, "revision", lambda: "c1")
    monkeypatch.setattr(executors, "executor", lambda *_: LocalExecutor())
    return called


def test_the_entry_of_a_worker_is_that_of_a_measurement_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = measures(monkeypatch)
    done = call(*WORDS, "--out", str(tmp_path / "results.json"))
    assert done.returncode == 0 and "bench-sequence  measured on" in done.stderr, done.stderr
    (found,) = results.read(tmp_path / "results.json").values()
    here = results.entry(DATA, ON, "c1", began=found["date"], seconds=found["took"], finished=True)
    assert found == here and len(called) == 1


def test_what_was_weighed_before_travels_and_is_not_weighed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, file = measures(monkeypatch), tmp_path / "results.json"
    earlier = {"images": {}, "layers": {"sha256:old": layer("sha256:old", 7).as_json()}}
    results.keep(file, "pull", results.entry(earlier, ON, "c0", began="x", seconds=1, finished=True))
    assert call(*WORDS, "--out", str(file)).returncode == 0
    assert list(called[0].known_layers) == [layer("sha256:old", 7)]
    assert set(results.read(file)) == {"pull", "sequence"}


def test_what_a_worker_could_not_measure_is_told_as_it_told_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measures(monkeypatch, UserError(Problem(where="cu126-torch27", cause="no space", then="make room"), code=1))
    done = call(*WORDS, "--out", str(tmp_path / "results.json"))
    assert done.returncode == 1 and "cu126-torch27: no space" in done.stderr and "next: make room" in done.stderr
    assert not (tmp_path / "results.json").exists()


def test_a_worker_with_another_checkout_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody commits while the job waits in Slurm's queue. A checkout that travelled with the job has no commit."""
    called = measures(monkeypatch)
    commits = iter(["c1", "c2", "c1", ""])
    monkeypatch.setattr(results, "revision", lambda: next(commits))
    file = tmp_path / "results.json"
    done = call(*WORDS, "--out", str(file))
    assert done.returncode == 1 and "checkout is at c2, and c1 was to be measured" in " ".join(done.stderr.split())
    assert not called and not file.exists()
    assert call(*WORDS, "--out", str(file)).returncode == 0
    assert results.read(file)["sequence"]["commit"] == "c1"


def test_of_a_checkout_with_changes_nothing_is_measured_unless_it_travelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkouts of one commit, each with changes of its own, have one name."""
    called = measures(monkeypatch)
    commits = iter(["c1-dirty", "c1-dirty", "c1-dirty", "c1-dirty", ""])
    monkeypatch.setattr(results, "revision", lambda: next(commits))
    file = tmp_path / "results.json"
    on_ray = (*WORDS[:-1], "ray", "--out", str(file))
    for words in ((*WORDS, "--out", str(file)), on_ray):  # here, and by the worker
        done = call(*words)
        assert done.returncode == 1 and "checkout is at c1-dirty: two checkouts" in " ".join(done.stderr.split())
        assert "next: commit the changes" in done.stderr and not called and not file.exists()
    assert call(*on_ray).returncode == 0 and results.read(file)["sequence"]["commit"] == "c1-dirty"


def told(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """A worker that measures, and tells something else."""

    def answer(placed: Placed) -> Ended:
        executor = LocalExecutor()
        executor.start([placed])
        (done,) = executor.ended()
        assert isinstance(done.result, SequenceResult)
        return Ended(key=placed.key, result=done.result.model_copy(update=more))

    monkeypatch.setattr(executors, "executor", lambda *_: Obedient(answer))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"run": "of-last-week"}, "is of another job"),
        ({"data": None}, "did not weigh every layer"),
        (
            {"data": on_worker.SequenceRow.model_validate({**DATA, "layers": {}})},
            "did not weigh every layer",
        ),
    ],
)
def test_half_a_measurement_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Mapping[str, Any], why: str
) -> None:
    measures(monkeypatch)
    told(monkeypatch, **more)
    done = call(*WORDS, "--out", str(tmp_path / "results.json"))
    assert done.returncode == 1 and why in " ".join(done.stderr.split()) and "next:" in done.stderr
    assert not (tmp_path / "results.json").exists()


def test_the_job_is_plain_data() -> None:
    job = SequenceJob(commit="c1", bases={"x": "sha256:1"}, layers=(LayerRow(**layer("a", 5).as_json()),))
    assert SequenceJob.model_validate_json(job.model_dump_json()) == job
    assert job.layers[0].as_layer() == layer("a", 5)
    task = on_worker.SequenceAssignment(job=job.model_dump_json(), run="r", executor="slurm", matrix="/m.yaml")
    assert pickle.loads(pickle.dumps(task)) == task and task.elsewhere().matrix == ""


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("bench", "--on", "ray"), ["parts plan, cold, rebuild, pull, trial, fleet, delivery"]),
        ((*WORDS, "--only", "cold", "--through", "a.test/b"), ["parts cold", "--through"]),
        ((*WORDS, "--engine", "unix:///x"), ["--engine unix:///x"]),
        (("bench", "--only", "sequence", "--through", "a.test/b"), ["--through"]),
    ],
)
def test_what_a_worker_can_not_measure_is_refused_with_the_next_command(
    words: Sequence[str], where: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "open_engine", lambda *_: pytest.fail("it measures for hours"))
    done = call(*words)
    assert done.returncode == 2 and done.stderr.count("next:") == len(where)
    assert all(one in " ".join(done.stderr.split()) for one in where), done.stderr
