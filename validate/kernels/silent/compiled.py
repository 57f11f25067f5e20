"""Silent faults of torch.compile: programs that Inductor compiled to something else.

Each program is compiled and compared with itself, run eagerly.
"""

from collections.abc import Callable
from typing import Any

from validate.kernels.silent import Comparison


def _compare(
    torch: Any, program: Callable[..., Any], *arguments: Any, **options: Any
) -> Comparison:
    """Compare a program's results compiled with those run eagerly, each on copies of the arguments.

    program: returns a tensor, or a tuple of tensors.
    options: of torch.compile.
    """
    torch._dynamo.reset()
    compiled = torch.compile(program, **options)
    return Comparison(
        computed=_call_with_copies(compiled, arguments),
        reference=_call_with_copies(program, arguments),
    )


def _call_with_copies(program: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """Return the tensors that a program returns for copies of these tensors."""
    result = program(*[argument.clone() for argument in arguments])
    return list(result) if isinstance(result, tuple) else [result]


def compile_arange(torch: Any, device: str) -> Comparison:
    """Compare a compiled product of an arange and a number, beyond 2^31, with the eager one."""

    # From the factor 2 on, products are beyond 2^31.
    def program(x: Any) -> Any:
        return torch.arange(0, 11, device=device) * 1500000000 + x

    return _compare(torch, program, torch.zeros(11, dtype=torch.int64, device=device))


def compile_stale_float(torch: Any, device: str) -> Comparison:
    """Compare a closure over four different limits, compiled by torch.compile, with it run eagerly.

    The fault is that a compiled closure computes with the limit of another one. Inductor compiles
    the first two limits into the program, and makes the third and fourth an input of it.
    """
    inputs = (8 * torch.randn(16, 64, device=device)).requires_grad_()

    def make_swiglu(limit: float) -> Callable[..., Any]:
        """Return SwiGLU with its gate and its other input limited to `limit`."""

        def swiglu(x: Any) -> Any:
            gate, up = torch.chunk(x, 2, dim=-1)
            limited_gate = torch.nn.functional.silu(gate).clamp(max=limit)
            return limited_gate * up.clamp(min=-limit, max=limit)

        return swiglu

    def run_with_each_limit(wrap: Callable[..., Any]) -> list[Any]:
        """Wrap SwiGLU by torch.compile or nothing, and return each output and input gradient."""
        results = []
        for limit in (10.0, 7.0, 5.0, 3.0):
            swiglu = wrap(make_swiglu(limit))
            output = swiglu(inputs)
            results += [output, *torch.autograd.grad(output.sum(), inputs)]
        return results

    torch._dynamo.reset()
    computed = run_with_each_limit(torch.compile)
    reference = run_with_each_limit(lambda swiglu: swiglu)
    return Comparison(computed=computed, reference=reference)


def compile_scatter(torch: Any, device: str, count: int = 33) -> Comparison:
    """Sum rows by scatter_reduce, compiled by torch.compile and eagerly, and return both results.

    The fault is that the compiled sum is wrong if the same number, here a bias of 5, was added to
    each row before. `count` is the number of rows.
    """

    def sum_biased_rows(rows: Any, bias: Any, index: Any) -> Any:
        """Add the bias to each of the rows (count, 1), and return their sum (1, 1).

        `index` (count) says to which row of the result each row is added: always to the only one.
        """
        biased_rows = rows + bias
        total = torch.zeros(1, 1, device=device)
        # scatter_reduce needs an index for each element, not only for each row.
        index = index.unsqueeze(-1).expand_as(biased_rows)
        return total.scatter_reduce(0, index, biased_rows, "sum")

    rows = torch.randn(count, 1, device=device)
    bias = torch.full((1,), 5.0, device=device)
    index = torch.zeros(count, dtype=torch.int64, device=device)
    return _compare(torch, sum_biased_rows, rows, bias, index, dynamic=False)


def compile_index_add(torch: Any, device: str) -> Comparison:
    """Compile `index_add` into a tensor whose rows share memory, and compare it with eager torch.

    `expand` makes such a tensor of one row. The program makes it itself, because Inductor never
    writes into a tensor of its caller.
    """

    def add_rows(index: Any, rows: Any) -> Any:
        return torch.zeros(1, 8, device=device).expand(4, 8).index_add(0, index, rows)

    index = torch.tensor([0, 3, 0], device=device)
    rows = torch.ones(3, 8, device=device)
    return _compare(torch, add_rows, index, rows)


def compile_dropout_alias(torch: Any, device: str) -> Comparison:
    """Double what a switched-off dropout returns in place, compiled by torch.compile and eagerly.

    Such a dropout returns its input itself, so the input must change as well: both are returned.
    The fault is that compiled code leaves the input as it was.
    """

    def double_in_place(x: Any) -> Any:
        """Return the doubled output of the dropout, and the input."""
        y = torch.nn.functional.dropout(x, 0.5, False)
        y += y
        return y, x

    return _compare(torch, double_in_place, torch.ones(2, 2, device=device))


def compile_item_loop(torch: Any, device: str) -> Comparison:
    """Train five steps of Adam, compiled by torch.compile and eagerly, and return both results.

    The fault is about addcdiv_ with numbers that were read by `item()` in a loop: here, the number
    of the step.
    """

    def adam_step(parameter: Any, gradient: Any, mean: Any, square: Any, steps: Any) -> Any:
        """Do one step of Adam (learning rate 0.001) in place.

        `mean` is the running mean of the gradient, `square` that of its square, and `steps` a
        tensor that counts the steps.
        """
        steps.add_(1)
        mean.mul_(0.9).add_(gradient, alpha=0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)

        # Both means started at 0, which Adam corrects by a factor for each step.
        step = steps.item()
        square_correction = 1 - 0.999**step
        denominator = (square.sqrt() / square_correction**0.5).add_(1e-8)
        mean_correction = 1 - 0.9**step
        parameter.addcdiv_(mean, denominator, value=-0.001 / mean_correction)

    def train(start: Any, gradient: Any) -> Any:
        """Return how far five steps with the same gradient move a parameter."""
        parameter = start.clone()
        mean = torch.zeros_like(start)
        square = torch.zeros_like(start)
        steps = torch.zeros((), device=device)
        for _ in range(5):
            adam_step(parameter, gradient, mean, square, steps)
        return parameter - start

    start = torch.randn(64, device=device)
    gradient = torch.randn(64, device=device)
    return _compare(torch, train, start, gradient)


def compile_dynamic_reshape(torch: Any, device: str) -> Comparison:
    """Compare a reshape of strided views, compiled for dynamic shapes, with the eager one.

    The views leave out half of each row, so a reshape cannot be a view and must copy. One compiled
    program must serve two of them, of different sizes.
    """
    views = []
    for count in (6, 9):
        numbers = torch.arange(float(count * 5 * 8), device=device)
        views.append(numbers.view(count, 5, 8)[..., :4])

    def program(x: Any) -> Any:
        return x.reshape(x.shape[0] * x.shape[1], x.shape[2])

    torch._dynamo.reset()
    compiled = torch.compile(program, dynamic=True)
    return Comparison(
        computed=[compiled(view).clone() for view in views],
        reference=[program(view).clone() for view in views],
    )
