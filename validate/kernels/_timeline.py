"""Which CUDA kernels ran while a kernel of the table was asked for, and which of them plain torch runs as well."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from validate.kernels import Mark

SPIN = "spin_kernel"
"""What `torch.cuda._sleep` runs: a mark in the device's own time, and a kernel that the profiler must have seen."""
LEAD_IN = "lead-in"
"""A spin of milliseconds before the first mark: what the profiler may lose without harm."""
_LEAD_IN_CYCLES, _LEAD_IN_MICROSECONDS = 20_000_000, 1000.0
_LEAD_IN_SPINS = (10, 100, 400)
"""For each attempt. A spin takes about 10 ms at 1.98 GHz (H200), a mark less than 1 microsecond.

CUPTI of CUDA 12.6 Update 2 to 13.0 dates kernels too early, by more the longer the device has been idle, and the
profiler drops what seems to lie before its start: https://github.com/pytorch/pytorch/issues/192021. Lost are always the
first kernels of a session. That fits the marks of tf32-switch and bnb-int8 that torch 2.8 (CUPTI 12.8) lost on an H200;
with the lead-in all were seen.
"""
_SHOWN_NAMES, _SHOWN_CHARACTERS = 60, 160

ASKED, PLAIN = "asked", "plain"
Stretch = tuple[str, str]
"""The case, and ASKED or PLAIN."""


def profiled(torch: Any, work: Callable[[Mark], None], wanted: Sequence[str]) -> Mapping[str, Any]:
    """Names of the CUDA kernels that ran during `work`. `works`: the profiler saw the kernels that surely ran.

    Where it did not, `work` runs again behind a longer lead-in.
    """
    stretches: list[Stretch | None] = []

    def mark(stretch: Stretch | None) -> None:
        """Begin a stretch (None: nobody's) with a spin on an idle device: it lasts until the next one."""
        torch.cuda.synchronize()
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
        stretches.append(stretch)

    for spins in _LEAD_IN_SPINS:
        stretches.clear()
        found = described(_names_in_order(torch, work, mark, spins), stretches, wanted)
        if found["works"]:
            break
    return found


def _names_in_order(torch: Any, work: Callable[[Mark], None], mark: Mark, spins: int) -> list[str]:
    """What ran, in the device's order."""
    profiler = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(spins):
            torch.cuda._sleep(_LEAD_IN_CYCLES)
        mark(None)
        work(mark)
        mark(None)
    cuda = importlib.import_module("torch.autograd").DeviceType.CUDA
    events = [event for event in profile.events() if event.device_type == cuda]
    events = [event for event in events if not event.name.startswith(("Memcpy", "Memset"))]
    events.sort(key=lambda event: event.time_range.start)
    took = [event.time_range.end - event.time_range.start for event in events]
    return [
        LEAD_IN if SPIN in event.name and one >= _LEAD_IN_MICROSECONDS else str(event.name)
        for event, one in zip(events, took, strict=True)
    ]


def described(names: Sequence[str], stretches: Sequence[Stretch | None], wanted: Sequence[str]) -> Mapping[str, Any]:
    """The evidence from names in the order in which they ran: {works, marks: how many were `made` and `seen`, and spins
    of the `lead_in`, matching: {pattern: names}, others, count, ran: {case: what ran when the kernel was asked for,
    without what plain torch ran on the same inputs}}.

    `works` wants every mark, and a lead-in before them: then nothing after it was dropped. Else there is no `ran`.
    """
    parts = _parts(names)
    works = names[:1] == [LEAD_IN] and len(parts) == len(stretches)
    seen = {name for part in parts for name in part}
    told = {name for name in seen if any(re.search(pattern, name) for pattern in wanted)}
    profile = {
        "works": works,
        "marks": {"made": len(stretches), "seen": len(parts), "lead_in": names.count(LEAD_IN)},
        "matching": {pattern: _short(n for n in told if re.search(pattern, n)) for pattern in wanted},
        "others": _short(seen - told),
        "count": len(seen),
    }
    return {**profile, "ran": _apart(parts, stretches)} if works else profile


def _parts(names: Sequence[str]) -> list[set[str]]:
    """The names after each spin."""
    parts: list[set[str]] = []
    for name in names:
        if SPIN in name:
            parts.append(set())
        elif parts:
            parts[-1].add(name)
    return parts


def _apart(parts: Sequence[set[str]], stretches: Sequence[Stretch | None]) -> Mapping[str, list[str]]:
    """Case -> what ran when the kernel was asked for, without what plain torch ran on the same inputs."""
    seen: dict[Stretch, set[str]] = {}
    for part, stretch in zip(parts, stretches, strict=True):
        if stretch is not None:
            seen.setdefault(stretch, set()).update(part)
    asked = {case: names for (case, kind), names in seen.items() if kind == ASKED}
    return {case: _short(names - seen.get((case, PLAIN), set())) for case, names in asked.items()}


def _short(names: Iterable[str]) -> list[str]:
    return [name[:_SHOWN_CHARACTERS] for name in sorted(names)][:_SHOWN_NAMES]
