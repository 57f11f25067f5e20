"""Kernels of our own that Triton compiles on this GPU, from a cold cache."""

import importlib
import os
from pathlib import Path
from typing import Any

from validate.kernels import Case, Kernel, Observed, SeededRandom
from validate.kernels._names import OUR_MIX, OUR_SOFTMAX

_ROWS, _COLUMNS = 67, 531
_CUBINS = ["validate_mix.cubin", "validate_softmax.cubin"]
"""What Triton compiles the kernels of the cases to."""


def _mixed(left: Any, right: Any) -> Any:
    """Compute left * 3 + (left ^ right) by Triton, in 32 bits: every bit counts."""
    kernels = importlib.import_module("validate.kernels._triton_kernels")
    result = importlib.import_module("torch").empty_like(left)
    count = left.numel()
    blocks = (count + 255) // 256
    kernels.validate_mix[(blocks,)](left, right, result, count, BLOCK=256)
    return result


def _mixed_plainly(left: Any, right: Any) -> Any:
    """Compute left * 3 + (left ^ right) in plain torch, wrapped around as int32 does.

    For int64 inputs, which the exact reference is computed from, the result is int64, else int32.
    Its numbers are the same.
    """
    torch = importlib.import_module("torch")
    # Compute in 64 bits, where nothing overflows.
    left_wide, right_wide = left.long(), right.long()
    wide = left_wide * 3 + (left_wide ^ right_wide)
    # Bring the result into the range of int32, from -2**31 to 2**31 - 1.
    wrapped = (wide + 2**31).remainder(2**32).sub(2**31)
    return wrapped if left.dtype == torch.int64 else wrapped.to(torch.int32)


def _softmax(scores: Any) -> Any:
    """Compute the softmax of each row by Triton."""
    kernels = importlib.import_module("validate.kernels._triton_kernels")
    result = importlib.import_module("torch").empty_like(scores)
    kernels.validate_softmax[(scores.shape[0],)](scores, result, scores.shape[1], BLOCK=1024)
    return result


def _integers(rng: SeededRandom) -> Case:
    """Return a case of whole numbers, which must be exact."""
    inputs = {
        "left": rng.integers(-(2**31), 2**31, _ROWS, _COLUMNS, dtype="int32"),
        "right": rng.integers(-(2**31), 2**31, _ROWS, _COLUMNS, dtype="int32"),
    }
    return Case(dtype="int32", inputs=inputs, run=_mixed, plain=_mixed_plainly)


def _floats(rng: SeededRandom) -> Case:
    """Return a softmax in float32."""
    inputs = {"scores": rng.normal(_ROWS, _COLUMNS)}
    return Case(
        dtype="float32", inputs=inputs, run=_softmax, plain=lambda scores: scores.softmax(-1)
    )


def _observe(rng: SeededRandom) -> Observed:
    """Return two facts that show whether Triton compiled the kernels of the cases here.

    "compiled here" lists the files with machine code (`.cubin`) that it left in its cache. The
    cache was empty when this process began, so what is in it now was compiled here. The type of
    a kernel shows that it was compiled at all: with TRITON_INTERPRET=1 it is an
    InterpretedFunction, which runs as Python.
    """
    kernels = importlib.import_module("validate.kernels._triton_kernels")
    cache = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    cubins = {path.name for path in cache.rglob("*.cubin")} if cache.is_dir() else set()
    compiled = [name for name in _CUBINS if name in cubins]
    return {
        "facts": {
            "kernel type": type(kernels.validate_mix).__name__,
            "compiled here": compiled,
        }
    }


KERNEL = Kernel(
    check="triton",
    probe="gpu.triton",
    package="triton",
    statement=(
        "Triton compiles for this GPU from a cold cache: whole numbers exact, float32 within 1e-6"
    ),
    cases={"int32": _integers, "float32": _floats},
    tolerance={"int32": 0.0, "float32": 1e-6},
    observe=_observe,
    facts={
        "kernel type": "JITFunction",
        "compiled here": _CUBINS,
    },
    expected_kernels={"integers": OUR_MIX, "softmax": OUR_SOFTMAX},
    libraries=(r"triton/_C/libtriton\.so",),
)
