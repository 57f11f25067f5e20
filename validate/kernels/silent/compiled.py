"""torch.compile: programs that Inductor compiled to something else. Right: the same program, eager."""

from collections.abc import Callable
from typing import Any


def _both(
    t: Any, program: Callable[..., Any], *calls: tuple[Any, ...], **options: Any
) -> tuple[list[Any], list[Any]]:
    """Results of the compiled program and of the eager one, call by call, on inputs of their own each."""
    t._dynamo.reset()
    compiled = t.compile(program, **options)

    def all_of(function: Callable[..., Any]) -> list[Any]:
        given = (
            [one.clone() if isinstance(one, t.Tensor) else one for one in call] for call in calls
        )
        results = (function(*one) for one in given)
        return [
            one
            for result in results
            for one in (result if isinstance(result, tuple) else (result,))
        ]

    return all_of(compiled), all_of(program)


def compile_arange(t: Any, d: str) -> tuple[Any, ...]:
    return _both(
        t,
        lambda x: t.arange(0, 11, device=d) * 1500000000 + x,
        (t.zeros(11, dtype=t.int64, device=d),),
    )


def compile_stale_float(t: Any, d: str) -> tuple[Any, ...]:
    """Closures over other numbers, with gradients: from the third on the number is an input."""

    def limited(limit: float) -> Callable[..., Any]:
        def swiglu(x: Any) -> Any:
            gate, up = t.chunk(x, 2, dim=-1)
            return t.nn.functional.silu(gate).clamp(max=limit) * up.clamp(min=-limit, max=limit)

        return swiglu

    def computed(change: Callable[..., Any]) -> list[Any]:
        results = []
        for limit in (10.0, 7.0, 5.0, 3.0):
            out = change(limited(limit))(x)
            results += [out, *t.autograd.grad(out.sum(), x)]
        return results

    x = (8 * t.randn(16, 64, device=d)).requires_grad_()
    t._dynamo.reset()
    return computed(t.compile), computed(lambda program: program)


def compile_scatter(t: Any, d: str, count: int = 33) -> tuple[Any, ...]:
    def add(x: Any, bias: Any, index: Any) -> Any:
        source = x + bias
        return t.zeros(1, 1, device=d).scatter_reduce(
            0, index.unsqueeze(-1).expand_as(source), source, "sum"
        )

    inputs = (
        t.randn(count, 1, device=d),
        t.full((1,), 5.0, device=d),
        t.zeros(count, dtype=t.int64, device=d),
    )
    return _both(t, add, inputs, dynamic=False)


def compile_index_add(t: Any, d: str) -> tuple[Any, ...]:
    """The tensor is made within: what a caller gave is never written in place."""

    def add(index: Any, source: Any) -> Any:
        return t.zeros(1, 8, device=d).expand(4, 8).index_add(0, index, source)

    return _both(t, add, (t.tensor([0, 3, 0], device=d), t.ones(3, 8, device=d)))


def compile_dropout_alias(t: Any, d: str) -> tuple[Any, ...]:
    def twice(x: Any) -> Any:
        y = t.nn.functional.dropout(x, 0.5, False)
        y += y
        return y, x

    return _both(t, twice, (t.ones(2, 2, device=d),))


def compile_item_loop(t: Any, d: str) -> tuple[Any, ...]:
    def adam(parameter: Any, gradient: Any, mean: Any, square: Any, at: Any) -> Any:
        at.add_(1)
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        step = at.item()
        below = (square.sqrt() / (1 - 0.999**step) ** 0.5).add_(1e-8)
        parameter.addcdiv_(mean, below, value=-0.001 / (1 - 0.9**step))

    def loop(data: Any, gradient: Any) -> Any:
        parameter, mean, square, at = (
            data.clone(),
            t.zeros_like(data),
            t.zeros_like(data),
            t.zeros((), device=d),
        )
        for _ in range(5):
            adam(parameter, gradient, mean, square, at)
        return parameter - data

    return _both(t, loop, (t.randn(64, device=d), t.randn(64, device=d)))


def compile_dynamic_reshape(t: Any, d: str) -> tuple[Any, ...]:
    """A view that stays strided, at two sizes."""
    strided = [
        t.arange(float(count * 5 * 8), device=d).view(count, 5, 8)[..., :4] for count in (6, 9)
    ]

    def program(x: Any) -> Any:
        return x.reshape(x.shape[0] * x.shape[1], x.shape[2])

    t._dynamo.reset()
    compiled = t.compile(program, dynamic=True)
    return [compiled(one).clone() for one in strided], [program(one).clone() for one in strided]
