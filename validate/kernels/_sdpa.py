"""torch's scaled_dot_product_attention with one backend forced: what the four files of torch's attention share."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from validate.kernels import Case, Kernel, SeededRandom
from validate.kernels._attention import case

FUSED = {
    r"pytorch_flash::": "FlashAttention's",
    r"PyTorchMemEffAttention::|fmha_cutlass[FB]": "memory-efficient attention's",
    r"cudnn.*(sdpa|flash|[fb]prop|mha)": "cuDNN's",
}
of_sdpa = partial(
    Kernel, check="attention", probe="gpu.sdpa", package="torch", libraries=(r"libtorch_cuda\.so",)
)
PLAIN = {r"softmax_warp|cunn_SoftMax": "plain products'"}


def others(own: str) -> Mapping[str, str]:
    """The kernels of all other ways to compute attention, and whose they are."""
    return {pattern: whose for pattern, whose in {**FUSED, **PLAIN}.items() if whose != own}


def forced(backend: str) -> Callable[[Any, Any, Any, bool], Any]:
    """Attention by this backend alone: torch raises where it can't serve, instead of taking another."""

    def run(query: Any, key: Any, value: Any, causal: bool) -> Any:
        attention = importlib.import_module("torch.nn.attention")
        functional = importlib.import_module("torch.nn.functional")
        with attention.sdpa_kernel([getattr(attention.SDPBackend, backend)]):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return run


def cases(
    backend: str, *dtypes: str, in_128s: bool = False
) -> Mapping[str, Callable[[SeededRandom], Case]]:
    """Odd lengths, or multiples of 128: equal and causal, then unequal and not."""
    run, named = forced(backend), " in 128s" if in_128s else ""
    equal, unequal = (256, (128, 384)) if in_128s else (257, (129, 331))
    made: dict[str, Callable[[SeededRandom], Case]] = {}
    for dtype in dtypes:
        made[f"{dtype} causal{named}"] = case(
            dtype, heads=(3, 3), lengths=(equal, equal), dim=64, causal=True, run=run
        )
        made[f"{dtype} cross{named}"] = case(
            dtype, heads=(3, 3), lengths=unequal, dim=128, causal=False, run=run
        )
    return made
