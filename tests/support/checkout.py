"""The checkout that is tested."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def script(file: Path) -> ModuleType:
    """Import a program that lies outside of our packages, and return it as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


def copied(folder: Path) -> Path:
    """Copy what a fleet's worker needs of the checkout, for a test that changes it.

    Bytecode comes along. It stays valid, because its sources keep their times.
    """
    half_written = shutil.ignore_patterns("*.pyc.*")
    for name in ("images", "validate", "templates", "examples", "locks"):
        shutil.copytree(ROOT / name, folder / name, ignore=half_written)
    for name in ("matrix.yaml", "noxfile.py"):
        shutil.copy(ROOT / name, folder)
    return folder
