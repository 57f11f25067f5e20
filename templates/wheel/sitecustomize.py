"""Lets a setup.py that asks which GPU is there go on without one: it is told the newest architecture asked for.

ColossalAI's asks `torch.cuda.get_device_capability()`, which raises where there is no driver. What it then passes to
nvcc is the shim's business. Python imports this module at its start where it lies on the path.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any


class _Finder:
    """Finds torch.cuda once, as everybody else would, and changes one answer of it."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(cls)
        spec: Any = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            module.get_device_capability = _newest

        spec.loader.exec_module = exec_module
        return spec


def _newest(_device: object = None) -> tuple[int, int]:
    return divmod(max(map(int, os.environ["TRUETAG_ARCHS"].split())), 10)


if os.environ.get("TRUETAG_ARCHS"):
    sys.meta_path.insert(0, _Finder)
