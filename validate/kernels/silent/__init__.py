"""The corpus of silent faults: what upstream computed wrong, for months, without an error. One function a fault.

A function `NAME(torch, device, **sizes)`, of the row `NAME` (with dashes) in images/data/silent_faults.yaml, runs the
shape that shows it. It gives what was found and the right value by another way (in a wider dtype, in parts, on a slice,
uncompiled), each a tensor or a list of them; and if it has them a wrong value, which must be told apart, and figures:
`times` as long as the right way it took.
Without a wrong one a last part that nobody wrote stands for it. Nothing here imports torch.
"""

import importlib
from collections.abc import Callable
from typing import Any

FILES = ("attention", "compiled", "convolution", "large", "packages")


def function(subject: str) -> Callable[..., tuple[Any, ...]]:
    """The function of a row. Raises LookupError."""
    name = subject.replace("-", "_")
    for file in FILES:
        if found := vars(importlib.import_module(f"{__name__}.{file}")).get(name):
            return found  # type: ignore[no-any-return]
    raise LookupError(f"there is no function of the silent fault {subject}")


def error(torch: Any, found: Any, right: Any) -> float:
    """The largest difference as a part of the largest right value; infinity where something is no number."""
    results, wanted = ([one] if isinstance(one, torch.Tensor) else [*one] for one in (found, right))
    return max(
        _error(one.detach(), other.detach()) for one, other in zip(results, wanted, strict=True)
    )


def _error(found: Any, right: Any) -> float:
    found, right = found.double(), right.to(found.device).double()
    if found.shape != right.shape or not bool((found - right).isfinite().all()):
        return float("inf")
    return float((found - right).abs().max()) / (float(right.abs().max()) or 1.0)


def unwritten(torch: Any, found: Any) -> list[Any]:
    """The results with a last part of each that nobody wrote: what an index of 32 bits leaves."""
    results = [
        one.detach().contiguous().clone()
        for one in ([found] if isinstance(found, torch.Tensor) else found)
    ]
    for one in results:
        one.view(-1)[-max(1, one.numel() // 64) :] = 0
    return results
