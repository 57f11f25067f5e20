"""Say what each kernel of a fat-binary region is on a GPU, and which code no GPU has a use for.

The check `device-code` judges by this module and the pruner cuts by it. So pruning can't take away
code without which `device-code` would find something else. If you change it, `nox -s lock` must
prune the wheels again (images/context/pruner.py).

A `target` is a GPU's architecture: 90 for sm_90.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from validate.binaries import fatbin
from validate.binaries.fatbin import Buffer, Entry, Region

State = Literal["cubin", "jit", "absent", "stub"]
"""What a kernel is on a GPU. `cubin`: machine code; `jit`: PTX that the driver compiles; `absent`:
its region has it for other GPUs only; `stub`: there in name only (see STUB_BYTES)."""
Excuse = Literal["for_other_archs", "by_design"]
"""Why a kernel need not be real on a GPU. See Excuses."""
Form = Literal["cubin", "jit", "none"]
"""What of a library serves a GPU: machine code, only PTX, or nothing."""

FAULTS = ("absent", "stub", "jit")
"""States that `device-code` reports. `jit` is no fault where a claim asks for no more."""

STUB_BYTES = 768
REAL_BYTES = 2048
REAL_RATIO = 8
"""A stub (a call of trap or printf) has at most STUB_BYTES of machine code, while the same kernel
for another architecture has REAL_RATIO times as much, and at least REAL_BYTES. The number of
registers does not tell: bitsandbytes has real kernels with 4, and a stub that prints takes 24."""

_ARCH_IN_NAME = re.compile(r"(?i)sm_?(1[0-2]\d|[5-9]\d)")
"""`sm80` and `Sm_90` in a kernel's name."""

KernelSizes = Mapping[str, int]
"""Kernel -> bytes of its machine code; 0 for PTX."""


class RegionCode:
    """The code of a region that pruning has not emptied.

    An entry is decompressed only when something is asked about it, and only once. That may raise
    FatbinError.
    """

    def __init__(self, data: Buffer, region: Region) -> None:
        self._data = data
        self._region = region
        self.entries = entries_with_code(data, region)
        self._kernels: dict[Entry, KernelSizes] = {}
        self._largest: dict[tuple[Entry, ...], KernelSizes] = {}

    def largest_kernels(self) -> KernelSizes:
        """Return every kernel with its largest machine code; 0 bytes if there is only PTX."""
        return self._largest_of(self.entries)

    def states(
        self, target: int, among: Collection[Entry] | None = None
    ) -> Iterator[tuple[str, State]]:
        """Yield the name and state of each kernel on a GPU of `target`.

        `among`: if given, the answer is as if the region had only these entries. The entry that the
        driver takes for `target` must be one of them.
        """
        # Without an entry for this GPU, or if it is emptied, no kernel has code.
        best = self._region.best_entry(target)
        if best not in self.entries:
            best = None
        sizes = self._kernels_of(best) if best else {}

        # What each kernel is elsewhere in the region tells which are missing, and which are stubs.
        compared = self.entries
        if among is not None:
            compared = tuple(entry for entry in self.entries if entry in among)
        for name, largest_size in self._largest_of(compared).items():
            size = sizes.get(name)
            if best is None or size is None:
                yield name, "absent"
            elif best.is_ptx:
                yield name, "jit"
            elif is_stub(size, largest_size):
                yield name, "stub"
            else:
                yield name, "cubin"

    def is_lost(self, target: int) -> bool:
        """Return whether code for `target` was taken out and nothing is left in its place."""
        best = self._region.best_entry(target)
        if best:
            # Emptied, but without the mark: the driver still takes it.
            return best not in self.entries
        return any(entry.runs_on(target) for entry in self._region.taken_out)

    def _kernels_of(self, entry: Entry) -> KernelSizes:
        if entry not in self._kernels:
            self._kernels[entry] = fatbin.read_kernels(self._data, entry)
        return self._kernels[entry]

    def _largest_of(self, entries: tuple[Entry, ...]) -> KernelSizes:
        """Return every kernel of these entries with its largest machine code.

        PTX counts only if there is no machine code at all; its kernels have 0 bytes.
        """
        if entries not in self._largest:
            sizes: dict[str, int] = {}
            for entry in entries:
                if not entry.is_ptx:
                    for name, size in self._kernels_of(entry).items():
                        sizes[name] = max(size, sizes.get(name, 0))
            if not sizes:
                for entry in entries:
                    if entry.is_ptx:
                        sizes.update(self._kernels_of(entry))
            self._largest[entries] = sizes
        return self._largest[entries]


def is_stub(size: int, largest_size: int) -> bool:
    """Return whether a kernel of `size` bytes is a stub.

    `largest_size`: bytes of the same kernel on the architecture where it has most.
    """
    return size <= STUB_BYTES and largest_size >= max(REAL_BYTES, REAL_RATIO * size)


def entries_with_code(data: Buffer, region: Region) -> tuple[Entry, ...]:
    """Return the entries of a region that pruning has not emptied."""
    return tuple(entry for entry in region.entries if not fatbin.is_emptied(data, entry))


def best_form(entries: Iterable[Entry], target: int) -> Form:
    """Return the best that these entries have for a GPU of `target`."""
    forms = {"jit" if entry.is_ptx else "cubin" for entry in entries if entry.runs_on(target)}
    if "cubin" in forms:
        return "cubin"
    return "jit" if forms else "none"


class KernelByDesign(TypedDict):
    """Kernels that are empty or left out on architectures on which their library never calls them.

    Rows of images/data/device_code.yaml.
    """

    kernels: str
    """Pattern of their names."""
    needed: list[list[int]]
    """Where they must be real: [from, to], as [80, 89]. May be empty."""
    reason: str


class Excuses:
    """Tells faults from kernels that need not be real on a GPU.

    There are two excuses. The kernel's name may say that it is for other architectures
    (`for_other_archs`), or a row may list it (`by_design`).
    """

    def __init__(self, rows: Iterable[KernelByDesign]) -> None:
        """Excuse these rows' kernels. The first row that matches a kernel's name counts."""
        self._needed_by_pattern = [
            (re.compile(fnmatch.translate(row["kernels"])), row["needed"]) for row in rows
        ]
        # By a kernel's name: the architectures in it, and the `needed` of its row; None: no row.
        self._known: dict[str, tuple[list[int], list[list[int]] | None]] = {}

    def apply(self, name: str, state: State, target: int) -> State | Excuse:
        """Return why a kernel's state on `target` is no fault, or else the state itself."""
        if state in ("cubin", "jit"):
            return state
        archs, needed = self._look_up(name)
        if _is_for_other_archs(archs, target):
            return "for_other_archs"
        if needed is not None and not any(low <= target <= high for low, high in needed):
            return "by_design"
        return state

    def _look_up(self, name: str) -> tuple[list[int], list[list[int]] | None]:
        """Return the architectures in a kernel's name, and where its row says it must be real."""
        if name not in self._known:
            archs = [int(arch) for arch in _ARCH_IN_NAME.findall(name)]
            matching = (
                needed for pattern, needed in self._needed_by_pattern if pattern.match(name)
            )
            self._known[name] = archs, next(matching, None)
        return self._known[name]


def _is_for_other_archs(archs: Sequence[int], target: int) -> bool:
    """Return whether a kernel with these architectures in its name is not for `target`.

    Such a kernel (`..._sm80`, `Sm90`) is for the newest generation that its name has, from the
    oldest architecture of that generation on. Older generations in a name are those whose
    instructions it uses. A kernel without an architecture in its name is for all.
    """
    if not archs:
        return False
    newest_generation = max(archs) // 10
    oldest_arch = min(arch for arch in archs if arch // 10 == newest_generation)
    return target // 10 != newest_generation or target < oldest_arch


@dataclass(frozen=True)
class Surplus:
    """Entries of a region that no target has a use for."""

    region: Region
    entries: tuple[Entry, ...]
    """What pruning takes out."""
    kept: tuple[Entry, ...] = ()
    """What pruning leaves, because `device-code` needs it to see a fault. Either `kept` or
    `entries` is empty."""


MapRegions = Callable[[Callable[[Region], Surplus], Sequence[Region]], Iterable[Surplus]]
"""`map`, or that of a pool of threads."""


def find_surplus(
    data: Buffer,
    targets: Sequence[int],
    excuses: Excuses | None,
    map_regions: MapRegions = map,
) -> Iterator[Surplus]:
    """Yield, for each region of a file, the code that no GPU of `targets` has a use for.

    Nothing is surplus where `device-code` would find something else without it: in a region whose
    kernels are absent or stubs on a target, for example. `excuses` are those of `device-code`; None
    for NVIDIA's own libraries, which it judges as a whole. All regions of such a library stay whole
    if nothing in it runs on a target.

    Raises FatbinError, some of it only while the result is read.
    """
    regions = tuple(fatbin.read_regions(data, fatbin.ALL_SECTIONS))
    if excuses is None:
        keep = _would_miss_surplus(data, regions, targets)
        return (_surplus(region, _unneeded(region, targets), keep=keep) for region in regions)

    return iter(
        map_regions(lambda region: _surplus_by_kernel(data, region, targets, excuses), regions)
    )


def _would_miss_surplus(data: Buffer, regions: Iterable[Region], targets: Iterable[int]) -> bool:
    """Return whether a library's surplus must stay, for a library that is judged as a whole.

    It must if no code runs on one of the targets, or only worse code would without the surplus.
    """
    entries: list[Entry] = []
    surplus: set[Entry] = set()
    for region in regions:
        surplus.update(_unneeded(region, targets))
        if region.is_for_driver:
            entries += entries_with_code(data, region)
    needed = [entry for entry in entries if entry not in surplus]

    for target in targets:
        form = best_form(entries, target)
        if form == "none" or form != best_form(needed, target):
            return True
    return False


def _surplus_by_kernel(
    data: Buffer, region: Region, targets: Sequence[int], excuses: Excuses
) -> Surplus:
    """Return the surplus of a region. It stays if without it the faults of kernels would differ."""
    unneeded = _unneeded(region, targets)
    # `device-code` does not look at regions that the driver never sees.
    if not unneeded or not region.is_for_driver:
        return _surplus(region, unneeded, keep=False)

    code = RegionCode(data, region)
    needed = frozenset(region.entries).difference(unneeded)
    for target in targets:
        faults = _faults(code.states(target), target, excuses)
        faults_without_surplus = _faults(code.states(target, among=needed), target, excuses)
        if faults != faults_without_surplus:
            return _surplus(region, unneeded, keep=True)
    return _surplus(region, unneeded, keep=False)


def _surplus(region: Region, unneeded: tuple[Entry, ...], *, keep: bool) -> Surplus:
    if keep:
        return Surplus(region, entries=(), kept=unneeded)
    return Surplus(region, entries=unneeded)


def _unneeded(region: Region, targets: Iterable[int]) -> tuple[Entry, ...]:
    """Return the entries that no target would ever take."""
    needed: set[Entry] = set()
    for target in targets:
        needed.update(region.needed_entries(target))
    return tuple(entry for entry in region.entries if entry not in needed)


def _faults(
    states: Iterable[tuple[str, State]], target: int, excuses: Excuses
) -> dict[str, State | Excuse]:
    """Return the kernels whose state is a fault, with the state, without those that are excused."""
    faults: dict[str, State | Excuse] = {}
    for name, state in states:
        if state in FAULTS:
            excused_state = excuses.apply(name, state, target)
            if excused_state in FAULTS:
                faults[name] = excused_state
    return faults
