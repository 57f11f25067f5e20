"""collectives: sums over ranks must be exact, and NCCL must take the best way between the GPUs.

A collective that is not exact spoils every gradient without an error. A slow transport, such as
sockets beside NVLink, only wastes time.
"""

import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Rank, RanksExpect, Worker, judge_ranks
from validate.claims import Claim
from validate.judging import PROVES_NOTHING, Finding, listed
from validate.next_steps import pin

_SIZES = (1, 1027, 1 << 20)
"""How many numbers a rank sends: NCCL has different protocols for small, odd and large counts."""
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
    """Return variables that make each process log what NCCL does to `nccl.PID` in this folder."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,P2P,SHM,NET,GRAPH,COLL",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%p"),
    }


def rank(worker: Worker, claim: Claim) -> dict[str, Any]:
    """Measure collectives on one rank, one of the processes that train together.

    The claim's subject says what is measured: `exact` (results) or `transport` (how data travels).
    """
    measures: Mapping[str, Callable[[Worker], dict[str, Any]]] = {
        "exact": measure_exactness,
        "transport": measure_transport,
    }
    return measures[claim.subject](worker)


def measure_exactness(worker: Worker) -> dict[str, Any]:
    """Return whether the results of collectives are exact, and whether the comparison would notice.

    A collective is an operation of all ranks (processes) together, such as a sum of numbers.

    exact: whether the result equals the expected one.
    controls: whether the result equals the one for the data of wrong ranks. It must not: being
        exact would then prove nothing.

    Both map the name of a collective -> how many numbers a rank sends, as a text -> bool.
    """
    exact: dict[str, dict[str, bool]] = {}
    controls: dict[str, dict[str, bool]] = {}
    for size in _SIZES:
        for operation, result in run_collectives(worker, size).items():
            is_exact = bool((result.received == result.expected).all())
            equals_wrong = bool((result.received == result.wrong).all())
            exact.setdefault(operation, {})[str(size)] = is_exact
            controls.setdefault(operation, {})[str(size)] = equals_wrong
    return {"exact": exact, "controls": controls}


class CollectiveResult(NamedTuple):
    """What a rank received from a collective, and what it may be compared with."""

    received: Any  # a tensor of whole numbers
    expected: Any  # the right result
    wrong: Any  # the result that a collective on the wrong ranks' data would give


def run_collectives(worker: Worker, size: int) -> dict[str, CollectiveResult]:
    """Run each of OPERATIONS on `size` whole numbers of each rank, and return the results by name.

    All ranks (processes) call this at once. Every rank knows the numbers that the others send, so
    each result comes with the right one (`expected`), and with the one that the data of wrong ranks
    would give (`wrong`).
    """
    torch, distributed = worker.torch, worker.distributed
    own_rank, world_size = worker.rank, worker.world_size
    all_ranks = range(world_size)
    last_rank = world_size - 1
    next_rank = (own_rank + 1) % world_size
    previous_rank = (own_rank - 1) % world_size
    index = torch.arange(size, device=worker.device, dtype=torch.int64)

    def numbers(sender: int, receiver: int = 0) -> Any:
        """Return the `size` numbers that a rank sends to another: different for each pair.

        `receiver` is left out where all ranks get the same.
        """
        return index * 1_000_003 + (sender + 1) * 7_919_000_000_019 + receiver * 104_729

    def sum_over_senders(receiver: int = 0) -> Any:
        """Return the sum of what all ranks send to one receiver."""
        return sum(numbers(sender, receiver) for sender in all_ranks)

    # Tensors for the results. all_reduce and broadcast read what is sent from theirs, and write the
    # result over it.
    reduced = numbers(own_rank)
    scattered = torch.empty_like(index)
    broadcast = numbers(own_rank)
    from_previous = torch.empty_like(index)
    gathered = torch.empty(world_size * size, device=worker.device, dtype=torch.int64)
    swapped = torch.empty(world_size * size, device=worker.device, dtype=torch.int64)
    # What this rank sends to each receiver, in the order of the ranks.
    by_receiver = torch.cat([numbers(own_rank, receiver) for receiver in all_ranks])

    distributed.all_reduce(reduced)
    distributed.all_gather_into_tensor(gathered, numbers(own_rank))
    distributed.reduce_scatter_tensor(scattered, by_receiver)
    distributed.broadcast(broadcast, src=last_rank)
    distributed.all_to_all_single(swapped, by_receiver)
    worker.send_around_ring(numbers(own_rank), from_previous)

    # What all_gather gives: the data of all ranks, and wrongly, with that of rank 1 first.
    by_sender = [numbers(sender) for sender in all_ranks]
    rotated = torch.cat([*by_sender[1:], by_sender[0]])
    sent_to_this_rank = torch.cat([numbers(sender, own_rank) for sender in all_ranks])
    return {
        "all_reduce": CollectiveResult(
            reduced, expected=sum_over_senders(), wrong=numbers(own_rank) * world_size
        ),
        "all_gather": CollectiveResult(gathered, expected=torch.cat(by_sender), wrong=rotated),
        "reduce_scatter": CollectiveResult(
            scattered, expected=sum_over_senders(own_rank), wrong=sum_over_senders(next_rank)
        ),
        "broadcast": CollectiveResult(broadcast, expected=numbers(last_rank), wrong=numbers(0)),
        "all_to_all": CollectiveResult(swapped, expected=sent_to_this_rank, wrong=by_receiver),
        "send and receive": CollectiveResult(
            from_previous, expected=numbers(previous_rank), wrong=numbers(own_rank)
        ),
    }


def measure_transport(worker: Worker) -> dict[str, Any]:
    """Return which transports NCCL uses, by its log, and whether the GPUs can reach each other.

    "peer_access" is the driver's answer for this rank's GPU and every other one. The log is the
    file that NCCL writes in this process; without it, no transport is found.
    """
    cuda = importlib.import_module("torch.cuda")
    other_gpus = [gpu for gpu in range(worker.world_size) if gpu != worker.rank]
    has_peer_access = all(cuda.can_device_access_peer(worker.rank, gpu) for gpu in other_gpus)

    log_file = worker.folder / f"nccl.{os.getpid()}"
    log = ""
    if log_file.exists():
        log = log_file.read_text(encoding="utf-8", errors="replace")
    return {"peer_access": has_peer_access, **parse_nccl_log(log)}


def parse_nccl_log(log: str) -> dict[str, Any]:
    """Return what NCCL's INFO log tells of its connections and settings.

    "connections" counts them by transport: `{"P2P/CUMEM": 16}`, from lines that end with `via
    P2P/CUMEM`. "taken" holds the NCCL variables that it took from the environment or a file, with
    their values.
    """
    transports = re.findall(r"(?:Channel|\[\d+\]) .*? via ([A-Z][A-Za-z0-9]*(?:/[A-Za-z]+)*)", log)
    variables = re.findall(r"(NCCL_\w+) set (?:by environment )?to (\S+?)\.?(?:\s|$)", log)
    connections = {transport: transports.count(transport) for transport in sorted(set(transports))}
    return {"connections": connections, "taken": dict(variables)}


class CollectivesRank(Rank):
    """What a rank reports of collectives (`measure_exactness`): operation -> size -> bool."""

    exact: Mapping[str, Mapping[str, bool]]  # True: the result is exact
    controls: Mapping[str, Mapping[str, bool]]  # True: it equals that for wrong ranks' data


class CollectivesEvidence(TypedDict):
    """The reports of all ranks."""

    ranks: Sequence[CollectivesRank]


def judge_collectives(_subject: str, expect: RanksExpect, evidence: CollectivesEvidence) -> Finding:
    """Judge that each collective is exact at each size, and would not be for other ranks' data."""
    names = listed(list(OPERATIONS), limit=9)
    return judge_ranks(
        expect,
        evidence["ranks"],
        find_exactness_problems,
        lambda ranks: f"{len(ranks)} ranks: {names} exact at {len(_SIZES)} sizes",
    )


def find_exactness_problems(rank: CollectivesRank) -> Iterator[str]:
    """Yield up to two sentences for each collective operation: what is wrong with its results.

    `rank` is what one process reported for each operation, and for each size: how many numbers a
    rank sends. There is a fault where the result is not exact, and where it is the same as for the
    data of wrong ranks: then being exact proves nothing. A size that was not reported is at fault
    in both ways.
    """
    sizes = [str(size) for size in _SIZES]
    for name in OPERATIONS:
        # A size that was not reported has None, which is neither True nor False.
        is_exact = rank["exact"].get(name, {})
        inexact_sizes = [size for size in sizes if is_exact.get(size) is not True]
        if inexact_sizes:
            yield f"the collective {name} of {listed(inexact_sizes)} numbers is not exact"

        equals_wrong = rank["controls"].get(name, {})
        blind_sizes = [size for size in sizes if equals_wrong.get(size) is not False]
        if blind_sizes:
            blind = listed(blind_sizes)
            yield (
                f"{PROVES_NOTHING}{name} of {blind} numbers counts as exact for the data of wrong "
                "ranks, too"
            )


class TransportExpect(RanksExpect):
    """What the claim about NCCL's transport expects."""

    link: str  # between the host's GPUs: nvlink, pcie, apart; empty: the host could not tell
    injected: Mapping[str, str]  # variables that the validation run sets


class TransportRank(Rank):
    """What a rank reports of NCCL's transport (`measure_transport`)."""

    peer_access: bool
    connections: Mapping[str, int]
    taken: Mapping[str, str]


class TransportEvidence(TypedDict):
    """The reports of all ranks."""

    ranks: Sequence[TransportRank]


def judge_transport(_subject: str, expect: TransportExpect, evidence: TransportEvidence) -> Finding:
    """Pass if NCCL moves data between the GPUs as fast as the host allows.

    Over NVLink that is straight from GPU to GPU (P2P). Over PCIe it is P2P if there are only PCIe
    switches between two GPUs, and shared memory (SHM) if there is a host bridge. NVML does not tell
    these cases apart, so both transports pass. (NCCL: src/graph/paths.cc, ncclTopoCheckP2p,
    PATH_PXB. With an x86 processor of AMD, two GPUs may be farther apart.)
    """
    link = expect.get("link", "")
    injected = expect.get("injected", {})
    return judge_ranks(
        expect,
        evidence["ranks"],
        lambda rank: find_transport_problems(rank, link, injected),
        lambda ranks: summarise_transport(ranks, link),
    )


def find_transport_problems(
    rank: TransportRank, link: str, injected: Mapping[str, str]
) -> Iterator[str]:
    """Yield why a rank does not use the best transport over this link (see `judge_transport`).

    link: the slowest between the host's GPUs: `nvlink`, `pcie`, or `apart` if two of them
        only reach each other through the host's memory; empty: it is not known.
    injected: NCCL's variables that the validation run itself sets. If the transport is wrong, all
        other variables that NCCL took (`rank["taken"]`) are named: one of them may be the cause.
    """
    connections = rank["connections"]
    if not connections:
        yield "NCCL's log does not say over which transport it sent data"
    if link in ("nvlink", "pcie") and rank["peer_access"] is not True:
        yield "the host's GPUs reach each other directly, and those of the container do not"

    # A connection's name begins with its transport: `P2P/CUMEM`, `SHM/direct`, `NET/Socket`.
    allowed = ("P2P",) if link == "nvlink" else ("P2P", "SHM")
    wrong = [name for name in connections if name.partition("/")[0] not in allowed]
    if wrong:
        variables = []
        for name, value in rank["taken"].items():
            if name not in injected:
                variables.append(f"{name}={value}")
        suspects = f" ({listed(variables)})" if variables else ""
        possible = " or ".join(allowed)
        yield f"ranks of one host talk over {listed(wrong)}{suspects}, and could over {possible}"


def summarise_transport(ranks: Sequence[TransportRank], link: str) -> str:
    """Return in one line which transports the ranks use, and the link between their GPUs."""
    transports: set[str] = set()
    for rank in ranks:
        transports.update(rank["connections"])
    host_link = link or "the host could not tell its links"
    return f"{len(ranks)} ranks talk over {listed(sorted(transports))} ({host_link})"


CLAIMS = {
    "collectives/exact": judge_collectives,
    "collectives/transport": judge_transport,
}
NEXT_STEPS = {
    "collectives/exact": "do not train on several GPUs in this image until this passes: validate "
    "again on another machine; if it fails there, too, "
    f"{pin('another release of nvidia-nccl-cu12 or nvidia-nccl-cu13')}; if it passes there, have "
    "the links between this machine's GPUs looked at (`nvidia-smi nvlink -e`, `nvidia-smi topo "
    "-m`)",
    "collectives/transport": {
        " (NCCL_": "take these NCCL_* variables out of your Dockerfile, of /etc/nccl.conf in the "
        "image and of the environment of Docker, then build the image again and validate it",
        "": "look at `nvidia-smi topo -m` and `nvidia-smi nvlink -s` on the host: if they show the "
        "links between the GPUs, start containers with `--ipc=host` or `--shm-size=8g`, and "
        "validate again; if not, validate on another machine",
    },
}
