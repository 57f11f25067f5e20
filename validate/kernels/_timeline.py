"""Which CUDA kernels ran while a kernel of the table was asked for, and which of them plain torch runs as well."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from validate.kernels import Mark
from validate.kernels._evidence import ProfileEvidence

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


def profiled(torch: Any, work: Callable[[Mark], None], patterns: Sequence[str]) -> ProfileEvidence:
    """Return the names of the CUDA kernels that ran during `work`.

    Where the profiler did not see kernels that surely ran, `work` runs again behind a longer lead-in.
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
        profile = described(_names_in_order(torch, work, mark, spins), stretches, patterns)
        if profile["works"]:
            break
    return profile


def _names_in_order(torch: Any, work: Callable[[Mark], None], mark: Mark, spins: int) -> list[str]:
    """Return what ran, in the device's order."""
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
    names = []
    for event in events:
        microseconds = event.time_range.end - event.time_range.start
        is_lead_in = SPIN in event.name and microseconds >= _LEAD_IN_MICROSECONDS
        names.append(LEAD_IN if is_lead_in else str(event.name))
    return names


def described(
    names: Sequence[str], stretches: Sequence[Stretch | None], patterns: Sequence[str]
) -> ProfileEvidence:
    """Return the evidence from names in the order in which they ran.

    The profile works if it has every mark, and a lead-in before them: then nothing after it was dropped. Else it does
    not say what ran in which case.
    """
    parts = _parts(names)
    works = names[:1] == [LEAD_IN] and len(parts) == len(stretches)
    seen = set(chain.from_iterable(parts))
    matching = {
        pattern: {name for name in seen if re.search(pattern, name)} for pattern in patterns
    }
    others = seen.difference(*matching.values())
    profile: ProfileEvidence = {
        "works": works,
        "marks": {"made": len(stretches), "seen": len(parts), "lead_in": names.count(LEAD_IN)},
        "matching": {pattern: _short(names_like) for pattern, names_like in matching.items()},
        "others": _short(others),
        "count": len(seen),
    }
    if works:
        profile["ran"] = _apart(parts, stretches)
    return profile


def _parts(names: Sequence[str]) -> list[set[str]]:
    """Return the names after each spin."""
    parts: list[set[str]] = []
    for name in names:
        if SPIN in name:
            parts.append(set())
        elif parts:
            parts[-1].add(name)
    return parts


def _apart(
    parts: Sequence[set[str]], stretches: Sequence[Stretch | None]
) -> Mapping[str, list[str]]:
    """Return by case what ran when the kernel was asked for, without what plain torch ran on the same inputs."""
    seen: dict[Stretch, set[str]] = {}
    for part, stretch in zip(parts, stretches, strict=True):
        if stretch is not None:
            seen.setdefault(stretch, set()).update(part)
    asked = {case: names for (case, kind), names in seen.items() if kind == ASKED}
    return {case: _short(names - seen.get((case, PLAIN), set())) for case, names in asked.items()}


def _short(names: Iterable[str]) -> list[str]:
    """Return the first names, shortened."""
    return [name[:_SHOWN_CHARACTERS] for name in sorted(names)][:_SHOWN_NAMES]
