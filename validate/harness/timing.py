"""Times of GPU work, how far they can be trusted, and what disturbs them.

The noise model. A time is the median of `repeats` runs, each between two CUDA events, after runs that are not counted.
Its spread is 1.4826 times the median distance from that median, relative to it: the standard deviation, if noise were
normal, and blind to a few outliers. Two runs are compared by `longest_allowed`: the older median, times one plus a margin for
what no run can see (another machine of the same model, another driver), plus three standard deviations of both runs.
A time beyond its bound fails only if nothing disturbed it: another process on the GPU, clocks that were slowed down.
Times that vary too much hold no bound and break none.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, TypedDict

from validate.environment import nvml

Watch = Callable[[], Mapping[str, int]]
"""Reads the GPU's clocks while it works (validate/environment/nvml.py, watch_gpu)."""
MARGIN = 0.08
"""Between two machines with the same GPU model: cooling, power and silicon differ. Measured on H100s."""
SIGMAS = 3.0
_SLOWED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""NVML's clocks throttle reasons (nvml.h) but the power cap, which every large product meets."""
_LOW_CLOCK, _LOW_POWER = 0.5, 0.9
"""Of the highest clock, and of the usual power limit. An H100 multiplies at 0.7 of its highest clock."""
_BUSY_PERCENT, _OTHERS_BYTES = 10, 3 << 30
"""Before the first run: what the driver counts as utilization, and memory beside this process's own context."""
NOISY = 0.1
"""A spread that no bound can be trusted with."""


class Timed(TypedDict):
    seconds: float
    """Median."""
    spread: float
    """Relative to it."""
    repeats: int


class _Conditions(TypedDict):
    before: Mapping[str, int]
    others: int


class Conditions(_Conditions, total=False):
    """What NVML read of the GPU `before` this process worked on it, and `under_load`.

    `others`: bytes of its memory that were taken before, this process's context included.
    """

    under_load: Sequence[Mapping[str, int]]


@contextmanager
def watched(torch: Any) -> Iterator[tuple[Watch, Conditions]]:
    """Give what watches torch's GPU, and the conditions before this process works on it."""
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", "")).removeprefix("GPU-")
    with nvml.watch_gpu(f"GPU-{uuid}" if uuid else "") as watch:
        readings = []
        for _ in range(
            3
        ):  # the driver counts use over up to a second, that of probes which just ended as well
            readings.append(watch())
            time.sleep(0.3)
        free, total = torch.cuda.mem_get_info()
        busy = min(one.get("busy", 0) for one in readings)
        yield watch, {"before": {**readings[-1], "busy": busy}, "others": total - free}


def summarise_times(values: Sequence[float]) -> Timed:
    """Median and spread of times in seconds."""
    middle = median(values)
    away = median(abs(value - middle) for value in values)
    return {
        "seconds": middle,
        "spread": 1.4826 * away / middle if middle else 0.0,
        "repeats": len(values),
    }


def time_runs(
    torch: Any, work: Callable[[], object], device: str, *, warm: int, repeats: int, watch: Watch
) -> Any:
    """Seconds of each repeat, and what `watch` read while the last of them ran."""
    for _ in range(warm):
        work()
    if device != "cuda":
        found = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            found.append(time.perf_counter() - start)
        return found, watch()
    torch.cuda.synchronize()
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for start_mark, end_mark in marks:
        start_mark.record()
        work()
        end_mark.record()
    seen = watch()  # launches are ahead of the device: it still computes
    torch.cuda.synchronize()
    return [one.elapsed_time(other) / 1000 for one, other in marks], seen


def longest_allowed(before: Timed, now: Timed, margin: float) -> float:
    """Seconds that `now` may take, by an older time."""
    both = math.hypot(before["spread"], now["spread"])
    return before["seconds"] * (1 + margin + SIGMAS * both)


def disturbances(conditions: Conditions, *times: Timed) -> Iterator[str]:
    """Yield why times that were taken under these conditions say nothing of the image."""
    for timed in times:
        if timed["spread"] > NOISY:
            yield f"times vary by {timed['spread']:.0%}"
    before = conditions["before"]
    if before.get("busy", 0) > _BUSY_PERCENT:
        yield f"the GPU was {before['busy']} % busy before"
    if conditions["others"] > _OTHERS_BYTES:
        yield f"others held {conditions['others'] / 1e9:.1f} GB of the GPU's memory"
    usual = before.get("usual_power_limit", 0)
    if before.get("power_limit", usual) < _LOW_POWER * usual:
        yield f"the GPU's power is limited to {before['power_limit'] / 1000:.0f} W, {usual / 1000:.0f} W is usual"
    readings = conditions["under_load"]
    reasons = set()
    for reading in readings:
        for bit, reason in _SLOWED.items():
            if reading.get("throttled", 0) & bit:
                reasons.add(reason)
    for reason in sorted(reasons):
        yield f"clocks were slowed down ({reason})"
    highest = before.get("highest_clock", 0)
    clocks = [reading["clock"] for reading in readings if reading.get("clock")]
    if highest and clocks and max(clocks) < _LOW_CLOCK * highest:
        yield f"the GPU ran at {max(clocks)} MHz at most, it can {highest}"
