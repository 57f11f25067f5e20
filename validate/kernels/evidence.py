"""What is expected of a kernel of the table, and what running it shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from validate.evidence import Exempt, Measured


class _Perhaps(Exempt, total=False):
    capability: list[int]
    """The host's least, where it could be read."""
    capabilities: list[list[int]]
    """All of the host's, where its GPUs differ."""
    left_out: dict[str, str]
    """Case -> why these versions, or the host's least capable GPU, can't do it, with the source: it is not run."""
    names_of: str
    """The versions that decide what its kernels are called. Claims from before 2026-11-22 have neither this nor the
    next two: a name that was missing failed them."""
    other_kernels: dict[str, str]
    """Pattern -> whose they are: seen where none of its own is, they are the wrong ones."""
    aside_kernels: list[str]
    """Patterns of kernels that run around it: they do not show that it ran."""


class KernelExpect(_Perhaps):
    expected_kernels: list[str]
    """Patterns of CUDA kernels, one for each part that has a name in this version."""
    cases: list[str]
    tolerance: dict[str, str | float]
    """dtype -> rule T, or the largest relative error."""
    figures: dict[str, list[float]]
    """Name -> least and most."""
    facts: dict[str, object]
    libraries: list[str]
    package: str


class Device(TypedDict):
    name: str
    capability: list[int]
    torch: str


class Output(TypedDict):
    backward: bool
    error: float
    plain_error: float


class _CaseGate(Measured, total=False):
    gated: str
    """Why this GPU can't do the case: beside it there is `dtype` alone."""


class CaseEvidence(_CaseGate):
    dtype: str
    shapes: dict[str, list[int]]
    finite: bool
    outputs: dict[str, Output]
    controls: dict[str, dict[str, float]]


class Figure(TypedDict):
    value: float
    controls: dict[str, float]


class Observed(Measured, total=False):
    figures: dict[str, Figure]
    facts: dict[str, object]


class _WhereItWorks(TypedDict, total=False):
    ran: Mapping[str, list[str]]
    """Case -> what ran when the kernel was asked for, without what plain torch ran on the same inputs."""
    marks: Mapping[str, int]
    """`made` and `seen`: spins between stretches; `lead_in`: spins before the first of them that were seen."""


class Profile(_WhereItWorks):
    """Names of the CUDA kernels that ran."""

    works: bool
    """The profiler saw a kernel that surely runs."""
    matching: dict[str, list[str]]
    others: list[str]
    count: int


class _OnceItRan(Measured, total=False):
    environment: dict[str, str]
    gated: str
    declined: list[str]
    observed: Observed
    cases: dict[str, CaseEvidence]
    kernels: Profile
    libraries: dict[str, list[str]]


class KernelEvidence(_OnceItRan):
    device: Device
