"""A container's process: what it prints, how it ends, and that nothing is left of it. The processes are real."""

import signal
from pathlib import Path

import pytest

from images.apptainer.container import ApptainerContainer
from images.engine import KILLED, TimedOut
from images.errors import UserError


def container(tmp_path: Path, *command: str) -> ApptainerContainer:
    return ApptainerContainer("x", list(command), {"/judge": tmp_path})


def test_it_prints_two_streams_and_has_a_status(tmp_path: Path) -> None:
    found = container(tmp_path, "sh", "-c", "echo out; echo err >&2; printf last; exit 3")
    found.start()
    assert sorted((line.stream, line.text) for line in found.lines()) == [
        ("stderr", "err"),
        ("stdout", "last"),
        ("stdout", "out"),
    ]
    assert found.wait().code == 3


def test_files_are_there_before_it_starts(tmp_path: Path) -> None:
    found = container(tmp_path, "cat", str(tmp_path / "validate" / "x.py"))
    found.put({"validate/x.py": b"content\n"}, "/judge")
    found.start()
    assert [line.text for line in found.lines()] == ["content"]


def test_a_killed_one_has_the_status_that_docker_gives(tmp_path: Path) -> None:
    found = container(tmp_path, "sh", "-c", "kill -9 $$")
    found.start()
    assert list(found.lines()) == [] and found.wait().code == KILLED == 128 + signal.SIGKILL


def test_past_its_time_it_is_ended(tmp_path: Path) -> None:
    found = container(tmp_path, "sleep", "600")
    found.start()
    with pytest.raises(TimedOut):
        list(found.lines(timeout=0.1))
    assert found.wait().code == KILLED


def test_a_program_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be started"):
        container(tmp_path, str(tmp_path / "none")).start()
