"""`record`: a run on disk becomes a line, once; its evidence is kept on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from images.site import records
from tests.support import recorded
from tests.support.commands import Called, call

H100 = "cu130-torch211-py312-sm90/h100"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """out/NAME of a run on an H100."""
    made = tmp_path / "out"
    made.mkdir()
    (made / "evidence.json").write_text(recorded.text(H100))
    built = {"digest": recorded.lines()[H100].digest, "bytes": 123}
    (made / "build.json").write_text(json.dumps(built))
    return made


def record(folder: Path, *options: str) -> Called:
    return call("record", str(folder), "--results", str(folder.parent / "results"), *options)


def test_a_run_becomes_the_line_that_the_repository_has_of_it(folder: Path, tmp_path: Path) -> None:
    done = record(folder, "--as", "h100", "--keep-evidence")
    assert done.returncode == 0 and f"{H100}, PASS" in done.stdout, done.stderr
    (line,) = records.read(tmp_path / "results")
    known = recorded.lines()[H100].model_copy(update={"bytes": 123, "date": None})
    assert line == known
    assert records.read_evidence(tmp_path / "results", H100).decode() == recorded.text(H100)


def test_a_size_of_another_image_and_evidence_are_left_out(folder: Path, tmp_path: Path) -> None:
    (folder / "build.json").write_text('{"digest": "sha256:0", "bytes": 123}')
    assert record(folder, "--as", "h100", "--experiment").returncode == 0
    (line,) = records.read(tmp_path / "results")
    assert (line.bytes, line.kept, line.experiment) == (0, False, True)
    assert not records.evidence_file(tmp_path / "results", H100).exists()


def test_a_run_is_recorded_once(folder: Path, tmp_path: Path) -> None:
    assert record(folder, "--as", "h100").returncode == 0
    before = (tmp_path / "results" / records.LINES).read_bytes()
    done = record(folder, "--as", "h100")
    assert done.returncode == 2 and "is recorded already" in done.stderr
    assert (tmp_path / "results" / records.LINES).read_bytes() == before


@pytest.mark.parametrize("where", ["../x", "An H100", ""])
def test_a_word_that_is_no_name_is_refused(folder: Path, tmp_path: Path, where: str) -> None:
    done = record(folder, "--as", where)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()
