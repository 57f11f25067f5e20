"""bridges: check that torch works with numpy's memory, and torchvision with torch's tensors.

Data reaches torch through numpy, and boxes through torchvision. Both must be built for this torch.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.harness.forked import measure_in_fork
from validate.judging import Finding, failed, listed, passed
from validate.next_steps import REPORT, pin

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
"""The first two boxes overlap by more, so nms drops the first, which has the lower score."""


class NumpyEvidence(TypedDict):
    """What `share_memory` returns."""

    torch: str  # version
    numpy: str  # version
    shared: Mapping[str, bool]  # dtype -> writes on each side are seen on the other
    copied_sum: float  # of the numbers 0 to 5, copied from numpy to torch


class NmsEvidence(TypedDict):
    """What `run_nms` returns. Boxes are named by their index in _BOXES."""

    torchvision: str  # version
    kept: list[int]  # boxes that nms keeps
    control: list[int]  # boxes that it keeps where it may drop none


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, NumpyEvidence | NmsEvidence]]:
    """Yield `numpy` and `torchvision`, as far as they are claimed, each measured in a fork."""
    importlib.import_module("torch")
    for claim in claims:
        if claim.subject == "numpy":
            yield claim.subject, measure_in_fork(share_memory)
        else:
            yield claim.subject, measure_in_fork(run_nms)


def share_memory() -> NumpyEvidence:
    """Make a tensor of a numpy array for each dtype; a write on one side must show on the other.

    In the result, `shared` says for each dtype whether that was so, and whether the tensor has the
    array's dtype. `copied_sum` is the sum of a tensor that was copied from the numbers 0 to 5.
    """
    torch, numpy = importlib.import_module("torch"), importlib.import_module("numpy")
    shared = {}
    for name in _DTYPES:
        array = numpy.array([[0, 1, 1], [1, 0, 1]], dtype=name)
        tensor = torch.from_numpy(array)
        has_dtype = str(tensor.dtype) == f"torch.{name}"
        # Every dtype has a 0 and a 1, bool too. Each side writes a 1 where there was a 0.
        array[0, 0] = 1
        tensor_sees_write = bool(tensor[0, 0] == 1)
        tensor[1, 1] = 1
        array_sees_write = bool(array[1, 1] == 1)
        is_equal = bool((tensor.numpy() == array).all())
        shared[name] = has_dtype and tensor_sees_write and array_sees_write and is_equal

    copy = torch.tensor(numpy.arange(6.0).reshape(2, 3))
    return {
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "shared": shared,
        "copied_sum": copy.sum().item(),
    }


def run_nms() -> NmsEvidence:
    """Let torchvision drop overlapping boxes (nms), and return which it keeps, by index.

    The best come first. Of two boxes that overlap by more than the threshold, it keeps the one with
    the higher score. The overlap is the intersection's share of the union, so it is 1 at most.
    """
    torch, torchvision = importlib.import_module("torch"), importlib.import_module("torchvision")
    boxes, scores = torch.tensor(_BOXES), torch.tensor(_SCORES)
    return {
        "torchvision": torchvision.__version__,
        "kept": torchvision.ops.nms(boxes, scores, _OVERLAP).tolist(),
        # With this threshold no box is dropped.
        "control": torchvision.ops.nms(boxes, scores, 1.0).tolist(),
    }


def judge_numpy(_subject: str, _expect: object, evidence: NumpyEvidence) -> Finding:
    """Pass if tensors made from numpy arrays share their memory, for every dtype.

    A tensor that was copied from an array must also have the right sum.
    """
    broken = [name for name, shared in evidence["shared"].items() if shared is not True]
    if not evidence["shared"]:
        return failed("no type of numbers was tried", REPORT)
    if broken:
        return failed(
            f"torch and numpy {evidence['numpy']} do not share memory for {listed(broken)}: this "
            "torch was not built for this numpy"
        )
    # The sum of 0 to 5.
    if evidence["copied_sum"] != 15.0:
        return failed(
            f"a tensor copied from a numpy {evidence['numpy']} array sums up to "
            f"{evidence['copied_sum']}, and should to 15.0"
        )
    return passed(
        f"numpy {evidence['numpy']} and torch share memory for {len(evidence['shared'])} types"
    )


def judge_nms(_subject: str, _expect: object, evidence: NmsEvidence) -> Finding:
    """Judge that nms drops the overlapping box with the lower score, and none in the control."""
    # By score, the order is 1, 0, 2. Box 0 must be dropped: box 1 overlaps it and has a higher
    # score.
    if evidence["kept"] != [1, 2]:
        return failed(
            f"torchvision.ops.nms keeps {evidence['kept']} of three boxes, and should keep [1, 2]: "
            f"torchvision {evidence['torchvision']} does not work with this torch"
        )
    if evidence["control"] != [1, 0, 2]:
        return failed(
            f"torchvision.ops.nms keeps {evidence['control']} of three boxes where it may drop "
            "none, so what it drops elsewhere is chance: torchvision "
            f"{evidence['torchvision']} does not work with this torch"
        )
    return passed(f"torchvision {evidence['torchvision']}: nms keeps the right boxes")


CLAIMS = {"bridges/numpy": judge_numpy, "bridges/torchvision": judge_nms}
NEXT_STEPS = {
    "bridges/numpy": pin("a numpy release that this torch accepts (numpy 2 needs torch 2.3)"),
    "bridges/torchvision": pin(
        "the torchvision release that was made for this torch (its metadata requires just this one)"
    ),
}
