"""Types of what a claim about a GPU kernel expects, and of what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class _PathExpect(TypedDict):
    """Which CUDA kernels must run: a pattern for each part with a known name in these versions."""

    expected_kernels: Sequence[str]


class PathExpect(_PathExpect, total=False):
    """Which CUDA kernels must run, and which others may.

    Claims from before 2026-11-22 have none of these three keys: there a name that was missing
    failed the claim.
    """

    other_kernels: Mapping[str, str]  # pattern -> whose they are: they must not run in its place
    aside_kernels: Sequence[str]  # patterns of kernels that run around it
    names_of: str  # what decides how its kernels are called, for people: `flash-attn 2.7.4`


class _KernelExpect(PathExpect):
    """What each claim about a kernel has."""

    cases: Sequence[str]
    tolerance: Mapping[str, str | float]  # dtype -> rule T or the largest relative error
    figures: Mapping[str, Sequence[float]]  # name -> least and most
    facts: Mapping[str, object]
    libraries: Sequence[str]  # patterns of what must be mapped
    package: str


class KernelExpect(_KernelExpect, total=False):
    """What a claim about a kernel expects."""

    capability: Sequence[int]  # of the host's GPU, the least if they differ; missing: not known
    capabilities: Sequence[Sequence[int]]  # of all the host's GPUs, if they differ
    left_out: Mapping[str, str]  # case that these versions or GPUs cannot run -> why
    not_applicable: str  # why these GPUs cannot run the kernel


class Output(TypedDict):
    """Relative errors of a result: the kernel's, and plain torch's in the same dtype."""

    backward: bool
    error: float
    plain_error: float


class CaseEvidence(TypedDict, total=False):
    """A case that ran. Or only `error`; or `gated`, why this GPU cannot run it, and `dtype`."""

    dtype: str
    shapes: Mapping[str, Sequence[int]]
    finite: bool
    outputs: Mapping[str, Output]
    controls: Mapping[str, Mapping[str, float]]  # control -> result -> error
    error: Mapping[str, Any]
    gated: str


class Figure(TypedDict):
    """A figure, and the same figure of each control: a result that is wrong on purpose."""

    value: float
    controls: Mapping[str, float]


class ObservedEvidence(TypedDict, total=False):
    """Measured beside comparisons of tensors: figures and facts. Or only `error`."""

    figures: Mapping[str, Figure]
    facts: Mapping[str, object]
    error: Mapping[str, Any]


class Marks(TypedDict):
    """How many marks of a profile (_timeline.py) were made and how many the profiler saw.

    `lead_in`: how many spins of the lead-in it saw.
    """

    made: int
    seen: int
    lead_in: int


class _ProfileEvidence(TypedDict):
    """What each profile has."""

    works: bool  # the profiler lost nothing of the work: it saw the kernels that surely ran
    matching: Mapping[str, Sequence[str]]  # pattern -> names
    others: Sequence[str]  # the first names that fit no pattern
    count: int  # of all names


class ProfileEvidence(_ProfileEvidence, total=False):
    """CUDA kernels that ran. Evidence from before 2026-11-22 has neither `marks` nor `ran`."""

    marks: Marks
    ran: Mapping[str, Sequence[str]]  # case -> those that plain torch did not run as well


class DeviceFacts(TypedDict):
    """The GPU as torch sees it."""

    name: str
    capability: Sequence[int]
    torch: str


class KernelEvidence(TypedDict, total=False):
    """What was measured of a kernel. If it did not run, `gated` or `declined` says why."""

    device: DeviceFacts
    environment: Mapping[str, str]
    gated: str
    declined: Sequence[str]
    cases: Mapping[str, CaseEvidence]
    observed: ObservedEvidence
    libraries: Mapping[str, Sequence[str]]  # pattern -> files
    kernels: ProfileEvidence
    error: Mapping[str, Any]
