"""The package as `pip install` leaves it, in a folder of its own, and its command."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from images.config.paths import RESOURCES as ROOT
from images.host import cache


def install(factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, beside nothing of the checkout: one for all workers of a run."""
    ours = factory.getbasetemp()
    folder = (ours.parent if "PYTEST_XDIST_WORKER" in os.environ else ours) / "installed"
    with cache.hold_lock(folder.with_suffix(".lock")):
        if (folder / "site").is_dir():
            return folder / "site"
        sources = folder / "sources"
        for name in ("images", "validate", "templates", "examples", "tools/truetag"):
            shutil.copytree(
                ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, sources / name)
        command = [
            find_uv_bin(),
            "pip",
            "install",
            "-q",
            "--offline",
            "--no-deps",
            "--no-build-isolation",
        ]
        command += ["--python", sys.executable, "--target", str(folder / "site"), str(sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(sources)
    return folder / "site"


def truetag(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the console script does, without the checkout on the path."""
    own = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "truetag", *arguments]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
