"""Install our package into a folder of its own, and run its command."""

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
    """Install our wheel, and return the folder. Nothing of the checkout lies beside it.

    All workers of a test run share it.
    """
    own_folder = factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    folder = (own_folder.parent if is_worker else own_folder) / "installed"
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
        options = ["-q", "--offline", "--no-deps", "--no-build-isolation"]
        options += ["--python", sys.executable, "--target", str(folder / "site")]
        command = [find_uv_bin(), "pip", "install", *options, str(sources)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        shutil.rmtree(sources)
    return folder / "site"


def truetag(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command in `folder`, without the checkout on Python's path."""
    environ = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "truetag", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
