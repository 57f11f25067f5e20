"""bridges: data reaches torch through numpy and boxes through torchvision: both must share what torch computes on."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.harness.forked import measure_in_fork
from validate.judging import Finding, failed, listed, passed

SETTINGS = Settings(begins_with_torch=True)

_DTYPES = (
    "float16",
    "float32",
    "float64",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "bool",
    "complex64",
)
_BOXES = ((0.0, 0.0, 10.0, 10.0), (1.0, 1.0, 11.0, 11.0), (20.0, 20.0, 30.0, 30.0))
_SCORES = (0.8, 0.9, 0.7)
_OVERLAP = 0.5


class NumpyEvidence(TypedDict):
    """Versions; whether each dtype shares memory both ways; the sum of an array that was copied."""

    torch: str
    numpy: str
    shared: Mapping[str, bool]
    copied_sum: float


class NmsEvidence(TypedDict):
    """Boxes that nms keeps, and (the control) those that it keeps where it must drop none."""

    torchvision: str
    kept: list[int]
    control: list[int]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, NumpyEvidence | NmsEvidence]]:
    """Yield the evidence of `numpy` and `torchvision`."""
    importlib.import_module("torch")
    for claim in claims:
        yield (
            claim.subject,
            measure_in_fork(_numpy) if claim.subject == "numpy" else measure_in_fork(_torchvision),
        )


def _numpy() -> NumpyEvidence:
    """Share memory in both directions: a write on one side must show on the other."""
    torch, numpy = importlib.import_module("torch"), importlib.import_module("numpy")
    shared = {}
    for name in _DTYPES:
        array = numpy.array([[0, 1, 1], [1, 0, 1]], dtype=name)
        tensor = torch.from_numpy(array)
        array[0, 0] = 1
        is_seen = bool(tensor[0, 0] == 1) and str(tensor.dtype) == f"torch.{name}"
        tensor[1, 1] = 1
        shared[name] = is_seen and bool(array[1, 1] == 1) and bool((tensor.numpy() == array).all())
    copied = torch.tensor(numpy.arange(6.0).reshape(2, 3)).sum().item()
    return {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "shared": shared,
        "copied_sum": copied,
    }


def _torchvision() -> NmsEvidence:
    """Run nms: of two boxes that overlap by more than half it keeps the one with the higher score, best first."""
    torch, torchvision = importlib.import_module("torch"), importlib.import_module("torchvision")
    kept = torchvision.ops.nms(torch.tensor(_BOXES), torch.tensor(_SCORES), _OVERLAP).tolist()
    control = torchvision.ops.nms(torch.tensor(_BOXES), torch.tensor(_SCORES), 1.0).tolist()
    return {"torchvision": torchvision.__version__, "kept": kept, "control": control}


def judge_numpy(_subject: str, _expect: object, evidence: NumpyEvidence) -> Finding:
    """Judge that every dtype shares memory."""
    broken = [name for name, shared in evidence["shared"].items() if shared is not True]
    if broken or not evidence["shared"]:
        return failed(f"torch and numpy do not share memory for {listed(broken) or 'any type'}")
    if evidence["copied_sum"] != 15.0:
        return failed(f"a copied array sums up to {evidence['copied_sum']}, not 15.0")
    return passed(
        f"numpy {evidence['numpy']} and torch share memory for {len(evidence['shared'])} types"
    )


def judge_nms(_subject: str, _expect: object, evidence: NmsEvidence) -> Finding:
    """Judge that the overlapping box of the lower score is dropped, best first."""
    if evidence["kept"] != [1, 2]:
        return failed(f"nms keeps {evidence['kept']} of three boxes, [1, 2] is right")
    if evidence["control"] != [1, 0, 2]:
        return failed(f"control: nms that must drop no box keeps {evidence['control']}")
    return passed(f"torchvision {evidence['torchvision']}: nms keeps the right boxes")


CLAIMS = {"bridges/numpy": judge_numpy, "bridges/torchvision": judge_nms}
