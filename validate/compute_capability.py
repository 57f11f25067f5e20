"""Which device code runs on which GPU. Planner, doctor, site, pruner and suite ask here. One copy of the rule is in
templates/wheel/nvcc.py, a program of one file that runs where this module is not.

Code names its GPU by compute capability: `sm_86` is machine code (a cubin) for 8.6, `compute_90` is PTX for 9.0. Each
target runs on an unbroken range of GPUs (CUDA C++ Programming Guide: "Binary Compatibility", "PTX Compatibility",
"Family-Specific Features"):

    sm_86         8.6 to 8.9    the same major, its own minor or a higher one: code for sm_86 runs on an sm_89
    compute_90    9.0 and up    the driver compiles PTX at the first run, for this GPU and every newer one
    sm_90a        9.0 alone     architecture-specific, as machine code and as PTX
    sm_100f       10.0 to 10.9  family-specific, as machine code and as PTX

Standard library only: the suite in the container, the pruner in a build and the planner on the host share this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal

Capability = tuple[int, int]
Fit = Literal["cubin", "ptx", "no"]

ON_ARM_ALONE: frozenset[Capability] = frozenset(((5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0), (12, 1)))
"""GPUs of boards with ARM processors: Jetson TX1 to Thor (10.1 is Thor's number before CUDA 13), DGX Spark (NVIDIA,
"CUDA GPU Compute Capability"). Code for their desktop relatives does not run there either (CUDA C++ Programming Guide,
"Binary Compatibility": none between desktop and Tegra). Images are for x86-64, so the planner refuses these GPUs."""

_TARGET = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d{1,2})(?P<minor>\d)(?P<variant>[af]?)")


@cache
def runs_on(code: Capability, gpu: Capability, *, ptx: bool = False, variant: str = "") -> bool:
    """Whether code for one capability runs on a GPU of another, PTX by being compiled at run time. `variant`: `a`
    architecture-specific, `f` family-specific."""
    if variant == "a":
        return gpu == code
    return code <= gpu and ((ptx and not variant) or gpu[0] == code[0])


def target_runs_on(target: str, gpu: Capability) -> bool:
    """The same for a target as compilers write it: `sm_86`, `sm_90a`, `compute_90`. What is no target runs nowhere."""
    found = _TARGET.fullmatch(target)
    if found is None:
        return False
    code = (int(found["major"]), int(found["minor"]))
    return runs_on(code, gpu, ptx=found["kind"] == "compute", variant=found["variant"])


def fit(cubins: Iterable[Capability], ptx: Iterable[Capability], gpu: Capability) -> Fit:
    """How a GPU runs a binary that holds machine code and PTX for these capabilities. Machine code comes first."""
    if any(runs_on(code, gpu) for code in cubins):
        return "cubin"
    return "ptx" if any(runs_on(code, gpu, ptx=True) for code in ptx) else "no"
