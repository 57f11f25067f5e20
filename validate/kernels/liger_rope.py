"""The kernel of Liger's rotary embedding: it turns the first half of a head against the second."""

import importlib
from functools import partial
from typing import Any

from validate.kernels import Case, SeededRandom
from validate.kernels._attention import roll_heads
from validate.kernels._names import LIGER_ROPE
from validate.kernels.liger_rms_norm import of_liger

_LENGTH, _DIM = 53, 64


def _run(query: Any, key: Any, cosine: Any, sine: Any) -> dict[str, Any]:
    """Rotate query and key by Liger."""
    function = importlib.import_module("liger_kernel.ops.rope").LigerRopeFunction
    query, key = function.apply(query, key, cosine[None], sine[None])
    return {"query": query, "key": key}


def _plain(query: Any, key: Any, cosine: Any, sine: Any) -> dict[str, Any]:
    """Rotate query and key by plain torch."""
    rotate = importlib.import_module("validate.harness.reference").apply_rotation
    return {"query": rotate(query, cosine, sine), "key": rotate(key, cosine, sine)}


def _case(dtype: str, rng: SeededRandom) -> Case:
    """Return a case of rotary embeddings: six query heads and two key heads, turned by position.

    Query and key are (batch, heads, length, dim). `cosine` and `sine` are those of each position's
    angles; they have no gradients to compare.
    """
    reference = importlib.import_module("validate.harness.reference")
    cosine, sine = reference.rotation_factors(_DIM, _LENGTH)
    inputs = {
        "query": rng.normal(2, 6, _LENGTH, _DIM),
        "key": rng.normal(2, 2, _LENGTH, _DIM),
        "cosine": cosine,
        "sine": sine,
    }
    return Case(
        dtype=dtype,
        inputs=inputs,
        run=_run,
        plain=_plain,
        grad_inputs=("query", "key"),
        controls={"heads rolled": roll_heads},
    )


KERNEL = of_liger(
    statement=(
        "Liger's rotary embedding, forward and backward: "
        "float32 within 1e-5, bfloat16 as plain torch"
    ),
    cases={dtype: partial(_case, dtype) for dtype in ("float32", "bfloat16")},
    expected_kernels={"rotation": LIGER_ROPE},
)
