"""bandwidth: ranks that talk slowly train slowly. Measured alone on the machine; its judge only ever warns."""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict

from validate.checks import Settings
from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Rank, RanksExpect, Worker, judge_ranks
from validate.claims import Claim
from validate.judging import Finding, is_between, passed, unproven

SETTINGS = Settings(runs_alone=True, errors_are_warnings=True)

_BYTES = {"cuda": 256 << 20, "cpu": 4 << 20}
_WARM, _TIMES = 5, 20

measure = partial(_launch.measure, __name__)


class BandwidthExpect(RanksExpect):
    """`minimum`: bytes a second that the link should give."""

    minimum: float
    link: str


class BandwidthRank(Rank, total=False):
    """Bytes a second, of an all-reduce and to the next rank; `bytes`: the size of a message."""

    bytes: int
    all_reduce: float
    send: float


class BandwidthEvidence(TypedDict):
    ranks: Sequence[BandwidthRank]


def rank(worker: Worker, _claim: Claim) -> BandwidthRank:
    """Measure bytes a second, as nccl-tests counts them: of an all-reduce (bus bandwidth), and to the next rank."""
    torch, distributed = worker.torch, worker.distributed
    size = _BYTES[worker.device.type]
    buffer = torch.ones(size // 4, device=worker.device, dtype=torch.float32)
    given = torch.empty_like(buffer)
    reduced = _seconds(worker, lambda: distributed.all_reduce(buffer, op=distributed.ReduceOp.MAX))
    sent = _seconds(worker, lambda: worker.pass_on(buffer, given))
    return {
        "bytes": size,
        "all_reduce": 2 * (worker.ranks - 1) / worker.ranks * size / reduced,
        "send": size / sent,
    }


def _seconds(worker: Worker, work: Callable[[], object]) -> float:
    """Of one run, the mean of many after a few to warm up."""
    for count in (_WARM, _TIMES):
        _synchronise(worker)
        started = time.monotonic()
        for _ in range(count):
            work()
        _synchronise(worker)
    return (time.monotonic() - started) / _TIMES


def _synchronise(worker: Worker) -> None:
    if worker.device.type == "cuda":
        worker.torch.cuda.synchronize()
    worker.distributed.barrier()


def judge(_subject: str, expect: BandwidthExpect, evidence: BandwidthEvidence) -> Finding:
    """Judge the slowest rank. A slow link is a warning, never a failure."""
    ranks = evidence["ranks"]
    finding = judge_ranks(expect, ranks, lambda _rank: iter(()), lambda _ranks: "")
    if finding.reason:
        return unproven(f"warning: {finding.reason}")

    all_reduce = min(_number(rank["all_reduce"]) for rank in ranks)
    send = min(_number(rank["send"]) for rank in ranks)
    speeds = f"all-reduce {_speed(all_reduce)}, to the next rank {_speed(send)}"
    minimum, link = expect["minimum"], expect["link"]
    if not is_between(min(all_reduce, send), minimum, math.inf):
        return unproven(f"warning: {speeds}; {link or 'this link'} should give {_speed(minimum)} at least")
    return passed(f"{speeds} ({link or 'link unknown'})")


def _number(value: object) -> float:
    """Not-a-number arrives as text, and is no speed."""
    return float(value) if isinstance(value, int | float) else 0.0


def _speed(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"


CLAIMS = {"bandwidth": judge}
