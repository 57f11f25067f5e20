"""The files of the pruner, which takes code for other GPUs out of an arch image. Pure.

A build step runs it. It reads device code with the modules of the suite.
"""

import json

from images.config.paths import SUITE, TEMPLATES
from images.planning import expectations
from images.planning.image import Pruning
from validate.binaries import fatbin

MODULES = (
    "__init__.py",
    "binaries/__init__.py",
    "binaries/elf.py",
    "binaries/fatbin.py",
    "compute_capability.py",
    "binaries/kernel_states.py",
)
"""The modules of validate/ with which the pruner reads device code."""


def files(pruning: Pruning) -> dict[str, bytes]:
    """Return the pruner's program and its options for an image: path in the context -> content.

    The program is a folder that Python runs: __main__.py, and the modules of the suite with which
    it reads device code.
    """
    # If several libraries match a pattern, only those under `keep` stay.
    alternatives = []
    for pattern, remaining in pruning.alternatives.items():
        alternatives.append({"files": pattern, "keep": remaining})
    # `by_design`: kernels that their library leaves empty on purpose.
    options = {
        # 90 for sm_90.
        "arch": int(f"{pruning.arch.major}{pruning.arch.minor}"),
        "nvidia": pruning.nvidia,
        "alternatives": alternatives,
        "by_design": expectations.KERNELS_BY_DESIGN,
    }
    timestamps = TEMPLATES / "scripts" / "normalise_timestamps.py"
    program = {
        "pruner/options.json": json.dumps(options, indent=1).encode(),
        "pruner/normalise_timestamps.py": timestamps.read_bytes(),
    }
    for name in ("__main__.py", "pruning.py"):
        program[f"pruner/{name}"] = (TEMPLATES / "pruner" / name).read_bytes()
    for name in MODULES:
        program[f"pruner/validate/{name}"] = (SUITE / name).read_bytes()
    return program


def reads(pruning: Pruning | None, distribution: str) -> bool:
    """Return whether the pruner looks at the libraries of a distribution (canonical name)."""
    if pruning is None:
        return False
    return pruning.nvidia or not fatbin.is_nvidia_library(distribution, "")
