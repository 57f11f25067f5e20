"""C6: torch shares arrays with numpy, and torchvision's compiled operators work on torch's tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from validate.claims import Claim
from validate.contracts.cpu import NumpyEvidence, TorchvisionEvidence
from validate.harness.forked import in_fork

_DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool", "complex64")
_BOXES = ((0.0, 0.0, 10.0, 10.0), (1.0, 1.0, 11.0, 11.0), (20.0, 20.0, 30.0, 30.0))
_SCORES = (0.8, 0.9, 0.7)
_OVERLAP = 0.5


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, NumpyEvidence | TorchvisionEvidence]]:
    measures: Mapping[str, Callable[[], NumpyEvidence | TorchvisionEvidence]] = {
        "numpy": _numpy,
        "torchvision": _torchvision,
    }
    importlib.import_module("torch")
    for claim in claims:
        yield claim.subject, in_fork(measures[claim.subject])


def _numpy() -> NumpyEvidence:
    """Share memory in both directions: a write on one side must show on the other."""
    torch, numpy = importlib.import_module("torch"), importlib.import_module("numpy")
    seen = {}
    for name in _DTYPES:
        array = numpy.array([[0, 1, 1], [1, 0, 1]], dtype=name)
        tensor = torch.from_numpy(array)
        array[0, 0] = 1
        there = bool(tensor[0, 0] == 1) and str(tensor.dtype) == f"torch.{name}"
        tensor[1, 1] = 1
        seen[name] = there and bool(array[1, 1] == 1) and bool((tensor.numpy() == array).all())
    copied = torch.tensor(numpy.arange(6.0).reshape(2, 3)).sum().item()
    return {"torch": torch.__version__, "numpy": numpy.__version__, "shared": seen, "copied_sum": copied}


def _torchvision() -> TorchvisionEvidence:
    """Run nms: of two boxes that overlap by more than half it keeps the one with the higher score, best first."""
    torch, torchvision = importlib.import_module("torch"), importlib.import_module("torchvision")
    kept = torchvision.ops.nms(torch.tensor(_BOXES), torch.tensor(_SCORES), _OVERLAP).tolist()
    control = torchvision.ops.nms(torch.tensor(_BOXES), torch.tensor(_SCORES), 1.0).tolist()
    return {"torchvision": torchvision.__version__, "kept": kept, "control": control}
