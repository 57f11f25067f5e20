"""bitsandbytes, Liger, and torch's FP8 products. Right: in float32 from what their own codes or inputs stand for."""

import importlib
from typing import Any

_TAIL = 64


def bnb_quantise_strided(t: Any, d: str) -> tuple[Any, ...]:
    functional = importlib.import_module("bitsandbytes.functional")
    x = t.randn(3, 4, 64, device=d)[:, ::2]
    return tuple(
        functional.dequantize_4bit(*functional.quantize_4bit(one)) for one in (x, x.contiguous())
    )


def _liger(name: str, **options: Any) -> Any:
    return getattr(importlib.import_module("liger_kernel.transformers"), name)(**options)


def liger_fused_none(t: Any, d: str) -> tuple[Any, ...]:
    """Losses of tokens, weighted: each weight belongs into the gradient."""
    fused = _liger("LigerFusedLinearCrossEntropyLoss", reduction="none")
    x, weight = (
        t.randn(40, 32, device=d, requires_grad=True),
        t.randn(151, 32, device=d, requires_grad=True),
    )
    target, weights = t.randint(0, 151, (40,), device=d), 1.0 + t.arange(40, device=d) % 3
    losses = (
        fused(weight, x, target),
        t.nn.functional.cross_entropy(x @ weight.T, target, reduction="none"),
    )
    return tuple([one, *t.autograd.grad((one * weights).sum(), (x, weight))] for one in losses)


def liger_ce_in_place(t: Any, d: str) -> tuple[Any, ...]:
    """Its gradient is written over the logits, which softmax has kept for its own backward."""
    loss = _liger("LigerCrossEntropyLoss")
    target = t.randint(0, 101, (32,), device=d)
    leaf = (3 * t.randn(32, 101, device=d)).requires_grad_()
    ways = (loss, t.nn.functional.cross_entropy)
    return tuple(t.autograd.grad(way(leaf.softmax(-1), target), leaf)[0] for way in ways)


def liger_rms_large(t: Any, d: str, rows: int = 2**23 + 64) -> tuple[Any, ...]:
    norm = _liger("LigerRMSNorm", hidden_size=256).to(d, t.bfloat16)
    x = t.randn(rows, 256, device=d, dtype=t.bfloat16)
    with t.no_grad():
        found = norm(x)[-_TAIL:].clone()
    last = x[-_TAIL:].float()
    return found, last * (last.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def fp8_scale_result(t: Any, d: str) -> tuple[Any, ...]:
    left, right = t.randn(256, 1024, device=d), t.randn(1536, 1024, device=d)
    scales = [one.abs().max() / 448 for one in (left, right)]
    a, b = (
        (one / scale).to(t.float8_e4m3fn) for one, scale in zip((left, right), scales, strict=True)
    )
    plain = (a.float() * scales[0]) @ (b.float() * scales[1]).T
    given = {"scale_a": scales[0], "scale_b": scales[1], "scale_result": t.tensor(0.25, device=d)}
    return t._scaled_mm(a, b.t(), **given, out_dtype=t.float8_e4m3fn).float(), plain / 4, plain
