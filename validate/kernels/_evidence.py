"""What a claim about a kernel expects, and what was measured of it: Of a kernel."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class _PathExpect(TypedDict):
    """Patterns of CUDA kernels: one for each part that has a name in this version, and of what runs around it."""

    expected_kernels: Sequence[str]


class PathExpect(_PathExpect, total=False):
    """`names_of`: the versions that decide what its kernels are called.

    Claims from before 2026-11-22 have none of these three: a name that was missing failed them.
    """

    other_kernels: Mapping[str, str]  # pattern -> whose they are
    aside_kernels: Sequence[str]
    names_of: str


class _KernelExpect(PathExpect):
    cases: Sequence[str]
    tolerance: Mapping[str, str | float]  # dtype -> rule T or the largest relative error
    figures: Mapping[str, Sequence[float]]  # name -> least and most
    facts: Mapping[str, object]
    libraries: Sequence[str]  # patterns of what must be mapped
    package: str


class KernelExpect(_KernelExpect, total=False):
    """Capabilities are the host's, `left_out` cases that these versions or GPUs can't do, and why."""

    capability: Sequence[int]  # the least
    capabilities: Sequence[Sequence[int]]  # all, where its GPUs differ
    left_out: Mapping[str, str]
    not_applicable: str


class Output(TypedDict):
    """Relative errors of a result: the kernel's, and plain torch's in the same dtype."""

    backward: bool
    error: float
    plain_error: float


class CaseEvidence(TypedDict, total=False):
    """A case that ran; or `error`; or `gated`, why this GPU can't run it, with its dtype."""

    dtype: str
    shapes: Mapping[str, Sequence[int]]
    finite: bool
    outputs: Mapping[str, Output]
    controls: Mapping[str, Mapping[str, float]]  # control -> result -> error
    error: Mapping[str, Any]
    gated: str


class Figure(TypedDict):
    """A figure, and what it is of each control."""

    value: float
    controls: Mapping[str, float]


class ObservedEvidence(TypedDict, total=False):
    """What is no comparison of tensors; or `error`."""

    figures: Mapping[str, Figure]
    facts: Mapping[str, object]
    error: Mapping[str, Any]


class Marks(TypedDict):
    """Spins that divide a profile: how many were made and seen, and those of the lead-in."""

    made: int
    seen: int
    lead_in: int


class _ProfileEvidence(TypedDict):
    works: bool  # the profiler saw the kernels that surely ran
    matching: Mapping[str, Sequence[str]]  # pattern -> names
    others: Sequence[str]
    count: int


class ProfileEvidence(_ProfileEvidence, total=False):
    """CUDA kernels that ran. `ran`: case -> those that plain torch did not run on the same inputs.

    Evidence from before 2026-11-22 has neither `marks` nor `ran`.
    """

    marks: Marks
    ran: Mapping[str, Sequence[str]]


class DeviceFacts(TypedDict):
    """The GPU as torch sees it."""

    name: str
    capability: Sequence[int]
    torch: str


class KernelEvidence(TypedDict, total=False):
    """What was measured of a kernel; or `gated` or `declined`: why it did not run."""

    device: DeviceFacts
    environment: Mapping[str, str]
    gated: str
    declined: Sequence[str]
    cases: Mapping[str, CaseEvidence]
    observed: ObservedEvidence
    libraries: Mapping[str, Sequence[str]]  # pattern -> files
    kernels: ProfileEvidence
    error: Mapping[str, Any]
