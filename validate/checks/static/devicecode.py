"""device-code: check that each library has compiled kernels for every GPU that is claimed.

A library carries its kernels in fat binaries. A *region* of one is the code compiled from one
source; it has an *entry* for each architecture. The architectures of a claim are its *targets*:
90 for sm_90. In each region, the probe looks at the entry that the driver would take on a GPU of
the target. A kernel of it is

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

Pruning leaves zeros and a mark in place of code: the entry is *emptied*. The driver passes over
marked code, so all kinds of claim report marked code that is still there (*hidden* code).
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
    plural,
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
    """`sm_90`, or `compute_90` for PTX. Of `pruned`: without the code that is left in `whole`
    regions although no target needs it."""

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
    """Yield the subject of each claim, and the compiled GPU code in the files that it is about.

    A claim is about the libraries of an installed package, for example. Nothing is run: the files
    are read, several at a time, one on each core.
    """
    _, _, distributions = installed.read_user_python()
    # Subject of a claim -> file -> its code.
    code_by_subject: dict[str, dict[str, MeasuredFile]] = {}
    tasks: list[FileTask] = []
    for claim in claims:
        code_by_subject[claim.subject] = {}
        tasks += list_tasks(claim, distributions)

    # The largest files first, so that no core waits for another one at the end.
    tasks.sort(key=lambda task: Path(task.file).stat().st_size, reverse=True)
    for task, measured in map_on_all_cores(inspect_file, tasks):
        code_by_subject[task.subject][task.shown] = measured
    for subject, files in code_by_subject.items():
        yield subject, {"files": dict(sorted(files.items()))}


def list_tasks(claim: Claim, distributions: Sequence[Distribution]) -> list[FileTask]:
    """Return which files to read for a claim about compiled GPU code, and what to look for.

    They are the files beside installed packages that the claim's patterns match; links are left
    out. Whether they are the files that RECORD lists is for the check `files` to find.
    """
    expect = claim.expect
    # Both are inspected: the judge demands code of files that match `files`, not of `also`.
    patterns = (*expect["files"], *expect.get("also", ()))
    # Path -> path below the folder of packages, by which evidence names the file.
    chosen: dict[str, str] = {}
    for location in installed.locations(distributions):
        for pattern in patterns:
            for path in sorted(glob_files(location, pattern)):
                if Path(path).is_file() and not Path(path).is_symlink():
                    chosen.setdefault(path, path.removeprefix(f"{location}/"))
    if expect["kind"] == "pruned":
        return list(list_pruned_tasks(claim, chosen, distributions))

    targets = tuple(int(arch) for arch in expect["archs"])
    by_design = tuple(expect.get("by_design", ()))
    tasks = []
    for path, shown in chosen.items():
        task = FileTask(
            subject=claim.subject,
            file=path,
            shown=shown,
            targets=targets,
            by_design=by_design,
            kind=expect["kind"],
        )
        tasks.append(task)
    return tasks


def glob_files(folder: str, pattern: str) -> Iterable[str]:
    """Return what Path(folder).glob(pattern) finds, as strings.

    Path.glob walks all folders again for each pattern like `**/NAME` or `pkg/**/NAME`. Here all
    such patterns share one walk.
    """
    parent, double_star, name = pattern.partition("**/")
    has_wildcard_in_parent = not set(parent).isdisjoint("*?[")
    if not double_star or "/" in name or has_wildcard_in_parent:
        return map(str, Path(folder).glob(pattern))

    # Name of a file -> the folders that have such a file.
    folders_by_name = walk_once(f"{folder}/{parent}")
    paths = []
    # The last part of the pattern may have wildcards, too: `**/lib*.so`.
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
    """Yield a task for each library from which code for other GPUs may have been taken out.

    To do that is called pruning. `chosen`: path -> path below the folder of packages. Files that
    are no 64-bit ELF are left out, because linker scripts have names of libraries, too. NVIDIA's
    own libraries are left out unless the claim says that they were pruned (`nvidia`).
    """
    expect = claim.expect
    targets = tuple(int(arch) for arch in expect["archs"])
    owners = installed.owners(distributions)
    for path, shown in chosen.items():
        with Path(path).open("rb") as stream:
            header = stream.read(elf.HEADER_BYTES)
        if not header.startswith(elf.MAGIC) or elf.is_32bit(header):
            continue

        # A file that no distribution lists is pruned, too. Its name may say that it is NVIDIA's.
        owner_names = [owner.name for owner in owners.get(path, ())] or [""]
        is_nvidias = any(fatbin.is_nvidia_library(owner, path) for owner in owner_names)
        if is_nvidias and not expect["nvidia"]:
            continue

        by_design: list[KernelByDesign] = []
        for owner in owner_names:
            by_design += expect["by_design_of"].get(owner, ())
        yield FileTask(
            subject=claim.subject,
            file=path,
            shown=shown,
            targets=targets,
            # None: the single kernels of NVIDIA's own libraries are not looked at, because the
            # pruner does not look at them either.
            by_design=None if is_nvidias else tuple(by_design),
            kind="pruned",
        )


def inspect_file(task: FileTask) -> tuple[FileTask, MeasuredFile]:
    """Read which GPU code a file holds, and return that with the task that named the file.

    What is looked for depends on the kind of the claim (`task.kind`). A file that can't be read
    gives an `error`; with `undecoded`, only because this machine lacks a library that decompresses.
    """
    inspectors = {"kernels": inspect_kernels, "files": inspect_as_whole, "pruned": inspect_surplus}
    inspect = inspectors[task.kind]
    try:
        with (
            Path(task.file).open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return task, inspect(data, task)
    except FatbinError as error:
        # The cause is of these types if ctypes could not load the library that decompresses the
        # code, or found it without the function. Then nothing is known to be wrong with the file.
        if isinstance(error.__cause__, OSError | AttributeError):
            return task, {"error": str(error), "undecoded": True}
        return task, {"error": str(error)}
    except (OSError, ValueError) as error:
        return task, {"error": str(error)}


def inspect_as_whole(data: mmap.mmap, task: FileTask) -> MeasuredFile:
    """Return which architectures a library has any code for, and what each target would run of it.

    `data` is the library's content. In the result, `served` is target -> machine code (`cubin`),
    PTX that the driver compiles (`jit`), or `none`; `hidden` is what count_hidden returns. Single
    kernels are not looked at: NVIDIA makes many for one architecture only, and rightly so.
    """
    regions = tuple(fatbin.read_regions(data))
    # A library may have thousands of entries. Of all that are alike (machine code or PTX, for one
    # architecture), one is enough.
    entry_of_kind: dict[tuple[bool, int, str], Entry] = {}
    for region in regions:
        for entry in kernel_states.entries_with_code(data, region):
            entry_of_kind[entry.kind] = entry
    entries = entry_of_kind.values()

    served: dict[str, KernelCounts | str] = {}
    for target in task.targets:
        served[str(target)] = kernel_states.best_form(entries, target)
    return {
        "archs": sorted({name_arch(entry) for entry in entries}),
        "served": served,
        "hidden": count_hidden(regions, task.targets),
    }


def count_hidden(regions: Sequence[Region], targets: Sequence[int]) -> dict[str, int]:
    """Return for each target the number of regions in which a mark hides code that it would run.

    The mark says that pruning took the code out, so the driver passes it over. Targets without such
    a region are left out. Keys are targets as text: `90`.
    """
    counts: Counter[str] = Counter()
    for region in regions:
        for target in targets:
            if region.hides_code_for(target):
                counts[str(target)] += 1
    return dict(counts)


def inspect_surplus(data: mmap.mmap, task: FileTask) -> MeasuredFile:
    """Return the GPU code in a library that the image's GPUs do not need and that is still there.

    In an image for one GPU architecture, the code for others was overwritten with zeros (pruned).
    `data` is the library's content, and `task.targets` are the GPUs to keep code for. Code that is
    left is `surplus`; `marked` is code that bears the mark of pruning, and was not overwritten.

    In some regions of a library, code for other GPUs is left on purpose: a fault of the library
    would no longer show without it. These regions are counted (`whole`).
    """
    # None: the library is NVIDIA's own, and the pruner decides about it as a whole.
    excuses = None if task.by_design is None else Excuses(task.by_design)
    archs: set[str] = set()
    surplus: list[Entry] = []
    marked: list[Entry] = []
    whole_regions = 0
    # There is one `unneeded` for each region of the library, with the entries that no target needs.
    # They are in `entries` if pruning takes them out, and in `kept` if it leaves the region whole.
    for unneeded in kernel_states.find_surplus(data, task.targets, excuses):
        # Where pruning took an entry out, the file has zeros: that entry does not count any more.
        entries_in_file = frozenset(kernel_states.entries_with_code(data, unneeded.region))
        kept_on_purpose = entries_in_file.intersection(unneeded.kept)
        if kept_on_purpose:
            whole_regions += 1
        surplus += entries_in_file.intersection(unneeded.entries)
        # The architectures of what targets use, and of the surplus.
        archs |= {name_arch(entry) for entry in entries_in_file - kept_on_purpose}
        # Entries that bear the mark of pruning, and still have their code.
        marked += unneeded.region.hidden
    return {
        "archs": sorted(archs),
        "surplus": sorted({name_arch(entry) for entry in surplus}),
        "surplus_entries": len(surplus),
        # `room` is what an entry takes in the file: compressed, and with padding.
        "surplus_bytes": sum(entry.room for entry in surplus),
        "marked": sorted({name_arch(entry) for entry in marked}),
        "marked_bytes": sum(entry.room for entry in marked),
        "whole": whole_regions,
    }


def name_arch(entry: Entry) -> str:
    """Return the architecture of an entry as CUDA writes it: `sm_90a`, or `compute_90` for PTX."""
    prefix = "compute" if entry.is_ptx else "sm"
    return f"{prefix}_{entry.arch}{entry.variant}"


class KernelTally:
    """Counts the kernels of a library by their state on one target, and names the first faults."""

    def __init__(self, target: int, excuses: Excuses) -> None:
        self._target = target
        self._excuses = excuses
        self._counts: Counter[str] = Counter()
        self._named: dict[str, list[str]] = {}

    def add(self, code: RegionCode) -> None:
        """Count the kernels of one region by their states, and the region if it lost its code.

        A state is `cubin`, `jit`, `absent` or `stub`. A kernel that may be absent or a stub on this
        target is counted under the reason in place of its state: `by_design`, `for_other_archs`.
        """
        # Pruning may have taken out all the code of a region that this target would run. Then there
        # may be no kernel to count, so the region itself is counted.
        self._counts["emptied"] += int(code.is_lost(self._target))
        for kernel, state in code.states(self._target):
            state_or_excuse = self._excuses.apply(kernel, state, self._target)
            self._counts[state_or_excuse] += 1
            if state_or_excuse in FAULTS:
                names = self._named.setdefault(state_or_excuse, [])
                if len(names) < _MOST_NAMED:
                    names.append(kernel)

    def as_evidence(self) -> KernelCounts:
        """Return the counts so far, and the names of the first kernels in each faulty state."""
        return cast("KernelCounts", {**self._counts, "named": self._named})


def inspect_kernels(data: mmap.mmap, task: FileTask) -> MeasuredFile:
    """Return how many kernels of a library have which state on each target (`served`).

    `data` is the library's content. The result also counts its regions and kernels, and names the
    architectures that it has code for.
    """
    # Which kernels may be absent or stubs on a target, because their library never calls them
    # there.
    excuses = Excuses(task.by_design or ())
    tallies = {target: KernelTally(target, excuses) for target in task.targets}
    archs: set[str] = set()
    kernels = 0
    regions = tuple(fatbin.read_regions(data))
    for region in regions:
        # Its entries are decompressed only once for all targets.
        code = RegionCode(data, region)
        archs |= {name_arch(entry) for entry in code.entries}
        # Each kernel of the region once, whatever architectures it is there for.
        kernels += len(code.largest_kernels())
        for tally in tallies.values():
            tally.add(code)

    return {
        "regions": len(regions),
        "kernels": kernels,
        "archs": sorted(archs),
        "served": {str(target): tally.as_evidence() for target, tally in tallies.items()},
        "hidden": count_hidden(regions, task.targets),
    }


def judge(subject: str, expect: CodeExpect | PrunedExpect, evidence: CodeEvidence) -> Finding:
    """Pass if libraries hold compiled code for each GPU architecture that the claim names.

    A claim of the kind `pruned` passes if there is no other code: none that these GPUs do not need.
    UNPROVEN if some files could not be decompressed, because the machine that measured lacks a
    library for it, and the others show no fault.
    """
    files = evidence["files"]
    # A file that can't be read is a fault, unless only the machine that measured could not do it.
    undecoded = []
    reading_faults = []
    for path, file in files.items():
        if file.get("undecoded"):
            undecoded.append(path)
        elif "error" in file:
            reading_faults.append(f"{path} can't be read: {file['error']}")

    if expect["kind"] == "pruned":
        finding = judge_pruned(expect, files, reading_faults, undecoded)
    else:
        finding = judge_code(subject, expect, files, reading_faults, undecoded)

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
    reading_faults: Sequence[str],
    undecoded: Sequence[str],
) -> Finding:
    """Pass if every library of a package has GPU code for every architecture that is claimed.

    `subject` names the package, and `files` is the path of a library -> what was measured.
    `reading_faults` are sentences on files that can't be read. `undecoded` are the paths of files
    that could not be decompressed where they were measured: they are taken to hold what is claimed.
    """
    faults = [*reading_faults, *find_hidden_code(files)]
    with_code: dict[str, MeasuredFile] = {}
    for path, file in files.items():
        if "error" not in file and file["archs"]:
            with_code[path] = file

    # A pattern that matches no file, or no code, is a fault: a check that finds nothing to look at
    # has failed.
    may_hold_code = [*with_code, *undecoded]
    for pattern in expect["files"]:
        if not fnmatch.filter(files, pattern):
            faults.append(f"{subject} has no {pattern}")
        # A fault above, such as a file that can't be read, already explains why no code was seen.
        elif not faults and not fnmatch.filter(may_hold_code, pattern):
            faults.append(f"{pattern} of {subject} holds no code for any GPU")

    # A claim without `files` is about a package that need not have code.
    if not (expect["files"] or may_hold_code or faults):
        return not_applicable(f"{subject} brings no device code of its own")

    lacking, warnings = find_lacking_archs(expect, with_code)
    good = "; ".join([describe_code(expect, with_code), *warnings])
    return conclude(faults + lacking, good)


def find_hidden_code(files: Mapping[str, MeasuredFile]) -> Iterator[str]:
    """Yield a sentence for each file and architecture with code that the driver passes over."""
    for path, file in files.items():
        for arch, regions in file.get("hidden", {}).items():
            yield (
                f"the sm_{arch} code of {regions} regions in {path} is marked as taken out, "
                "and the driver passes it over"
            )


def find_lacking_archs(
    expect: CodeExpect, with_code: Mapping[str, MeasuredFile]
) -> tuple[list[str], list[str]]:
    """Return two lists: faults, and warnings, of files that lack code for a claimed architecture.

    It is a warning if upstream's own build of the file is known to lack it
    (`expect["known_gaps"]`). `with_code` is the path of a file -> its code. `expect["archs"]` is an
    architecture (`90`) -> the least that must be there for it: machine code (`cubin`) or PTX
    (`jit`).
    """
    faults: list[str] = []
    warnings: list[str] = []
    for path, file in with_code.items():
        for arch, form in expect["archs"].items():
            arch_faults = list(find_arch_faults(path, file, arch, form))
            # Why upstream's own build lacks this architecture; empty if it is not known to.
            gap_reason = find_gap(expect["known_gaps"], path, arch)
            if not gap_reason:
                faults += arch_faults
            elif arch_faults:
                name = PurePosixPath(path).name
                warnings.append(f"WARNING: no sm_{arch} in {name} ({gap_reason})")
    return faults, warnings


def find_gap(known_gaps: Sequence[KnownGap], path: str, arch: str) -> str:
    """Return why upstream's own build of this file lacks the architecture; empty: not known."""
    for gap in known_gaps:
        if int(arch) in gap["archs"] and matches(path, [gap["file"]]):
            return gap["reason"]
    return ""


def find_arch_faults(path: str, file: MeasuredFile, arch: str, form: str) -> Iterator[str]:
    """Yield what a file lacks for an architecture (`90`).

    `form` is the least that must be there: `cubin` for machine code, `jit` if PTX is enough, which
    the driver compiles. `file` is what was measured of the file at `path`. Raises KeyError if it
    was not measured for `arch`.
    """
    served = file["served"][arch]
    if isinstance(served, str):
        # The file was looked at as a whole: `served` is `cubin`, `jit` or `none`.
        if served == "none":
            yield f"{path} has no code for sm_{arch}, but {listed(file['archs'])}"
        elif served == "jit" and form == "cubin":
            yield f"{path} has only PTX for sm_{arch}, but {listed(file['archs'])}"
        return

    # Its kernels were counted by their state.
    if served.get("emptied"):
        regions = f"{served['emptied']} of {file['regions']} regions in {path}"
        yield f"the sm_{arch} code of {regions} was emptied"
    complaints: dict[Literal["absent", "stub", "jit"], str] = {
        "absent": f"have no code for sm_{arch}",
        "stub": f"are empty stubs for sm_{arch}",
    }
    if form == "cubin":
        complaints["jit"] = f"have only PTX for sm_{arch}, where machine code is expected"
    for state, complaint in complaints.items():
        if served.get(state):
            kernels = f"{served[state]} of {file['kernels']} kernels in {path}"
            yield f"{kernels} {complaint}: {list_kernels(served, state)}"


def list_kernels(served: KernelCounts, state: str) -> str:
    """Return the names of the first kernels of a state as a phrase."""
    return listed([name[:_LONGEST_NAME] for name in served["named"][state]], limit=2)


def describe_code(expect: CodeExpect, with_code: Mapping[str, MeasuredFile]) -> str:
    """Return `12 kernels in 1 file for sm_80, sm_90 (PTX)`, or `1 library for sm_80`."""
    kernels = sum(file.get("kernels", 0) for file in with_code.values())
    if kernels:
        what = f"{plural(kernels, 'kernel')} in {plural(len(with_code), 'file')}"
    else:
        what = plural(len(with_code), "library", "libraries")
    archs = []
    for arch, form in expect["archs"].items():
        archs.append(f"sm_{arch} (PTX)" if form == "jit" else f"sm_{arch}")
    return f"{what} for {', '.join(archs)}"


def judge_pruned(
    expect: PrunedExpect,
    files: Mapping[str, MeasuredFile],
    reading_faults: Sequence[str],
    undecoded: Sequence[str],
) -> Finding:
    """Pass if pruning took all GPU code out that the image's architectures have no use for.

    `files` is the path of a library -> what was measured. `reading_faults` are sentences on files
    that can't be read, `undecoded` are the paths of files that could not be decompressed where they
    were measured.
    """
    with_code: dict[str, MeasuredFile] = {}
    for path, file in files.items():
        if "error" not in file and (file["archs"] or file["whole"] or file["marked"]):
            with_code[path] = file
    if not with_code and not reading_faults and not undecoded:
        return failed("there is no library with device code at all")

    archs = listed([f"sm_{arch}" for arch in expect["archs"]])
    faults = [*reading_faults, *find_unpruned(archs, with_code)]
    return conclude(faults, describe_pruned(expect, archs, with_code))


def find_unpruned(archs: str, with_code: Mapping[str, MeasuredFile]) -> Iterator[str]:
    """Yield files with code that none of the architectures uses, or that is only marked as removed.

    Where pruning removes code, it overwrites it with zeros, and marks it for the driver to pass
    over. Code that has the mark and is no zeros is still in the file (`marked`). `archs` names the
    claimed architectures. The files with the most unused code come first.
    """
    for path, file in sorted(with_code.items(), key=lambda item: -item[1]["surplus_bytes"]):
        if file["surplus_entries"]:
            size = f"{file['surplus_bytes'] / 1e6:.1f} MB"
            yield f"{path} has {size} for {listed(file['surplus'])} that {archs} has no use for"
        if file["marked"]:
            size = f"{file['marked_bytes'] / 1e6:.1f} MB"
            yield (
                f"{path} has {size} for {listed(file['marked'])} marked as taken out, "
                "and still there"
            )


def describe_pruned(expect: PrunedExpect, archs: str, with_code: Mapping[str, MeasuredFile]) -> str:
    """Return how many libraries hold code for the claimed architectures, and what else they hold.

    `archs` names the claimed architectures.
    """
    libraries = plural(len(with_code), "library", "libraries")
    text = f"{libraries} with code for {archs} alone"
    # Where a library has no code for a claimed architecture, what serves it instead stays: of
    # sm_86, for example, it is code for sm_80, or PTX.
    others: set[str] = set()
    for file in with_code.values():
        others.update(file["archs"])
    for arch in expect["archs"]:
        others -= {f"sm_{arch}", f"sm_{arch}a", f"sm_{arch}f"}
    if others:
        text += f", and {listed(sorted(others))} where a library has none"

    # Pruning must leave these regions whole (see inspect_surplus), so they are no fault.
    whole_regions = sum(file["whole"] for file in with_code.values())
    if whole_regions:
        text += f"; {whole_regions} regions left unpruned because they lack kernels for it"
    return text


CLAIMS = {"device-code": judge}
