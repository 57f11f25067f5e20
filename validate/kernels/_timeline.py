"""Records which CUDA kernels ran for a kernel of the table, and which of them plain torch runs too.

The profiler gives one list of CUDA kernels for the whole process, which does not say for what each
of them ran. So the list is divided by kernels that only wait, the *spins*:

- A short spin, a *mark*, begins each *stretch* of the work. A stretch is one way to compute one
  case: by plain torch (PLAIN), or by the kernel of the table (CLAIMED).
- Long spins, the *lead-in*, come before the first mark, because the profiler may lose the first
  kernels of a session.

For the case "causal" the list is, in the order in which the kernels ran:

    LEAD_IN ... LEAD_IN  mark(None)  mark("causal", PLAIN) gemm softmax
    mark("causal", CLAIMED) flash_fwd copy  mark(None)
"""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from validate.kernels import Mark
from validate.kernels._evidence import ProfileEvidence

SPIN = "spin_kernel"
"""A part of the name of the kernel of `torch.cuda._sleep`, by which marks and lead-in spin."""
LEAD_IN = "lead-in"
"""The name that a spin of the lead-in gets here. The profiler may lose some without harm."""
_MARK_CYCLES, _LEAD_IN_CYCLES = 1000, 20_000_000
_LEAD_IN_MICROSECONDS = 1000.0
"""A spin that takes at least so long is of the lead-in. At 1.98 GHz (H200) one of the lead-in takes
about 10 ms, and a mark less than 1 microsecond."""
_LEAD_IN_SPINS = (10, 100, 400)
"""How many spins lead in, by attempt.

CUPTI of CUDA 12.6 Update 2 to 13.0 dates kernels too early, by more the longer the device has been
idle, and the profiler drops what seems to lie before its start:
https://github.com/pytorch/pytorch/issues/192021. Lost are always the first kernels of a session.
That fits the marks of tf32-switch and bnb-int8 that torch 2.8 (CUPTI 12.8) lost on an H200; with
the lead-in all were seen.
"""
_SHOWN_NAMES, _SHOWN_CHARACTERS = 60, 160
"""How many names the evidence lists, and how much it shows of each."""

CLAIMED, PLAIN = "claimed", "plain"
Stretch = tuple[str, str]
"""A case, and who computes it: CLAIMED, the kernel of the table, or PLAIN, plain torch. A kernel's
observations have its subject in place of a case."""


def profile_kernels(
    torch: Any, work: Callable[[Mark], None], patterns: Sequence[str]
) -> ProfileEvidence:
    """Run `work` under the profiler, and return which CUDA kernels ran in which part of it.

    Such a part is called a stretch. `work` gets a function `mark` that begins one: it calls
    `mark(("causal", PLAIN))` before it computes the case "causal" by plain torch, and
    `mark(("causal", CLAIMED))` before it does so by the kernel that is tested. `patterns` are
    regular expressions by which the evidence sorts the kernels' names.

    The profiler may lose the first kernels. So kernels that only wait run first (the lead-in), and
    may be lost. If more was lost, all is done again with a longer lead-in. If the longest is too
    short, `works` is False in the evidence.
    """
    # The stretch that each mark began, in order.
    stretches: list[Stretch | None] = []

    def mark(stretch: Stretch | None) -> None:
        """Begin a stretch, which lasts until the next one. None: what runs in it is ignored."""
        # This kernel is the mark. The device is idle around it, so no kernel of one stretch still
        # runs in the next.
        torch.cuda.synchronize()
        torch.cuda._sleep(_MARK_CYCLES)
        torch.cuda.synchronize()
        stretches.append(stretch)

    for lead_in_length in _LEAD_IN_SPINS:
        stretches.clear()
        names = _profile_names(torch, work, mark, lead_in_length)
        profile = describe(names, stretches, patterns)
        if profile["works"]:
            break
    return profile


def _profile_names(
    torch: Any, work: Callable[[Mark], None], mark: Mark, spin_count: int
) -> list[str]:
    """Run `work` under the profiler, and return the names of all CUDA kernels in order.

    The list begins with the lead-in, and has a mark at the beginning of each stretch (see the
    module's docstring). Both are spins, kernels that only wait: those of the lead-in are called
    LEAD_IN here, marks keep the kernel's own name. Copies and fills of memory are left out.

    mark: runs a mark, and notes which stretch begins there; None for a stretch of no case.
    spin_count: the number of spins of the lead-in.
    """
    profiler = importlib.import_module("torch.profiler")
    # Without acc_events torch warns that it clears the events at the end of each cycle.
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(spin_count):
            torch.cuda._sleep(_LEAD_IN_CYCLES)
        mark(None)
        work(mark)
        mark(None)

    # Keep what ran on the GPU, and sort it by time.
    cuda = importlib.import_module("torch.autograd").DeviceType.CUDA
    events = []
    for event in profile.events():
        if event.device_type == cuda and not event.name.startswith(("Memcpy", "Memset")):
            events.append(event)
    events.sort(key=lambda event: event.time_range.start)

    names = []
    for event in events:
        # Marks and lead-in are the same kernel: only the time tells them apart.
        microseconds = event.time_range.end - event.time_range.start
        is_lead_in = SPIN in event.name and microseconds >= _LEAD_IN_MICROSECONDS
        names.append(LEAD_IN if is_lead_in else str(event.name))
    return names


def describe(
    names: Sequence[str], stretches: Sequence[Stretch | None], patterns: Sequence[str]
) -> ProfileEvidence:
    """Sort the CUDA kernels that the profiler saw, and say whether it lost any.

    Kernels that only wait (spins) come before the work, as its lead-in, and between its stretches,
    as marks. The profiler loses only the first kernels of a session. So if it saw a spin of the
    lead-in, and every mark, it lost nothing of the work: the profile `works`. Only then does the
    evidence say which kernels ran in which case.

    names: the kernels in the order in which they ran, marks and lead-in included.
    stretches: what each mark began, in order: a case and who computed it; None: nothing of a case.
    patterns: regular expressions of kernels' names.
    """
    names_by_mark = _split_at_marks(names)
    works = names[:1] == [LEAD_IN] and len(names_by_mark) == len(stretches)

    # A name may match several patterns, and then it belongs to each.
    seen = set(chain.from_iterable(names_by_mark))
    matching = {}
    for pattern in patterns:
        matching[pattern] = {name for name in seen if re.search(pattern, name)}
    others = seen.difference(*matching.values())

    profile: ProfileEvidence = {
        "works": works,
        "marks": {
            "made": len(stretches),
            "seen": len(names_by_mark),
            "lead_in": names.count(LEAD_IN),
        },
        "matching": {pattern: _shorten(matches) for pattern, matches in matching.items()},
        "others": _shorten(others),
        "count": len(seen),
    }
    if works:
        profile["ran"] = _find_own_kernels(names_by_mark, stretches)
    return profile


def _split_at_marks(names: Sequence[str]) -> list[set[str]]:
    """Return the names that follow each mark, up to the next one: a set for each mark.

    A mark is a kernel that only waits, between two parts of the work. What comes before the first
    mark, the lead-in, is left out.
    """
    names_by_mark: list[set[str]] = []
    for name in names:
        # Spins of the lead-in have been renamed to LEAD_IN, so this one is a mark.
        if SPIN in name:
            names_by_mark.append(set())
        elif names_by_mark:
            names_by_mark[-1].add(name)
    return names_by_mark


def _find_own_kernels(
    names_by_mark: Sequence[set[str]], stretches: Sequence[Stretch | None]
) -> Mapping[str, list[str]]:
    """Return case -> the CUDA kernels that ran only for what is tested, and not for plain torch.

    The work was done in stretches, each after a mark. One stretch computes one case, either by the
    kernel of the table that is tested (CLAIMED) or by plain torch (PLAIN). Kernels that both run
    are left out, such as those that copy:

        names_by_mark   [{"gemm", "copy"}, {"flash_fwd", "copy"}]
        stretches       [("causal", PLAIN), ("causal", CLAIMED)]
        result          {"causal": ["flash_fwd"]}

    names_by_mark: the names of the CUDA kernels between each mark and the next.
    stretches: what began at each of these marks; None: nothing of a case.
    """
    # Collect the names by stretch. One that was repeated has several marks.
    by_stretch: dict[Stretch, set[str]] = {}
    for names, stretch in zip(names_by_mark, stretches, strict=True):
        if stretch is not None:
            by_stretch.setdefault(stretch, set()).update(names)

    # Take away what plain torch ran for the same case.
    by_case = {}
    for (case, kind), names in by_stretch.items():
        if kind == CLAIMED:
            plain_names = by_stretch.get((case, PLAIN), set())
            by_case[case] = _shorten(names - plain_names)
    return by_case


def _shorten(names: Iterable[str]) -> list[str]:
    """Return the first names in the order of the alphabet, shortened."""
    return [name[:_SHOWN_CHARACTERS] for name in sorted(names)][:_SHOWN_NAMES]
