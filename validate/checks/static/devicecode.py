"""device-code: the state of each kernel of a library on each GPU architecture claimed, read from the fat binaries
themselves.

For each arch and region, the probe looks at the entry that the driver would take. A kernel in it is machine code
(`cubin`), PTX that the driver compiles at first use (`jit`), missing though the region has it for other archs
(`absent`), or next to nothing where the same kernel is real for another arch (`stub`). Two kinds are counted apart:
kernels that carry another architecture in their own name, and those that the claim lists as made so by design.

There are three kinds of claim. `kernels` looks at each kernel, `files` at each file as a whole. `pruned` asks which
code no GPU of `archs` has a use for, in all files but NVIDIA's own; with `nvidia`, in those too. Such code is what
pruning would still remove (binaries/kernel_states.py).

Pruning leaves zeros and a mark in place of code. The driver passes over marked code. All kinds of claim report it: as
code that a target lacks, or as code that should be gone.
"""

import fnmatch
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from validate.binaries import elf, fatbin, kernel_states
from validate.binaries.fatbin import Entry, FatbinError, Region
from validate.binaries.kernel_states import FAULTS, Code, Excuses, KernelByDesign
from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.installed import Distribution
from validate.harness.forked import map_on_all_cores
from validate.judging import (
    Finding,
    Status,
    conclude,
    failed,
    listed,
    matches,
    not_applicable,
    unproven,
)

SETTINGS = Settings(reads_files_only=True)

_MOST_NAMED = 5
_LONGEST_NAME = 100


class _Task(NamedTuple):
    file: str
    shown: str
    targets: tuple[int, ...]
    by_design: tuple[KernelByDesign, ...] | None
    """None: it is NVIDIA's own, which is judged as a whole."""
    kind: str


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    _, _, everything = installed.of_user()
    tasks = {claim.subject: _tasks(claim, everything) for claim in claims}
    flat = [(subject, task) for subject, own in tasks.items() for task in own]
    flat.sort(key=lambda pair: Path(pair[1].file).stat().st_size, reverse=True)
    found: dict[str, dict[str, Mapping[str, Any]]] = {subject: {} for subject in tasks}
    for subject, shown, facts in map_on_all_cores(_look, flat):
        found[subject][shown] = facts
    for subject, files in found.items():
        yield subject, {"files": dict(sorted(files.items()))}


def _tasks(claim: Claim, everything: Sequence[Distribution]) -> list[_Task]:
    """Each file once that the claim names, by what is on the disk: RECORD is `files`'s business."""
    expect = claim.expect
    chosen: dict[str, str] = {}
    for location in installed.locations(everything):
        for pattern in (*expect["files"], *expect.get("also", ())):
            for path in sorted(_glob(location, pattern)):
                if Path(path).is_file() and not Path(path).is_symlink():
                    chosen.setdefault(path, path.removeprefix(f"{location}/"))
    if expect["kind"] == "pruned":
        return list(_pruned(expect, chosen, everything))
    targets = tuple(int(arch) for arch in expect["archs"])
    by_design = tuple(expect.get("by_design", ()))
    return [
        _Task(path, shown, targets, by_design, expect["kind"]) for path, shown in chosen.items()
    ]


def _glob(folder: str, pattern: str) -> Iterable[str]:
    """As Path.glob, which walks all folders again for each pattern that begins with any of them."""
    before, anywhere, name = pattern.partition("**/")
    if not anywhere or "/" in name or set(before) & set("*?["):
        return map(str, Path(folder).glob(pattern))
    below = _below(f"{folder}/{before}")
    return (f"{one}/{fitting}" for fitting in fnmatch.filter(below, name) for one in below[fitting])


@cache
def _below(folder: str) -> Mapping[str, Sequence[str]]:
    """Name of a file -> the folders that have one."""
    found: dict[str, list[str]] = {}
    for one, _, files in os.walk(folder):
        for name in files:
            found.setdefault(name, []).append(one.rstrip("/"))
    return found


def _pruned(
    expect: Mapping[str, Any], chosen: Mapping[str, str], everything: Sequence[Distribution]
) -> Iterator[_Task]:
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


def _look(pair: tuple[str, _Task]) -> tuple[str, str, Mapping[str, Any]]:
    subject, task = pair
    look = {"kernels": _by_kernel, "files": _by_file, "pruned": _surplus}[task.kind]
    try:
        with (
            Path(task.file).open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return subject, task.shown, look(data, task)
    except (FatbinError, OSError, ValueError) as error:
        if isinstance(error, FatbinError) and isinstance(error.__cause__, OSError | AttributeError):
            return subject, task.shown, {"error": str(error), "undecoded": True}
        return subject, task.shown, {"error": str(error)}


def _by_file(data: mmap.mmap, task: _Task) -> Mapping[str, Any]:
    """Which archs the file has any code for: kernels that NVIDIA makes for one arch alone are many, and rightly so."""
    found = tuple(fatbin.regions(data))
    # Entries that differ by their place alone are one.
    entries = {
        replace(entry, at=0, offset=0, stored=0, room=0, whole=0, coding="")
        for region in found
        for entry in kernel_states.left(data, region)
    }
    return {
        "archs": sorted({_arch(entry) for entry in entries}),
        "served": {str(target): kernel_states.served(entries, target) for target in task.targets},
        "hidden": _hidden(found, task.targets),
    }


def _hidden(found: Sequence[Region], targets: Sequence[int]) -> dict[str, int]:
    """In how many regions the mark of what was taken out hides code that a target has a use for."""
    return dict(
        Counter(str(target) for region in found for target in targets if region.hides(target))
    )


def _surplus(data: mmap.mmap, task: _Task) -> Mapping[str, Any]:
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


def _by_kernel(data: mmap.mmap, task: _Task) -> Mapping[str, Any]:
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
        "served": {
            str(target): {**counts[target], "named": named[target]} for target in task.targets
        },
        "hidden": _hidden(found, task.targets),
    }


def judge(subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """device-code. expect: {kind, files: patterns of files that must hold code, archs: {"90": cubin or jit}}; of
    `kernels` and `files` {also: patterns of files that may, known_gaps: [{cuda, file, archs, reason}] of what upstream
    claims}; of `kernels` {by_design: [KernelByDesign]}; of `pruned` {nvidia, by_design_of: {distribution:
    [KernelByDesign]}}.

    evidence: {files: {path: what _by_kernel, _by_file or _surplus gives, or {error, undecoded: this machine lacks the
    library that the code is compressed with}}}.
    """
    found = evidence["files"]
    undecoded = [path for path, facts in found.items() if facts.get("undecoded")]
    faults = [
        f"{path} can't be read: {facts['error']}"
        for path, facts in found.items()
        if "error" in facts and path not in undecoded
    ]
    if expect["kind"] == "pruned":
        finding = _judge_pruned(expect, found, faults, undecoded)
    else:
        finding = _judge_code(subject, expect, found, faults, undecoded)
    if undecoded and finding.status is not Status.FAIL:
        why, then = (
            found[undecoded[0]]["error"],
            "`apt-get install liblz4-1 libzstd1` there, then judge again",
        )
        return unproven(f"{listed(undecoded)} can't be read: {why}: {then}")
    return finding


def _judge_code(
    subject: str,
    expect: Mapping[str, Any],
    found: Mapping[str, Any],
    faults: list[str],
    undecoded: Sequence[str],
) -> Finding:
    """Every claimed arch is served; what this machine can't decode counts as there."""
    faults += [
        f"the sm_{arch} code of {regions} regions in {path} is marked as taken out, and the driver passes it over"
        for path, facts in found.items()
        for arch, regions in facts.get("hidden", {}).items()
    ]
    read = {path: facts for path, facts in found.items() if "error" not in facts and facts["archs"]}
    for pattern in expect["files"]:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in found):
            faults.append(f"{subject} has no {pattern}")
        elif (
            not any(fnmatch.fnmatchcase(path, pattern) for path in (*read, *undecoded))
            and not faults
        ):
            faults.append(f"{pattern} of {subject} holds no code for any GPU")
    if not read and not faults and not undecoded and not expect["files"]:
        return not_applicable(f"{subject} brings no device code of its own")
    warnings: list[str] = []
    for path, facts in read.items():
        for arch, how in expect["archs"].items():
            wrong = list(_arch_faults(path, facts, arch, how))
            # Why upstream's own build lacks this arch in this file; empty where it has no such excuse.
            gaps = (
                row
                for row in expect["known_gaps"]
                if int(arch) in row["archs"] and matches(path, [row["file"]])
            )
            gap = next((row["reason"] for row in gaps), "")
            faults += [] if gap else wrong
            warnings += (
                [f"WARNING: no sm_{arch} in {PurePosixPath(path).name} ({gap})"]
                if gap and wrong
                else []
            )
    archs = ", ".join(
        f"sm_{arch}{' (PTX)' if how == 'jit' else ''}" for arch, how in expect["archs"].items()
    )
    kernels = sum(facts.get("kernels", 0) for facts in read.values())
    what = f"{kernels} kernels in {len(read)} files" if kernels else f"{len(read)} libraries"
    return conclude(faults, "; ".join([(f"{what} serve {archs}"), *warnings]))


def _judge_pruned(
    expect: Mapping[str, Any], found: Mapping[str, Any], faults: list[str], undecoded: Sequence[str]
) -> Finding:
    """No code but what the claimed archs have a use for, and `device-code` for its comparisons."""
    archs = listed([f"sm_{arch}" for arch in expect["archs"]])
    read = {
        path: facts
        for path, facts in found.items()
        if "error" not in facts and (facts["archs"] or facts["whole"] or facts["marked"])
    }
    if not read and not faults and not undecoded:
        return failed("there is no library with device code at all")
    for path, facts in sorted(read.items(), key=lambda pair: -pair[1]["surplus_bytes"]):
        if facts["surplus_entries"]:
            size = f"{facts['surplus_bytes'] / 1e6:.1f} MB"
            faults.append(
                f"{path} has {size} for {listed(facts['surplus'])} that {archs} has no use for"
            )
        if facts["marked"]:
            size = f"{facts['marked_bytes'] / 1e6:.1f} MB"
            faults.append(
                f"{path} has {size} for {listed(facts['marked'])} marked as taken out, and still there"
            )
    asked = {f"sm_{arch}{variant}" for arch in expect["archs"] for variant in ("", "a", "f")}
    others = {arch for facts in read.values() for arch in facts["archs"]} - asked
    instead = f", and {listed(sorted(others))} where a library has none" if others else ""
    whole = sum(facts["whole"] for facts in read.values())
    as_they_come = (
        f"; {whole} regions left unpruned because they lack kernels for it" if whole else ""
    )
    return conclude(
        faults, f"{len(read)} libraries hold code for {archs} alone{instead}{as_they_come}"
    )


def _arch_faults(path: str, facts: Mapping[str, Any], arch: str, how: str) -> Iterator[str]:
    served = facts["served"][arch]
    if isinstance(served, str):
        if served == "none" or (served == "jit" and how == "cubin"):
            what = "only PTX" if served == "jit" else "no code"
            yield f"{path} has {what} for sm_{arch}, but {listed(facts['archs'])}"
        return
    of = f"of {facts['kernels']} kernels in {path}"
    if served.get("emptied"):
        yield f"the sm_{arch} code of {served['emptied']} of {facts['regions']} regions in {path} was emptied"
    if served.get("absent"):
        yield f"{served['absent']} {of} have no code for sm_{arch}: {_named(served, 'absent')}"
    if served.get("stub"):
        yield f"{served['stub']} {of} are empty stubs for sm_{arch}: {_named(served, 'stub')}"
    if served.get("jit") and how == "cubin":
        what = "reach through PTX alone, where machine code is expected,"
        yield f"{served['jit']} {of} {what} sm_{arch}: {_named(served, 'jit')}"


def _named(served: Mapping[str, Any], state: str) -> str:
    """Return the first kernels of a state, as the library names them."""
    return listed([name[:_LONGEST_NAME] for name in served["named"][state]], limit=2)


CLAIMS = {"device-code": judge}
