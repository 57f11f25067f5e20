"""two-nodes/death: a node whose processes are killed must be reported by the other one in time.

A job that waits for a dead node costs GPU hours until somebody looks. In the launch that is
measured, all ranks first work together. Then the second node's launcher and ranks get SIGKILL, as
from a machine that is out of memory. The first node's launcher must end with an error by itself.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import RanksExpect, Worker
from validate.checks.multinode import _nodes
from validate.claims import Claim
from validate.judging import PROVES_NOTHING, Finding, failed, passed
from validate.next_steps import REPORT
from validate.nodes import NODES

_MOST_SECONDS = 90.0
"""After a rank has noticed the death, torch lets it sleep for 60 s, so that all ranks can write
what they did last (ProcessGroupNCCL.cpp: four times TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC). With
torch 2.11 on two H200, the launcher ended after 62.3 s."""
_STEPS_TOGETHER = 3


class DeathEvidence(TypedDict):
    """What the first node saw of the second one's death."""

    together: Sequence[int]  # ranks that added up right numbers with all others before it
    died: bool  # whether the second node was killed
    exit_code: int | None  # the first node's launcher's; None: it was killed after LIMIT_SECONDS
    seconds: float  # from the death until the first node's launcher ended
    message: str  # how the first node's launcher ended, in one line


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Let the second node die, and yield what the first one saw of it, for each claim.

    This runs on both nodes at once. Each starts a launcher, which starts a rank (process) on each
    of its GPUs. The ranks work together, until those of the second node kill themselves and their
    launcher (`rank`). Only the first node yields, when its own launcher has ended.
    """
    launch = _nodes.meet(__name__, __name__, claims)
    exit_code, log = _nodes.run(launch, _nodes.torchrun(launch))
    ended = time.time()
    if launch.node != 0:
        return

    # The ranks have left files in the shared folder: the time of the death, and one for each rank
    # that had worked with all others before.
    death = launch.folder / "died"
    seconds = ended - float(death.read_text()) if death.exists() else 0.0
    together = []
    for rank_number in range(launch.ranks):
        if (launch.folder / f"together{rank_number}").exists():
            together.append(rank_number)
    reports = [_launch.read_report(file) for file in launch.own_report_files()]
    message = _launch.describe_failure(
        exit_code, log, reports, _nodes.LIMIT_SECONDS, _nodes.START_SECONDS
    )
    for claim in claims:
        yield (
            claim.subject,
            {
                "together": together,
                "died": death.exists(),
                "exit_code": exit_code,
                "seconds": round(seconds, 1),
                "message": message,
            },
        )


def rank(worker: Worker, _claim: Claim) -> dict[str, Any]:
    """Work with all ranks, then die as a rank of the second node, or go on as one of the first.

    A rank of the first node ends as a training program does: with the error that it gets.
    """
    for _ in range(_STEPS_TOGETHER):
        add_up_ranks(worker)
    (worker.folder / f"together{worker.rank}").touch()
    worker.distributed.barrier()

    ranks_of_node = worker.world_size // NODES
    if worker.rank >= ranks_of_node:
        die(worker)
    try:
        while True:
            add_up_ranks(worker)
    except Exception as error:
        message = f"rank {worker.rank}: {_launch.format_error(error)}"
        raise SystemExit(message) from error


def add_up_ranks(worker: Worker) -> None:
    """Add up the numbers of all ranks. Raises ValueError if the sum is wrong."""
    total = worker.torch.tensor(worker.rank, device=worker.device)
    worker.distributed.all_reduce(total)
    # Wait for the result, as a training program does that prints its loss.
    if int(total) != sum(range(worker.world_size)):
        raise ValueError(f"the sum of all ranks is {int(total)}")


def die(worker: Worker) -> None:
    """Kill this rank's launcher and this rank. Ranks end with their launcher (run_rank)."""
    # All ranks of the node write the same time, up to some milliseconds.
    (worker.folder / "died").write_text(str(time.time()))
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def judge(_subject: str, expect: RanksExpect, evidence: DeathEvidence) -> Finding:
    """Pass if the first node's launcher ended with an error within _MOST_SECONDS of the death.

    The control is that all ranks worked together before: an error from the start would end the
    launcher as well.
    """
    # A claim that was written without a host names no number. Each node has a rank, at least.
    rank_count = expect["ranks"] or NODES
    if len(evidence["together"]) != rank_count:
        worked = len(evidence["together"])
        reason = f"{worked} of {rank_count} ranks worked together before the second node was killed"
        return failed(f"{PROVES_NOTHING}{reason}")
    if not evidence["died"]:
        return failed(f"{PROVES_NOTHING}the second node was to be killed, and was not")
    exit_code = evidence["exit_code"]
    if exit_code is None:
        return failed(
            "the second node was killed on purpose, and the first one still waited for it when "
            f"the time of {_nodes.LIMIT_SECONDS:g} s was over: a job would hang like this when a "
            "node dies"
        )
    if exit_code == 0:
        return failed(
            "the second node was killed on purpose, and the first one ended with status 0, as if "
            "all were well"
        )
    seconds = evidence["seconds"]
    if not 0 <= seconds <= _MOST_SECONDS:
        return failed(
            f"the first node ended {seconds:g} s after the second one was killed, and should "
            f"within {_MOST_SECONDS:g} s"
        )
    return passed(f"the first node reported it after {seconds:g} s: {evidence['message']}")


CLAIMS = {"two-nodes/death": judge}
NEXT_STEPS = {
    "two-nodes/death": "set TORCH_NCCL_ASYNC_ERROR_HANDLING=1 (NCCL_ASYNC_ERROR_HANDLING=1 before "
    "torch 2.2) in jobs on several nodes; if `docker run --rm IMAGE env` shows it as 0, remove the "
    "ENV line that sets it from your Dockerfile, build the image again and validate it; if the "
    f"image does not set it, {REPORT}"
}
