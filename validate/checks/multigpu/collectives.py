"""collectives: a collective that is not exact spoils every gradient: whole numbers are summed. The probe also tells
over which transport NCCL's ranks talk."""

import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Rank, RanksExpect, Worker, judge_ranks
from validate.claims import Claim
from validate.judging import Finding, listed

_SIZES = (1, 1027, 1 << 20)
"""Numbers a rank: NCCL takes other protocols for small, odd and large ones."""
OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "send and receive",
)

measure = partial(_launch.measure, __name__)


def environment(folder: Path) -> dict[str, str]:
    """So that NCCL tells what it does, in a log a process."""
    subsystems = "INIT,ENV,P2P,SHM,NET,GRAPH,COLL"
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": subsystems,
        "NCCL_DEBUG_FILE": str(folder / "nccl.%p"),
    }


def rank(worker: Worker, claim: Claim) -> dict[str, Any]:
    """Measure one subject."""
    subjects: Mapping[str, Callable[[Worker], dict[str, Any]]] = {
        "exact": _collectives,
        "transport": _transport,
    }
    return subjects[claim.subject](worker)


def _collectives(worker: Worker) -> dict[str, Any]:
    """Compare each collective at each size with the right result, and with that of swapped ranks (the control)."""
    exact: dict[str, dict[str, bool]] = {}
    controls: dict[str, dict[str, bool]] = {}
    for size in _SIZES:
        for name, (found, wanted, other) in _results(worker, size).items():
            exact.setdefault(name, {})[str(size)] = bool((found == wanted).all())
            controls.setdefault(name, {})[str(size)] = bool((found == other).all())
    return {"exact": exact, "controls": controls}


def _results(worker: Worker, size: int) -> Mapping[str, tuple[Any, Any, Any]]:
    """By collective what it gave, the right result, and a wrong one."""
    torch, distributed, me, ranks = (
        worker.torch,
        worker.distributed,
        worker.rank,
        range(worker.ranks),
    )
    after, before, last = (me + 1) % len(ranks), (me - 1) % len(ranks), len(ranks) - 1
    index = torch.arange(size, device=worker.device, dtype=torch.int64)

    def data(rank: int, step: int = 0) -> Any:
        """Whole numbers that differ by rank, by place, and by whom they are for."""
        return index * 1_000_003 + (rank + 1) * 7_919_000_000_019 + step * 104_729

    def total(step: int = 0) -> Any:
        return sum(data(rank, step) for rank in ranks)

    reduced, scattered, told, received = (
        data(me),
        torch.empty_like(index),
        data(me),
        torch.empty_like(index),
    )
    gathered, swapped = (
        torch.empty(len(ranks) * size, device=worker.device, dtype=torch.int64) for _ in "ab"
    )
    parts, to_each = [data(rank) for rank in ranks], torch.cat([data(me, step) for step in ranks])
    distributed.all_reduce(reduced)
    distributed.all_gather_into_tensor(gathered, data(me))
    distributed.reduce_scatter_tensor(scattered, to_each)
    distributed.broadcast(told, src=last)
    distributed.all_to_all_single(swapped, to_each)
    worker.pass_on(data(me), received)
    return {
        "all_reduce": (reduced, total(), data(me) * len(ranks)),
        "all_gather": (gathered, torch.cat(parts), torch.cat([*parts[1:], parts[0]])),
        "reduce_scatter": (scattered, total(me), total(after)),
        "broadcast": (told, data(last), data(0)),
        "all_to_all": (swapped, torch.cat([data(rank, me) for rank in ranks]), to_each),
        "send and receive": (received, data(before), data(me)),
    }


def _transport(worker: Worker) -> dict[str, Any]:
    """What NCCL's own log of this process says, and whether the driver lets the GPUs reach each other."""
    cuda = importlib.import_module("torch.cuda")
    others = [one for one in range(worker.ranks) if one != worker.rank]
    access = all(cuda.can_device_access_peer(worker.rank, one) for one in others)
    log = worker.folder / f"nccl.{os.getpid()}"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return {"peer_access": access, **parsed(text)}


def parsed(log: str) -> dict[str, Any]:
    """NCCL's INFO log: connections by transport, and variables that it took from somewhere."""
    connections = re.findall(r"(?:Channel|\[\d+\]) .*? via ([A-Z][A-Za-z0-9]*(?:/[A-Za-z]+)*)", log)
    return {
        "connections": {way: connections.count(way) for way in sorted(set(connections))},
        "taken": dict(re.findall(r"(NCCL_\w+) set (?:by environment )?to (\S+?)\.?(?:\s|$)", log)),
    }


class CollectivesRank(Rank):
    """By collective and number of values: whether the result is exact, and whether it is also right for other data."""

    exact: Mapping[str, Mapping[str, bool]]
    controls: Mapping[str, Mapping[str, bool]]


class CollectivesEvidence(TypedDict):
    ranks: Sequence[CollectivesRank]


def judge_collectives(_subject: str, expect: RanksExpect, evidence: CollectivesEvidence) -> Finding:
    """Judge that every collective is exact at every size, and told apart from other ranks' data."""
    names = listed(list(OPERATIONS), limit=9)
    return judge_ranks(
        expect,
        evidence["ranks"],
        _inexact_collectives,
        lambda ranks: f"{len(ranks)} ranks: {names} exact at {len(_SIZES)} sizes",
    )


def _inexact_collectives(rank: CollectivesRank) -> Iterator[str]:
    """Yield collectives that are not exact, or whose control passes."""
    sizes = [str(size) for size in _SIZES]
    for name in OPERATIONS:
        exact = rank["exact"].get(name, {})
        wrong = [size for size in sizes if exact.get(size) is not True]
        if wrong:
            yield f"{name} of {listed(wrong)} numbers is not exact"

        controls = rank["controls"].get(name, {})
        passing = [size for size in sizes if controls.get(size) is not False]
        if passing:
            yield f"control: {name} of {listed(passing)} numbers is right for other ranks' data too"


class TransportExpect(RanksExpect):
    """`link`: nvlink, pcie, apart, or empty where the host could not tell: then the container's own view decides.
    `injected`: variables that the validation run sets.
    """

    link: str
    injected: Mapping[str, str]


class TransportRank(Rank):
    """NCCL's connections by transport, variables that it took, and whether the driver lets GPUs reach each other."""

    peer_access: bool
    connections: Mapping[str, int]
    taken: Mapping[str, str]


class TransportEvidence(TypedDict):
    ranks: Sequence[TransportRank]


def judge_transport(_subject: str, expect: TransportExpect, evidence: TransportEvidence) -> Finding:
    """Judge that ranks use the best way that the host's GPUs have to each other.

    Beside NVLink, NCCL reaches from GPU to GPU across PCIe switches alone (src/graph/paths.cc, ncclTopoCheckP2p:
    PATH_PXB; farther for two GPUs beside an x86 processor of AMD): where a host bridge lies between, it goes through
    shared memory by design. NVML does not tell which, so both are right there.
    """
    link = expect.get("link", "")
    injected = expect.get("injected", {})
    return judge_ranks(
        expect,
        evidence["ranks"],
        lambda rank: _transport_problems(rank, link, injected),
        lambda ranks: _summarise_transport(ranks, link),
    )


def _transport_problems(
    rank: TransportRank, link: str, injected: Mapping[str, str]
) -> Iterator[str]:
    """Yield what keeps a rank from the best way."""
    connections, has_access = rank["connections"], rank["peer_access"]
    if not connections:
        yield "NCCL's log names no transport"
    if link in ("nvlink", "pcie") and has_access is not True:
        yield "the host's GPUs reach each other, the container's do not"

    allowed = ("P2P",) if link == "nvlink" else ("P2P", "SHM")
    wrong = [way for way in connections if way.partition("/")[0] not in allowed]
    if wrong:
        variables = [
            f"{name}={value}" for name, value in rank["taken"].items() if name not in injected
        ]
        why = f" ({listed(variables)})" if variables else ""
        yield f"ranks of one host talk over {listed(wrong)}{why}, {' or '.join(allowed)} is possible"


def _summarise_transport(ranks: Sequence[TransportRank], link: str) -> str:
    """Write which ways the ranks use."""
    ways: set[str] = set()
    for rank in ranks:
        ways.update(rank["connections"])
    return f"{len(ranks)} ranks talk over {listed(sorted(ways))} ({link or 'the host could not tell its links'})"


CLAIMS = {
    "collectives/exact": judge_collectives,
    "collectives/transport": judge_transport,
}
