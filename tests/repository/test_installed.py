"""The installed package: `truetag VERB` in a folder that has only a matrix.yaml and its locks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
    """Return a user's folder: a matrix of three rows, and the locks of two."""
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
        "waived": {},
    }
    # A layer may name only packages that a stack gives a version.
    pinned = {*matrix["common"]}.union(*matrix["stacks"].values())
    for layer, names in matrix["layers"].items():
        matrix["layers"][layer] = [name for name in names if name in pinned]
    (folder / "matrix.yaml").write_text(yaml.safe_dump(matrix, sort_keys=False))
    for name in ROWS[:2]:
        shutil.copytree(ROOT / "locks" / name, folder / "locks" / name)
    return folder


def test_the_wheel_holds_what_runs_and_nothing_else(installed: Path) -> None:
    package = installed / "truetag"
    needed_files = (
        "images/templates/Dockerfile.j2",
        "images/data/facts.yaml",
        "validate/hints.yaml",
        "images/examples/tiny.py",
    )

    top_names = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    names_in_package = {path.name for path in package.iterdir()} - {"__pycache__"}

    assert top_names - {".lock"} == {"bin", "truetag"}, "no name in site-packages but ours"
    assert names_in_package == {"__init__.py", "__main__.py", "images", "validate"}
    assert not [path for path in needed_files if not (package / path).is_file()]
    assert not list(installed.rglob("ruff.toml"))


def test_the_console_script_and_the_module_start_the_same(installed: Path, workspace: Path) -> None:
    script = [str(installed / "bin" / "truetag")]
    module = [sys.executable, "-m", "truetag"]

    version_by_script = output_of([*script, "--version"], workspace, python_path=installed)
    version_by_module = output_of([*module, "--version"], workspace, python_path=installed)

    assert version_by_script == version_by_module
    assert version_by_script.startswith("truetag ")


def output_of(command: list[str], folder: Path | str, *, python_path: Path) -> str:
    """Return what a command prints that runs in `folder` with this PYTHONPATH."""
    environ = {**os.environ, "PYTHONPATH": str(python_path)}
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=True
    ).stdout


def test_workers_of_slurm_and_ray_find_the_code(installed: Path, tmp_path: Path) -> None:
    """Slurm's jobs get the folder with `images` as PYTHONPATH, Ray's a copy of what lies there."""
    print_resources = (
        "import truetag, sys; sys.path.insert(0, truetag.__path__[0]); "
        "from images.config import paths; print(paths.RESOURCES)"
    )
    resources = Path(
        output_of([sys.executable, "-c", print_resources], "/", python_path=installed).strip()
    )
    assert resources == installed / "truetag"
    for name in ray.CODE:
        if (resources / name).is_dir():
            shutil.copytree(resources / name, tmp_path / name)

    print_suite = "import images.fleet.worker, validate.suite; print(validate.suite.__file__)"
    for folder in (resources, tmp_path):
        suite = output_of([sys.executable, "-c", print_suite], "/", python_path=folder)
        assert suite.startswith(f"{folder}/validate/")


def test_plan_in_a_folder_with_a_matrix_of_its_own(installed: Path, workspace: Path) -> None:
    called = truetag(installed, workspace, "plan", "--json")

    assert called.returncode == 0, called.stderr
    images = json.loads(called.stdout)["images"]
    assert {image["name"]: (image["status"], image["lock"]) for image in images} == {
        "cu126-torch25": ("accepted", "present"),
        "cu124-torch25": ("accepted", "present"),
        "cu126-torch27": ("accepted", "missing"),
    }


def test_render_gives_the_same_context_as_the_checkout(
    installed: Path, workspace: Path, tmp_path: Path
) -> None:
    name = ROWS[0]
    matrix = str(workspace / "matrix.yaml")

    by_package = truetag(installed, workspace, "render", name)
    by_checkout = call("render", name, "--matrix", matrix, "--out", str(tmp_path))

    assert by_package.returncode == 0, by_package.stderr
    assert by_checkout.returncode == 0, by_checkout.stderr
    context = files_in(workspace / "out" / name / "context")
    assert context == files_in(tmp_path / name / "context")
    assert "Dockerfile" in context and "suite/validate/suite.py" in context


def files_in(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder: path -> content."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[str(path.relative_to(folder))] = path.read_bytes()
    return files


def test_a_first_matrix_is_written_and_planned_in_an_empty_folder(
    installed: Path, tmp_path: Path
) -> None:
    without_matrix = truetag(installed, tmp_path, "plan")
    written = truetag(installed, tmp_path, "init")
    planned = truetag(installed, tmp_path, "plan")

    assert "next: `truetag init` writes one here" in " ".join(without_matrix.stderr.split())
    assert "next: `truetag plan`" in " ".join(written.stderr.split())
    assert planned.returncode == 0, planned.stderr
    rows = [line for line in planned.stdout.splitlines() if " no lock " in line]
    assert len(rows) == 2
    assert "`truetag lock NAME` makes it" in " ".join(planned.stdout.split())


def test_messages_name_the_installed_command(
    installed: Path, workspace: Path, tmp_path: Path
) -> None:
    without_lock = truetag(installed, workspace, "render", ROWS[2])
    without_matrix = truetag(installed, tmp_path, "plan")

    assert without_lock.returncode == 2
    assert "`truetag lock cu126-torch27` makes the lock" in " ".join(without_lock.stderr.split())
    assert without_matrix.returncode == 2
    assert "matrix.yaml: is missing" in without_matrix.stderr
    assert "--matrix" in without_matrix.stderr
    assert "git checkout" not in without_matrix.stderr, "here is nothing to check out"
