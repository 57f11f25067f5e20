"""bitsandbytes, Liger, and torch's FP8 products. Right: in float32 from what their own codes or inputs stand for."""

import importlib
from typing import Any

_TAIL = 64


def bnb_quantise_large(t: Any, d: str, count: int = 2**30 + 2**22) -> tuple[Any, ...]:
    functional = importlib.import_module("bitsandbytes.functional")

    def there_and_back(x: Any) -> Any:
        return functional.dequantize_4bit(*functional.quantize_4bit(x, quant_type="nf4")).flatten()

    x = t.randn(count, device=d, dtype=t.bfloat16)
    return there_and_back(x)[-(2**16) :].clone(), there_and_back(x[-(2**16) :].clone())


def bnb_quantise_strided(t: Any, d: str) -> tuple[Any, ...]:
    functional = importlib.import_module("bitsandbytes.functional")
    x = t.randn(3, 4, 64, device=d)[:, ::2]
    return tuple(functional.dequantize_4bit(*functional.quantize_4bit(one)) for one in (x, x.contiguous()))


def bnb_4bit_odd(t: Any, d: str, rows: int = 3) -> tuple[Any, ...]:
    """Sizes that no block of 64 divides, for several rows and for one, which has a kernel of its own."""
    bitsandbytes = importlib.import_module("bitsandbytes")
    layer = bitsandbytes.nn.Linear4bit(77, 131, bias=False, compute_dtype=t.bfloat16, quant_type="nf4").to(d)
    weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
    found, right = [], []
    for count in (rows, 1):
        x = t.randn(count, 77, device=d, dtype=t.bfloat16, requires_grad=True)
        out = layer(x)
        upstream = t.randn_like(out)
        found += [out, *t.autograd.grad(out, [x], upstream)]
        right += [x.detach().float() @ weight.T, upstream.float() @ weight]
    return found, right


def bnb_8bit_odd(t: Any, d: str) -> tuple[Any, ...]:
    """Odd sizes; and outliers of one batch may not count for the next."""
    nn = importlib.import_module("bitsandbytes").nn
    layer = nn.Linear8bitLt(77, 131, bias=False, has_fp16_weights=False, threshold=6.0)
    weight = layer.weight.data.clone().to(d).half()
    layer = layer.to(d).half() if d == "cpu" else layer.half().to(d)
    found, right = [], []
    for outlier in (20.0, 0.0):
        x = t.randn(5, 77, device=d, dtype=t.float16).clamp(-5, 5)
        x[:, 3] += outlier
        x.requires_grad_()
        out = layer(x)
        upstream = t.randn_like(out)
        found += [out, *t.autograd.grad(out, [x], upstream)]
        right += [x.detach().float() @ weight.float().T, upstream.float() @ weight.float()]
    return found, right


def _liger(name: str, **options: Any) -> Any:
    return getattr(importlib.import_module("liger_kernel.transformers"), name)(**options)


def liger_fused_none(t: Any, d: str) -> tuple[Any, ...]:
    """Losses of tokens, weighted: each weight belongs into the gradient."""
    fused = _liger("LigerFusedLinearCrossEntropyLoss", reduction="none")
    x, weight = t.randn(40, 32, device=d, requires_grad=True), t.randn(151, 32, device=d, requires_grad=True)
    target, weights = t.randint(0, 151, (40,), device=d), 1.0 + t.arange(40, device=d) % 3
    losses = fused(weight, x, target), t.nn.functional.cross_entropy(x @ weight.T, target, reduction="none")
    return tuple([one, *t.autograd.grad((one * weights).sum(), (x, weight))] for one in losses)


def liger_ce_in_place(t: Any, d: str) -> tuple[Any, ...]:
    """Its gradient is written over the logits, which softmax has kept for its own backward."""
    loss = _liger("LigerCrossEntropyLoss")
    target = t.randint(0, 101, (32,), device=d)
    leaf = (3 * t.randn(32, 101, device=d)).requires_grad_()
    ways = (loss, t.nn.functional.cross_entropy)
    return tuple(t.autograd.grad(way(leaf.softmax(-1), target), leaf)[0] for way in ways)


def liger_fused_large(t: Any, d: str, rows: int = 16448) -> tuple[Any, ...]:
    """More than 2^31 logits, which are never held as a whole."""
    loss = _liger("LigerFusedLinearCrossEntropyLoss", reduction="sum")
    x = t.randn(rows, 256, device=d, dtype=t.bfloat16, requires_grad=True)
    weight = t.randn(131072, 256, device=d, dtype=t.bfloat16) / 16
    target = t.arange(rows, device=d)
    right = (x.detach()[-_TAIL:].float() @ weight.float().T).softmax(-1)
    right[t.arange(_TAIL), target[-_TAIL:]] -= 1
    return t.autograd.grad(loss(weight, x, target), x)[0][-_TAIL:].clone(), right @ weight.float()


def liger_rms_large(t: Any, d: str, rows: int = 2**23 + 64) -> tuple[Any, ...]:
    norm = _liger("LigerRMSNorm", hidden_size=256).to(d, t.bfloat16)
    x = t.randn(rows, 256, device=d, dtype=t.bfloat16)
    with t.no_grad():
        found = norm(x)[-_TAIL:].clone()
    last = x[-_TAIL:].float()
    return found, last * (last.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def _fp8(t: Any, d: str, rows: int, by_row: bool) -> tuple[Any, Any, dict[str, Any], Any]:
    """Two quantised matrices, how to call for their product, and that product in float32."""
    left, right = t.randn(rows, 1024, device=d), t.randn(1536, 1024, device=d)
    scales = [(one.abs().amax(1, keepdim=True) if by_row else one.abs().max()) / 448 for one in (left, right)]
    a, b = ((one / scale).to(t.float8_e4m3fn) for one, scale in zip((left, right), scales, strict=True))
    plain = (a.float() * scales[0]) @ (b.float() * scales[1]).T
    return a, b.t(), {"scale_a": scales[0], "scale_b": scales[1].T if by_row else scales[1]}, plain


def fp8_rows(t: Any, d: str, rows: int = 4103) -> tuple[Any, ...]:
    a, b, scales, plain = _fp8(t, d, rows, by_row=True)
    return t._scaled_mm(a, b, **scales, out_dtype=t.bfloat16, use_fast_accum=True), plain


def fp8_scale_result(t: Any, d: str) -> tuple[Any, ...]:
    a, b, scales, plain = _fp8(t, d, 256, by_row=False)
    quarter = t.tensor(0.25, device=d)
    given = {**scales, "scale_result": quarter, "out_dtype": t.float8_e4m3fn}
    return t._scaled_mm(a, b, **given).float(), plain / 4, plain
