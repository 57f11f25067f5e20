"""The command line works with the lowest versions that pyproject.toml allows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.support.checkout import ROOT


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the lowest version of each direct dependency, from the index."""
    folder = tmp_path_factory.mktemp("minimums")
    run = {
        "cwd": ROOT,
        "env": {name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
    }
    lowest, venv = folder / "lowest.txt", folder / "venv"
    compiled = [
        "pip",
        "compile",
        "--quiet",
        "--resolution",
        "lowest-direct",
        "--python-version",
        "3.11",
    ]
    for command in (
        [*compiled, "--output-file", str(lowest), "pyproject.toml"],
        ["venv", "--quiet", "--python", sys.executable, str(venv)],
        ["pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), "-r", str(lowest)],
    ):
        done = subprocess.run(
            [find_uv_bin(), *command], capture_output=True, text=True, check=False, **run
        )  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
    return venv / "bin" / "python"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["plan"], 0, "cu126-torch25"),
        (["plan", "--nope"], 2, "No such option"),
        (["render", "cu126-torch25"], 0, "docker build -t cu126-torch25"),
        (["publish", "--help"], 0, "--to"),
        (["verify", "x/y:z", "--unsigned", "--gate", "nope"], 2, "nope"),
        (["site", "--out", "pages"], 0, ""),
    ],
)
def test_the_command_line_works(
    python: Path, tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    matrix = ["--matrix", str(ROOT / "matrix.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    out = ["--out", str(tmp_path)] if arguments[0] == "render" else []
    command = [str(python), "-m", "images", *arguments, *out, *matrix]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert told in " ".join((done.stdout + done.stderr).split())
