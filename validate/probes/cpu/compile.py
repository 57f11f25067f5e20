"""C5: torch.compile generates a kernel for the CPU from an empty cache, and runs it.

The numbers are right even where torch.compile is switched off. The probe therefore also reads torch's counters, the
cache folder and the files that the process has mapped.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from validate.claims import Claim
from validate.contracts.cpu import CompileEvidence
from validate.harness.forked import in_fork

_ROWS, _COLUMNS = 37, 301
"""Odd, so that vectorised loops have a tail."""
_CONTROL_SCALE = 1.01
_SETTINGS = ("TORCHDYNAMO_", "TORCH_COMPILE_", "TORCHINDUCTOR_", "CC", "CXX")
_OWN = "TORCHINDUCTOR_CACHE_DIR"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, CompileEvidence]]:
    for claim in claims:
        with tempfile.TemporaryDirectory(prefix="inductor-") as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            importlib.import_module("torch")
            yield claim.subject, in_fork(partial(_compiled, Path(cache)))


def _compiled(cache: Path) -> CompileEvidence:
    torch = importlib.import_module("torch")
    _compile_once(importlib.import_module("torch._inductor.config"))
    metrics = importlib.import_module("torch._inductor.metrics")
    counters = importlib.import_module("torch._dynamo.utils").counters

    def function(value: Any, weight: Any) -> Any:
        return torch.softmax(torch.nn.functional.gelu(value * weight + 1.0), dim=-1)

    generator = torch.Generator().manual_seed(0)
    value = torch.randn(_ROWS, _COLUMNS, generator=generator)
    weight = torch.randn(_COLUMNS, generator=generator)
    wanted = function(value.double(), weight.double())
    found = torch.compile(function, fullgraph=True)(value, weight)
    libraries = sorted(str(file.relative_to(cache)) for file in cache.rglob("*.so"))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return {
        "torch": torch.__version__,
        "environment": {name: text for name, text in os.environ.items() if name.startswith(_SETTINGS) and name != _OWN},
        "captured": counters["stats"].get("calls_captured", 0),
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": sum(counters["graph_break"].values()),
        "generated": metrics.generated_kernel_count,
        "libraries": libraries,
        "mapped": [name for name in libraries if str(cache / name) in maps],
        "plain_error": _error(function(value, weight), wanted),
        "found_error": _error(found, wanted),
        "control_error": _error(found * _CONTROL_SCALE, wanted),
    }


def _compile_once(config: Any) -> None:
    """Leave out what inductor compiles beside the kernel: a program for each vector extension, to see that it compiles
    (up to 15 s of processor time; the kernel itself shows it, and fails where inductor would have gone without), and
    worker processes that import torch, for kernels of Triton.
    """
    config.compile_threads = 1
    if hasattr(config.cpp, "vec_isa_ok"):
        config.cpp.vec_isa_ok = True
    with contextlib.suppress(ModuleNotFoundError):  # torch 2.4 has no such module, and tries none of these
        importlib.import_module("torch._inductor.cpu_vec_isa").VecISA.check_build = _goes_without


def _goes_without(_extension: Any, _program: str) -> bool:
    """What inductor hears of bf16, VNNI and AMX, which it tries beside: 2.5 s each with torch 2.11. The kernel here has
    no use for them.
    """
    return False


def _error(found: Any, wanted: Any) -> float:
    """In the 2-norm, relative."""
    return float((found.double() - wanted).norm() / wanted.norm())
