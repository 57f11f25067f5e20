"""Contracts of the gpu tier: G0 to G10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from validate.contracts import Exempt, Measured
from validate.contracts.cpu import LogitsEvidence, Versions, WeightsEvidence
from validate.environment.nvml import Gpu

# ---- G0


class Inventory(TypedDict):
    driver: str
    gpus: list[Gpu]


class DeviceExpect(TypedDict):
    inventory: Inventory | None
    """The host's; None: the claims know no host."""
    archs: list[str]


class GpuView(Measured, total=False):
    """The GPUs as NVML, libcuda or torch see them."""

    driver: str
    version: str
    cuda: int | str
    """libcuda's number, or the version that torch was built for."""
    archs: list[str]
    gpus: list[Gpu]
    links: list[list[int | str]]
    """Pairs of GPUs by number, and how they reach each other."""


class DeviceEvidence(TypedDict):
    nvml: GpuView
    cuda: GpuView
    torch: GpuView
    libcuda: list[str]
    environment: dict[str, str]


# ---- G1 to G9


class _Capability(Exempt, total=False):
    capability: list[int]
    """The host's least, where it could be read."""
    capabilities: list[list[int]]
    """All of the host's, where its GPUs differ."""


class _Names(TypedDict, total=False):
    """Claims from before 2026-11-22 have none of these: a name that was missing failed them."""

    names_of: str
    """The versions that decide what its kernels are called."""
    other_kernels: dict[str, str]
    """Pattern -> whose they are: seen where none of its own is, they are the wrong ones."""
    aside_kernels: list[str]
    """Patterns of kernels that run around it: they do not show that it ran."""


class KernelNames(_Names):
    """What CUDA kernels are called."""

    expected_kernels: list[str]
    """Patterns of CUDA kernels, one for each part that has a name in this version."""


class _LeftOut(TypedDict, total=False):
    left_out: dict[str, str]
    """Case -> why these versions, or the host's least capable GPU, can't do it, with the source: it is not run."""


class KernelExpect(_Capability, KernelNames, _LeftOut):
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


class _Apart(TypedDict, total=False):
    ran: Mapping[str, list[str]]
    """Case -> what ran when the kernel was asked for, without what plain torch ran on the same inputs."""
    marks: Mapping[str, int]
    """`made` and `seen`: spins between stretches; `lead_in`: spins before the first of them that were seen."""


class Profile(_Apart):
    """Names of the CUDA kernels that ran."""

    works: bool
    """The profiler saw a kernel that surely runs."""
    matching: dict[str, list[str]]
    others: list[str]
    count: int


class _Conditions(Measured, total=False):
    environment: dict[str, str]
    gated: str
    declined: list[str]
    observed: Observed


class _Ran(_Conditions, total=False):
    """What there is once the kernel ran: nothing else has them."""

    cases: dict[str, CaseEvidence]
    kernels: Profile
    libraries: dict[str, list[str]]


class KernelEvidence(_Ran):
    device: Device


_TorchSays = TypedDict("_TorchSays", {"torch says": "int | None"}, total=False)


class CudnnEvidence(Measured, _TorchSays):
    compiled: list[int]
    running: list[int]


# ---- G10


class Memory(TypedDict):
    """Bytes of GPU memory, and numbers of weights."""

    quantised: int
    bfloat16: int
    parameters: int
    projections: int


class OnGpu(TypedDict, total=False):
    """What the gpu tier adds to evidence of the tiny Llama."""

    device: Device
    environment: dict[str, str]


class GpuWeights(WeightsEvidence):
    memory: Memory


class GpuWeightsEvidence(GpuWeights, OnGpu):
    pass


class GpuLogitsEvidence(LogitsEvidence, OnGpu):
    pass


class SecondRun(TypedDict):
    losses: list[float]
    fingerprint: str


class Training(Measured):
    losses: list[float]
    gradient_checkpointing: bool
    adapters: int
    b_before: float
    b_still: list[str]
    base_count: int
    base_changed: list[str]
    fingerprint: str


class Qlora(Training, Versions):
    second_run: SecondRun


class QloraEvidence(Qlora, OnGpu):
    pass
