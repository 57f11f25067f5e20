"""S5: what each kernel of a library is on each GPU architecture promised, read from the fat binaries themselves.

For each arch, each region's serving entry is the one that the driver would take. A kernel in it is machine code
(`cubin`), PTX that the driver compiles at first use (`jit`), not there though the region has it for other archs
(`absent`), or there in name alone (`stub`: next to nothing, where the same kernel is real elsewhere). Kernels that
carry another architecture in their own name, and those that the claim lists as made so by design, are counted apart.

Claim `expect`: {"files": [patterns that must hold code], "also": [patterns that may], "archs": {arch: "cubin"/"jit"},
"by_design": [{"kernels": pattern, "needed": [[from, to]], "reason"}], "depth": "kernel" or "file", ...}.

`depth` "surplus" asks the opposite: which code no GPU of `archs` has a use for (`Region.needed`), in whatever files
there are but NVIDIA's own; with "nvidia", in those too. Code that was taken out left zeros.
"""

from __future__ import annotations

import fnmatch
import mmap
import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validate import elf, fatbin, installed, interpreter, surroundings
from validate.claims import Claim
from validate.fatbin import Entry, FatbinError, Kernel, Region
from validate.installed import Distribution

STUB_BYTES = 768
REAL_BYTES = 2048
REAL_RATIO = 8
"""A stub is at most STUB_BYTES of machine code (a call to trap or printf) where the same kernel is REAL_RATIO times
that, and at least REAL_BYTES, on another arch. Told by size, not by registers: bitsandbytes has real kernels of 4
registers, and a stub that prints takes 24."""

_ARCH_IN_NAME = re.compile(r"(?i)sm_?(1[0-2]\d|[5-9]\d)")
_MOST_NAMED = 5


@dataclass(frozen=True)
class _Task:
    file: str
    shown: str
    targets: tuple[int, ...]
    by_design: tuple[Mapping[str, Any], ...]
    depth: str


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, dict[str, Any]]]:
    given = surroundings.recorded()
    start = interpreter.start(given)
    everything = installed.distributions(entry or given.directory for entry in start.path)
    tasks = {claim.subject: _tasks(claim, everything) for claim in claims}
    flat = [(subject, task) for subject, own in tasks.items() for task in own]
    flat.sort(key=lambda pair: Path(pair[1].file).stat().st_size, reverse=True)
    found: dict[str, dict[str, Any]] = {subject: {} for subject in tasks}
    left = Counter(subject for subject, _ in flat)
    yield from ((subject, {"files": {}}) for subject in tasks if not left[subject])
    if not flat:
        return
    with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), len(flat))) as pool:
        for subject, shown, facts in pool.imap_unordered(_look, flat):
            found[subject][shown] = facts
            left[subject] -= 1
            if not left[subject]:
                yield subject, {"files": dict(sorted(found[subject].items()))}


def _tasks(claim: Claim, everything: Sequence[Distribution]) -> list[_Task]:
    """Each file once that the claim names, by what is on the disk: RECORD is S2's business."""
    patterns = [*claim.expect["files"], *claim.expect["also"]]
    chosen: dict[str, str] = {}
    for location in dict.fromkeys(distribution.location for distribution in everything):
        for pattern in patterns:
            for path in sorted(Path(location).glob(pattern)):
                if path.is_file() and not path.is_symlink():
                    chosen.setdefault(str(path), str(path.relative_to(location)))
    if claim.expect["depth"] == "surplus":
        chosen = dict(_sliced(chosen, everything, nvidia=claim.expect["nvidia"]))
    targets = tuple(int(arch) for arch in claim.expect["archs"])
    by_design = tuple(claim.expect["by_design"])
    return [_Task(path, shown, targets, by_design, claim.expect["depth"]) for path, shown in chosen.items()]


def _sliced(
    chosen: Mapping[str, str], everything: Sequence[Distribution], *, nvidia: bool
) -> Iterator[tuple[str, str]]:
    """Those that are no empty files, no text by the name of a library, and nobody's whom slicing lets be."""
    owners = installed.owners(everything)
    for path, shown in chosen.items():
        names = [owner.name for owner in owners.get(path, ())] or [""]
        with Path(path).open("rb") as stream:
            is_library = stream.read(len(elf.MAGIC)) == elf.MAGIC
        if is_library and (nvidia or not any(fatbin.is_nvidias(name, path) for name in names)):
            yield path, shown


def _look(pair: tuple[str, _Task]) -> tuple[str, str, dict[str, Any]]:
    subject, task = pair
    depths = {"kernel": _by_kernel, "file": _by_file, "surplus": _surplus}
    try:
        with Path(task.file).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return subject, task.shown, depths[task.depth](data, task)
    except (FatbinError, OSError, ValueError) as error:
        return subject, task.shown, {"error": str(error)}


def _by_file(data: mmap.mmap, task: _Task) -> dict[str, Any]:
    """Which archs the file has any code for: kernels that NVIDIA makes for one arch alone are many, and rightly so."""
    entries = {_bare(entry) for region in fatbin.regions(data) for entry in _left(data, region)}
    served = {
        str(target): "cubin"
        if any(entry.runs_on(target) and not entry.ptx for entry in entries)
        else "jit"
        if any(entry.runs_on(target) for entry in entries)
        else "none"
        for target in task.targets
    }
    return {"archs": sorted({_arch(entry) for entry in entries}), "served": served}


def _left(data: mmap.mmap, region: Region) -> Iterator[Entry]:
    """Entries whose code was not taken out."""
    return (entry for entry in region.entries if not fatbin.is_emptied(data, entry))


def _lost(region: Region, target: int) -> bool:
    """Whether code that would run there was taken out, and nothing is left in its place."""
    return any(entry.runs_on(target) for entry in region.taken_out)


def _bare(entry: Entry) -> Entry:
    return replace(entry, at=0, offset=0, stored=0, room=0, whole=0, coding="")


def _surplus(data: mmap.mmap, task: _Task) -> dict[str, Any]:
    """Which code is there that no target needs: how many entries, how many bytes, for which archs."""
    found: dict[str, set[str]] = {"archs": set(), "surplus": set()}
    entries = stored = 0
    for region in fatbin.regions(data, fatbin.ALL):
        needed = {entry for target in task.targets for entry in region.needed(target)}
        for entry in _left(data, region):
            found["archs"].add(_arch(entry))
            if entry not in needed:
                entries, stored = entries + 1, stored + entry.room
                found["surplus"].add(_arch(entry))
    return {**{key: sorted(archs) for key, archs in found.items()}, "surplus_entries": entries, "surplus_bytes": stored}


def _arch(entry: Entry) -> str:
    return f"{'compute' if entry.ptx else 'sm'}_{entry.arch}{entry.variant}"


def _by_kernel(data: mmap.mmap, task: _Task) -> dict[str, Any]:
    counts: dict[int, Counter[str]] = {target: Counter() for target in task.targets}
    named: dict[int, dict[str, list[str]]] = {target: {} for target in task.targets}
    archs: set[str] = set()
    regions = total = 0
    excuses = _Excuses(task.by_design)
    for region in fatbin.regions(data):
        regions += 1
        left = tuple(_left(data, region))
        archs |= {_arch(entry) for entry in left}
        code = {entry: fatbin.kernels(data, entry) for entry in left if not entry.ptx}
        largest = _largest(code) or _of_ptx(data, left)
        total += len(largest)
        for target in task.targets:
            serving = region.serving(target)
            counts[target]["emptied"] += serving not in left if serving else _lost(region, target)
            for name, state in _states(data, serving if serving in left else None, code, largest):
                sort = excuses.sort(name, state, target)
                counts[target][sort] += 1
                if sort in ("absent", "stub", "jit"):
                    names = named[target].setdefault(sort, [])
                    names += [name] if len(names) < _MOST_NAMED else []
    return {
        "regions": regions,
        "kernels": total,
        "archs": sorted(archs),
        "served": {str(target): {**counts[target], "named": named[target]} for target in task.targets},
    }


def _largest(code: Mapping[Entry, Mapping[str, Kernel]]) -> dict[str, int]:
    """Every kernel of a region with its largest machine code, in bytes."""
    largest: dict[str, int] = {}
    for kernels in code.values():
        for name, kernel in kernels.items():
            if kernel.size > largest.get(name, -1):
                largest[name] = kernel.size
    return largest


def _of_ptx(data: mmap.mmap, left: Sequence[Entry]) -> dict[str, int]:
    return {name: 0 for entry in left if entry.ptx for name in fatbin.kernels(data, entry)}


def _states(
    data: mmap.mmap, entry: Entry | None, code: Mapping[Entry, Mapping[str, Kernel]], largest: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    kernels = code.get(entry, {}) if entry and not entry.ptx else {}
    if entry and entry.ptx:
        kernels = fatbin.kernels(data, entry)
    for name, most in largest.items():
        kernel = kernels.get(name)
        if kernel is None:
            yield name, "absent"
        elif entry is not None and entry.ptx:
            yield name, "jit"
        elif kernel.size <= STUB_BYTES and most >= max(REAL_BYTES, REAL_RATIO * kernel.size):
            yield name, "stub"
        else:
            yield name, "cubin"


class _Excuses:
    """Tells kernels that must not be real on an arch from those that lack."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = [(re.compile(fnmatch.translate(row["kernels"])), row["needed"]) for row in rows]
        self._needed: dict[str, Any] = {}
        self._tags: dict[str, list[int]] = {}

    def sort(self, name: str, state: str, target: int) -> str:
        if state in ("cubin", "jit"):
            return state
        if self._made_for_others(name, target):
            return "for_other_archs"
        needed = self._row(name)
        if needed is not None and not any(low <= target <= high for low, high in needed):
            return "by_design"
        return state

    def _row(self, name: str) -> Any:
        if name not in self._needed:
            self._needed[name] = next((needed for pattern, needed in self._rows if pattern.match(name)), None)
        return self._needed[name]

    def _made_for_others(self, name: str, target: int) -> bool:
        """A kernel that carries archs in its name (`..._sm80`, `Sm90`) is for the newest generation that it names, from
        the oldest of that on. Older ones are the instructions that it uses.
        """
        if name not in self._tags:
            self._tags[name] = [int(found) for found in _ARCH_IN_NAME.findall(name)]
        tags = self._tags[name]
        if not tags:
            return False
        newest = max(tags) // 10
        return newest != target // 10 or target < min(tag for tag in tags if tag // 10 == newest)
