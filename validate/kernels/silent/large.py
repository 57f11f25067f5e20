"""Operators of torch whose index ran over beyond 2^31 or 2^32 elements. Right: the same of the last rows alone."""

from typing import Any

_TAIL = 64


def large_layer_norm(t: Any, d: str, rows: int = 2**22 + 64) -> tuple[Any, ...]:
    x = t.randn(rows, 1024, device=d, dtype=t.float16)
    found = t.layer_norm(x, (1024,))[-_TAIL:].clone()
    return found, t.layer_norm(x[-_TAIL:].float(), (1024,))


def large_cumsum(t: Any, d: str, rows: int = 309504) -> tuple[Any, ...]:
    """Sums along an extent of 1: what was given."""
    x = (
        (t.arange(rows, device=d) % 97 + 1)
        .to(t.bfloat16)[:, None, None]
        .expand(rows, 1, 16384)
        .contiguous()
    )
    return x.cumsum(1)[-_TAIL:].clone(), x[-_TAIL:]


def large_stack(t: Any, d: str, height: int = 8192) -> tuple[Any, ...]:
    parts = [t.full((1, height, 5632), one + 1.0, device=d) for one in range(32)]
    found = t.stack(parts)[:, 0, ::_TAIL, -1].clone()
    return found, (t.arange(32.0, device=d) + 1)[:, None].expand_as(found)


def large_arange(t: Any, d: str, count: int = 2**32) -> tuple[Any, ...]:
    more = 2**20
    return t.arange(count + more, device=d)[count:].clone(), t.arange(more, device=d) + count


def large_nearest(t: Any, d: str, side: int = 512) -> tuple[Any, ...]:
    x = t.arange(1.0, 18.0, device=d, dtype=t.bfloat16)[:, None, None, None].expand(
        17, 256, side, side
    )
    x = x.contiguous(memory_format=t.channels_last)
    found = t.nn.functional.interpolate(x, scale_factor=2, mode="nearest")[
        :, :: 2 * _TAIL, :: side // 8, -1
    ].clone()
    return found, x[:, :: 2 * _TAIL, :1, -1].expand_as(found)


def large_linear(t: Any, d: str) -> tuple[Any, ...]:
    """Positions beyond 2^23 have no halves in float32. Right: in float64."""
    x = t.tensor([0.0, 1.0], device=d).repeat(2**21 + 2)[None, None]
    given = {"size": 2 * x.shape[-1], "mode": "linear"}
    return tuple(
        t.nn.functional.interpolate(one, **given)[..., -32:].clone() for one in (x, x.double())
    )
