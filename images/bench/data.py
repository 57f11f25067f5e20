"""What the parts measure, as plain data: every value, not the median alone. Seconds and bytes throughout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

PartData = Mapping[str, Any]
"""What any part measured: one of the `...Data` below."""


class LayerBytes(TypedDict):
    """One layer: as a tar, and compressed both ways."""

    digest: str
    tar: int
    gzip: int
    zstd: int


class Load(TypedDict):
    """What others used of the machine around a measurement. `busy`: part of the processors' time."""

    busy: float
    before: float
    """Load average."""
    after: NotRequired[float]


class StepTime(TypedDict):
    """One step of a build."""

    name: str
    seconds: float
    cached: bool


class PlanRun(TypedDict):
    """One run of the planner. `cpu`: processor seconds; `peak`: resident memory."""

    cpu: float
    seconds: float
    peak: int
    load: Load


class PlanSize(TypedDict):
    """The planner's runs with a matrix of one size."""

    images: int
    accepted: int
    locks: int
    locked: int
    runs: list[PlanRun]


class PlanData(TypedDict):
    """The part `plan`."""

    sizes: list[PlanSize]


class BuildRun(TypedDict):
    """One measured build of a side: ours, conventional, or the lower bound of both."""

    side: str
    seconds: float
    load: Load
    steps: list[StepTime]
    bytes: NotRequired[int]


class BasePull(TypedDict):
    """One pull of the conventional side's base."""

    seconds: float
    load: Load
    bytes: int
    layers: int


class BasePulls(TypedDict):
    """The pulls, or why there are none."""

    base_pulls: list[BasePull]
    base_not_pulled: str


class ColdData(BasePulls):
    """The part `cold`. `host_peak`: resident memory of our command."""

    image: str
    packages: int
    baseline_bytes: int
    host_peak: int
    runs: list[BuildRun]


class RebuildRun(TypedDict):
    """One rebuild after a pin moved; what only ours has is not required."""

    side: str
    seconds: float
    load: Load
    layers_changed: int
    steps: NotRequired[list[StepTime]]
    to: NotRequired[str]
    in_engine: NotRequired[float]
    validated: NotRequired[float]
    bytes_changed: NotRequired[int]
    steps_run: NotRequired[list[str]]
    peak: NotRequired[int]


class RebuildData(TypedDict):
    """The part `rebuild`. `moved`: the package whose pin moved."""

    image: str
    moved: str
    runs: list[RebuildRun]


class ImageBytes(TypedDict):
    """One measured image. `made_from`: digest of its context and base; `bytes`: on the engine's disk."""

    made_from: str
    bytes: int
    layers: list[str]


class SizesData(TypedDict):
    """The parts `pull` and `sequence`."""

    images: dict[str, ImageBytes]
    layers: dict[str, LayerBytes]
    order: NotRequired[list[str]]


TOGETHER = "static and cpu"
"""The tier of a run of both."""


class TierRun(TypedDict):
    """One validation of a built image. `tier`: one, or `TOGETHER`."""

    tier: str
    claims: int
    seconds: float
    peak: int
    load: Load


class TrialData(TypedDict):
    """The part `trial`."""

    image: str
    tiers: list[TierRun]


class FleetPass(TypedDict):
    """Pairs planned and their jobs booked, once. `seconds`: both."""

    planned: float
    booked: float
    seconds: float
    jobs: int
    load: Load


class FleetSize(TypedDict):
    """The passes over so many pairs."""

    pairs: int
    jobs: int
    runs: list[FleetPass]


class FleetData(TypedDict):
    """The part `fleet`. `machines`: entries of the fleet."""

    machines: int
    sizes: list[FleetSize]


class OverheadRun(TypedDict):
    """The same jobs judged by one executor, one at a time. `seconds`: of the whole command."""

    executor: str
    seconds: float
    work: float
    """Seconds that workers spent on the trials, added up."""
    empty: float
    """Seconds of as many jobs that do nothing: what the executor takes by itself."""
    load: Load


class OverheadData(TypedDict):
    """The parts `overhead` and `overhead-whole`. `jobs`: of each run. `over`: the image theirs lie over, if any."""

    jobs: int
    over: NotRequired[str]
    runs: list[OverheadRun]


class StartMode(TypedDict):
    """How a process is started. `cold`: with an empty page cache; `loading`: CUDA_MODULE_LOADING."""

    cold: bool
    loading: str


class StartRun(TypedDict):
    """One training process on a GPU. `at`: seconds from its container's creation to each mark, in their order."""

    side: str
    mode: StartMode
    at: dict[str, float]
    host_peak: int
    """Resident memory, at most."""
    gpu_context: int
    """GPU memory after the context was made, torch's own allocations left out."""
    gpu_beside: int
    """The same at the end: with the modules of kernels that ran, and the libraries' workspaces."""
    losses: list[float]
    load: Load


class StartData(TypedDict):
    """The part `start`. `images`: side -> ID."""

    gpu: str
    images: dict[str, str]
    runs: list[StartRun]


class DeliveryPush(TypedDict):
    """One push of a side's image into an empty repository. `by`: the engine, or truetag."""

    side: str
    compression: str
    by: str
    seconds: float
    bytes: int
    load: Load


class DeliveryRun(TypedDict):
    """One image from a registry to its first training step. `imported` and `stepped`: from the container's creation."""

    side: str
    compression: str
    engine: str
    """Its version; of this machine's own, that with a word that says so: a suite may have the same."""
    link: str
    image_id: str
    bytes: int
    seconds: float
    """Of the pull, until the engine has unpacked all."""
    cpu: float
    """Processor seconds of the engine meanwhile."""
    imported: float
    stepped: float
    loss: float
    load: Load


class DeliveryGap(TypedDict):
    """What was not measured, and why. `expected`: the engine is known not to read that compression."""

    what: str
    reason: str
    expected: bool


class DeliveryData(TypedDict):
    """The part `delivery`."""

    image: str
    images: dict[str, str]
    """Side -> ID of the image as it was built."""
    pushes: list[DeliveryPush]
    runs: list[DeliveryRun]
    blocked: list[DeliveryGap]


class MachineData(TypedDict):
    """A `results.Machine`."""

    processor: str
    cores: int
    memory: int
    engine: str
    storage: str
    python: str


class Entry(TypedDict):
    """One part in the file of results, with when, on what and how long it was measured."""

    date: str
    commit: str
    machine: MachineData
    took: int
    finished: bool
    data: PartData
