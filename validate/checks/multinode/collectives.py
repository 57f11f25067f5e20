"""two-nodes: collectives must be exact between two nodes, and NCCL must take the network.

If the nodes are on one machine, NCCL is told by NCCL_HOSTID that they are two hosts. Otherwise the
ranks could talk over NVLink or shared memory, and nothing would be known of the network. So its log
must name a socket for each connection between the nodes. Two machines have no other way than their
network, whose transport is reported.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from validate.checks.multigpu import _launch, collectives
from validate.checks.multigpu._ranks import (
    Rank,
    RanksExpect,
    Worker,
    judge_ranks,
)
from validate.checks.multinode import _nodes
from validate.claims import Claim
from validate.harness.error_codes import ErrorEvidence
from validate.harness.forked import attempt
from validate.judging import PROVES_NOTHING, Finding, Status, cause, failed, listed
from validate.next_steps import REPORT, pin
from validate.nodes import NODE_VARIABLE, NODES

_SOCKET = "NET/Socket"
_CONNECTION = re.compile(r"(\d+)\[\w+\] -> (\d+)\[\w+\].*? via ([A-Z]\w*(?:/[A-Za-z]+)*)")
"""A connection in NCCL's log: its two ranks, and the transport between them."""
_TWO_HOSTS = ("NCCL_HOSTID", "CUDA_VISIBLE_DEVICES", NODE_VARIABLE)
"""The variables that make two hosts of a machine's GPUs."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each claim's subject and what all ranks measured; for `transport` also its control.

    The control is the transport of the same ranks on one host. Two machines need none.
    """
    for subject, evidence in _nodes.measure(__name__, claims):
        if subject == "transport" and claims[0].expect.get("machines", 1) == 1:
            (claim,) = [claim for claim in claims if claim.subject == subject]
            control = attempt(partial(measure_on_one_host, claim))
            evidence = {**evidence, "control": control}
        yield subject, evidence


def measure_on_one_host(claim: Claim) -> Mapping[str, Any]:
    """Measure a claim with all GPUs of this machine as those of one host; return the evidence.

    The check has this machine play two nodes, of which this process is one. Here it starts the
    processes of all GPUs (ranks) by itself. Raises RanksFailedError if one of them fails.
    """
    # Without these variables, the ranks use all GPUs, and NCCL takes them for those of one host.
    environment_of_node = dict(os.environ)
    for name in _TWO_HOSTS:
        os.environ.pop(name, None)
    try:
        ((_, evidence),) = _launch.measure(__name__, [claim], limit=_nodes.LIMIT_SECONDS)
    finally:
        # To tell the other node later that its launch has ended, this node needs its own number
        # (NODE_VARIABLE).
        os.environ.update(environment_of_node)
    return evidence


def environment(folder: Path) -> dict[str, str]:
    """Return variables that make each rank log what NCCL does to a file of its own."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,P2P,SHM,NET,GRAPH,COLL",
        "NCCL_DEBUG_FILE": str(nccl_log(folder)),
    }


def nccl_log(folder: Path) -> Path:
    """Return the file of this rank's NCCL log. Process IDs may be the same on both nodes."""
    return folder / f"nccl-of-rank{os.environ['RANK']}"


def rank(worker: Worker, claim: Claim) -> dict[str, Any]:
    """Return what one rank measures for a claim's subject."""
    measures: Mapping[str, Callable[[Worker], dict[str, Any]]] = {
        "collectives": collectives.measure_exactness,
        "transport": measure_transport,
    }
    return measures[claim.subject](worker)


def measure_transport(worker: Worker) -> dict[str, Any]:
    """Return how the two halves of the ranks are connected, by NCCL's log (`parse_nccl_log`)."""
    # If this claim is measured without the other, NCCL has connected nothing so far. Each rank
    # sends to its partner on the other node. (A sum takes a ring, in which only some ranks have a
    # neighbour there, or NVLink's multicast, whose log lines name no pair of ranks.)
    sent = worker.torch.ones(1 << 20, device=worker.device)
    ranks_of_node = worker.world_size // NODES
    worker.send_around_ring(sent, worker.torch.empty_like(sent), distance=ranks_of_node)
    worker.torch.cuda.synchronize()
    log = nccl_log(worker.folder).read_text(encoding="utf-8", errors="replace")
    return parse_nccl_log(log, ranks_of_node)


def parse_nccl_log(log: str, ranks_of_node: int) -> dict[str, Any]:
    """Return what NCCL's log (of the level INFO) says of its connections and settings.

    - "between": connections between ranks of two nodes, counted by transport: `{"NET/Socket": 4}`.
    - "within": the same between ranks of one node.
    - "taken": the environment variables that NCCL took.

    A rank is a process with one GPU. Each node has `ranks_of_node` of them: 2 means that ranks 0
    and 1 are on the first node, 2 and 3 on the second.
    """
    between: Counter[str] = Counter()
    within: Counter[str] = Counter()
    # A line is `Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/0`: rank 0 sends to rank 2.
    for sender, receiver, transport in _CONNECTION.findall(log):
        is_same_node = int(sender) // ranks_of_node == int(receiver) // ranks_of_node
        counts = within if is_same_node else between
        counts[transport] += 1
    taken = collectives.parse_nccl_log(log)["taken"]
    return {"between": dict(between), "within": dict(within), "taken": taken}


class TransportRank(Rank):
    """What a rank reports of NCCL's transport (`parse_nccl_log`)."""

    between: Mapping[str, int]
    within: Mapping[str, int]
    taken: Mapping[str, str]


class TransportControl(TypedDict, total=False):
    """The transport of the same ranks on one host, or why it could not be measured."""

    ranks: Sequence[TransportRank]
    error: ErrorEvidence


class TransportEvidence(TypedDict, total=False):
    """The reports of all ranks, and on one machine the control."""

    ranks: Sequence[TransportRank]
    control: TransportControl


def judge_transport(_subject: str, expect: RanksExpect, evidence: TransportEvidence) -> Finding:
    """Pass if all connections between the nodes are sockets, and those on one host are not.

    In the control the ranks are on one host, where NCCL has better ways than a socket. If its log
    named sockets there, too, it would not tell whether NCCL takes the nodes for two hosts. Between
    two machines, any connection passes.
    """
    is_one_machine = expect.get("machines", 1) == 1
    find_problems = find_transport_problems if is_one_machine else find_missing_connections
    finding = judge_ranks(expect, evidence["ranks"], find_problems, summarise_transport)
    if finding.status is not Status.PASS or not is_one_machine:
        return finding
    control = evidence["control"]
    if "error" in control:
        reason = f"ranks on one host did not run: {cause(control['error'])}"
        return failed(f"{PROVES_NOTHING}{reason}")
    for control_rank in control["ranks"]:
        if "error" in control_rank:
            return failed(f"{PROVES_NOTHING}on one host: {cause(control_rank['error'])}")
        if not control_rank["between"]:
            return failed(f"{PROVES_NOTHING}NCCL's log names no connection on one host")
        if not list(find_transport_problems(control_rank)):
            return failed(f"{PROVES_NOTHING}ranks on one host talk over {_SOCKET} as well")
    transports = listed(sorted(control["ranks"][0]["between"]))
    return finding._replace(reason=f"{finding.reason}; on one host over {transports}")


def find_missing_connections(rank: TransportRank) -> Iterator[str]:
    """Yield a problem if a rank has no connection to the other node."""
    if not rank["between"]:
        yield "NCCL's log names no connection between the nodes"


def find_transport_problems(rank: TransportRank) -> Iterator[str]:
    """Yield what is wrong with a rank's connections to the other node."""
    yield from find_missing_connections(rank)
    others = [transport for transport in rank["between"] if transport != _SOCKET]
    if others:
        host_id = rank["taken"].get("NCCL_HOSTID", "not taken")
        yield f"nodes talk over {listed(others)}, not over {_SOCKET} (NCCL_HOSTID: {host_id})"


def summarise_transport(ranks: Sequence[TransportRank]) -> str:
    """Return in one line how many connections between the nodes the ranks have."""
    counts: Counter[str] = Counter()
    for rank in ranks:
        counts.update(rank["between"])
    count = sum(counts.values())
    transports = listed(sorted(counts))
    return f"{len(ranks)} ranks on two nodes talk over {transports} ({count} connections)"


CLAIMS = {
    "two-nodes/collectives": collectives.judge_collectives,
    "two-nodes/transport": judge_transport,
}
NEXT_STEPS = {
    "two-nodes/collectives": "do not train on several nodes with this image until this passes: "
    "validate again on another machine; if it fails there, too, "
    f"{pin('another release of nvidia-nccl-cu12 or nvidia-nccl-cu13')}",
    "two-nodes/transport": "take NCCL_HOSTID, NCCL_SOCKET_IFNAME and other NCCL_* variables out of "
    "your Dockerfile and of /etc/nccl.conf in the image (`docker run --rm IMAGE env` shows what "
    "the image sets), build the image again and validate it; if the image sets none, "
    f"{REPORT}",
}
