"""triton: Triton compiles on this GPU, from a cold cache, and runs what it compiled."""

import importlib
import os
from pathlib import Path
from typing import Any

from validate.kernels import Case, Kernel, Observed, SeededRandom
from validate.kernels._names import OUR_MIX, OUR_SOFTMAX

_ROWS, _COLUMNS = 67, 531


def _mixed(left: Any, right: Any) -> Any:
    """Whole numbers through Triton: every bit counts."""
    kernels = importlib.import_module("validate.kernels._triton_kernels")
    out = importlib.import_module("torch").empty_like(left)
    count = left.numel()
    kernels.validate_mix[((count + 255) // 256,)](left, right, out, count, BLOCK=256)
    return out


def _mixed_plainly(left: Any, right: Any) -> Any:
    """What 32 bits hold of left * 3 + (left ^ right)."""
    torch = importlib.import_module("torch")
    wide = left.long() * 3 + (left.long() ^ right.long())
    return (
        (wide + 2**31)
        .remainder(2**32)
        .sub(2**31)
        .to(left.dtype if left.dtype == torch.int64 else torch.int32)
    )


def _softmax(scores: Any) -> Any:
    kernels = importlib.import_module("validate.kernels._triton_kernels")
    out = importlib.import_module("torch").empty_like(scores)
    kernels.validate_softmax[(scores.shape[0],)](scores, out, scores.shape[1], BLOCK=1024)
    return out


def _integers(rng: SeededRandom) -> Case:
    inputs = {
        name: rng.integers(-(2**31), 2**31, _ROWS, _COLUMNS, dtype="int32")
        for name in ("left", "right")
    }
    return Case(dtype="int32", inputs=inputs, run=_mixed, plain=_mixed_plainly)


def _floats(rng: SeededRandom) -> Case:
    inputs = {"scores": rng.normal(_ROWS, _COLUMNS)}
    return Case(
        dtype="float32", inputs=inputs, run=_softmax, plain=lambda scores: scores.softmax(-1)
    )


def _observe(rng: SeededRandom) -> Observed:
    """After the cases: what compiled, and what the cache, empty when this process began, holds now."""
    kernels = importlib.import_module("validate.kernels._triton_kernels")
    cache = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
    binaries = sorted(path.name for path in cache.rglob("*.cubin")) if cache.is_dir() else []
    wanted = ("validate_mix.cubin", "validate_softmax.cubin")
    return {
        "facts": {
            "kernel type": type(kernels.validate_mix).__name__,
            "compiled here": [name for name in wanted if name in binaries],
        }
    }


KERNEL = Kernel(
    check="triton",
    probe="gpu.triton",
    package="triton",
    statement="Triton compiles for this GPU from a cold cache: whole numbers exact, float32 within 1e-6",
    cases={"int32": _integers, "float32": _floats},
    tolerance={"int32": 0.0, "float32": 1e-6},
    observe=_observe,
    facts={
        "kernel type": "JITFunction",
        "compiled here": ["validate_mix.cubin", "validate_softmax.cubin"],
    },
    expected_kernels={"integers": OUR_MIX, "softmax": OUR_SOFTMAX},
    libraries=(r"triton/_C/libtriton\.so",),
)
