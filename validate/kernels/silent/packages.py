"""Silent faults of bitsandbytes, Liger and torch's FP8 products, against plain torch."""

import importlib
from typing import Any

from validate.kernels.silent import Comparison

_TAIL = 64
"""How many rows at the end are compared."""
_LARGEST_E4M3 = 448
"""The largest number of float8_e4m3fn."""


def bnb_quantise_strided(torch: Any, device: str) -> Comparison:
    """Compare a strided tensor, quantised to 4 bits and back, with its contiguous copy."""
    functional = importlib.import_module("bitsandbytes.functional")
    strided = torch.randn(3, 4, 64, device=device)[:, ::2]
    contiguous = strided.contiguous()
    return Comparison(
        computed=functional.dequantize_4bit(*functional.quantize_4bit(strided)),
        reference=functional.dequantize_4bit(*functional.quantize_4bit(contiguous)),
    )


def _make_liger_module(name: str, **options: Any) -> Any:
    """Return a torch module of a class of liger_kernel.transformers, made with these options."""
    return getattr(importlib.import_module("liger_kernel.transformers"), name)(**options)


def liger_fused_none(torch: Any, device: str) -> Comparison:
    """Compute Liger's fused linear layer and cross entropy, which returns a loss for each token.

    The fault is that it ignores how much each loss counts later, and so gives wrong gradients.
    Therefore the losses are summed with weights here. The losses and the gradients of the sum are
    returned, together with plain torch's.
    """
    fused = _make_liger_module("LigerFusedLinearCrossEntropyLoss", reduction="none")
    x = torch.randn(40, 32, device=device, requires_grad=True)
    layer = torch.randn(151, 32, device=device, requires_grad=True)
    target = torch.randint(0, 151, (40,), device=device)
    token_weights = 1.0 + torch.arange(40, device=device) % 3

    losses = fused(layer, x, target)
    logits = x @ layer.T
    right_losses = torch.nn.functional.cross_entropy(logits, target, reduction="none")

    def with_gradients(losses: Any) -> list[Any]:
        """Return the losses, and the gradients of their weighted sum for `x` and `layer`."""
        weighted = (losses * token_weights).sum()
        return [losses, *torch.autograd.grad(weighted, (x, layer))]

    return Comparison(computed=with_gradients(losses), reference=with_gradients(right_losses))


def liger_ce_in_place(torch: Any, device: str) -> Comparison:
    """Compute the gradient through a softmax and Liger's cross entropy, and plain torch's.

    The fault is that Liger writes its gradient over its input: that is the softmax's output, which
    its own backward needs.
    """
    liger_loss = _make_liger_module("LigerCrossEntropyLoss")
    target = torch.randint(0, 101, (32,), device=device)
    scores = (3 * torch.randn(32, 101, device=device)).requires_grad_()

    def gradient_through(loss: Any) -> Any:
        """Return the gradient of the scores."""
        return torch.autograd.grad(loss(scores.softmax(-1), target), scores)[0]

    return Comparison(
        computed=gradient_through(liger_loss),
        reference=gradient_through(torch.nn.functional.cross_entropy),
    )


def liger_rms_large(torch: Any, device: str, rows: int = 2**23 + 64) -> Comparison:
    """Compare Liger's RMSNorm of more than 2^31 elements with the norm of its last 64 rows."""
    norm = _make_liger_module("LigerRMSNorm", hidden_size=256).to(device, torch.bfloat16)
    x = torch.randn(rows, 256, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        computed = norm(x)[-_TAIL:].clone()
    last_rows = x[-_TAIL:].float()
    mean_square = last_rows.square().mean(-1, keepdim=True)
    return Comparison(computed=computed, reference=last_rows * (mean_square + 1e-6).rsqrt())


def fp8_scale_result(torch: Any, device: str) -> Comparison:
    """Multiply FP8 matrices with `scale_result=0.25`, and compute the right result in float32.

    The fault is that torch ignored `scale_result`. So the product without the 0.25 is the wrong
    result that must be noticed.
    """
    left = torch.randn(256, 1024, device=device)
    right = torch.randn(1536, 1024, device=device)
    left_scale = left.abs().max() / _LARGEST_E4M3
    right_scale = right.abs().max() / _LARGEST_E4M3
    left_fp8 = (left / left_scale).to(torch.float8_e4m3fn)
    right_fp8 = (right / right_scale).to(torch.float8_e4m3fn)
    product = (left_fp8.float() * left_scale) @ (right_fp8.float() * right_scale).T

    result_scale = torch.tensor(0.25, device=device)
    scaled_product = torch._scaled_mm(
        left_fp8,
        right_fp8.t(),
        scale_a=left_scale,
        scale_b=right_scale,
        scale_result=result_scale,
        out_dtype=torch.float8_e4m3fn,
    )
    return Comparison(computed=scaled_product.float(), reference=product / 4, wrong=product)
