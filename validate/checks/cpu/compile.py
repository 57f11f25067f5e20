"""compile: check that torch.compile generates a kernel for the CPU from an empty cache.

The numbers are right even where torch.compile is switched off. So the probe also reads torch's
counters, the cache folder and the files that are mapped into the process.
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
    PROVES_NOTHING,
    Finding,
    failed,
    forward_tolerance,
    is_beyond,
    is_within,
    joined,
    passed,
    scientific,
    suspects,
)
from validate.next_steps import BUILD_ANEW, if_image_sets

SETTINGS = Settings(starts_first=True, begins_with_torch=True)

_ROWS, _COLUMNS = range(33, 64, 2), range(257, 512, 2)
"""The seed chooses one of each. They are odd, so that vectorised loops have a tail."""
_CONTROL_SCALE = 1.01
"""The control is the result multiplied by this, which must be recognised as wrong."""
_SETTINGS = ("TORCHDYNAMO_", "TORCH_COMPILE_", "TORCHINDUCTOR_", "CC", "CXX")
"""The beginnings of the names of variables that change what torch.compile does."""
_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Names the cache folder. The suite sets it to an empty one for each probe (suite.py)."""


class CompileEvidence(TypedDict):
    """What torch.compile did with one function."""

    torch: str  # its version
    environment: Mapping[str, str]  # variables that change what torch.compile does
    captured: int  # operations that dynamo captured
    graphs: int  # that dynamo made of them
    breaks: int  # places where a graph had to end early
    generated: int  # kernels that inductor generated, as source code
    libraries: list[str]  # compiled kernels: `.so` files in the cache folder
    mapped: list[str]  # those of them that are mapped into the process
    plain_error: float  # of the eager function in float32, relative to float64
    found_error: float  # of the compiled function
    control_error: float  # of the compiled function's result, 1 % larger


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, CompileEvidence]]:
    """Yield each claimed subject and its evidence, measured in a fork."""
    for claim in claims:
        yield claim.subject, measure_in_fork(compile_function)


def compile_function() -> CompileEvidence:
    """Compile a function from an empty cache, and compare its result with float64.

    The evidence also has what shows that something was compiled and run: torch's counters, the
    libraries in the cache folder, and which of them are mapped into this process.
    """
    torch = importlib.import_module("torch")
    cache = Path(os.environ[_CACHE_VARIABLE])
    skip_other_compilations(importlib.import_module("torch._inductor.config"))
    metrics = importlib.import_module("torch._inductor.metrics")
    counters = importlib.import_module("torch._dynamo.utils").counters

    def function(value: Any, weight: Any) -> Any:
        """Return softmax(gelu(value * weight + 1)) over each row."""
        activated = torch.nn.functional.gelu(value * weight + 1.0)
        return torch.softmax(activated, dim=-1)

    value, weight = draw_inputs(torch)
    exact = function(value.double(), weight.double())
    eager_result = function(value, weight)
    compiled = torch.compile(function, fullgraph=True)
    result = compiled(value, weight)

    # The libraries that were compiled, by their paths below the cache folder.
    libraries = sorted(str(file.relative_to(cache)) for file in cache.rglob("*.so"))
    mapped_files = list_mapped_files(re.escape(str(cache)))
    mapped_libraries = [name for name in libraries if str(cache / name) in mapped_files]

    # Variables that change what torch compiles, for the report.
    environment = {}
    for name, text in os.environ.items():
        if name.startswith(_SETTINGS) and name != _CACHE_VARIABLE:
            environment[name] = text

    return {
        "torch": torch.__version__,
        "environment": environment,
        "captured": counters["stats"].get("calls_captured", 0),
        "graphs": counters["stats"].get("unique_graphs", 0),
        "breaks": sum(counters["graph_break"].values()),
        "generated": metrics.generated_kernel_count,
        "libraries": libraries,
        "mapped": mapped_libraries,
        # The error of float32 itself, from which the judge makes the tolerance.
        "plain_error": relative_error(eager_result, exact),
        "found_error": relative_error(result, exact),
        "control_error": relative_error(result * _CONTROL_SCALE, exact),
    }


def draw_inputs(torch: Any) -> tuple[Any, Any]:
    """Return a random matrix, and a random weight for each of its columns, both float32.

    The seed of the run also chooses their shape, so that an old kernel can't pass as new.
    """
    seed = seeding.seed_of_run()
    generator = torch.Generator().manual_seed(seed)
    rows = _ROWS[seed % len(_ROWS)]
    columns = _COLUMNS[seed % len(_COLUMNS)]
    value = torch.randn(rows, columns, generator=generator)
    weight = torch.randn(columns, generator=generator)
    return value, weight


def skip_other_compilations(config: Any) -> None:
    """Tell inductor to compile nothing but the kernel, which saves most of the time.

    `config` is torch._inductor.config.
    """
    # Compile in this process. Worker processes would each import torch, and are of use only for
    # kernels of Triton.
    config.compile_threads = 1

    # For each vector extension, inductor compiles a program to see whether the compiler knows it:
    # up to 15 s of processor time. This tells it that the compiler does. If that is wrong, the
    # kernel does not compile, and the check fails.
    if hasattr(config.cpp, "vec_isa_ok"):
        config.cpp.vec_isa_ok = True

    # Precompiling the headers for kernels to come takes 8 s with torch 2.9; the kernel alone, 4 s.
    if hasattr(config, "cpp_cache_precompile_headers"):
        config.cpp_cache_precompile_headers = False

    # Trying bf16, VNNI and AMX takes 2.5 s each with torch 2.11. The kernel does not use them.
    # torch 2.4 has no such module, and tries none of them.
    with contextlib.suppress(ModuleNotFoundError):
        isa = importlib.import_module("torch._inductor.cpu_vec_isa")
        isa.VecISA.check_build = lambda *_: False


def judge(_subject: str, _expect: object, evidence: CompileEvidence) -> Finding:
    """Pass if torch.compile compiled a function to a library of its own, and computed it rightly.

    A graph must have been captured, a kernel generated, compiled and loaded. All errors are
    relative to a result in float64. The control, a result that is 1 % too large, must not pass.
    """
    # The compiled result may be off by a small multiple of what plain torch is off by.
    tolerance = forward_tolerance(float(evidence["plain_error"]))
    problems = [*compilation_problems(evidence), *number_problems(evidence, tolerance)]
    if problems:
        return failed(joined(problems))

    made = f"{evidence['generated']} generated, {len(evidence['mapped'])} compiled library loaded"
    off = f"off by {evidence['found_error']:.1e} (at most {tolerance:.1e})"
    return passed(f"torch {evidence['torch']}: {made}, {off}")


def compilation_problems(evidence: CompileEvidence) -> Iterator[str]:
    """Yield a sentence about the first step that did not happen, and one about graph breaks.

    The steps: dynamo captures a graph, inductor generates a kernel from it, a compiler makes a
    library of that, and the process loads it. A graph break is a place of the function that
    dynamo could not capture.
    """
    if not evidence["graphs"] or not evidence["captured"]:
        yield f"torch.compile captured nothing{suspects(evidence)}: torch.compile is switched off"
    elif not evidence["generated"] or not evidence["libraries"]:
        yield "torch.compile generated no kernel"
    elif not evidence["mapped"]:
        yield f"torch.compile made {evidence['libraries'][0]}, and did not load it"
    if evidence["breaks"]:
        yield f"torch.compile left out parts of the function ({evidence['breaks']} graph breaks)"


def number_problems(evidence: CompileEvidence, tolerance: float) -> Iterator[str]:
    """Yield a problem if the result is off by more than the tolerance, or the control by less."""
    error, control_error = evidence["found_error"], evidence["control_error"]
    if not is_within(error, tolerance):
        allowed = f"at most {scientific(tolerance)} is allowed"
        yield f"the compiled function's result is off by {scientific(error)}, and {allowed}"
    if not is_beyond(control_error, tolerance):
        off = f"a result that is 1% too large on purpose is off by {scientific(control_error)}"
        yield f"{PROVES_NOTHING}{off}, and passes as right"


CLAIMS = {"compile/cpu": judge}
_VARIABLES = "a TORCHDYNAMO_*, TORCH_COMPILE_* or TORCHINDUCTOR_* variable"
NEXT_STEPS = {
    "compile/cpu": {
        "No working C++ compiler": "take a variable CC or CXX that names another compiler out of "
        "your Dockerfile, install g++ in it (`apt-get install g++`), and build again",
        "": f"{if_image_sets(_VARIABLES)}; if not, {BUILD_ANEW}",
    }
}
