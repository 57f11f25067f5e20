"""The corpus of silent faults: what upstream computed wrong, for months, without an error.

Each fault is a function `NAME(torch, device, **sizes)`, and a row `NAME` (with dashes) in
images/data/silent_faults.yaml. The function computes something in the shape that shows the fault,
computes it in another way that is right (in a wider dtype, in parts, on a slice, uncompiled), and
returns both. Nothing here imports torch.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

FILES = ("attention", "compiled", "convolution", "large", "packages")


class Comparison(NamedTuple):
    """What a function of the corpus returns. Each result is a tensor or a list of tensors."""

    computed: Any
    """The result that may be wrong."""
    reference: Any
    """The right result."""
    wrong: Any = None
    """A result that is surely wrong, which must be noticed. None: leave_end_unwritten makes it."""
    figures: Mapping[str, float] | None = None
    """Further measurements. `times`: how many times as long it took as the right way."""


def find_function(subject: str) -> Callable[..., Comparison]:
    """Return the function of a silent fault, which is named like its row.

    Raises LookupError if no file has it.
    """
    name = subject.replace("-", "_")
    for file in FILES:
        functions = vars(importlib.import_module(f"{__name__}.{file}"))
        if name in functions:
            return functions[name]  # type: ignore[no-any-return]
    raise LookupError(f"there is no function of the silent fault {subject}")


def measure_error(torch: Any, computed: Any, reference: Any) -> float:
    """Return max |computed - reference| / max |reference|: how far a result is off at most.

    Each is a tensor or a list of tensors. For lists this is done for each pair of tensors, and the
    largest error is returned. It is infinite if shapes differ or a value is NaN or infinite.
    """
    results = _as_list(torch, computed)
    references = _as_list(torch, reference)
    errors = []
    for result, right in zip(results, references, strict=True):
        errors.append(_tensor_error(result.detach(), right.detach()))
    return max(errors)


def _as_list(torch: Any, result: Any) -> list[Any]:
    """Return the tensors of a result, which is one tensor or several."""
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _tensor_error(computed: Any, reference: Any) -> float:
    """Return the largest difference of two tensors, as a part of the largest right value.

    `computed` may be wrong, `reference` is right. If all right values are 0, the difference itself
    is returned. The result is infinite if the shapes differ, or if a tensor has a number that is
    not finite.
    """
    computed = computed.double()
    reference = reference.to(computed.device).double()
    if computed.shape != reference.shape:
        return float("inf")
    if not bool((computed - reference).isfinite().all()):
        return float("inf")
    largest_difference = float((computed - reference).abs().max())
    largest_value = float(reference.abs().max())
    return largest_difference / (largest_value or 1.0)


def leave_end_unwritten(torch: Any, computed: Any) -> list[Any]:
    """Return copies of a result's tensors, in which the last 64th of each is 0.

    A kernel leaves such a part unwritten if its index has 32 bits and runs over. This is the
    control of a fault whose function returns no wrong result of its own.
    """
    results = []
    for tensor in _as_list(torch, computed):
        results.append(tensor.detach().contiguous().clone())
    for result in results:
        unwritten_count = max(1, result.numel() // 64)
        result.view(-1)[-unwritten_count:] = 0
    return results
