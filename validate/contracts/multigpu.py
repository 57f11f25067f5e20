"""Contracts of the multigpu tier: M1 to M8. Ranks yield `{"ranks": [rank 0's, rank 1's, ...]}`."""

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


class CollectivesExpect(RanksExpect):
    operations: list[str]
    sizes: list[int]


class CollectivesRank(Rank):
    exact: dict[str, dict[str, bool]]
    controls: dict[str, dict[str, bool]]


class NcclSettingsExpect(RanksExpect):
    injected: dict[str, str]
    """Variables that the trial itself sets."""


class NcclSettingsRank(Rank):
    variables: dict[str, str]
    files: dict[str, list[str]]


class NcclExpect(RanksExpect):
    cuda: str


class NcclOwner(TypedDict):
    name: str
    version: str
    as_recorded: bool


class NcclLibrary(TypedDict):
    path: str
    running: str
    built: dict[str, str]
    owners: list[NcclOwner]


class NcclRank(Rank):
    cuda: str
    libraries: list[NcclLibrary]


class TransportExpect(NcclSettingsExpect):
    link: str
    """nvlink, pcie, apart, or empty where the host could not tell."""


class TransportRank(Rank):
    peer_access: bool
    connections: dict[str, int]
    taken: dict[str, str]


# ---- M2 to M5, M8


class ComparisonsExpect(RanksExpect, total=False):
    tolerance: dict[str, float | str]
    facts: dict[str, object]
    figures: dict[str, list[float]]
    stage: int


class _Yardstick(TypedDict, total=False):
    plain_error: float


class RankComparison(_Yardstick):
    error: float
    controls: dict[str, float]


class ComparisonsRank(Rank, total=False):
    comparisons: dict[str, RankComparison]
    facts: dict[str, object]
    figures: dict[str, float]


# ---- M6


class BandwidthExpect(RanksExpect):
    minimum: float
    """Bytes a second."""
    link: str


class BandwidthRank(Rank):
    bytes: int
    all_reduce: float
    send: float


# ---- M7


class SharedMemoryExpect(Exempt):
    least: int


class SharedMemoryEvidence(Measured):
    size: int
    free: int
    refuses_more: bool
    batch: int
    handed_over: int
    right: bool
