"""Cold builds by the command line."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.bench.parts import cold
from images.bench.project_copy import ProjectCopy
from images.planning import owners, plan
from tests.support.bench import LOAD, SOURCES, Cache, bench_on


def test_the_image_that_the_command_line_builds_uncached_stands_on_a_layer_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    copied = ProjectCopy(tmp_path, Cache(), tmp_path / "out")  # type: ignore[arg-type]
    copied.copy()
    script = tmp_path / "templates" / "scripts" / "user.sh"
    before = script.read_text()
    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(ProjectCopy, "build", lambda _self, _image, option: ran.append((option, script.read_text())))
    cold.by_command(Cache().builder(), copied, planned.image)
    ((option, then),) = ran
    assert option == "--no-cache" and then.startswith(before)
    command, _, path = then.removeprefix(before).strip().partition(" >")
    assert command == "echo RUN-ID"
    assert any(fnmatch(path, known) for known in owners.GENERATED), "S10 fails a file that nobody owns"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0


def test_each_measured_build_waits_for_the_disk_first(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    built: Any = SimpleNamespace(image_id="i", seconds=1.0, steps=())
    builder: Any = SimpleNamespace(run_id="r", build=lambda *_: happened.append("built") or built)

    @contextmanager
    def made(_bench: object) -> Iterator[Any]:
        yield builder

    @contextmanager
    def unloaded() -> Iterator[Any]:
        yield LOAD

    engine: Any = SimpleNamespace(inspect=lambda _id: SimpleNamespace(layers=(), size=1))
    monkeypatch.setattr(cold.disk, "rest", lambda *_: happened.append("rested"))
    monkeypatch.setattr(cold.BenchmarkRun, "builder", made)
    monkeypatch.setattr(cold, "load_around", unloaded)
    monkeypatch.setattr(cold, "lower_bound", lambda *_: happened.append("unpacked") or 1.0)
    bench, _ = bench_on(engine)
    cold._built(bench, "ours", {})
    cold._lower_bound(bench, None, None, SimpleNamespace(root=Path()))  # type: ignore[arg-type]
    assert happened == ["rested", "built", "rested", "unpacked"]
