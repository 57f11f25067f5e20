"""What the files of flash-attn share, and a case of packed sequences for flash-attn-4 as well."""

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
    gpu_obstacle=from_capability(8, 0, "flash-attn has kernels from Ampere on"),
)

_LENGTHS = (1, 130, 67, 255)
"""How many tokens each of the packed sequences has."""
_HEADS = {"query": 4, "key": 2, "value": 2}
_DIM = 64


def packed_case(dtype: str, varlen: Callable[..., Any], rng: SeededRandom) -> Case:
    """Return a case of causal attention over four sequences that are packed one after another.

    The case's own tensors are (1, heads, tokens, dim), with the tokens of all four sequences. What
    the kernel gives is compared with plain attention over each sequence by itself.

    varlen: the kernel, `varlen(query, key, value, boundaries, longest, causal=)`. Its tensors are
        (tokens, heads, dim). `boundaries` says where each sequence starts, and where the last one
        ends; `longest` is the length of the longest.
    """

    def run(query: Any, key: Any, value: Any) -> Any:
        """Compute attention with the kernel, in the layout (1, heads, tokens, dim).

        `tokens` runs over all sequences of _LENGTHS, one after another.
        """
        torch = importlib.import_module("torch")
        ends = torch.tensor(_LENGTHS).cumsum(0).tolist()
        # Where each sequence starts, and where the last one ends: 0, 1, 131, 198, 453.
        boundaries = torch.tensor([0, *ends], dtype=torch.int32, device=query.device)

        # The kernel's own layout is (tokens, heads, dim), without a batch.
        packed = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        output = varlen(*packed, boundaries, max(_LENGTHS), causal=True)
        return output.transpose(0, 1)[None]

    tokens = sum(_LENGTHS)
    inputs = {name: rng.normal(1, heads, tokens, _DIM) for name, heads in _HEADS.items()}
    return Case(
        dtype=dtype,
        inputs=inputs,
        run=run,
        plain=_one_by_one,
        grad_inputs=tuple(inputs),
        controls={"sequences shifted": lambda result: result.roll(1, dims=2)},
    )


def _one_by_one(query: Any, key: Any, value: Any) -> Any:
    """Compute attention of each sequence by itself in plain torch, and pack the outputs again.

    All tensors are (1, heads, tokens, dim).
    """
    torch = importlib.import_module("torch")
    split = [tensor.split(_LENGTHS, dim=2) for tensor in (query, key, value)]
    outputs = []
    for sequence in zip(*split, strict=True):
        outputs.append(attention(*sequence, causal=True, bottom_right=True))
    return torch.cat(outputs, dim=2)
