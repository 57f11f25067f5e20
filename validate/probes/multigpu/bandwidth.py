"""M6: how fast ranks talk. Measured alone on the machine; its judge only ever warns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from validate.claims import Claim
from validate.contracts import NoEvidence
from validate.contracts.multigpu import BandwidthResult, RanksEvidence
from validate.probes.multigpu import _launch
from validate.probes.multigpu._bench import Bench

_BYTES = {"cuda": 256 << 20, "cpu": 4 << 20}
_WARM, _TIMES = 5, 20


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims)


def rank(bench: Bench, _claim: Claim) -> BandwidthResult:
    """Bytes a second, as nccl-tests counts them: of an all-reduce (bus bandwidth), and to the next rank."""
    torch, distributed = bench.torch, bench.distributed
    size = _BYTES[bench.device.type]
    buffer = torch.ones(size // 4, device=bench.device, dtype=torch.float32)
    given = torch.empty_like(buffer)
    after, before = (bench.rank + 1) % bench.ranks, (bench.rank - 1) % bench.ranks

    def ring() -> None:
        pair = [
            distributed.P2POp(distributed.isend, buffer, after),
            distributed.P2POp(distributed.irecv, given, before),
        ]
        for work in distributed.batch_isend_irecv(pair):
            work.wait()

    reduced = _seconds(bench, lambda: distributed.all_reduce(buffer, op=distributed.ReduceOp.MAX))
    sent = _seconds(bench, ring)
    return {
        "bytes": size,
        "all_reduce": 2 * (bench.ranks - 1) / bench.ranks * size / reduced,
        "send": size / sent,
    }


def _seconds(bench: Bench, work: Callable[[], object]) -> float:
    """Of one run, the mean of many after a few to warm up."""
    for count in (_WARM, _TIMES):
        _synchronise(bench)
        started = time.monotonic()
        for _ in range(count):
            work()
        _synchronise(bench)
    return (time.monotonic() - started) / _TIMES


def _synchronise(bench: Bench) -> None:
    if bench.device.type == "cuda":
        bench.torch.cuda.synchronize()
    bench.distributed.barrier()
