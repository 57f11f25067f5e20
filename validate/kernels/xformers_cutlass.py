"""attention: xformers' attention with its cutlass operator pinned, and what the flash operator's file shares."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from validate.kernels import Case, Kernel, SeededRandom
from validate.kernels._attention import case
from validate.kernels._names import XFORMERS_CUTLASS_BACKWARD, XFORMERS_CUTLASS_FORWARD

of_xformers = partial(
    Kernel,
    check="attention",
    probe="gpu.xformers",
    package="xformers",
    libraries=(r"xformers/.*\.so",),
)


def _operators(name: str) -> tuple[Any, Any]:
    module = importlib.import_module(f"xformers.ops.fmha.{name}")
    return module.FwOp, module.BwOp


def attention(name: str, query: Any, key: Any, value: Any, causal: bool) -> Any:
    """With this operator pinned; without a name as xformers chooses."""
    fmha = importlib.import_module("xformers.ops.fmha")
    bias = (
        importlib.import_module("xformers.ops.fmha.attn_bias").LowerTriangularMask()
        if causal
        else None
    )
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    pinned = _operators(name) if name else None
    return fmha.memory_efficient_attention(query, key, value, attn_bias=bias, op=pinned).transpose(
        1, 2
    )


def cases(name: str) -> Mapping[str, Callable[[SeededRandom], Case]]:
    """Equal and causal (the mask starts at the top left), unequal and not."""
    run = partial(attention, name)
    return {
        "float16 causal": case(
            "float16", heads=(3, 3), lengths=(257, 257), dim=64, causal=True, run=run
        ),
        "bfloat16 cross": case(
            "bfloat16", heads=(3, 3), lengths=(129, 331), dim=128, causal=False, run=run
        ),
    }


def declines(name: str) -> Callable[[SeededRandom], Sequence[str]]:
    """The operator's own reasons, in its own words."""

    def reasons(rng: SeededRandom) -> Sequence[str]:
        inputs = importlib.import_module("xformers.ops.fmha.common").Inputs
        sample = rng.normal(1, 16, 2, 64).half().to(rng.device).requires_grad_(True)
        given = inputs(query=sample, key=sample, value=sample)
        return [
            f"{operator.NAME}: {reason}"
            for operator in _operators(name)
            for reason in operator.not_supported_reasons(given)
        ]

    return reasons


KERNEL = of_xformers(
    statement="xformers' cutlass attention, forward and backward, as plain torch computes it",
    cases=cases("cutlass"),
    needs_capability={
        "bfloat16 cross": (
            (8, 0),
            "xformers takes bfloat16 on newer GPUs alone (ops/fmha/common.py, not_supported_reasons)",
        )
    },
    expected_kernels={"forward": XFORMERS_CUTLASS_FORWARD, "backward": XFORMERS_CUTLASS_BACKWARD},
    declines=declines("cutlass"),
)
