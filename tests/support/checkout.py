"""The checkout that is tested."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def script(file: Path) -> ModuleType:
    """A program that is no module of ours, under its file's name."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


def copied(folder: Path) -> Path:
    """What a fleet's worker needs of it, for a test that changes it. Bytecode comes along: it is valid by its source's
    time, which stays.
    """
    for name in ("images", "validate", "templates", "examples", "locks"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*")
        )  # half written
    for name in ("matrix.yaml", "noxfile.py"):
        shutil.copy(ROOT / name, folder)
    return folder
