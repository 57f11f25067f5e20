"""A context on disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from images.building import records


def test_a_context_on_disk_is_whole_and_keeps_passwords_to_itself(tmp_path: Path) -> None:
    wheel, folder = tmp_path / "a.whl", tmp_path / "context"
    for content in (b"older", b"newer"):
        wheel.unlink(missing_ok=True)
        wheel.write_bytes(content)
        records.write_context({"Dockerfile": b"FROM x\n", "host/env": b"export A=b\n", "wheels/a.whl": wheel}, folder)
    placed = folder / "wheels" / "a.whl"
    assert placed.read_bytes() == b"newer" and not placed.is_symlink()
    assert (folder / "host" / "env").stat().st_mode & 0o077 == 0
    records.write_context({"Dockerfile": b"FROM y\n"}, folder)
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"Dockerfile"}


@pytest.mark.parametrize(
    ("build", "seconds"),
    [
        ({"seconds": 60.0, "worker": {"seconds": 100.0}}, 100.0),
        ({"seconds": 60.0}, 63.5),
        ({}, 0.0),
        ({"worker": {}}, 0.0),
        ([], 0.0),
    ],
)
def test_what_a_build_took_is_read_from_its_records(tmp_path: Path, build: Any, seconds: float) -> None:
    assert records.recorded_seconds(tmp_path) == 0.0, "there is none"
    (tmp_path / "build.json").write_text(json.dumps(build))
    (tmp_path / "evidence.json").write_text(json.dumps({"records": [{"seconds": 1.5}, {"seconds": 2.0}]}))
    assert records.recorded_seconds(tmp_path) == seconds
