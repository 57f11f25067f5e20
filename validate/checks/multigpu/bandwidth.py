"""M6: ranks that talk slowly train slowly. Measured alone on the machine; its judge only ever warns."""

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from validate.checks import Settings
from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Worker, of_ranks
from validate.claims import Claim
from validate.judging import Finding, is_between, passed, unproven

SETTINGS = Settings(runs_alone=True, errors_are_warnings=True)

_BYTES = {"cuda": 256 << 20, "cpu": 4 << 20}
_WARM, _TIMES = 5, 20

measure = partial(_launch.measure, __name__)


def rank(worker: Worker, _claim: Claim) -> dict[str, Any]:
    """Bytes a second, as nccl-tests counts them: of an all-reduce (bus bandwidth), and to the next rank."""
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


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """M6: never red. expect: {minimum: bytes a second, link}; a rank: {bytes, all_reduce, send}, bytes a second."""
    finding = of_ranks(expect, evidence, lambda _expect, _rank: iter(()), lambda _expect, _ranks: "")
    if finding.reason:
        return unproven(f"warning: {finding.reason}")
    all_reduce, send = (min(_number(rank[way]) for rank in evidence["ranks"]) for way in ("all_reduce", "send"))
    said = f"all-reduce {_speed(all_reduce)}, to the next rank {_speed(send)}"
    minimum = expect["minimum"]
    if not is_between(min(all_reduce, send), minimum, math.inf):
        return unproven(f"warning: {said}; {expect['link'] or 'this link'} should give {_speed(minimum)} at least")
    return passed(f"{said} ({expect['link'] or 'link unknown'})")


def _number(value: object) -> float:
    """Not-a-number arrives as text, and is no speed."""
    return float(value) if isinstance(value, int | float) else 0.0


def _speed(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"


CLAIMS = {"M6": judge}
