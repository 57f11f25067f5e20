"""What each kernel of a fat-binary region is on a GPU, and which code no GPU asked for has a use for.

`device-code` judges by it and the pruner cuts by it, so that pruning can't take away what `device-code` would have
found."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from validate.binaries import fatbin
from validate.binaries.fatbin import Buffer, Entry, Region

STUB_BYTES = 768
REAL_BYTES = 2048
REAL_RATIO = 8
"""A stub is at most STUB_BYTES of machine code (a call to trap or printf) where the same kernel is REAL_RATIO times
that, and at least REAL_BYTES, on another arch. Told by size, not by registers: bitsandbytes has real kernels of 4
registers, and a stub that prints takes 24."""

FAULTS = ("absent", "stub", "jit")
"""What `device-code` has to say of a kernel. Code from PTX is none where no more is claimed."""
_ARCH_IN_NAME = re.compile(r"(?i)sm_?(1[0-2]\d|[5-9]\d)")


class Code:
    """What is left of a region's code. Each entry is read once, and only when it is asked for; that may raise
    FatbinError.
    """

    def __init__(self, data: Buffer, region: Region) -> None:
        self._region, self.left = region, left(data, region)
        self._kernels = functools.cache(lambda entry: fatbin.kernels(data, entry))
        self._largest_of = functools.cache(functools.partial(_largest, self._kernels))

    @property
    def largest(self) -> Mapping[str, int]:
        """Every kernel with its largest machine code, in bytes: 0 where there is PTX alone."""
        return self._largest_of(self.left)

    def states(self, target: int, among: Collection[Entry] | None = None) -> Iterator[tuple[str, str]]:
        """Each kernel on a GPU of `target`: `cubin`; `jit`, from PTX; `absent`; `stub`, there in name alone.

        `among`: as if the region had nothing but these. What serves `target` has to be one of them.
        """
        serving = self._region.serving(target)
        entry = serving if serving in self.left else None
        kernels = self._kernels(entry) if entry else {}
        entries = self.left if among is None else tuple(one for one in self.left if one in among)
        for name, most in self._largest_of(entries).items():
            size = kernels.get(name)
            if size is None:
                yield name, "absent"
            elif entry is not None and entry.ptx:
                yield name, "jit"
            elif size <= STUB_BYTES and most >= max(REAL_BYTES, REAL_RATIO * size):
                yield name, "stub"
            else:
                yield name, "cubin"

    def is_lost(self, target: int) -> bool:
        """Whether code that would run there was taken out, and nothing is left in its place."""
        serving = self._region.serving(target)
        if serving:
            return serving not in self.left
        return any(entry.runs_on(target) for entry in self._region.taken_out)


def _largest(kernels: Callable[[Entry], Mapping[str, int]], entries: tuple[Entry, ...]) -> Mapping[str, int]:
    largest: dict[str, int] = {}
    for entry in entries:
        for name, size in kernels(entry).items() if not entry.ptx else ():
            largest[name] = max(size, largest.get(name, 0))
    return largest or {name: 0 for entry in entries if entry.ptx for name in kernels(entry)}


def left(data: Buffer, region: Region) -> tuple[Entry, ...]:
    """Entries that still hold code."""
    return tuple(entry for entry in region.entries if not fatbin.is_emptied(data, entry))


def served(entries: Iterable[Entry], target: int) -> str:
    """What the best of these entries is to a GPU of `target`: `cubin`; `jit`, PTX; `none`."""
    ptx = [entry.ptx for entry in entries if entry.runs_on(target)]
    return "none" if not ptx else "jit" if all(ptx) else "cubin"


class KernelByDesign(TypedDict):
    """Kernels that are empty, or left out, on archs where their library never calls them."""

    kernels: str
    """Pattern of their names."""
    needed: list[list[int]]
    """Archs, from and to, where they must be real."""
    reason: str


class Excuses:
    """Tells kernels that must not be real on an arch from those that lack.

    The first row that matches a kernel's name is taken.
    """

    def __init__(self, rows: Iterable[KernelByDesign]) -> None:
        self._rows = [(re.compile(fnmatch.translate(row["kernels"])), row["needed"]) for row in rows]
        self._known: dict[str, tuple[list[int], list[list[int]] | None]] = {}
        """By name of a kernel: the archs in it, and where its row says that it must be real."""

    def sort(self, name: str, state: str, target: int) -> str:
        """The state of a kernel, or why it is no fault."""
        if state in ("cubin", "jit"):
            return state
        if name not in self._known:
            needed = next((needed for pattern, needed in self._rows if pattern.match(name)), None)
            self._known[name] = [int(found) for found in _ARCH_IN_NAME.findall(name)], needed
        archs, needed = self._known[name]
        # A kernel that carries archs in its name (`..._sm80`, `Sm90`) is for the newest generation that it names, from
        # the oldest of that on. Older ones are the instructions that it uses.
        newest = max(archs, default=target) // 10
        if newest != target // 10 or target < min((arch for arch in archs if arch // 10 == newest), default=target):
            return "for_other_archs"
        by_design = needed is not None and not any(low <= target <= high for low, high in needed)
        return "by_design" if by_design else state


@dataclass(frozen=True)
class Surplus:
    """What of one region no GPU asked for has a use for."""

    region: Region
    entries: tuple[Entry, ...]
    kept: tuple[Entry, ...] = ()
    """What would be among them, too, if `device-code` did not need it to see a fault."""


Each = Callable[[Callable[[Region], Surplus], Sequence[Region]], Iterable[Surplus]]
"""`map`, or that of a pool."""


def surplus(data: Buffer, targets: Sequence[int], excuses: Excuses | None, each: Each = map) -> Iterator[Surplus]:
    """Of each region of a file, the code that no GPU of `targets` has a use for. Raises FatbinError.

    There is none where `device-code` would find something else without it: in a region where kernels are absent or
    stubs on a target, say. NVIDIA's libraries (no `excuses`) are judged as a whole: none in those where nothing runs
    on a target."""
    found = tuple(fatbin.regions(data, fatbin.ALL))
    if excuses is None:
        # Whether code of a library runs on each target, and the same kind of it without what is unneeded.
        whole = [entry for region in found if region.loaded for entry in left(data, region)]
        gone = {entry for region in found for entry in _unneeded(region, targets)}
        rest = [entry for entry in whole if entry not in gone]
        keep = not all(served(whole, target) == served(rest, target) != "none" for target in targets)
        return (_surplus(region, _unneeded(region, targets), keep=keep) for region in found)
    return iter(each(lambda region: _surplus_by_kernel(data, region, targets, excuses), found))


def _surplus_by_kernel(data: Buffer, region: Region, targets: Sequence[int], excuses: Excuses) -> Surplus:
    found = _unneeded(region, targets)
    if not found or not region.loaded:
        return _surplus(region, found, keep=False)
    code, rest = Code(data, region), frozenset(region.entries).difference(found)
    alike = (
        _faults(code.states(target), target, excuses) == _faults(code.states(target, rest), target, excuses)
        for target in targets
    )
    return _surplus(region, found, keep=not all(alike))


def _surplus(region: Region, found: tuple[Entry, ...], *, keep: bool) -> Surplus:
    return Surplus(region, entries=(), kept=found) if keep else Surplus(region, entries=found)


def _unneeded(region: Region, targets: Sequence[int]) -> tuple[Entry, ...]:
    """What no target would ever take, whatever `device-code` makes of it."""
    needed = {entry for target in targets for entry in region.needed(target)}
    return tuple(entry for entry in region.entries if entry not in needed)


def _faults(states: Iterable[tuple[str, str]], target: int, excuses: Excuses) -> Mapping[str, str]:
    found = ((name, excuses.sort(name, state, target)) for name, state in states if state in FAULTS)
    return {name: sort for name, sort in found if sort in FAULTS}
