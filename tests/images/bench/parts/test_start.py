"""The benchmark `start`: where it can be taken, and what it makes of what the program says."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.bench.data import StartData
from images.bench.parts import PARTS, UNASKED, start
from images.config.paths import TEMPLATES
from images.engine import ContainerSpec, Finished
from images.engine.containers import Exit
from images.engine.gpus import NO_GPU, Attachment, GpuMode
from images.errors import UserError
from tests.support.bench import bench_on

ON_HOST = Attachment(mode=GpuMode.HOST_DRIVER, reason="asked for", binds={"/driver": "/driver"}, library_path="/driver")
SAID = {
    "at": {"python": 1.0, "first step": 3.0},
    "losses": [2.0, 1.0],
    "memory": {"host_peak": 5, "gpu_context": 6, "gpu_beside": 7},
}


class FakeEngine:
    """Has some images; each container says SAID, or what went wrong."""

    def __init__(self, *images: str, local: bool = True, code: int = 0) -> None:
        self.facts = SimpleNamespace(local=local)
        self.specs: list[ContainerSpec] = []
        self._images, self._code = images, code

    def find(self, name: str) -> object:
        return object() if name in self._images else None

    def inspect(self, name: str) -> Any:
        return SimpleNamespace(id=f"id of {name}", env={"LD_LIBRARY_PATH": "/own"})

    def container(self, spec: ContainerSpec) -> Any:
        self.specs.append(spec)
        done = Finished(exit=Exit(code=self._code, oom=False, error=""), stdout=json.dumps(SAID), stderr="no CUDA")
        return _Opened(SimpleNamespace(run=lambda _timeout: done))


class _Opened:
    def __init__(self, container: Any) -> None:
        self._container = container

    def __enter__(self) -> Any:
        return self._container

    def __exit__(self, *_: object) -> None:
        """Nothing was made."""


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file in place of /proc/sys/vm/drop_caches; GPUs are there, and nobody waits for a quiet machine."""
    file = tmp_path / "drop_caches"
    monkeypatch.setattr(start, "_DROP", file)
    monkeypatch.setattr(start.gpu_access, "attach", lambda *_, **__: ON_HOST)
    monkeypatch.setattr("images.bench.results.busy_now", lambda: 0.0)
    monkeypatch.setattr(start.time, "monotonic", lambda: 0.5)
    return file


def measured(engine: FakeEngine, repeat: int = 1) -> StartData:
    return start.start(replace(bench_on(engine)[0], repeat=repeat))


def test_each_image_that_is_there_runs_in_each_mode(dropped: Path) -> None:
    engine = FakeEngine("cu130-torch211", "cu130-torch211-sm90:nvidia-pruned")
    data = measured(engine, repeat=2)
    assert data["images"] == {
        "all archs": "id of cu130-torch211",
        "one arch, NVIDIA's pruned": "id of cu130-torch211-sm90:nvidia-pruned",
    }
    sides = ["all archs", "one arch, NVIDIA's pruned", "one arch, NVIDIA's pruned", "all archs"]
    assert [run["side"] for run in data["runs"]] == [side for side in sides for _ in start.MODES]
    assert [run["mode"] for run in data["runs"][: len(start.MODES)]] == list(start.MODES)
    assert data["runs"][0]["at"] == {"python": 0.5, "first step": 2.5}
    assert (data["runs"][0]["host_peak"], data["runs"][0]["gpu_beside"]) == (5, 7)


def test_a_container_gets_the_gpu_and_the_mode(dropped: Path) -> None:
    engine = FakeEngine("cu130-torch211", "cu130-torch211-sm90")
    measured(engine)
    assert [spec.env["CUDA_MODULE_LOADING"] for spec in engine.specs] == ["LAZY", "LAZY", "EAGER", "EAGER"] * 2
    assert all(spec.env["LD_LIBRARY_PATH"] == "/driver:/own" and spec.binds for spec in engine.specs)


def test_the_page_cache_is_dropped_before_cold_runs_alone(dropped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drops: list[int] = []
    engine = FakeEngine("cu130-torch211", "cu130-torch211-sm90")
    monkeypatch.setattr(start, "forget_files", lambda: drops.append(len(engine.specs)))
    measured(engine)
    assert drops == [0, 2, 4, 6]


def test_the_kernel_is_told_to_forget_files(dropped: Path) -> None:
    start.forget_files()
    assert dropped.read_text() == "3\n"


def test_who_may_not_drop_the_page_cache_is_told_to_be_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(start, "_DROP", tmp_path / "no folder" / "drop_caches")
    with pytest.raises(UserError, match="can't be written: No such file") as refused:
        start.forget_files()
    assert "as root" in refused.value.problems[0].then


@pytest.mark.parametrize(
    ("gpus", "local", "told"),
    [(NO_GPU, True, "no GPU was asked for"), (ON_HOST, False, "the engine runs on another machine")],
)
def test_without_a_gpu_of_this_machine_nothing_is_measured(gpus: Attachment, local: bool, told: str) -> None:
    with pytest.raises(UserError, match=told) as refused:
        start.images_of(FakeEngine("cu130-torch211", local=local), gpus)  # type: ignore[arg-type]
    assert "`nox -s bench -- --only start`" in refused.value.problems[0].then


@pytest.mark.parametrize(
    ("there", "missing"), [("cu130-torch211-sm90", "cu130-torch211"), ("cu130-torch211", "cu130-torch211-sm90")]
)
def test_one_image_alone_is_compared_with_nothing(there: str, missing: str) -> None:
    with pytest.raises(UserError, match="the engine has 1 of the images") as refused:
        start.images_of(FakeEngine(there), ON_HOST)  # type: ignore[arg-type]
    assert f"`nox -s build -- {missing}`" in refused.value.problems[0].then


def test_the_program_says_what_is_read() -> None:
    """It runs on GPUs alone: what it prints is held to what is taken from it."""
    program = (TEMPLATES / "bench" / "gpu_start.py").read_text()
    told = ast.parse(program)
    marks = {
        node.slice.value
        for node in ast.walk(told)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and ast.unparse(node.value) == "at"
    }
    steps = {node.value for node in ast.walk(told) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    keys = {"host_peak", "gpu_context", "gpu_beside", "at", "losses", "memory", "first step"}
    assert keys <= steps and {"torch", "imports", "context"} <= marks
    compile(program, "gpu_start.py", "exec")


def test_a_process_that_trains_no_step_is_no_measurement(dropped: Path) -> None:
    with pytest.raises(UserError, match="no training step: no CUDA") as refused:
        measured(FakeEngine("cu130-torch211", "cu130-torch211-sm90", code=1))
    assert "`nox -s validate -- cu130-torch211 --tier gpu`" in refused.value.problems[0].then


def test_it_is_measured_only_where_it_is_asked_for() -> None:
    assert set(PARTS) - set(UNASKED) == {"start"}
