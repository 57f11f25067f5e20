"""Silent faults of attention: torch's backends and flash-attn against plain products in float32."""

import importlib
from typing import Any

from validate.kernels.silent import Comparison


def _attention_and_gradients(
    torch: Any, backend: str, *inputs: Any, upstream: Any, mask: Any = None
) -> list[Any]:
    """Return the output of torch's attention by one backend, and the gradients of its inputs.

    All tensors are (batch, heads, length, dim).

    backend: a name of torch.nn.attention.SDPBackend. On a CPU, MATH is used in its place.
    inputs: query, key and value. Their strides are kept.
    upstream: the gradient of the output.
    mask: as torch's `attn_mask`; None: every query sees every key.
    """
    attention = importlib.import_module("torch.nn.attention")
    if not inputs[0].is_cuda:
        backend = "MATH"
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with attention.sdpa_kernel([getattr(attention.SDPBackend, backend)]):
        output = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=mask)
    gradients = torch.autograd.grad(output, leaves, upstream)
    return [output, *gradients]


def _reference(torch: Any, *inputs: Any, upstream: Any, mask: Any = None) -> list[Any]:
    """Return attention and the gradients of its inputs, by plain products in float32."""
    if mask is not None and mask.is_floating_point():
        mask = mask.float()
    widened = [tensor.float() for tensor in inputs]
    return _attention_and_gradients(torch, "MATH", *widened, upstream=upstream.float(), mask=mask)


def cudnn_attention_mask(torch: Any, device: str, length: int = 704) -> Comparison:
    """Compute masked attention by cuDNN with very low scores, and the right result in float32.

    Returned are the output and the gradients. The fault is about scores near -120: the logsumexp of
    each row is then below -88.7, where exp() of the padding overflows in float32.
    """
    query, key, value, upstream = (
        torch.randn(1, 1, length, 64, device=device, dtype=torch.bfloat16) for _ in range(4)
    )
    query, key = query * 0.1, key * 0.1
    # The first component makes the scores so low: 1 * -960 / sqrt(64) is -120.
    query[..., 0], key[..., 0] = 1.0, -960.0
    mask = torch.ones(length, length, dtype=torch.bool, device=device).tril()[None, None]

    inputs = (query, key, value)
    computed = _attention_and_gradients(
        torch, "CUDNN_ATTENTION", *inputs, upstream=upstream, mask=mask
    )
    reference = _reference(torch, *inputs, upstream=upstream, mask=mask)
    # The gradient of the first component is a difference of large numbers, so it is not compared.
    return Comparison(
        computed=[tensor[..., 1:].contiguous() for tensor in computed],
        reference=[tensor[..., 1:] for tensor in reference],
    )


def efficient_attention_long_mask(torch: Any, device: str, length: int = 66048) -> Comparison:
    """Compute memory-efficient attention with a mask of more than 2^32 elements, and check its end.

    In versions with the fault, rows from number 2^32 / length on take another row's part of the
    mask. So the last 64 rows are returned, together with the same rows by plain products in
    float32. `length` is smaller in tests.
    """
    query, key, value = (
        torch.randn(1, 1, length, 64, device=device, dtype=torch.bfloat16) for _ in range(3)
    )
    mask = torch.randn(1, 1, length, length, device=device, dtype=torch.bfloat16)

    # A CPU has no memory-efficient attention.
    attention = importlib.import_module("torch.nn.attention")
    backend = attention.SDPBackend.MATH
    if query.is_cuda:
        backend = attention.SDPBackend.EFFICIENT_ATTENTION
    with attention.sdpa_kernel([backend]):
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    computed = output[0, 0, -64:].clone()
    last_queries = query[0, 0, -64:].float()
    keys, values = key[0, 0], value[0, 0]
    last_masks = mask[0, 0, -64:].float()
    scores = last_queries @ keys.float().T * 64**-0.5 + last_masks
    reference = scores.softmax(-1) @ values.float()
    return Comparison(computed=computed, reference=reference)


def flash_attention_large(
    torch: Any, device: str, batch: int = 16400, length: int = 128
) -> Comparison:
    """Compute torch's FlashAttention over inputs of more than 2^31 elements, and check its end.

    Returned are the outputs and gradients of the last two samples, which depend on no others,
    together with the same by plain products in float32. `batch` and `length` are smaller in tests.
    """
    shape = (batch, 16, length, 64)
    inputs = [torch.randn(*shape, device=device, dtype=torch.bfloat16) for _ in range(3)]
    upstream = torch.randn(1, 16, length, 64, device=device, dtype=torch.bfloat16)
    upstream = upstream.expand(batch, -1, -1, -1)
    # The output, and the gradients of query, key and value.
    computed = _attention_and_gradients(torch, "FLASH_ATTENTION", *inputs, upstream=upstream)

    last_inputs = [tensor[-2:] for tensor in inputs]
    reference = _reference(torch, *last_inputs, upstream=upstream[-2:])
    return Comparison(
        computed=[tensor[-2:].contiguous() for tensor in computed], reference=reference
    )


def flash_attn_padded(torch: Any, device: str) -> Comparison:
    """Compute flash-attn's gradients of rows that belong to no sequence: they must be 0.

    The rows lie behind packed sequences. The fault is that they keep what lay in that memory
    before, so memory is filled with NaN first.
    """
    shape = (514, 4, 64)
    inputs = [
        torch.randn(*shape, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    # Two sequences, of 144 and 368 rows. The last two of the 514 rows belong to none.
    bounds = torch.tensor([0, 144, 512], dtype=torch.int32, device=device)
    longest = 368
    flash_attn = importlib.import_module("flash_attn")
    output = flash_attn.flash_attn_varlen_func(*inputs, bounds, bounds, longest, longest)

    # Fill memory with NaN and free it, so that the gradients are likely to be allocated there.
    dirt = [torch.full_like(inputs[0], float("nan")) for _ in range(16)]
    del dirt
    gradients = torch.autograd.grad(output[:512].sum(), inputs)
    computed = [gradient[512:] for gradient in gradients]
    return Comparison(
        computed=computed,
        reference=[torch.zeros_like(gradient) for gradient in computed],
        wrong=[torch.ones_like(gradient) for gradient in computed],
    )
