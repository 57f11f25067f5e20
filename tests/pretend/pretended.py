"""Another machine, for the tests: the engine says another size of memory and another count of cores than it has.

    nox -s tests -- --pretend-memory 25276063745 --pretend-cores 3

What the Docker SDK hands out as the engine's answer is changed, in pytest's process and in every Python that tests
start. What the product decides by these numbers is then decided as on such a machine; the containers run on this one.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

MEMORY, CORES = "TRUETAG_TESTS_MEMORY", "TRUETAG_TESTS_CORES"
_MODULE = "docker.api.daemon"
_ANSWERS = {MEMORY: "MemTotal", CORES: "NCPU"}


def start(memory: int | None, cores: int | None) -> None:
    """Pretend, here and in what is started from here."""
    wanted = {MEMORY: memory, CORES: cores}
    os.environ.update({name: str(value) for name, value in wanted.items() if value is not None})
    if any(name in os.environ for name in wanted):
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
        install()


def install() -> None:
    """Change the SDK once it is imported: most of what tests start never imports it."""
    if _MODULE in sys.modules:
        _change(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


def _change(module: ModuleType) -> None:
    asked: Callable[[Any], dict[str, Any]] = module.DaemonApiMixin.info

    def info(self: Any) -> dict[str, Any]:
        return {**asked(self), **{key: int(os.environ[name]) for name, key in _ANSWERS.items() if name in os.environ}}

    module.DaemonApiMixin.info = info  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec and spec.loader:
            run = spec.loader.exec_module

            def then_change(module: ModuleType) -> None:
                run(module)
                _change(module)

            spec.loader.exec_module = then_change  # type: ignore[method-assign]
        return spec
