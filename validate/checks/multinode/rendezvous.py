"""rendezvous: each launcher must bring the ranks of two nodes together in one group.

A job of one node starts although its address, ports or launcher are wrong: the first job of two
nodes then waits at its start. Subjects are the launchers, each of which has a launch of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import (
    ComputingRank,
    RanksEvidence,
    RanksExpect,
    Requirements,
    Worker,
    judge_requirements,
)
from validate.checks.multinode import _nodes
from validate.checks.multinode._nodes import Launch
from validate.claims import Claim
from validate.harness.forked import describe_error
from validate.judging import Finding
from validate.next_steps import REPORT, if_image_sets
from validate.nodes import NODES


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each launcher's name, and what the ranks that it started measured.

    A launcher that fails has `{"error": ...}` as its evidence, and others are measured all the
    same.
    """
    for claim in claims:
        make_command = LAUNCHERS[claim.subject]
        try:
            # A list, because a launch can fail after all ranks have measured.
            measured = list(_nodes.measure(__name__, [claim], make_command))
        except (_launch.RanksFailedError, FileNotFoundError) as error:
            measured = [(claim.subject, {"error": describe_error(error)})]
        yield from measured


def c10d(launch: Launch) -> list[str]:
    """Return torchrun's command where nodes have no numbers, but meet at a store.

    The first node offers the store (`is_host`): by its address, which is the loopback's here, each
    node would take itself for the first. torchrun tells nodes apart by address and process ID. In
    containers the process ID may be the same, so the address must not be.
    """
    return [
        *_launch.TORCHRUN,
        f"--nnodes={NODES}",
        f"--nproc-per-node={launch.ranks_of_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={launch.addresses[0]}:{launch.port}",
        f"--rdzv-id={launch.port}",
        f"--rdzv-conf=is_host={int(launch.node == 0)},join_timeout={_nodes.START_SECONDS:.0f}",
        f"--local-addr={launch.addresses[launch.node]}",
        "-m",
    ]


def accelerate(launch: Launch) -> list[str]:
    """Return the command of `accelerate launch` on several machines, all told by options."""
    return [
        _nodes.program_path("accelerate"),
        "launch",
        "--multi_gpu",
        f"--num_machines={NODES}",
        f"--num_processes={launch.ranks}",
        f"--machine_rank={launch.node}",
        f"--main_process_ip={launch.addresses[0]}",
        f"--main_process_port={launch.port}",
        "--mixed_precision=no",
        "--dynamo_backend=no",
        "-m",
    ]


def deepspeed(launch: Launch) -> list[str]:
    """Return the command of `deepspeed` on a node that it must not leave by ssh.

    It sets CUDA_VISIBLE_DEVICES to the numbers that `--include` names for this node. The numbers of
    a machine begin with 0.
    """
    hosts = [f"node-{node}" for node in range(NODES)]
    hostfile = launch.folder / f"hostfile-of-node{launch.node}"
    hostfile.write_text("".join(f"{host} slots={launch.ranks}\n" for host in hosts))
    included = []
    for node, host in enumerate(hosts):
        first = node * launch.ranks_of_node if launch.machines == 1 else 0
        slots = range(first, first + launch.ranks_of_node)
        included.append(f"{host}:{','.join(map(str, slots))}")
    return [
        _nodes.program_path("deepspeed"),
        f"--hostfile={hostfile}",
        f"--include={'@'.join(included)}",
        "--no_ssh",
        f"--node_rank={launch.node}",
        f"--master_addr={launch.addresses[0]}",
        f"--master_port={launch.port}",
        "--module",
        # Otherwise it is the program's first argument.
        "--no_local_rank",
    ]


LAUNCHERS = {
    "torchrun": _nodes.torchrun,
    "torchrun-c10d": c10d,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
}
"""Subject -> the function that returns the launcher's command."""


def rank(worker: Worker, _claim: Claim) -> ComputingRank:
    """Add up the numbers of all ranks, and return whether their sum is right.

    A rank is a process with a number. The control is whether the first node's ranks alone would
    have the same sum: they must not, or the sum would not show that both nodes are in it.
    """
    total = worker.torch.tensor(worker.rank + 1, device=worker.device)
    worker.distributed.all_reduce(total)
    sum_of_all = sum(range(1, worker.world_size + 1))
    sum_of_first_node = sum(range(1, worker.world_size // NODES + 1))
    return {
        "facts": {
            "all ranks are in the sum": int(total) == sum_of_all,
            "one node is enough for it": int(total) == sum_of_first_node,
        }
    }


REQUIREMENTS = Requirements(
    facts={"all ranks are in the sum": True, "one node is enough for it": False}
)


def judge(_subject: str, expect: RanksExpect, evidence: RanksEvidence) -> Finding:
    """Judge that all ranks are in one group, as many on each node."""
    return judge_requirements(REQUIREMENTS, expect, evidence)


CLAIMS = {"rendezvous": judge}
NEXT_STEPS = {
    "rendezvous": "start jobs on several nodes by another launcher that passes (the `log` of this "
    "check in evidence.json has what this one printed); to mend this one: "
    f"{if_image_sets('a MASTER_ADDR, ACCELERATE_*, GLOO_* or NCCL_* variable')}; if not, {REPORT}"
}
