"""torch's scaled_dot_product_attention with one backend forced: what the four files of G2 share."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from validate.kernels import Case
from validate.kernels._attention import case
from validate.kernels.runner import SeededRandom

_WHOSE = {
    r"pytorch_flash::": "FlashAttention's",
    r"PyTorchMemEffAttention::|fmha_cutlass[FB]": "memory-efficient attention's",
    r"cudnn.*(sdpa|flash|[fb]prop|mha)": "cuDNN's",
}
PLAIN = {r"softmax_warp|cunn_SoftMax": "plain products'"}
FUSED: Mapping[str, str] = _WHOSE


def others(own: str) -> Mapping[str, str]:
    """The kernels of all other ways to compute attention, and whose they are."""
    return {pattern: whose for pattern, whose in {**_WHOSE, **PLAIN}.items() if whose != own}


def forced(backend: str) -> Callable[[Any, Any, Any, bool], Any]:
    """Attention by this backend alone: torch raises where it can't serve, instead of taking another."""

    def run(query: Any, key: Any, value: Any, causal: bool) -> Any:
        attention = importlib.import_module("torch.nn.attention")
        functional = importlib.import_module("torch.nn.functional")
        with attention.sdpa_kernel([getattr(attention.SDPBackend, backend)]):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return run


def cases(backend: str, *dtypes: str) -> Mapping[str, Callable[[SeededRandom], Case]]:
    """Odd lengths, equal and causal, then unequal and not."""
    return _cases(backend, dtypes, equal=257, unequal=(129, 331))


def cases_in_128s(backend: str, *dtypes: str) -> Mapping[str, Callable[[SeededRandom], Case]]:
    """The same with lengths that are multiples of 128."""
    made = _cases(backend, dtypes, equal=256, unequal=(128, 384))
    return {f"{name} in 128s": one for name, one in made.items()}


def _cases(
    backend: str, dtypes: Sequence[str], *, equal: int, unequal: tuple[int, int]
) -> Mapping[str, Callable[[SeededRandom], Case]]:
    run = forced(backend)
    made: dict[str, Callable[[SeededRandom], Case]] = {}
    for dtype in dtypes:
        made[f"{dtype} causal"] = case(dtype, heads=(3, 3), lengths=(equal, equal), dim=64, causal=True, run=run)
        made[f"{dtype} cross"] = case(dtype, heads=(3, 3), lengths=unequal, dim=128, causal=False, run=run)
    return made
