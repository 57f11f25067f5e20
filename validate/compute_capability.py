"""Which device code runs on which GPU. One copy of the rule for planner, doctor, site and suite.

(A second one is in templates/wheel/nvcc.py, a program of one file that runs where this module is
not.)

Code names its GPU by compute capability: `sm_86` is machine code (a cubin) for 8.6, `compute_90` is
PTX for 9.0. Each target runs on an unbroken range of GPUs (CUDA C++ Programming Guide: "Binary
Compatibility", "PTX Compatibility", "Family-Specific Features"):

    sm_86         8.6 to 8.9    the same major, its own minor or a higher one: also on an sm_89
    compute_90    9.0 and up    the driver compiles PTX at the first run, also for newer GPUs
    sm_90a        9.0 only      architecture-specific, as machine code and as PTX
    sm_100f       10.0 to 10.9  family-specific, as machine code and as PTX

Standard library only: the planner on the host, the pruner in a build step and the suite in the
container share this file. If you change it, `nox -s lock` must prune the wheels again
(images/context/pruner.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal

Capability = tuple[int, int]
"""(9, 0) for an sm_90."""
Fit = Literal["cubin", "ptx", "no"]
"""How a GPU runs a binary: its machine code; its PTX, which the driver compiles; not at all."""

ON_ARM_ALONE: frozenset[Capability] = frozenset(
    ((5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0), (12, 1))
)
"""GPUs of boards with ARM processors: Jetson TX1 to Thor (10.1 is Thor's number before CUDA 13),
DGX Spark (NVIDIA, "CUDA GPU Compute Capability"). Code for their desktop relatives does not run
there either (CUDA C++ Programming Guide, "Binary Compatibility": none between desktop and Tegra).
Images are for x86-64, so the planner refuses these GPUs."""

_TARGET = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d{1,2})(?P<minor>\d)(?P<variant>[af]?)")


@cache
def runs_on(code: Capability, gpu: Capability, *, ptx: bool = False, variant: str = "") -> bool:
    """Return whether code for one capability runs on a GPU of another.

    `ptx`: the code is PTX, not machine code. `variant`: `a` for architecture-specific code, `f` for
    family-specific code, empty for neither.
    """
    if variant == "a":
        return gpu == code
    # PTX of no family is compiled for every newer GPU. All else stays within its major.
    runs_on_newer_majors = ptx and not variant
    is_same_major = gpu[0] == code[0]
    return code <= gpu and (runs_on_newer_majors or is_same_major)


def target_runs_on(target: str, gpu: Capability) -> bool:
    """Return whether code runs on a GPU, for a target as compilers write it.

    `target`: `sm_86`, `sm_90a` or `compute_90`. False for anything that is no target.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        return False
    code = (int(match["major"]), int(match["minor"]))
    return runs_on(code, gpu, ptx=match["kind"] == "compute", variant=match["variant"])


def fit(cubins: Iterable[Capability], ptx: Iterable[Capability], gpu: Capability) -> Fit:
    """Return how a GPU runs a binary with machine code and PTX for these capabilities.

    The driver takes machine code before PTX.
    """
    if any(runs_on(code, gpu) for code in cubins):
        return "cubin"
    if any(runs_on(code, gpu, ptx=True) for code in ptx):
        return "ptx"
    return "no"
