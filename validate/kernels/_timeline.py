"""Records which CUDA kernels ran for a kernel of the table, and which of them plain torch runs too.

The profiler gives a list of kernels for the whole process. Spins on the device divide it into
stretches, so that it is known for which case each kernel ran.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from validate.kernels import Mark
from validate.kernels._evidence import ProfileEvidence

SPIN = "spin_kernel"
"""The kernel of `torch.cuda._sleep`. It marks where a stretch begins, and the profiler must have
seen it."""
LEAD_IN = "lead-in"
"""A long spin before the first mark, which the profiler may lose without harm."""
_LEAD_IN_CYCLES, _LEAD_IN_MICROSECONDS = 20_000_000, 1000.0
_LEAD_IN_SPINS = (10, 100, 400)
"""How many spins lead in, by attempt. A spin takes about 10 ms at 1.98 GHz (H200), a mark less than
1 microsecond.

CUPTI of CUDA 12.6 Update 2 to 13.0 dates kernels too early, by more the longer the device has been
idle, and the profiler drops what seems to lie before its start:
https://github.com/pytorch/pytorch/issues/192021. Lost are always the first kernels of a session.
That fits the marks of tf32-switch and bnb-int8 that torch 2.8 (CUPTI 12.8) lost on an H200; with
the lead-in all were seen.
"""
_SHOWN_NAMES, _SHOWN_CHARACTERS = 60, 160

ASKED, PLAIN = "asked", "plain"
Stretch = tuple[str, str]
"""A case, and who runs: ASKED, the kernel of the table, or PLAIN, plain torch."""


def profile_kernels(
    torch: Any, work: Callable[[Mark], None], patterns: Sequence[str]
) -> ProfileEvidence:
    """Run `work` under the profiler, and return which CUDA kernels ran.

    The profiler may lose the first kernels, so long spins run first: the lead-in. If it lost
    others, too, `work` runs again behind a longer lead-in.

    work: gets a function that begins a stretch, and calls it before each case and way to compute.
    patterns: regular expressions by which the evidence sorts the kernels.
    """
    stretches: list[Stretch | None] = []

    def mark(stretch: Stretch | None) -> None:
        """Begin a stretch, which lasts until the next one. None: what runs in it is ignored."""
        # The device is idle around the spin, so no kernel runs on both sides of it.
        torch.cuda.synchronize()
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
        stretches.append(stretch)

    for spins in _LEAD_IN_SPINS:
        stretches.clear()
        names = _names_in_order(torch, work, mark, spins)
        profile = describe(names, stretches, patterns)
        if profile["works"]:
            break
    return profile


def _names_in_order(torch: Any, work: Callable[[Mark], None], mark: Mark, spins: int) -> list[str]:
    """Run `work` under the profiler, and return the names of its CUDA kernels in order.

    The spins before and between them are in the list, too; one of the lead-in is named LEAD_IN.
    Copies and fills of memory are left out.

    spins: how many spins lead in.
    """
    profiler = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(spins):
            torch.cuda._sleep(_LEAD_IN_CYCLES)
        mark(None)
        work(mark)
        mark(None)
    cuda = importlib.import_module("torch.autograd").DeviceType.CUDA
    events = []
    for event in profile.events():
        if event.device_type == cuda and not event.name.startswith(("Memcpy", "Memset")):
            events.append(event)
    events.sort(key=lambda event: event.time_range.start)

    names = []
    for event in events:
        microseconds = event.time_range.end - event.time_range.start
        # Marks are the same kernel, but much shorter.
        is_lead_in = SPIN in event.name and microseconds >= _LEAD_IN_MICROSECONDS
        names.append(LEAD_IN if is_lead_in else str(event.name))
    return names


def describe(
    names: Sequence[str], stretches: Sequence[Stretch | None], patterns: Sequence[str]
) -> ProfileEvidence:
    """Return the evidence about the CUDA kernels that ran.

    The profile works if it has every mark, and a lead-in before them: then nothing after the
    lead-in was dropped. If it does not work, the evidence does not say what ran in which case.

    names: the kernels in the order in which they ran, with the spins that divide them.
    stretches: those that were begun, in order.
    patterns: regular expressions of kernels' names.
    """
    parts = _split_at_spins(names)
    works = names[:1] == [LEAD_IN] and len(parts) == len(stretches)

    seen = set(chain.from_iterable(parts))
    matching = {}
    for pattern in patterns:
        matching[pattern] = {name for name in seen if re.search(pattern, name)}
    others = seen.difference(*matching.values())
    profile: ProfileEvidence = {
        "works": works,
        "marks": {"made": len(stretches), "seen": len(parts), "lead_in": names.count(LEAD_IN)},
        "matching": {pattern: _short(names_like) for pattern, names_like in matching.items()},
        "others": _short(others),
        "count": len(seen),
    }
    if works:
        profile["ran"] = _by_case(parts, stretches)
    return profile


def _split_at_spins(names: Sequence[str]) -> list[set[str]]:
    """Return the names between each mark and the next, without those before the first mark."""
    parts: list[set[str]] = []
    for name in names:
        if SPIN in name:
            parts.append(set())
        elif parts:
            parts[-1].add(name)
    return parts


def _by_case(
    parts: Sequence[set[str]], stretches: Sequence[Stretch | None]
) -> Mapping[str, list[str]]:
    """Return case -> the kernels that ran for it, without those of plain torch on the same inputs.

    parts: the names of the kernels that ran in each stretch.
    """
    by_stretch: dict[Stretch, set[str]] = {}
    for part, stretch in zip(parts, stretches, strict=True):
        if stretch is not None:
            by_stretch.setdefault(stretch, set()).update(part)

    by_case = {}
    for (case, kind), names in by_stretch.items():
        if kind == ASKED:
            by_case[case] = _short(names - by_stretch.get((case, PLAIN), set()))
    return by_case


def _short(names: Iterable[str]) -> list[str]:
    """Return the first names in the order of the alphabet, shortened."""
    return [name[:_SHOWN_CHARACTERS] for name in sorted(names)][:_SHOWN_NAMES]
