"""Operators of torch whose index ran over beyond 2^31 or 2^32 elements. Right: the same of the last rows alone."""

from typing import Any

_TAIL = 64


def large_softmax(t: Any, d: str, rows: int = 85500) -> tuple[Any, ...]:
    x = t.randn(rows, 50259, device=d, dtype=t.bfloat16)
    return t.softmax(x, -1)[-_TAIL:].clone(), t.softmax(x[-_TAIL:].float(), -1)


def large_cross_entropy(t: Any, d: str, rows: int = 85904) -> tuple[Any, ...]:
    """Loss of each row, and the gradient of their sum."""

    def computed(x: Any) -> list[Any]:
        losses = t.nn.functional.cross_entropy(x, t.arange(rows, device=d)[-len(x) :] % 50000, reduction="none")
        return [losses[-_TAIL:].detach().clone(), t.autograd.grad(losses.sum(), x)[0][-_TAIL:].clone()]

    x = t.randn(rows, 50000, device=d, dtype=t.float16, requires_grad=True)
    return computed(x), computed(x.detach()[-_TAIL:].float().requires_grad_())


def large_layer_norm(t: Any, d: str, rows: int = 2**22 + 64) -> tuple[Any, ...]:
    x = t.randn(rows, 1024, device=d, dtype=t.float16)
    found = t.layer_norm(x, (1024,))[-_TAIL:].clone()
    return found, t.layer_norm(x[-_TAIL:].float(), (1024,))


def large_cumsum(t: Any, d: str, rows: int = 309504) -> tuple[Any, ...]:
    """Sums along an extent of 1: what was given."""
    x = (t.arange(rows, device=d) % 97 + 1).to(t.bfloat16)[:, None, None].expand(rows, 1, 16384).contiguous()
    return x.cumsum(1)[-_TAIL:].clone(), x[-_TAIL:]


def large_sort(t: Any, d: str, rows: int = 2**21 + 64) -> tuple[Any, ...]:
    """2^31 elements, and a result that is written with strides."""
    x = t.randint(0, 256, (rows, 1024), device=d, dtype=t.uint8)
    values, indices = x.sort(1)
    last = x[-_TAIL:]
    found = [values[-_TAIL:].clone(), last.gather(1, indices[-_TAIL:])]
    del values, indices
    strided = t.zeros(12, device=d, dtype=t.int64)
    t.sort(t.arange(6, 0, -1, device=d), out=(strided[::2], t.zeros(6, dtype=t.int64, device=d)))
    right = last.cpu().sort(1)[0]
    return [*found, strided[::2].clone()], [right, right, t.arange(1, 7)]


def large_stack(t: Any, d: str, height: int = 8192) -> tuple[Any, ...]:
    parts = [t.full((1, height, 5632), one + 1.0, device=d) for one in range(32)]
    found = t.stack(parts)[:, 0, ::_TAIL, -1].clone()
    return found, (t.arange(32.0, device=d) + 1)[:, None].expand_as(found)


def large_arange(t: Any, d: str, count: int = 2**32) -> tuple[Any, ...]:
    more = 2**20
    return t.arange(count + more, device=d)[count:].clone(), t.arange(more, device=d) + count


def large_nearest(t: Any, d: str, side: int = 512) -> tuple[Any, ...]:
    x = t.arange(1.0, 18.0, device=d, dtype=t.bfloat16)[:, None, None, None].expand(17, 256, side, side)
    x = x.contiguous(memory_format=t.channels_last)
    found = t.nn.functional.interpolate(x, scale_factor=2, mode="nearest")[:, :: 2 * _TAIL, :: side // 8, -1].clone()
    return found, x[:, :: 2 * _TAIL, :1, -1].expand_as(found)


def large_linear(t: Any, d: str) -> tuple[Any, ...]:
    """Positions beyond 2^23 have no halves in float32. Right: in float64."""
    x = t.tensor([0.0, 1.0], device=d).repeat(2**21 + 2)[None, None]
    given = {"size": 2 * x.shape[-1], "mode": "linear"}
    return tuple(t.nn.functional.interpolate(one, **given)[..., -32:].clone() for one in (x, x.double()))
