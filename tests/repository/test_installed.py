"""The installed package: `truetag VERB` in a folder that has only a matrix.yaml and its locks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.config.paths import RESOURCES as ROOT
from images.fleet import ray
from tests.support.commands import call
from tests.support.installed import install, truetag

ROWS = ("cu126-torch25", "cu124-torch25", "cu126-torch27")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a user: a matrix of three rows, and the locks of two."""
    folder = tmp_path_factory.mktemp("workspace")
    matrix = yaml.safe_load((ROOT / "matrix.yaml").read_text())
    torches = {"2.5", "2.7"}
    matrix |= {
        "images": [{"name": name} for name in ROWS],
        "stacks": {torch: pins for torch, pins in matrix["stacks"].items() if torch in torches},
        "profiles": {},
        "aliases": {"latest": ROWS[0]},
        "nightly": {"track": [ROWS[0]]},
        "exclude": [],
    }
    (folder / "matrix.yaml").write_text(yaml.safe_dump(matrix, sort_keys=False))
    for name in ROWS[:2]:
        shutil.copytree(ROOT / "locks" / name, folder / "locks" / name)
    return folder


def test_the_wheel_holds_what_runs_and_nothing_else(installed: Path) -> None:
    top = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert top - {".lock"} == {"bin", "truetag"}, "no name in site-packages but ours"
    folder = installed / "truetag"
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {
        "__init__.py",
        "__main__.py",
        "images",
        "validate",
    }
    for path in (
        "images/templates/Dockerfile.j2",
        "images/data/facts.yaml",
        "validate/hints.yaml",
        "images/examples/tiny.py",
    ):
        assert (folder / path).is_file()
    assert not list(installed.rglob("ruff.toml"))


def test_the_console_script_and_the_module_start_the_same(installed: Path, workspace: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    commands = ([str(installed / "bin" / "truetag")], [sys.executable, "-m", "truetag"])
    how: dict[str, Any] = {
        "cwd": workspace,
        "env": environment,
        "capture_output": True,
        "text": True,
        "check": True,
    }
    outputs = [subprocess.run([*command, "--version"], **how) for command in commands]
    assert outputs[0].stdout == outputs[1].stdout and outputs[0].stdout.startswith("truetag ")


def test_workers_of_slurm_and_ray_find_the_code(installed: Path, tmp_path: Path) -> None:
    """Slurm's jobs get the folder that has `images` as PYTHONPATH, Ray's a copy of what lies there."""
    program = "from images.config import paths; print(paths.RESOURCES)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [
        sys.executable,
        "-c",
        f"import truetag, sys; sys.path.insert(0, truetag.__path__[0]); {program}",
    ]
    done = subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, check=True
    )
    resources = Path(done.stdout.strip())
    assert resources == installed / "truetag"
    for name in ray.CODE:
        if (resources / name).is_dir():
            shutil.copytree(resources / name, tmp_path / name)
    for folder in (resources, tmp_path):
        imported = [
            sys.executable,
            "-c",
            "import images.fleet.worker, validate.suite as one; print(one.__file__)",
        ]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        found = subprocess.run(
            imported, cwd="/", env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.startswith(f"{folder}/validate/")


def test_plan_in_a_folder_with_a_matrix_of_its_own(installed: Path, workspace: Path) -> None:
    done = truetag(installed, workspace, "plan", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: (row["status"], row["lock"]) for row in json.loads(done.stdout)["images"]}
    assert rows == {
        "cu126-torch25": ("accepted", "present"),
        "cu124-torch25": ("accepted", "present"),
        "cu126-torch27": ("accepted", "missing"),
    }


def test_render_gives_the_same_context_as_the_checkout(
    installed: Path, workspace: Path, tmp_path: Path
) -> None:
    done = truetag(installed, workspace, "render", ROWS[0])
    assert done.returncode == 0, done.stderr
    ended = call(
        "render", ROWS[0], "--matrix", str(workspace / "matrix.yaml"), "--out", str(tmp_path)
    )
    assert ended.returncode == 0, ended.stderr
    ours, theirs = (
        _content(folder / ROWS[0] / "context") for folder in (workspace / "out", tmp_path)
    )
    assert ours == theirs and "Dockerfile" in ours and "suite/validate/suite.py" in ours


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_messages_name_the_installed_command(
    installed: Path, workspace: Path, tmp_path: Path
) -> None:
    done = truetag(installed, workspace, "render", ROWS[2])
    assert done.returncode == 2
    assert "`truetag lock cu126-torch27` makes it" in " ".join(done.stderr.split())
    done = truetag(installed, tmp_path, "plan")
    assert (
        done.returncode == 2
        and "matrix.yaml: is missing" in done.stderr
        and "--matrix" in done.stderr
    )
    assert "git checkout" not in done.stderr, "here is nothing to check out"
