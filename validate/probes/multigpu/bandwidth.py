"""M6: how fast ranks talk. Measured alone on the machine; its judge only ever warns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from validate.claims import Claim
from validate.contracts import NoEvidence
from validate.contracts.multigpu import BandwidthResult, RanksEvidence
from validate.probes.multigpu import _launch
from validate.probes.multigpu._worker import Worker

_BYTES = {"cuda": 256 << 20, "cpu": 4 << 20}
_WARM, _TIMES = 5, 20


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims)


def rank(worker: Worker, _claim: Claim) -> BandwidthResult:
    """Bytes a second, as nccl-tests counts them: of an all-reduce (bus bandwidth), and to the next rank."""
    torch, distributed = worker.torch, worker.distributed
    size = _BYTES[worker.device.type]
    buffer = torch.ones(size // 4, device=worker.device, dtype=torch.float32)
    given = torch.empty_like(buffer)
    after, before = (worker.rank + 1) % worker.ranks, (worker.rank - 1) % worker.ranks

    def ring() -> None:
        pair = [
            distributed.P2POp(distributed.isend, buffer, after),
            distributed.P2POp(distributed.irecv, given, before),
        ]
        for work in distributed.batch_isend_irecv(pair):
            work.wait()

    reduced = _seconds(worker, lambda: distributed.all_reduce(buffer, op=distributed.ReduceOp.MAX))
    sent = _seconds(worker, ring)
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
