"""What the files of flash-attn share, and packed sequences, which flash-attn-4 has too."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from validate.kernels import Case, Kernel, SeededRandom, from_capability
from validate.kernels._attention import attention
from validate.kernels._names import FLASH_ATTN_BACKWARD, FLASH_ATTN_FORWARD

of_flash_attn = partial(
    Kernel,
    check="attention",
    probe="gpu.flash_attn",
    package="flash-attn",
    expected_kernels={"forward": FLASH_ATTN_FORWARD, "backward": FLASH_ATTN_BACKWARD},
    other_kernels={r"pytorch_flash::": "torch's own FlashAttention"},
    libraries=(r"flash_attn_2_cuda.*\.so",),
    supports=from_capability(8, 0, "flash-attn has kernels from Ampere on"),
)

_LENGTHS = (1, 130, 67, 255)
_HEADS = {"query": 4, "key": 2, "value": 2}
_DIM = 64


def packed_case(dtype: str, varlen: Callable[..., Any], rng: SeededRandom) -> Case:
    """Sequences of four lengths in one.

    `varlen(query, key, value, starts, longest, causal=)` wants (tokens, heads, dim) and where each sequence starts.
    """

    def packed(query: Any, key: Any, value: Any) -> Any:
        torch = importlib.import_module("torch")
        starts = torch.tensor(
            [0, *torch.tensor(_LENGTHS).cumsum(0).tolist()], dtype=torch.int32, device=query.device
        )
        query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
        return varlen(query, key, value, starts, max(_LENGTHS), causal=True).transpose(0, 1)[None]

    inputs = {name: rng.normal(1, heads, sum(_LENGTHS), _DIM) for name, heads in _HEADS.items()}
    return Case(
        dtype=dtype,
        inputs=inputs,
        run=packed,
        plain=_one_by_one,
        grad_inputs=tuple(inputs),
        controls={"sequences shifted": lambda result: result.roll(1, dims=2)},
    )


def _one_by_one(query: Any, key: Any, value: Any) -> Any:
    torch = importlib.import_module("torch")
    parts = zip(*(part.split(_LENGTHS, dim=2) for part in (query, key, value)), strict=True)
    return torch.cat([attention(*part, causal=True, bottom_right=True) for part in parts], dim=2)
