"""G3: flash-attn over sequences of different lengths packed one after another, as sample packing does."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from validate.kernels import RULE_T, Case, Kernel
from validate.kernels._attention import attention
from validate.kernels._flash import LIBRARIES, OTHERS, RAN, SUPPORTS
from validate.kernels.runner import SeededRandom

_LENGTHS = (1, 130, 67, 255)
_DIM = 64


def _packed(query: Any, key: Any, value: Any) -> Any:
    """flash-attn wants (tokens, heads, dim) and where each sequence starts."""
    torch = importlib.import_module("torch")
    flash = importlib.import_module("flash_attn").flash_attn_varlen_func
    starts = torch.tensor([0, *torch.tensor(_LENGTHS).cumsum(0).tolist()], dtype=torch.int32, device=query.device)
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    found = flash(query, key, value, starts, starts, max(_LENGTHS), max(_LENGTHS), causal=True)
    return found.transpose(0, 1)[None]


def _one_by_one(query: Any, key: Any, value: Any) -> Any:
    torch = importlib.import_module("torch")
    parts = zip(*(part.split(_LENGTHS, dim=2) for part in (query, key, value)), strict=True)
    return torch.cat([attention(*part, causal=True, bottom_right=True) for part in parts], dim=2)


def _case(dtype: str) -> Callable[[SeededRandom], Case]:
    def make(rng: SeededRandom) -> Case:
        tokens = sum(_LENGTHS)
        inputs = {name: rng.normal(1, heads, tokens, _DIM) for name, heads in _HEADS.items()}
        return Case(
            dtype=dtype,
            inputs=inputs,
            run=_packed,
            plain=_one_by_one,
            grad_inputs=tuple(inputs),
            controls={"sequences shifted": lambda result: result.roll(1, dims=2)},
        )

    return make


_HEADS = {"query": 4, "key": 2, "value": 2}

KERNEL = Kernel(
    claim="G3",
    probe="gpu.flash_attn",
    package="flash-attn",
    statement="flash-attn over packed sequences sees no token of another one, forward and backward",
    cases={"float16": _case("float16"), "bfloat16": _case("bfloat16")},
    tolerance={"float16": RULE_T, "bfloat16": RULE_T},
    expected_kernels=RAN,
    other_kernels=OTHERS,
    libraries=LIBRARIES,
    supports=SUPPORTS,
)
