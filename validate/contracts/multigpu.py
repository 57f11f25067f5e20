"""Contracts of the multigpu tier: M1 to M8. Ranks yield `{"ranks": [rank 0's, rank 1's, ...]}`.

`...Row` is the part of an expectation that is the same on every host, `...Result` what a probe's `rank` returns: the
launcher adds the device.
"""

from __future__ import annotations

from typing import TypedDict

from validate.contracts import Exempt, Measured


class RanksExpect(Exempt):
    device: str
    """`cuda`, or `cpu` in a rehearsal."""
    ranks: int | None
    """None: the claims know no host."""


class _DeviceDetails(TypedDict, total=False):
    name: str
    capability: list[int]
    uuid: str


class RankDevice(_DeviceDetails):
    type: str
    backend: str
    torch: str


class Rank(Measured):
    device: RankDevice


class RanksEvidence(Measured):
    ranks: list[Rank]
    """Each of the kind that its claim asks for."""


# ---- M1


class CollectivesRow(TypedDict):
    operations: list[str]
    sizes: list[int]


class CollectivesExpect(CollectivesRow, RanksExpect):
    pass


class CollectivesResult(TypedDict):
    exact: dict[str, dict[str, bool]]
    controls: dict[str, dict[str, bool]]


class CollectivesRank(CollectivesResult, Rank):
    pass


class NcclSettingsOfHost(TypedDict):
    injected: dict[str, str]
    """Variables that the trial itself sets."""


class NcclSettingsExpect(NcclSettingsOfHost, RanksExpect):
    pass


class NcclSettingsResult(TypedDict):
    variables: dict[str, str]
    files: dict[str, list[str]]


class NcclSettingsRank(NcclSettingsResult, Rank):
    pass


class NcclOfImage(TypedDict):
    cuda: str


class NcclExpect(NcclOfImage, RanksExpect):
    pass


class NcclOwner(TypedDict):
    name: str
    version: str
    as_recorded: bool


class NcclLibrary(TypedDict):
    path: str
    running: str
    built: dict[str, str]
    owners: list[NcclOwner]


class NcclResult(TypedDict):
    cuda: str
    libraries: list[NcclLibrary]


class NcclRank(NcclResult, Rank):
    pass


class TransportOfHost(NcclSettingsOfHost):
    link: str
    """nvlink, pcie, apart, or empty where the host could not tell."""


class TransportExpect(TransportOfHost, RanksExpect):
    pass


class _LogDetails(TypedDict, total=False):
    versions: list[str]
    lines: list[str]


class NcclLog(_LogDetails):
    """What NCCL's own log tells."""

    connections: dict[str, int]
    taken: dict[str, str]


class TransportResult(NcclLog):
    peer_access: bool


class TransportRank(TransportResult, Rank):
    pass


# ---- M2 to M5, M8


class ComparisonsRow(TypedDict, total=False):
    tolerance: dict[str, float | str]
    facts: dict[str, object]
    figures: dict[str, list[float]]
    stage: int


class ComparisonsExpect(RanksExpect, ComparisonsRow):
    pass


class _Yardstick(TypedDict, total=False):
    plain_error: float


class RankComparison(_Yardstick):
    error: float
    controls: dict[str, float]


class ComparisonsResult(TypedDict, total=False):
    comparisons: dict[str, RankComparison]
    facts: dict[str, object]
    figures: dict[str, float]
    deepspeed: str
    """Its version."""
    accelerator: str
    """The one that DeepSpeed was told to take."""


class ComparisonsRank(Rank, ComparisonsResult):
    pass


# ---- M6


class BandwidthOfHost(TypedDict):
    minimum: float
    """Bytes a second."""
    link: str


class BandwidthExpect(BandwidthOfHost, RanksExpect):
    pass


class BandwidthResult(TypedDict):
    bytes: int
    all_reduce: float
    send: float


class BandwidthRank(BandwidthResult, Rank):
    pass


# ---- M7


class SharedMemoryRow(TypedDict):
    least: int


class SharedMemoryExpect(SharedMemoryRow, Exempt):
    pass


class SharedMemoryEvidence(Measured):
    size: int
    free: int
    refuses_more: bool
    batch: int
    handed_over: int
    right: bool
