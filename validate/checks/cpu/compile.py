"""compile: torch.compile generates a kernel for the CPU from an empty cache, and runs it.

The numbers are right even where torch.compile is switched off. The probe therefore also reads torch's counters, the
cache folder and the files that the process has mapped.
"""

import contextlib
import importlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.harness import seeding
from validate.harness.forked import list_mapped_files, measure_in_fork
from validate.harness.reference import relative_error
from validate.judging import (
    Finding,
    failed,
    forward,
    is_beyond,
    is_within,
    joined,
    passed,
    scientific,
    suspects,
)

SETTINGS = Settings(starts_first=True, begins_with_torch=True)

_ROWS, _COLUMNS = range(33, 64, 2), range(257, 512, 2)
"""One of each is drawn. Odd, so that vectorised loops have a tail."""
_CONTROL_SCALE = 1.01
_SETTINGS = ("TORCHDYNAMO_", "TORCH_COMPILE_", "TORCHINDUCTOR_", "CC", "CXX")
_OWN = "TORCHINDUCTOR_CACHE_DIR"
"""Each probe has an empty one (suite.py)."""


class CompileEvidence(TypedDict):
    """Counters of dynamo and inductor, libraries in the cache and those that the process has, and relative errors."""

    torch: str
    environment: Mapping[str, str]
    captured: int
    graphs: int
    breaks: int
    generated: int
    libraries: list[str]
    mapped: list[str]
    plain_error: float
    found_error: float
    control_error: float


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, CompileEvidence]]:
    """Yield the evidence of each claim."""
    for claim in claims:
        yield claim.subject, measure_in_fork(_compiled)


def _compiled() -> CompileEvidence:
    """Compile a function from an empty cache, and compare its results with eager ones in float64."""
    torch = importlib.import_module("torch")
    cache = Path(os.environ[_OWN])
    _compile_once(importlib.import_module("torch._inductor.config"))
    metrics = importlib.import_module("torch._inductor.metrics")
    counters = importlib.import_module("torch._dynamo.utils").counters

    def function(value: Any, weight: Any) -> Any:
        return torch.softmax(torch.nn.functional.gelu(value * weight + 1.0), dim=-1)

    seed = seeding.seed_of_run()
    generator, columns = torch.Generator().manual_seed(seed), _COLUMNS[seed % len(_COLUMNS)]
    value = torch.randn(_ROWS[seed % len(_ROWS)], columns, generator=generator)
    weight = torch.randn(columns, generator=generator)
    exact = function(value.double(), weight.double())
    result = torch.compile(function, fullgraph=True)(value, weight)
    libraries = sorted(str(file.relative_to(cache)) for file in cache.rglob("*.so"))
    loaded = list_mapped_files(re.escape(str(cache)))

    return {
        "torch": torch.__version__,
        "environment": {
            name: text
            for name, text in os.environ.items()
            if name.startswith(_SETTINGS) and name != _OWN
        },
        "captured": counters["stats"].get("calls_captured", 0),
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": sum(counters["graph_break"].values()),
        "generated": metrics.generated_kernel_count,
        "libraries": libraries,
        "mapped": [name for name in libraries if str(cache / name) in loaded],
        "plain_error": relative_error(function(value, weight), exact),
        "found_error": relative_error(result, exact),
        "control_error": relative_error(result * _CONTROL_SCALE, exact),
    }


def _compile_once(config: Any) -> None:
    """Leave out what inductor compiles beside the kernel: a program for each vector extension, to see that it compiles
    (up to 15 s of processor time; the kernel itself shows it, and fails where inductor would have gone without), and
    worker processes that import torch, for kernels of Triton. Its headers are precompiled for kernels to come (8 s with
    torch 2.9, where the kernel with all of them takes 4). bf16, VNNI and AMX are tried beside (2.5 s each with torch
    2.11), and the kernel here has no use for them.
    """
    config.compile_threads = 1
    for one, name, value in (
        (config.cpp, "vec_isa_ok", True),
        (config, "cpp_cache_precompile_headers", False),
    ):
        if hasattr(one, name):
            setattr(one, name, value)
    with contextlib.suppress(
        ModuleNotFoundError
    ):  # torch 2.4 has no such module, and tries none of these
        importlib.import_module("torch._inductor.cpu_vec_isa").VecISA.check_build = lambda *_: False


def judge(_subject: str, _expect: object, evidence: CompileEvidence) -> Finding:
    """Judge that a graph was captured, a kernel generated and loaded, and that its numbers are right."""
    problems = []
    if not evidence["graphs"] or not evidence["captured"]:
        problems.append(f"torch.compile captured nothing{suspects(evidence)}: it is switched off")
    elif not evidence["generated"] or not evidence["libraries"]:
        problems.append("torch.compile generated no kernel")
    elif not evidence["mapped"]:
        problems.append(f"{evidence['libraries'][0]} was compiled and is not loaded")
    if evidence["breaks"]:
        problems.append(f"{evidence['breaks']} graph breaks")
    tolerance = forward(float(evidence["plain_error"]))
    if not is_within(evidence["found_error"], tolerance):
        problems.append(
            f"its numbers are off by {scientific(evidence['found_error'])}, at most {scientific(tolerance)}"
        )
    if not is_beyond(evidence["control_error"], tolerance):
        problems.append(
            f"control: 1% more is off by {scientific(evidence['control_error'])}, within what is allowed"
        )
    if problems:
        return failed(joined(problems))
    made = f"{evidence['generated']} generated, {len(evidence['mapped'])} compiled library loaded"
    return passed(
        f"torch {evidence['torch']}: {made}, off by {evidence['found_error']:.1e} (at most {tolerance:.1e})"
    )


CLAIMS = {"compile/cpu": judge}
