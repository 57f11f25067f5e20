"""device-code: check that each library has compiled kernels for every GPU that is claimed.

A library carries its kernels in fat binaries: regions, each with one entry for an architecture. In
each region, the probe looks at the entry that the driver would take on a GPU. A kernel of it is

- `cubin`: machine code;
- `jit`: PTX, which the driver compiles at first use;
- `absent`: missing, though the region has it for other architectures;
- `stub`: next to nothing, though the same kernel is real for another architecture.

Two kinds are counted apart: kernels that carry another architecture in their own name, and those
that the claim lists as made so by design.

There are three kinds of claim:

- `kernels` looks at each kernel.
- `files` looks at each file as a whole.
- `pruned` looks for code that no GPU of the claim has a use for and that pruning would still remove
  (binaries/kernel_states.py). It leaves out NVIDIA's own files, unless the claim says `nvidia`.

Pruning leaves zeros and a mark in place of code. The driver passes over marked code, so all kinds
of claim report marked code that is still there.
"""

import fnmatch
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, TypedDict, cast

from validate.binaries import elf, fatbin, kernel_states
from validate.binaries.fatbin import Entry, FatbinError, Region
from validate.binaries.kernel_states import FAULTS, Excuses, KernelByDesign, RegionCode
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
"""How many kernels of one state the evidence names."""
_LONGEST_NAME = 100

Kind = Literal["kernels", "files", "pruned"]


class KnownGap(TypedDict):
    """Architectures that upstream's own build of a file lacks, although upstream claims them."""

    cuda: str
    file: str
    """Pattern of its path."""
    archs: list[int]
    reason: str


class _CodeExpect(TypedDict):
    kind: Literal["kernels", "files"]
    files: list[str]
    """Patterns of files that must hold code."""
    archs: Mapping[str, str]
    """`90` for sm_90 -> `cubin` or `jit`, the least that must be there."""
    known_gaps: list[KnownGap]


class CodeExpect(_CodeExpect, total=False):
    """What a claim of kind `kernels` or `files` says."""

    also: list[str]
    """Patterns of files that may hold code."""
    by_design: list[KernelByDesign]
    """Of `kernels`: kernels that are empty or left out on purpose."""


class PrunedExpect(TypedDict):
    """What a claim of kind `pruned` says."""

    kind: Literal["pruned"]
    files: list[str]
    archs: Mapping[str, str]
    """The only architectures that need code."""
    nvidia: bool
    """NVIDIA's own files were pruned, too."""
    by_design_of: Mapping[str, list[KernelByDesign]]
    """Distribution -> its kernels that are empty or left out on purpose."""


class KernelCounts(TypedDict, total=False):
    """How many kernels of a file have which state on one architecture. Zeros may be absent."""

    cubin: int
    jit: int
    absent: int
    stub: int
    for_other_archs: int
    by_design: int
    emptied: int
    """Regions, not kernels: their code for the architecture was taken out."""
    named: dict[str, list[str]]
    """State -> the first kernels that have it, for states that are faults."""


class MeasuredFile(TypedDict, total=False):
    """What was seen of a file. Which fields there are depends on the kind of the claim."""

    error: str
    """Why it can't be read; then there is no other field but the next."""
    undecoded: bool
    """It can't be read because this machine lacks the library that decompresses it."""
    archs: list[str]
    """`sm_90`, or `compute_90` for PTX. Of `pruned`: only of code that stays."""

    # Of `kernels` and `files`.
    served: dict[str, KernelCounts | str]
    """By architecture. Of `files`: `cubin`, `jit` or `none`."""
    hidden: dict[str, int]
    """Architecture -> regions in which a mark hides code that it has a use for."""

    # Of `kernels`.
    regions: int
    kernels: int

    # Of `pruned`.
    surplus: list[str]
    """Architectures of code that no claimed one has a use for."""
    surplus_entries: int
    surplus_bytes: int
    marked: list[str]
    """Architectures of code that is marked as taken out, and still there."""
    marked_bytes: int
    whole: int
    """Regions that pruning leaves whole: without their surplus, a fault would no longer show."""


class CodeEvidence(TypedDict):
    """The files of a claim, by their path below the folder of packages."""

    files: dict[str, MeasuredFile]


class FileTask(NamedTuple):
    """A file to inspect for a claim."""

    subject: str
    file: str
    shown: str
    """Its path below the folder of packages."""
    targets: tuple[int, ...]
    """The architectures that are claimed: 90 for sm_90."""
    by_design: tuple[KernelByDesign, ...] | None
    """None: the file is NVIDIA's own, which pruning takes as a whole."""
    kind: Kind


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, CodeEvidence]]:
    """Yield for each claim what compiled GPU code its files hold. They are read on all cores."""
    _, _, distributions = installed.read_user_python()
    files_of: dict[str, dict[str, MeasuredFile]] = {}
    tasks: list[FileTask] = []
    for claim in claims:
        files_of[claim.subject] = {}
        tasks += list_tasks(claim, distributions)

    # The largest files first, so that no core waits for another one at the end.
    tasks.sort(key=lambda task: Path(task.file).stat().st_size, reverse=True)
    for task, measured in map_on_all_cores(inspect_file, tasks):
        files_of[task.subject][task.shown] = measured
    for subject, files in files_of.items():
        yield subject, {"files": dict(sorted(files.items()))}


def list_tasks(claim: Claim, distributions: Sequence[Distribution]) -> list[FileTask]:
    """Return a task for each file on the disk that the claim's patterns match, without links.

    Whether the files are those that RECORD lists is for the check `files` to find.
    """
    expect = claim.expect
    # Files that match `files` must hold code, those that match `also` may.
    # Path -> path below the folder of packages, by which evidence names the file.
    chosen: dict[str, str] = {}
    for location in installed.locations(distributions):
        for pattern in (*expect["files"], *expect.get("also", ())):
            for path in sorted(glob_files(location, pattern)):
                if Path(path).is_file() and not Path(path).is_symlink():
                    chosen.setdefault(path, path.removeprefix(f"{location}/"))
    if expect["kind"] == "pruned":
        return list(list_pruned_tasks(claim, chosen, distributions))

    targets = tuple(int(arch) for arch in expect["archs"])
    by_design = tuple(expect.get("by_design", ()))
    tasks = []
    for path, shown in chosen.items():
        tasks.append(FileTask(claim.subject, path, shown, targets, by_design, expect["kind"]))
    return tasks


def glob_files(folder: str, pattern: str) -> Iterable[str]:
    """Return what Path(folder).glob(pattern) finds, as strings.

    Path.glob walks all folders again for each pattern like `**/NAME` or `pkg/**/NAME`. Here all
    such patterns share one walk.
    """
    parent, double_star, name = pattern.partition("**/")
    if not double_star or "/" in name or set(parent) & set("*?["):
        return map(str, Path(folder).glob(pattern))

    folders_by_name = walk_once(f"{folder}/{parent}")
    paths = []
    for fitting_name in fnmatch.filter(folders_by_name, name):
        for fitting_folder in folders_by_name[fitting_name]:
            paths.append(f"{fitting_folder}/{fitting_name}")
    return paths


@cache
def walk_once(top: str) -> Mapping[str, Sequence[str]]:
    """Return the names of all files below a folder, each with the folders that have such a file."""
    folders_by_name: dict[str, list[str]] = {}
    for folder, _, names in os.walk(top):
        for name in names:
            folders_by_name.setdefault(name, []).append(folder.rstrip("/"))
    return folders_by_name


def list_pruned_tasks(
    claim: Claim, chosen: Mapping[str, str], distributions: Sequence[Distribution]
) -> Iterator[FileTask]:
    """Yield a task for each file that pruning may have changed.

    `chosen` is path -> path below the folder of packages. Files that are no 64-bit ELF are left
    out: linker scripts have names of libraries, too. So are NVIDIA's own libraries, unless the
    claim says that they were pruned.
    """
    expect = claim.expect
    targets = tuple(int(arch) for arch in expect["archs"])
    owners = installed.owners(distributions)
    for path, shown in chosen.items():
        # A file that no distribution lists is still pruned.
        owner_names = [owner.name for owner in owners.get(path, ())] or [""]
        by_design: list[KernelByDesign] = []
        for name in owner_names:
            by_design += expect["by_design_of"].get(name, ())
        is_nvidias = any(fatbin.is_nvidia_library(name, path) for name in owner_names)

        with Path(path).open("rb") as stream:
            header = stream.read(elf.HEADER_BYTES)
        is_library = header.startswith(elf.MAGIC) and not elf.is_32bit(header)
        if is_library and (expect["nvidia"] or not is_nvidias):
            # Without a list of kernels, pruning takes a library as a whole.
            excused_kernels = None if is_nvidias else tuple(by_design)
            yield FileTask(claim.subject, path, shown, targets, excused_kernels, "pruned")


def inspect_file(task: FileTask) -> tuple[FileTask, MeasuredFile]:
    """Return the task and what was seen of its file, or the error that kept it from being read."""
    inspect = {"kernels": inspect_kernels, "files": inspect_as_whole, "pruned": inspect_surplus}
    try:
        with (
            Path(task.file).open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return task, inspect[task.kind](data, task)
    except FatbinError as error:
        # A decoder that ctypes could not load, or that lacks a function.
        if isinstance(error.__cause__, OSError | AttributeError):
            return task, {"error": str(error), "undecoded": True}
        return task, {"error": str(error)}
    except (OSError, ValueError) as error:
        return task, {"error": str(error)}


def inspect_as_whole(data: mmap.mmap, task: FileTask) -> MeasuredFile:
    """Return which architectures a library has any code for.

    `data` is its content. `served` says what the targets would run: machine code (`cubin`), PTX
    that the driver compiles (`jit`), or `none`. Single kernels are not looked at: NVIDIA makes many
    for one architecture only, and rightly so.
    """
    regions = tuple(fatbin.read_regions(data))
    # Of all entries of one kind, one is enough.
    entry_of_kind: dict[tuple[bool, int, str], Entry] = {}
    for region in regions:
        for entry in kernel_states.entries_with_code(data, region):
            entry_of_kind[entry.kind] = entry
    entries = entry_of_kind.values()

    return {
        "archs": sorted({name_arch(entry) for entry in entries}),
        "served": {
            str(target): kernel_states.best_form(entries, target) for target in task.targets
        },
        "hidden": count_hidden(regions, task.targets),
    }


def count_hidden(regions: Sequence[Region], targets: Sequence[int]) -> dict[str, int]:
    """Return for each target the number of regions in which a mark hides code that it would run.

    A region of a library is the code compiled from one source. The mark says that pruning took code
    out, and the driver passes it over. Targets (90 for sm_90) without such a region are left out.
    """
    counts: Counter[str] = Counter()
    for region in regions:
        for target in targets:
            if region.hides_code_for(target):
                counts[str(target)] += 1
    return dict(counts)


def inspect_surplus(data: mmap.mmap, task: FileTask) -> MeasuredFile:
    """Return which code of a library no target has a use for: its architectures, entries and bytes.

    An entry is the code of one region (one source) for one architecture. Entries that pruning has
    emptied are not counted. Some entries must stay although no target needs them (`kept`): without
    them, a fault of the library would no longer show. `whole` counts the regions that have such.
    `marked` is code that a mark declares as taken out, and that is still there.
    """
    excuses = None if task.by_design is None else Excuses(task.by_design)
    archs: set[str] = set()
    surplus: list[Entry] = []
    marked: list[Entry] = []
    whole_regions = 0
    for unneeded in kernel_states.find_surplus(data, task.targets, excuses):
        not_emptied = frozenset(kernel_states.entries_with_code(data, unneeded.region))
        archs |= {name_arch(entry) for entry in not_emptied.difference(unneeded.kept)}
        surplus += not_emptied.intersection(unneeded.entries)
        marked += unneeded.region.hidden
        if not not_emptied.isdisjoint(unneeded.kept):
            whole_regions += 1
    return {
        "archs": sorted(archs),
        "surplus": sorted({name_arch(entry) for entry in surplus}),
        "surplus_entries": len(surplus),
        "surplus_bytes": sum(entry.room for entry in surplus),
        "marked": sorted({name_arch(entry) for entry in marked}),
        "marked_bytes": sum(entry.room for entry in marked),
        "whole": whole_regions,
    }


def name_arch(entry: Entry) -> str:
    """Return the architecture of an entry as CUDA writes it: `sm_90a`, or `compute_90` for PTX."""
    prefix = "compute" if entry.is_ptx else "sm"
    return f"{prefix}_{entry.arch}{entry.variant}"


def inspect_kernels(data: mmap.mmap, task: FileTask) -> MeasuredFile:
    """Return how many kernels of a library have which state on each target; name the first faults.

    The code compiled from one source is a region, with an entry for each architecture. A kernel's
    state on a target (90 for sm_90) is `cubin`, `jit`, `absent` or `stub`, or the reason why it may
    be missing: `by_design`, `for_other_archs`.
    """
    excuses = Excuses(task.by_design or ())
    counts: dict[int, Counter[str]] = {target: Counter() for target in task.targets}
    named: dict[int, dict[str, list[str]]] = {target: {} for target in task.targets}
    archs: set[str] = set()
    total = 0
    regions = tuple(fatbin.read_regions(data))
    for region in regions:
        code = RegionCode(data, region)
        archs |= {name_arch(entry) for entry in code.entries}
        total += len(code.largest_kernels())
        for target in task.targets:
            # A region that pruning has emptied for this target has no kernels left to count.
            counts[target]["emptied"] += int(code.is_lost(target))
            for kernel, state in code.states(target):
                # The state, or the reason why the kernel may lack code.
                excused_state = excuses.apply(kernel, state, target)
                counts[target][excused_state] += 1
                if excused_state in FAULTS:
                    names = named[target].setdefault(excused_state, [])
                    if len(names) < _MOST_NAMED:
                        names.append(kernel)

    served: dict[str, KernelCounts | str] = {}
    for target in task.targets:
        served[str(target)] = cast("KernelCounts", {**counts[target], "named": named[target]})
    return {
        "regions": len(regions),
        "kernels": total,
        "archs": sorted(archs),
        "served": served,
        "hidden": count_hidden(regions, task.targets),
    }


def judge(subject: str, expect: CodeExpect | PrunedExpect, evidence: CodeEvidence) -> Finding:
    """Fail where a library lacks code for a claimed GPU architecture.

    A claim of kind `pruned` fails where there is code that no claimed architecture needs. The
    verdict is UNPROVEN if this machine lacks a library that decompresses some of the files, and the
    others show no fault.
    """
    files = evidence["files"]
    undecoded = [path for path, file in files.items() if file.get("undecoded")]
    unreadable = []
    for path, file in files.items():
        if "error" in file and path not in undecoded:
            unreadable.append(f"{path} can't be read: {file['error']}")

    if expect["kind"] == "pruned":
        finding = judge_pruned(expect, files, unreadable, undecoded)
    else:
        finding = judge_code(subject, expect, files, unreadable, undecoded)

    if undecoded and finding.status is not Status.FAIL:
        cause = files[undecoded[0]]["error"]
        return unproven(
            f"{listed(undecoded)} can't be read: {cause}: "
            "`apt-get install liblz4-1 libzstd1` there, then judge again"
        )
    return finding


def judge_code(
    subject: str,
    expect: CodeExpect,
    files: Mapping[str, MeasuredFile],
    unreadable: Sequence[str],
    undecoded: Sequence[str],
) -> Finding:
    """Judge whether every file has code for every claimed architecture.

    `unreadable` are the faults of files that can't be read. The files in `undecoded` are taken to
    hold what is claimed.
    """
    faults = list(unreadable)
    for path, file in files.items():
        for arch, regions in file.get("hidden", {}).items():
            faults.append(
                f"the sm_{arch} code of {regions} regions in {path} is marked as taken out, "
                "and the driver passes it over"
            )

    with_code: dict[str, MeasuredFile] = {}
    for path, file in files.items():
        if "error" not in file and file["archs"]:
            with_code[path] = file

    for pattern in expect["files"]:
        if not fnmatch.filter(files, pattern):
            faults.append(f"{subject} has no {pattern}")
        # A fault above says more than that code is missing.
        elif not fnmatch.filter([*with_code, *undecoded], pattern) and not faults:
            faults.append(f"{pattern} of {subject} holds no code for any GPU")

    if not (with_code or faults or undecoded or expect["files"]):
        return not_applicable(f"{subject} brings no device code of its own")

    lacking, warnings = find_lacking_archs(expect, with_code)
    return conclude(faults + lacking, "; ".join([describe_code(expect, with_code), *warnings]))


def find_lacking_archs(
    expect: CodeExpect, with_code: Mapping[str, MeasuredFile]
) -> tuple[list[str], list[str]]:
    """Return two lists: faults, and warnings, of files that lack code for a claimed architecture.

    It is a warning if upstream's own build of the file is known to lack it.
    """
    faults: list[str] = []
    warnings: list[str] = []
    for path, file in with_code.items():
        for arch, form in expect["archs"].items():
            arch_faults = list(find_arch_faults(path, file, arch, form))
            excuse = find_gap(expect["known_gaps"], path, arch)
            if not excuse:
                faults += arch_faults
            elif arch_faults:
                name = PurePosixPath(path).name
                warnings.append(f"WARNING: no sm_{arch} in {name} ({excuse})")
    return faults, warnings


def find_gap(known_gaps: Sequence[KnownGap], path: str, arch: str) -> str:
    """Return why upstream's own build of this file lacks the architecture; empty: not known."""
    for gap in known_gaps:
        if int(arch) in gap["archs"] and matches(path, [gap["file"]]):
            return gap["reason"]
    return ""


def find_arch_faults(path: str, file: MeasuredFile, arch: str, form: str) -> Iterator[str]:
    """Yield what a file lacks for an architecture (`90`).

    `form` is the least that must be there: `cubin` for machine code, `jit` if PTX is enough.
    """
    served = file["served"][arch]
    # Of a file that was looked at as a whole, there is one word; else a count of kernels by state.
    if isinstance(served, str):
        if served == "none" or (served == "jit" and form == "cubin"):
            what = "only PTX" if served == "jit" else "no code"
            yield f"{path} has {what} for sm_{arch}, but {listed(file['archs'])}"
        return

    kernels = f"of {file['kernels']} kernels in {path}"
    if served.get("emptied"):
        regions = f"{served['emptied']} of {file['regions']} regions in {path}"
        yield f"the sm_{arch} code of {regions} was emptied"
    if served.get("absent"):
        names = list_kernels(served, "absent")
        yield f"{served['absent']} {kernels} have no code for sm_{arch}: {names}"
    if served.get("stub"):
        names = list_kernels(served, "stub")
        yield f"{served['stub']} {kernels} are empty stubs for sm_{arch}: {names}"
    if served.get("jit") and form == "cubin":
        names = list_kernels(served, "jit")
        what = "reach through PTX alone, where machine code is expected,"
        yield f"{served['jit']} {kernels} {what} sm_{arch}: {names}"


def list_kernels(served: KernelCounts, state: str) -> str:
    """Return the names of the first kernels of a state as a phrase."""
    return listed([name[:_LONGEST_NAME] for name in served["named"][state]], limit=2)


def describe_code(expect: CodeExpect, with_code: Mapping[str, MeasuredFile]) -> str:
    """Return `12 kernels in 1 files serve sm_80, sm_90 (PTX)`, or `1 libraries serve sm_80`."""
    kernels = sum(file.get("kernels", 0) for file in with_code.values())
    if kernels:
        what = f"{kernels} kernels in {len(with_code)} files"
    else:
        what = f"{len(with_code)} libraries"
    archs = []
    for arch, form in expect["archs"].items():
        archs.append(f"sm_{arch} (PTX)" if form == "jit" else f"sm_{arch}")
    return f"{what} serve {', '.join(archs)}"


def judge_pruned(
    expect: PrunedExpect,
    files: Mapping[str, MeasuredFile],
    unreadable: Sequence[str],
    undecoded: Sequence[str],
) -> Finding:
    """Judge whether pruning left only code that the claimed architectures have a use for.

    It is a fault if code that none of them uses is left (`surplus`), or code that is marked as
    taken out (`marked`). Regions that pruning leaves whole on purpose (`whole`) are no fault.
    `unreadable` are the faults of files that can't be read, `undecoded` the files that this machine
    can't decompress.
    """
    archs = listed([f"sm_{arch}" for arch in expect["archs"]])
    with_code: dict[str, MeasuredFile] = {}
    for path, file in files.items():
        if "error" not in file and (file["archs"] or file["whole"] or file["marked"]):
            with_code[path] = file
    if not with_code and not unreadable and not undecoded:
        return failed("there is no library with device code at all")

    faults = list(unreadable)
    for path, file in sorted(with_code.items(), key=lambda item: -item[1]["surplus_bytes"]):
        if file["surplus_entries"]:
            size = f"{file['surplus_bytes'] / 1e6:.1f} MB"
            faults.append(
                f"{path} has {size} for {listed(file['surplus'])} that {archs} has no use for"
            )
        if file["marked"]:
            size = f"{file['marked_bytes'] / 1e6:.1f} MB"
            faults.append(
                f"{path} has {size} for {listed(file['marked'])} marked as taken out, "
                "and still there"
            )

    good = f"{len(with_code)} libraries hold code for {archs} alone"
    # Where a library has no code for a claimed architecture, what serves it instead stays.
    others: set[str] = set()
    for file in with_code.values():
        others.update(file["archs"])
    for arch in expect["archs"]:
        others -= {f"sm_{arch}", f"sm_{arch}a", f"sm_{arch}f"}
    if others:
        good += f", and {listed(sorted(others))} where a library has none"
    whole = sum(file["whole"] for file in with_code.values())
    if whole:
        good += f"; {whole} regions left unpruned because they lack kernels for it"
    return conclude(faults, good)


CLAIMS = {"device-code": judge}
