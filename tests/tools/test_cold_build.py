"""The measurement of cold builds loses nothing of what it measured."""

from pathlib import Path

import pytest

from images.errors import UserError
from tests.support import commands
from tools.cold_build import Run, show_and_write

RUNS = [Run(side="ours", seconds=300.0, busy_before=1)]


@pytest.mark.parametrize(
    ("file", "cause"),
    [("nosuch/cold.json", "there is no folder"), ("", "this is a folder")],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    file: str, cause: str, tmp_path: Path
) -> None:
    path = tmp_path / file

    finished = commands.tool("cold_build", "--json", str(path), "--engine", "tcp://127.0.0.1:9")

    assert finished.returncode == 2
    assert f"{path}: {cause}" in finished.stderr
    assert "next: name a file" in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--repeat", "0"), "greater than or equal to 1"),
        (("--nonsuch",), "No such option: --nonsuch"),
        (("a", "b"), "unexpected extra argument"),
        (("--engine", "a", "--engine", "b"), "was given twice"),
        (("",), "the value is empty"),
    ],
)
def test_a_wrong_argument_gets_place_cause_and_next_step(
    arguments: tuple[str, ...], cause: str
) -> None:
    finished = commands.tool("cold_build", *arguments)

    assert finished.returncode == 2
    message = " ".join(finished.stderr.split())
    assert message.startswith("error ")
    assert cause in message
    assert "next: " in message


def test_the_table_is_shown_although_its_file_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UserError, match="/dev/full"):
        show_and_write(RUNS, {"runs": RUNS}, Path("/dev/full"))

    assert "| ours | 300.0 s |" in capsys.readouterr().out
