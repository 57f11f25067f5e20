"""S5: the state of each kernel of a library on each GPU architecture claimed, read from the fat binaries themselves.

For each arch and region, the probe looks at the entry that the driver would take. A kernel in it is machine code
(`cubin`), PTX that the driver compiles at first use (`jit`), missing though the region has it for other archs
(`absent`), or next to nothing where the same kernel is real for another arch (`stub`). Two kinds are counted apart:
kernels that carry another architecture in their own name, and those that the claim lists as made so by design.

There are three kinds of claim (validate/contracts/device_code.py). `kernels` looks at each kernel, `files` at each file
as a whole. `pruned` asks which code no GPU of `archs` has a use for, in all files but NVIDIA's own; with `nvidia`, in
those too. Such code is what pruning would still remove (binaries/kernel_states.py).

Pruning leaves zeros and a mark in place of code. The driver passes over marked code. All kinds of claim report it: as
code that a target lacks, or as code that should be gone.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from validate.binaries import elf, fatbin, kernel_states
from validate.binaries.fatbin import Entry, FatbinError, Region
from validate.binaries.kernel_states import FAULTS, Code, Excuses, KernelByDesign
from validate.claims import Claim
from validate.contracts.device_code import (
    CodeOfFile,
    DeviceCodeEvidence,
    DeviceCodeExpect,
    DeviceCodeKind,
    PrunedCodeExpect,
    Served,
)
from validate.environment import installed, interpreter, user_environment
from validate.environment.installed import Distribution

_MOST_NAMED = 5


@dataclass(frozen=True)
class _Task:
    file: str
    shown: str
    targets: tuple[int, ...]
    by_design: tuple[KernelByDesign, ...] | None
    """None: it is NVIDIA's own, which is judged as a whole."""
    kind: DeviceCodeKind


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, DeviceCodeEvidence]]:
    given = user_environment.recorded()
    start = interpreter.start(given)
    everything = installed.distributions(entry or given.directory for entry in start.path)
    tasks = {claim.subject: _tasks(claim, everything) for claim in claims}
    flat = [(subject, task) for subject, own in tasks.items() for task in own]
    flat.sort(key=lambda pair: Path(pair[1].file).stat().st_size, reverse=True)
    found: dict[str, dict[str, CodeOfFile]] = {subject: {} for subject in tasks}
    left = Counter(subject for subject, _ in flat)
    for subject in tasks:
        if not left[subject]:
            yield subject, {"files": {}}
    for subject, shown, facts in _looked_at(flat):
        found[subject][shown] = facts
        left[subject] -= 1
        if not left[subject]:
            yield subject, {"files": dict(sorted(found[subject].items()))}


def _looked_at(flat: Sequence[tuple[str, _Task]]) -> Iterator[tuple[str, str, CodeOfFile]]:
    """On all cores; a process more would not make one file faster."""
    if len(flat) < 2:
        yield from map(_look, flat)
        return
    with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), len(flat))) as pool:
        yield from pool.imap_unordered(_look, flat)


def _tasks(claim: Claim, everything: Sequence[Distribution]) -> list[_Task]:
    """Each file once that the claim names, by what is on the disk: RECORD is S2's business."""
    expect = cast(DeviceCodeExpect, claim.expect)
    patterns = expect["files"] if expect["kind"] == "pruned" else [*expect["files"], *expect["also"]]
    chosen: dict[str, str] = {}
    for location in dict.fromkeys(distribution.location for distribution in everything):
        for pattern in patterns:
            for path in sorted(Path(location).glob(pattern)):
                if path.is_file() and not path.is_symlink():
                    chosen.setdefault(str(path), str(path.relative_to(location)))
    if expect["kind"] == "pruned":
        return list(_pruned(expect, chosen, everything))
    targets = tuple(int(arch) for arch in expect["archs"])
    by_design = tuple(expect["by_design"]) if expect["kind"] == "kernels" else ()
    return [_Task(path, shown, targets, by_design, expect["kind"]) for path, shown in chosen.items()]


def _pruned(expect: PrunedCodeExpect, chosen: Mapping[str, str], everything: Sequence[Distribution]) -> Iterator[_Task]:
    """Those that are no empty files, no text by the name of a library, and of nobody whose files are not pruned."""
    targets = tuple(int(arch) for arch in expect["archs"])
    owners = installed.owners(everything)
    for path, shown in chosen.items():
        names = [owner.name for owner in owners.get(path, ())] or [""]
        rows = tuple(row for name in names for row in expect["by_design_of"].get(name, ()))
        nvidias = any(fatbin.is_nvidias(name, path) for name in names)
        with Path(path).open("rb") as stream:
            begin = stream.read(elf.HEADER_BYTES)
        is_library = begin.startswith(elf.MAGIC) and not elf.is_32bit(begin)
        if is_library and (expect["nvidia"] or not nvidias):
            yield _Task(path, shown, targets, None if nvidias else rows, "pruned")


def _look(pair: tuple[str, _Task]) -> tuple[str, str, CodeOfFile]:
    subject, task = pair
    looks: Mapping[DeviceCodeKind, Callable[[mmap.mmap, _Task], CodeOfFile]] = {
        "kernels": _by_kernel,
        "files": _by_file,
        "pruned": _surplus,
    }
    try:
        with Path(task.file).open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return subject, task.shown, looks[task.kind](data, task)
    except (FatbinError, OSError, ValueError) as error:
        return subject, task.shown, {"error": str(error)}


def _by_file(data: mmap.mmap, task: _Task) -> CodeOfFile:
    """Which archs the file has any code for: kernels that NVIDIA makes for one arch alone are many, and rightly so."""
    found = tuple(fatbin.regions(data))
    entries = {_bare(entry) for region in found for entry in kernel_states.left(data, region)}
    return {
        "archs": sorted({_arch(entry) for entry in entries}),
        "served": {str(target): kernel_states.served(entries, target) for target in task.targets},
        "hidden": _hidden(found, task.targets),
    }


def _bare(entry: Entry) -> Entry:
    return replace(entry, at=0, offset=0, stored=0, room=0, whole=0, coding="")


def _hidden(found: Sequence[Region], targets: Sequence[int]) -> dict[str, int]:
    """In how many regions the mark of what was taken out hides code that a target has a use for."""
    counts = Counter(str(target) for region in found for target in targets if region.hides(target))
    return dict(counts)


def _surplus(data: mmap.mmap, task: _Task) -> CodeOfFile:
    """Which code is there that no target needs: how many entries, how many bytes, for which archs."""
    archs: set[str] = set()
    surplus: list[Entry] = []
    marked: list[Entry] = []
    whole = 0
    excuses = None if task.by_design is None else Excuses(task.by_design)
    for found in kernel_states.surplus(data, task.targets, excuses):
        left = frozenset(kernel_states.left(data, found.region))
        archs |= {_arch(entry) for entry in left.difference(found.kept)}
        surplus += left.intersection(found.entries)
        marked += found.region.hidden
        whole += not left.isdisjoint(found.kept)
    return {
        "archs": sorted(archs),
        "surplus": sorted({_arch(entry) for entry in surplus}),
        "surplus_entries": len(surplus),
        "surplus_bytes": sum(entry.room for entry in surplus),
        "marked": sorted({_arch(entry) for entry in marked}),
        "marked_bytes": sum(entry.room for entry in marked),
        "whole": whole,
    }


def _arch(entry: Entry) -> str:
    return f"{'compute' if entry.ptx else 'sm'}_{entry.arch}{entry.variant}"


def _by_kernel(data: mmap.mmap, task: _Task) -> CodeOfFile:
    counts: dict[int, Counter[str]] = {target: Counter() for target in task.targets}
    named: dict[int, dict[str, list[str]]] = {target: {} for target in task.targets}
    archs: set[str] = set()
    total = 0
    excuses = Excuses(task.by_design or ())
    found = tuple(fatbin.regions(data))
    for region in found:
        code = Code(data, region)
        archs |= {_arch(entry) for entry in code.left}
        total += len(code.largest)
        for target in task.targets:
            counts[target]["emptied"] += code.is_lost(target)
            for name, state in code.states(target):
                sort = excuses.sort(name, state, target)
                counts[target][sort] += 1
                if sort in FAULTS:
                    names = named[target].setdefault(sort, [])
                    names += [name] if len(names) < _MOST_NAMED else []
    return {
        "regions": len(found),
        "kernels": total,
        "archs": sorted(archs),
        "served": {str(target): cast(Served, {**counts[target], "named": named[target]}) for target in task.targets},
        "hidden": _hidden(found, task.targets),
    }
