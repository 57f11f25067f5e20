"""Timing of work on a GPU: the times, how far they vary, and what may have disturbed them.

The noise model. A time is the median of `repeats` runs, each between two CUDA events, after warm-up
runs that do not count. Its spread is 1.4826 times the median distance from that median, relative to
it: the standard deviation, if noise were normal, and blind to a few outliers. Two runs are compared
by `longest_allowed`: the older median, times one plus a margin for what no run can see (another
machine of the same model, another driver), plus three standard deviations of both runs. A time
beyond its bound fails only if nothing disturbed it: another process on the GPU, clocks that were
slowed down. Times that vary too much hold no bound and break none.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, TypedDict

from validate.environment import nvml

Watch = Callable[[], Mapping[str, int]]
"""A function that reads the GPU's clocks, limits and use at this moment: name -> number.

nvml.open_gpu_reader gives it, and validate/environment/nvml.py lists the names (_READINGS)."""
MARGIN = 0.08
"""The margin between two machines with the same GPU model: cooling, power and silicon differ.
Measured on H100s."""
SIGMAS = 3.0
_SLOWED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
"""Bits of NVML's clocks throttle reasons (nvml.h), which a reading has as `throttled`. The power
cap is left out: every large product reaches it."""
_LOW_CLOCK = 0.5
"""A share of the highest clock. An H100 multiplies at 0.7 of its highest clock."""
_LOW_POWER = 0.9
"""A share of the usual power limit."""
_BUSY_PERCENT = 10
"""The utilization, as the driver counts it, from which on the GPU was busy before the first run."""
_OTHERS_BYTES = 3 << 30
"""Memory that others may hold before the first run; this process's own context is included."""
NOISY = 0.1
"""Times that vary more than this are compared with no bound."""


class Timed(TypedDict):
    """The summary of several runs of the same work."""

    seconds: float
    """The median time of a run."""
    spread: float
    """The spread around the median, as a share of it."""
    repeats: int
    """The number of runs."""


class _Conditions(TypedDict):
    before: Mapping[str, int]
    """A reading before this process worked on the GPU."""
    others: int
    """Bytes of the GPU's memory that were taken then, this process's own context included."""


class Conditions(_Conditions, total=False):
    """What may have disturbed a measurement on a GPU.

    A reading has the keys of _READINGS in validate/environment/nvml.py; one that NVML could not
    read is absent.
    """

    under_load: Sequence[Mapping[str, int]]
    """Readings while the measured work ran."""


@contextmanager
def watch_gpu(torch: Any) -> Iterator[tuple[Watch, Conditions]]:
    """Yield a function that reads torch's current GPU (Watch), and the conditions before the work.

    The caller measures something on the GPU inside this context. The conditions say what could
    disturb that: "before" is a reading of the GPU by NVML, the driver's library for monitoring, and
    "others" is how many bytes of its memory are already taken.
    """
    # Older releases of torch do not know a GPU's UUID. NVML then reads the first GPU that it has.
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = str(getattr(properties, "uuid", "")).removeprefix("GPU-")
    nvml_uuid = f"GPU-{uuid}" if uuid else ""
    with nvml.open_gpu_reader(nvml_uuid) as watch:
        # `busy` is the utilization in percent. The driver averages it over up to a second, so it
        # may still include probes that have just ended. The lowest of three readings does not.
        readings = []
        for _ in range(3):
            readings.append(watch())
            time.sleep(0.3)
        lowest_busy = min(reading.get("busy", 0) for reading in readings)

        # All other numbers are those of the last reading, the one nearest to the work.
        before = {**readings[-1], "busy": lowest_busy}
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        yield watch, {"before": before, "others": total_bytes - free_bytes}


def summarise_times(seconds: Sequence[float]) -> Timed:
    """Return the median and the spread of the times of several runs.

    The spread is the standard deviation as a share of the median. It is estimated from the median
    distance from the median (MAD), so that a few outliers do not change it. Raises StatisticsError
    if there are no times.
    """
    middle = median(seconds)
    distance = median(abs(value - middle) for value in seconds)
    # 1.4826 times the median distance is the standard deviation of normal noise.
    spread = 0.0
    if middle:
        spread = 1.4826 * distance / middle
    return {"seconds": middle, "spread": spread, "repeats": len(seconds)}


def time_runs(
    torch: Any, work: Callable[[], object], device: str, *, warm: int, repeats: int, watch: Watch
) -> tuple[list[float], Mapping[str, int]]:
    """Time `repeats` runs of `work`, after `warm` runs that do not count.

    Returns the seconds of each run, and what `watch` reads of the GPU while it still works.
    `device` is `cuda` or `cpu`.
    """
    for _ in range(warm):
        work()

    if device != "cuda":
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - start)
        return seconds, watch()

    # All events are made first, so that nothing but the work stands between two of them.
    torch.cuda.synchronize()
    events = []
    for _ in range(repeats):
        start_event = torch.cuda.Event(enable_timing=True)
        end_event = torch.cuda.Event(enable_timing=True)
        events.append((start_event, end_event))
    for start_event, end_event in events:
        start_event.record()
        work()
        end_event.record()

    # All runs are launched, but the GPU has not finished them: it is read under load.
    reading = watch()
    torch.cuda.synchronize()
    # elapsed_time counts in milliseconds.
    return [start.elapsed_time(end) / 1000 for start, end in events], reading


def longest_allowed(before: Timed, now: Timed, margin: float) -> float:
    """Return how many seconds `now` may take at most, compared with an earlier time.

    That is the earlier median, plus `margin` as a share of it, plus three standard deviations of
    both times together.
    """
    spread = math.hypot(before["spread"], now["spread"])
    return before["seconds"] * (1 + margin + SIGMAS * spread)


def disturbances(conditions: Conditions, *times: Timed) -> Iterator[str]:
    """Yield a sentence for each thing that may have slowed down a measurement on a GPU.

    `times` are the measured times: they may vary too much. `conditions` show other work on the
    GPU, memory that others hold, its limit of power, and its clocks under load. Nothing is yielded
    about what could not be read. Raises KeyError if `under_load` was not added to the conditions.
    """
    for timed in times:
        if timed["spread"] > NOISY:
            yield f"times vary by {timed['spread']:.0%}"

    # A value that NVML could not read has no key.
    before = conditions["before"]
    if before.get("busy", 0) > _BUSY_PERCENT:
        yield f"the GPU was {before['busy']} % busy before the measurement"
    if conditions["others"] > _OTHERS_BYTES:
        yield f"other programs held {conditions['others'] / 1e9:.1f} GB of the GPU's memory"

    # Both limits are in milliwatts.
    usual_limit = before.get("usual_power_limit", 0)
    limit = before.get("power_limit", usual_limit)
    if limit < _LOW_POWER * usual_limit:
        yield (
            f"the GPU's power is limited to {limit / 1000:.0f} W, "
            f"{usual_limit / 1000:.0f} W is usual"
        )
    yield from _describe_slow_clocks(before.get("highest_clock", 0), conditions["under_load"])


def _describe_slow_clocks(highest: int, readings: Sequence[Mapping[str, int]]) -> Iterator[str]:
    """Yield why the clocks that were read under load are lower than the GPU can run.

    `highest` is the GPU's highest clock in MHz; 0: it is not known. A reading has the clock in MHz
    (`clock`) and bits that say why it is slowed down (`throttled`), if the GPU tells them.
    """
    # A set, because each reading may name the same reason again, and two bits stand for heat.
    reasons = set()
    for reading in readings:
        for bit, reason in _SLOWED.items():
            if reading.get("throttled", 0) & bit:
                reasons.add(reason)
    for reason in sorted(reasons):
        yield f"clocks were slowed down ({reason})"

    clocks = [reading["clock"] for reading in readings if reading.get("clock")]
    if highest and clocks and max(clocks) < _LOW_CLOCK * highest:
        yield f"the GPU ran at {max(clocks)} MHz at most, and can run at {highest}"
