"""What the files of torch's attention share: cases of it with one backend forced."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from validate.kernels import Case, Kernel, SeededRandom
from validate.kernels._attention import attention_case

# Patterns of CUDA kernels -> whose they are, in words for people (Kernel.other_kernels).
FUSED = {
    r"pytorch_flash::": "FlashAttention's",
    r"PyTorchMemEffAttention::|fmha_cutlass[FB]": "memory-efficient attention's",
    r"cudnn.*(sdpa|flash|[fb]prop|mha)": "cuDNN's",
}
of_sdpa = partial(
    Kernel, check="attention", probe="gpu.sdpa", package="torch", libraries=(r"libtorch_cuda\.so",)
)
PLAIN = {r"softmax_warp|cunn_SoftMax": "plain products'"}


def kernels_of_others(own: str) -> Mapping[str, str]:
    """Return pattern of CUDA kernels -> whose they are, for all backends but one.

    own: the backend's own name, as FUSED and PLAIN have it.
    """
    patterns = {**FUSED, **PLAIN}
    return {pattern: owner for pattern, owner in patterns.items() if owner != own}


def force_backend(backend: str) -> Callable[[Any, Any, Any, bool], Any]:
    """Return a function that computes attention by one backend: (query, key, value, causal).

    It raises torch's RuntimeError if the backend cannot: torch takes no other one in its place. Its
    tensors are (batch, heads, length, dim).

    backend: a name of torch.nn.attention.SDPBackend, such as `FLASH_ATTENTION`.
    """

    def run(query: Any, key: Any, value: Any, causal: bool) -> Any:
        attention = importlib.import_module("torch.nn.attention")
        functional = importlib.import_module("torch.nn.functional")
        with attention.sdpa_kernel([getattr(attention.SDPBackend, backend)]):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)

    return run


def cases(
    backend: str, *dtypes: str, in_128s: bool = False
) -> Mapping[str, Callable[[SeededRandom], Case]]:
    """Return functions that make two cases for each dtype: `float16 causal` and `float16 cross`.

    The first has a causal mask and as many queries as keys, the second no mask and fewer queries
    than keys. A case compares the backend with plain attention.

    backend: a name of torch.nn.attention.SDPBackend, such as `FLASH_ATTENTION`.
    dtypes: torch's names of them.
    in_128s: lengths are multiples of 128, and the names end with `in 128s`; else lengths are odd.
    """
    run = force_backend(backend)
    if in_128s:
        suffix, length, unequal_lengths = " in 128s", 256, (128, 384)
    else:
        suffix, length, unequal_lengths = "", 257, (129, 331)

    by_name: dict[str, Callable[[SeededRandom], Case]] = {}
    for dtype in dtypes:
        by_name[f"{dtype} causal{suffix}"] = partial(
            attention_case,
            dtype,
            heads=(3, 3),
            lengths=(length, length),
            dim=64,
            causal=True,
            run=run,
        )
        by_name[f"{dtype} cross{suffix}"] = partial(
            attention_case,
            dtype,
            heads=(3, 3),
            lengths=unequal_lengths,
            dim=128,
            causal=False,
            run=run,
        )
    return by_name
