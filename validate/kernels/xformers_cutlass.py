"""The kernels of xformers' attention by its cutlass operator.

It also has what xformers_flash.py shares.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from validate.kernels import Case, Kernel, SeededRandom
from validate.kernels._attention import attention_case
from validate.kernels._names import XFORMERS_CUTLASS_BACKWARD, XFORMERS_CUTLASS_FORWARD

of_xformers = partial(
    Kernel,
    check="attention",
    probe="gpu.xformers",
    package="xformers",
    libraries=(r"xformers/.*\.so",),
)


def _operators(name: str) -> tuple[Any, Any]:
    """Return the forward and the backward operator of this name in xformers.ops.fmha."""
    module = importlib.import_module(f"xformers.ops.fmha.{name}")
    return module.FwOp, module.BwOp


def attention(name: str, query: Any, key: Any, value: Any, causal: bool) -> Any:
    """Return attention over (batch, heads, length, dim) by xformers.

    name: the operator (implementation) that is forced, of xformers.ops.fmha: `cutlass`; empty:
        xformers chooses.
    causal: no query sees a key after it.
    """
    fmha = importlib.import_module("xformers.ops.fmha")
    bias = None
    if causal:
        bias = importlib.import_module("xformers.ops.fmha.attn_bias").LowerTriangularMask()
    # xformers has heads after the length.
    query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
    operators = _operators(name) if name else None
    output = fmha.memory_efficient_attention(query, key, value, attn_bias=bias, op=operators)
    return output.transpose(1, 2)


def cases(name: str) -> Mapping[str, Callable[[SeededRandom], Case]]:
    """Return functions that make two cases of an operator, which are compared with plain attention.

    One has a causal mask, the other has none and fewer queries than keys.

    name: the operator's, of xformers.ops.fmha.
    """
    run = partial(attention, name)
    return {
        "float16 causal": partial(
            attention_case,
            "float16",
            heads=(3, 3),
            lengths=(257, 257),
            dim=64,
            causal=True,
            run=run,
        ),
        "bfloat16 cross": partial(
            attention_case,
            "bfloat16",
            heads=(3, 3),
            lengths=(129, 331),
            dim=128,
            causal=False,
            run=run,
        ),
    }


def ask_why_not(name: str, rng: SeededRandom) -> Sequence[str]:
    """Return why xformers says that an operator cannot run on this GPU, each as `OPERATOR: REASON`.

    Empty if its forward and its backward can. Serves as `Kernel.declines`.

    name: the operator's, of xformers.ops.fmha: `cutlass` or `flash`.
    """
    inputs_class = importlib.import_module("xformers.ops.fmha.common").Inputs
    # (batch, length, heads, dim) in float16, which both operators take.
    sample = rng.normal(1, 16, 2, 64).half().to(rng.device).requires_grad_(True)
    inputs = inputs_class(query=sample, key=sample, value=sample)
    reasons = []
    for operator in _operators(name):
        for reason in operator.not_supported_reasons(inputs):
            reasons.append(f"{operator.NAME}: {reason}")
    return reasons


KERNEL = of_xformers(
    statement="xformers' cutlass attention, forward and backward, as plain torch computes it",
    cases=cases("cutlass"),
    needs_capability={
        "bfloat16 cross": (
            (8, 0),
            "xformers takes bfloat16 on newer GPUs alone "
            "(ops/fmha/common.py, not_supported_reasons)",
        )
    },
    expected_kernels={"forward": XFORMERS_CUTLASS_FORWARD, "backward": XFORMERS_CUTLASS_BACKWARD},
    declines=partial(ask_why_not, "cutlass"),
)
