"""Attention: torch's backends, xformers, flash-attn. Right: plain products in float32, of large ones on a slice."""

import importlib
from typing import Any


def _sdpa(t: Any, backend: str, *inputs: Any, upstream: Any, mask: Any = None) -> list[Any]:
    """Output and gradients by one backend, of the inputs with the strides that they have."""
    attention = importlib.import_module("torch.nn.attention")
    leaves = [one.detach().requires_grad_() for one in inputs]
    chosen = getattr(attention.SDPBackend, backend if inputs[0].is_cuda else "MATH")
    with attention.sdpa_kernel([chosen]):
        out = t.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=mask)
    return [out, *t.autograd.grad(out, leaves, upstream)]


def _exact(t: Any, *inputs: Any, upstream: Any, mask: Any = None) -> list[Any]:
    if mask is not None and mask.is_floating_point():
        mask = mask.float()
    return _sdpa(t, "MATH", *(one.float() for one in inputs), upstream=upstream.float(), mask=mask)


def cudnn_attention_mask(t: Any, d: str, length: int = 704) -> tuple[Any, ...]:
    """Every score is near -120, so each row's logsumexp lies below -88.7, from where on exp() of the padding overflows.

    The first component makes them so; its gradient is a difference of large numbers and not compared.
    """
    query, key, value, upstream = (
        t.randn(1, 1, length, 64, device=d, dtype=t.bfloat16) for _ in range(4)
    )
    query, key = query * 0.1, key * 0.1
    query[..., 0], key[..., 0] = 1.0, -960.0
    mask = t.ones(length, length, dtype=t.bool, device=d).tril()[None, None]
    found = _sdpa(t, "CUDNN_ATTENTION", query, key, value, upstream=upstream, mask=mask)
    right = _exact(t, query, key, value, upstream=upstream, mask=mask)
    return [one[..., 1:].contiguous() for one in found], [one[..., 1:] for one in right]


def efficient_attention_long_mask(t: Any, d: str, length: int = 66048) -> tuple[Any, ...]:
    """A mask of more than 2^32 elements: rows from 2^32 / length on took another row's part of it."""
    query, key, value = (t.randn(1, 1, length, 64, device=d, dtype=t.bfloat16) for _ in range(3))
    mask = t.randn(1, 1, length, length, device=d, dtype=t.bfloat16)
    attention = importlib.import_module("torch.nn.attention")
    chosen = (
        attention.SDPBackend.EFFICIENT_ATTENTION if query.is_cuda else attention.SDPBackend.MATH
    )
    with attention.sdpa_kernel([chosen]):
        found = t.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    tail = (one[0, 0, -64:].float() for one in (query, mask))
    return found[0, 0, -64:].clone(), _rows(t, next(tail), key[0, 0], value[0, 0], next(tail))


def _rows(t: Any, query: Any, key: Any, value: Any, mask: Any = 0.0) -> Any:
    """Attention of a few rows in float32."""
    scores = query.float() @ key.float().T * query.shape[-1] ** -0.5 + mask
    return scores.softmax(-1) @ value.float()


def flash_attention_large(t: Any, d: str, batch: int = 16400, length: int = 128) -> tuple[Any, ...]:
    """More than 2^31 elements in each of query, key and value, forward and backward."""
    inputs = [t.randn(batch, 16, length, 64, device=d, dtype=t.bfloat16) for _ in range(3)]
    upstream = t.randn(1, 16, length, 64, device=d, dtype=t.bfloat16).expand(batch, -1, -1, -1)
    found = _sdpa(t, "FLASH_ATTENTION", *inputs, upstream=upstream)
    right = _exact(t, *(one[-2:] for one in inputs), upstream=upstream[-2:])
    return [one[-2:].contiguous() for one in found], right


def flash_attn_padded(t: Any, d: str) -> tuple[Any, ...]:
    """Rows behind the last sequence took no part: their gradients are 0, whatever lay in that memory before."""
    inputs = [t.randn(514, 4, 64, device=d, dtype=t.bfloat16, requires_grad=True) for _ in range(3)]
    ends = t.tensor([0, 144, 512], dtype=t.int32, device=d)
    out = importlib.import_module("flash_attn").flash_attn_varlen_func(
        *inputs, ends, ends, 368, 368
    )
    dirt = [t.full_like(inputs[0], float("nan")) for _ in range(16)]
    del dirt
    found = [one[512:] for one in t.autograd.grad(out[:512].sum(), inputs)]
    return found, [t.zeros_like(one) for one in found], [t.ones_like(one) for one in found]
