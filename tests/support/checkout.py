"""The checkout that is tested."""

import importlib.util
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
