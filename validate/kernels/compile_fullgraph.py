"""The kernels that torch.compile generates for a function, from one graph of it."""

import importlib
from typing import Any

from validate.kernels import Case, Kernel, Observed, SeededRandom, from_capability
from validate.kernels._names import INDUCTOR

_WIDTH = 141


def _block(x: Any, weight: Any, gain: Any) -> Any:
    """Compute RMS norm, SwiGLU and softmax, and add the input: reductions around a matrix product.

    x: (rows, _WIDTH), like the result. weight: (_WIDTH, 2 * _WIDTH). gain: (_WIDTH,).
    """
    mean_square = x.pow(2).mean(-1, keepdim=True)
    normed = x * (mean_square + 1e-5).rsqrt() * gain
    gate, up = (normed @ weight).chunk(2, dim=-1)
    swiglu = gate.sigmoid() * gate * up
    return swiglu.softmax(-1) + x


def _compiled(x: Any, weight: Any, gain: Any) -> Any:
    """Compute `_block`, compiled as one graph."""
    torch = importlib.import_module("torch")
    return torch.compile(_block, fullgraph=True, dynamic=False)(x, weight, gain)


def _case(rng: SeededRandom) -> Case:
    """Return a case that compares `_block` compiled by torch.compile with `_block` as it is.

    A kernel computes one tile of the rows and columns at a time. 53 rows and a width of 141 are not
    multiples of any tile's size, so generated kernels must mask the edges. Gradients of all inputs
    are compared, too.
    """
    inputs = {
        "x": rng.normal(53, _WIDTH),
        "weight": rng.normal(_WIDTH, 2 * _WIDTH, deviation=_WIDTH**-0.5),
        "gain": rng.normal(_WIDTH),
    }
    return Case(
        dtype="float32",
        inputs=inputs,
        run=_compiled,
        plain=_block,
        grad_inputs=("x", "weight", "gain"),
    )


def _observe(rng: SeededRandom) -> Observed:
    """Return how many graphs and graph breaks the case made, by the counters of torch.compile.

    A graph break is a place where torch.compile gave up and split the function. The counters count
    since this process began, in which nothing else was compiled.
    """
    counters = importlib.import_module("torch._dynamo.utils").counters
    return {
        "facts": {
            "graphs": int(counters["stats"]["unique_graphs"]),
            "graph breaks": sum(counters["graph_break"].values()),
        }
    }


KERNEL = Kernel(
    check="compile",
    probe="gpu.compile",
    package="torch",
    statement=(
        "torch.compile makes one graph without a break, within 1e-5 in float32, "
        "and its own kernels run"
    ),
    cases={"float32": _case},
    tolerance={"float32": 1e-5},
    observe=_observe,
    facts={"graphs": 1, "graph breaks": 0},
    expected_kernels={"generated": INDUCTOR},
    gpu_obstacle=from_capability(7, 0, "torch.compile's Triton refuses older GPUs"),
)
