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
from validate.binaries.kernel_states import (
    FAULTS,
    Excuses,
    KernelByDesign,
    RegionCode,
    Surplus,
)
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
from validate.next_steps import BUILD_ANEW, VALIDATE_AGAIN, pin

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

    # For claims of the kinds `kernels` and `files`.
    served: dict[str, KernelCounts | str]
    """By architecture. Of `files`: `cubin`, `jit` or `none`."""
    hidden: dict[str, int]
    """Architecture -> regions in which a mark hides code that it has a use for."""

    # For claims of the kind `kernels`.
    regions: int
    kernels: int

    # For claims of the kind `pruned`.
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
    """A library to inspect for a claim."""

    subject: str
    file: str
    shown: str
    """Its path below the folder of packages: `torch/lib/libtorch_cuda.so`."""
    targets: tuple[int, ...]
    """The GPU architectures that are claimed: 90 for sm_90."""
    by_design: tuple[KernelByDesign, ...] | None
    """Kernels that are empty on purpose. None: single kernels are not looked at, because the file
    is NVIDIA's own."""
    kind: Kind


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, CodeEvidence]]:
    """Yield, for each claim, its subject and the GPU code in the libraries that it is about.

    Nothing of the libraries is run. Their files are read, several at a time, one on each core.
    """
    _, _, distributions = installed.read_user_python()
    tasks: list[FileTask] = []
    for claim in claims:
        tasks += list_tasks(claim, distributions)

    # Begin with the largest files. Otherwise one core may still read a large one when all others
    # have finished.
    tasks.sort(key=lambda task: Path(task.file).stat().st_size, reverse=True)
    # Subject of a claim -> path of a library -> what was measured.
    libraries: dict[str, dict[str, MeasuredFile]] = {claim.subject: {} for claim in claims}
    for task, measured in map_on_all_cores(inspect_file, tasks):
        libraries[task.subject][task.shown] = measured

    for subject, measured_files in libraries.items():
        yield subject, {"files": dict(sorted(measured_files.items()))}


def list_tasks(claim: Claim, distributions: Sequence[Distribution]) -> list[FileTask]:
    """Return a task for each library that a claim is about.

    A task says which file to read, and what to look for. The claim has patterns of libraries
    (`torchao/_C.*so`), below the folders in which `distributions`, the installed packages, lie.
    """
    expect = claim.expect
    # Files that match `files` must have GPU code, those that match `also` may have it.
    patterns = (*expect["files"], *expect.get("also", ()))
    shown_by_path = find_libraries(patterns, installed.locations(distributions))
    if expect["kind"] == "pruned":
        return list(list_pruned_tasks(claim, shown_by_path, distributions))

    targets = tuple(int(arch) for arch in expect["archs"])
    by_design = tuple(expect.get("by_design", ()))
    tasks = []
    for path, shown in shown_by_path.items():
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


def find_libraries(patterns: Iterable[str], folders: Iterable[str]) -> dict[str, str]:
    """Return the files below these folders that match one of the patterns, without links.

    The result is the path of each file -> its path below the folder: `/opt/lib/a.so` -> `a.so`.
    """
    shown_by_path: dict[str, str] = {}
    for folder in folders:
        for pattern in patterns:
            for path in sorted(glob_files(folder, pattern)):
                if Path(path).is_file() and not Path(path).is_symlink():
                    shown_by_path.setdefault(path, path.removeprefix(f"{folder}/"))
    return shown_by_path


def glob_files(folder: str, pattern: str) -> Iterable[str]:
    """Return the paths below a folder that match a pattern, such as `pkg/**/lib*.so`.

    They are those of `Path(folder).glob(pattern)`. But glob walks through all folders again for
    each pattern with `**`. Here, patterns share one walk.
    """
    # `pkg/**/lib*.so` -> `pkg/` and `lib*.so`.
    top, double_star, name_pattern = pattern.partition("**/")
    has_wildcard_in_top = not set(top).isdisjoint("*?[")
    if not double_star or has_wildcard_in_top or "/" in name_pattern:
        return map(str, Path(folder).glob(pattern))

    paths = []
    folders_by_name = list_all_files(f"{folder}/{top}")
    for name in fnmatch.filter(folders_by_name, name_pattern):
        for parent in folders_by_name[name]:
            paths.append(f"{parent}/{name}")
    return paths


@cache
def list_all_files(top: str) -> Mapping[str, Sequence[str]]:
    """Return the names of all files below a folder, each with the folders that have such a file."""
    folders_by_name: dict[str, list[str]] = {}
    for folder, _, names in os.walk(top):
        for name in names:
            folders_by_name.setdefault(name, []).append(folder.rstrip("/"))
    return folders_by_name


def list_pruned_tasks(
    claim: Claim, shown_by_path: Mapping[str, str], distributions: Sequence[Distribution]
) -> Iterator[FileTask]:
    """Yield a task for each library that must have no code for GPUs that the image is not for.

    An image for one GPU architecture is pruned: a build step, the pruner, takes the code for other
    GPUs out of its libraries. It leaves NVIDIA's own libraries alone, unless the claim says
    `nvidia`: so they get no task.

    shown_by_path: the libraries to choose from: whole path -> path below the folder of packages.
    distributions: all installed packages. They say whose a library is.
    """
    expect = claim.expect
    targets = tuple(int(arch) for arch in expect["archs"])
    owners = installed.owners(distributions)
    for path, shown in shown_by_path.items():
        # Some files that are named like libraries are none: linker scripts are text.
        if not is_64bit_elf(path):
            continue

        # The distributions that list the file. If none does, the file's name may still say that it
        # is NVIDIA's.
        owner_names = [owner.name for owner in owners.get(path, ())] or [""]
        is_nvidias = any(fatbin.is_nvidia_library(owner, path) for owner in owner_names)
        if is_nvidias and not expect["nvidia"]:
            continue

        # Some packages have kernels that are empty by design, which are no fault. None: the kernels
        # of NVIDIA's libraries are not looked at one by one.
        by_design: list[KernelByDesign] = []
        for owner in owner_names:
            by_design += expect["by_design_of"].get(owner, ())
        yield FileTask(
            subject=claim.subject,
            file=path,
            shown=shown,
            targets=targets,
            by_design=None if is_nvidias else tuple(by_design),
            kind="pruned",
        )


def is_64bit_elf(path: str) -> bool:
    """Return whether a file is a program or library (ELF) for a 64-bit processor."""
    with Path(path).open("rb") as stream:
        header = stream.read(elf.HEADER_BYTES)
    return header.startswith(elf.MAGIC) and not elf.is_32bit(header)


def inspect_file(task: FileTask) -> tuple[FileTask, MeasuredFile]:
    """Read which GPU code a library holds, and return that with the task that named the file.

    What is looked for depends on the kind of the claim (`task.kind`). If the file can't be read,
    the result has only an `error`. It also has `undecoded` if only this machine can't read it,
    because it lacks a library that decompresses (liblz4 or libzstd).
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
        # ctypes raises these errors if it can't load a library, or finds no such function in it.
        lacks_decompressor = isinstance(error.__cause__, OSError | AttributeError)
        if lacks_decompressor:
            return task, {"error": str(error), "undecoded": True}
        return task, {"error": str(error)}
    except (OSError, ValueError) as error:
        return task, {"error": str(error)}


def inspect_as_whole(data: mmap.mmap, task: FileTask) -> MeasuredFile:
    """Return which GPUs a library has any code for. Single kernels are not looked at.

    NVIDIA's own libraries are inspected in this way: they have many kernels for one GPU only.

    In the result, `served` says what each GPU of the task would run: machine code (`cubin`), PTX,
    which the driver compiles first (`jit`), or `none`. `data` is the library's content.
    """
    regions = tuple(fatbin.read_regions(data))
    # A large library has thousands of entries: pieces of code for one architecture. One entry of
    # each kind is enough to know what a GPU can run.
    entry_by_kind: dict[tuple[bool, int, str], Entry] = {}
    for region in regions:
        for entry in kernel_states.entries_with_code(data, region):
            entry_by_kind[entry.kind] = entry
    entries = entry_by_kind.values()

    served: dict[str, KernelCounts | str] = {}
    for target in task.targets:
        served[str(target)] = kernel_states.best_form(entries, target)
    return {
        "archs": sorted({name_arch(entry) for entry in entries}),
        "served": served,
        "hidden": count_hidden(regions, task.targets),
    }


def count_hidden(regions: Sequence[Region], targets: Sequence[int]) -> dict[str, int]:
    """Count, for each GPU, the regions of a library with code that is wrongly marked as taken out.

    A region is what was compiled from one source file. The GPU's driver does not see code with this
    mark, although it is still there. Returns `{"90": 2}` if an sm_90 needs the code of two such
    regions. GPUs from which nothing is hidden are left out.
    """
    counts: Counter[str] = Counter()
    for region in regions:
        for target in targets:
            if region.hides_code_for(target):
                counts[str(target)] += 1
    return dict(counts)


class RemainingCode(NamedTuple):
    """The code that a region of a library still has after pruning, as entries: one for each GPU."""

    needed: frozenset[Entry]
    """The GPUs of the image run it."""
    surplus: frozenset[Entry]
    """No GPU of the image runs it: the pruner should have taken it out."""
    kept: frozenset[Entry]
    """No GPU of the image runs it either, but the pruner leaves it on purpose. Without it, a fault
    of the library would no longer show."""


def sort_remaining_code(data: mmap.mmap, unneeded: Surplus) -> RemainingCode:
    """Sort the code that is left in one region of a library by whether the image needs it.

    `unneeded` names the region, and the code in it that no GPU of the image runs.
    """
    # The pruner leaves the table of entries as it is, and overwrites their code with zeros.
    remaining = frozenset(kernel_states.entries_with_code(data, unneeded.region))
    surplus = remaining.intersection(unneeded.entries)
    kept = remaining.intersection(unneeded.kept)
    return RemainingCode(needed=remaining - surplus - kept, surplus=surplus, kept=kept)


def inspect_surplus(data: mmap.mmap, task: FileTask) -> MeasuredFile:
    """Return the GPU code that pruning should have taken out of a library, and its size.

    An image for one GPU architecture needs no code for others. The pruner, a build step, overwrites
    that code with zeros and marks it as taken out. Two things are faults: code for other GPUs that
    is still there (`surplus`), and code that was marked but not overwritten (`marked`).

    `data` is the library's content, `task.targets` are the GPUs of the image.
    """
    # Kernels that may be empty, by design of the library. None: it is NVIDIA's own.
    excuses = None if task.by_design is None else Excuses(task.by_design)
    archs: set[str] = set()
    surplus: list[Entry] = []
    marked: list[Entry] = []
    whole_regions = 0
    for unneeded in kernel_states.find_surplus(data, task.targets, excuses):
        code = sort_remaining_code(data, unneeded)
        surplus += code.surplus
        # Entries that are marked as taken out, although their code is still there.
        marked += unneeded.region.hidden
        archs |= {name_arch(entry) for entry in code.needed | code.surplus}
        # The pruner did not touch this region.
        if code.kept:
            whole_regions += 1

    return {
        "archs": sorted(archs),
        "surplus": sorted({name_arch(entry) for entry in surplus}),
        "surplus_entries": len(surplus),
        # `room` is the space that code takes in the file: compressed, and with padding.
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
    """Counts what the kernels of a library are on one GPU, and names the first faulty ones."""

    def __init__(self, target: int, excuses: Excuses) -> None:
        self._target = target
        self._excuses = excuses
        self._counts: Counter[str] = Counter()
        self._named: dict[str, list[str]] = {}

    def add(self, code: RegionCode) -> None:
        """Count the kernels that were compiled from one source file, by their state on the GPU.

        The states are machine code (`cubin`), PTX (`jit`), missing (`absent`) and an empty `stub`.
        A kernel that is rightly missing or empty is counted under the reason instead: it was made
        only `for_other_archs`, or is empty `by_design`.
        """
        # If pruning took out all code for this GPU, there may be no kernel left to count.
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
    """Count, for each GPU of the task, which kernels of a library it can run and which it lacks.

    For example, `served` of the result is `{"90": {"cubin": 120, "absent": 2, ...}}` if the library
    has machine code for sm_90 of 120 kernels, and 2 more only for other GPUs; it also names the
    first of the 2. `kernels` counts each kernel once (122), `archs` names all GPUs that the library
    has code for, and `hidden` counts code that drivers do not see (count_hidden).

    `data` is the library's content. Raises FatbinError if its GPU code can't be read.
    """
    # Some kernels are empty or missing on purpose. They are counted apart.
    excuses = Excuses(task.by_design or ())
    tallies = {target: KernelTally(target, excuses) for target in task.targets}
    archs: set[str] = set()
    kernels = 0
    # A region is what was compiled from one source file: the same kernels for several GPUs.
    regions = tuple(fatbin.read_regions(data))
    for region in regions:
        code = RegionCode(data, region)
        archs |= {name_arch(entry) for entry in code.entries}
        # This has each kernel of the region once, whatever GPUs it is for.
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

    A claim of the kind `pruned` says something else: that there is no code for any other GPU.

    Code that upstream's own build is known to lack is only a warning in the reason. NOT_APPLICABLE
    if the package (`subject`) needs no GPU code and has none. UNPROVEN if nothing is wrong as far
    as files could be read, but the machine that measured could not decompress some of them.
    """
    files = evidence["files"]
    if expect["kind"] == "pruned":
        finding = judge_pruned(expect, files)
    else:
        finding = judge_code(subject, expect, files)

    undecoded = list_undecoded(files)
    if undecoded and finding.status is not Status.FAIL:
        cause = files[undecoded[0]]["error"]
        return unproven(
            f"{listed(undecoded)} can't be read on the machine that measured: {cause}",
            "run `apt-get install liblz4-1 libzstd1` on that machine, then validate again: "
            f"{VALIDATE_AGAIN}",
        )
    return finding


def list_undecoded(files: Mapping[str, MeasuredFile]) -> list[str]:
    """Return the files that the machine that measured could not decompress."""
    return [path for path, file in files.items() if file.get("undecoded")]


def describe_unreadable(files: Mapping[str, MeasuredFile]) -> Iterator[str]:
    """Yield a sentence for each file that can't be read because something is wrong with it."""
    for path, file in files.items():
        if "error" in file and not file.get("undecoded"):
            yield f"{path} can't be read: {file['error']}"


def judge_code(subject: str, expect: CodeExpect, files: Mapping[str, MeasuredFile]) -> Finding:
    """Pass if every library of a package has code for every GPU architecture that is claimed.

    `subject` names the package. `files` are its libraries: path -> what was measured.
    """
    faults = [*describe_unreadable(files), *describe_hidden_code(files)]
    with_code: dict[str, MeasuredFile] = {}
    for path, file in files.items():
        if "error" not in file and file["archs"]:
            with_code[path] = file

    # Each pattern of the claim must match a file with code. What is in a file that could not be
    # decompressed is not known, so it may have some.
    may_have_code = [*with_code, *list_undecoded(files)]
    for pattern in expect["files"]:
        if not fnmatch.filter(files, pattern):
            faults.append(f"{subject} has no library {pattern}")
        # If there is a fault already, it explains why no code was seen.
        elif not faults and not fnmatch.filter(may_have_code, pattern):
            faults.append(f"{pattern} of {subject} holds no code for any GPU")

    # Without patterns, the package need not have any GPU code.
    if not expect["files"] and not may_have_code and not faults:
        return not_applicable(f"{subject} brings no device code of its own")

    lacking, warnings = find_lacking_archs(expect, with_code)
    good = "; ".join([describe_code(expect, with_code), *warnings])
    return conclude(faults + lacking, good)


def describe_hidden_code(files: Mapping[str, MeasuredFile]) -> Iterator[str]:
    """Yield a sentence for each file and architecture with code that the driver passes over."""
    for path, file in files.items():
        for arch, regions in file.get("hidden", {}).items():
            yield (
                f"{path} has code for sm_{arch} in {regions} regions that are marked as taken out, "
                "so the driver does not use it"
            )


def find_lacking_archs(
    expect: CodeExpect, with_code: Mapping[str, MeasuredFile]
) -> tuple[list[str], list[str]]:
    """Return what libraries lack for the claimed GPU architectures: faults, and warnings.

    It is only a warning if upstream's own build of a library is known to lack the architecture.
    `with_code`: path of a library -> what was measured of its code.
    """
    faults: list[str] = []
    warnings: list[str] = []
    for path, file in with_code.items():
        # For example `90` (sm_90), for which the library must have `cubin`: machine code.
        for arch, form in expect["archs"].items():
            arch_faults = list(find_arch_faults(path, file, arch, form))
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
    """Yield a sentence for each thing that a library lacks for one GPU architecture.

    `arch` is the architecture: `90` for sm_90. `form` is the least that must be there: `cubin`,
    which is machine code, or `jit`, which is PTX that the driver compiles.
    """
    served = file["served"][arch]
    # Of a file that was inspected as a whole, it is only known what it has: `cubin`, `jit` or
    # `none`. Else its kernels were counted.
    if not isinstance(served, str):
        yield from find_kernel_faults(path, file, arch, form)
    elif served == "none":
        yield f"{path} has no code for sm_{arch}, only for {listed(file['archs'])}"
    elif served == "jit" and form == "cubin":
        yield (
            f"{path} has only PTX for sm_{arch} and no machine code (it has "
            f"{listed(file['archs'])})"
        )


def find_kernel_faults(path: str, file: MeasuredFile, arch: str, form: str) -> Iterator[str]:
    """Yield a sentence for each kind of fault that kernels of a library have on one architecture.

    For example `2 of 120 kernels in pkg/lib.so have no code for sm_90: KERNEL, KERNEL`. `arch` is
    the architecture, here `90`. `form` is the least that a kernel must have: `cubin` (machine code)
    or `jit` (PTX, which the driver compiles).
    """
    # How many kernels are in which state: `{"cubin": 118, "absent": 2}`.
    counts = cast("KernelCounts", file["served"][arch])
    # A region is what was compiled from one source file. Pruning, a build step, may have taken out
    # too much of it.
    if counts.get("emptied"):
        regions = f"{counts['emptied']} of {file['regions']} regions in {path}"
        yield f"the sm_{arch} code of {regions} was emptied, so these kernels can't run there"

    complaints: dict[Literal["absent", "stub", "jit"], str] = {
        "absent": f"have no code for sm_{arch}",
        "stub": f"are empty stubs for sm_{arch}",
    }
    if form == "cubin":
        complaints["jit"] = f"have only PTX for sm_{arch}, where machine code is expected"
    for state, complaint in complaints.items():
        if counts.get(state):
            kernels = f"{counts[state]} of {file['kernels']} kernels in {path}"
            names = [name[:_LONGEST_NAME] for name in counts["named"][state]]
            yield f"{kernels} {complaint}: {listed(names, limit=2)}"


def describe_code(expect: CodeExpect, with_code: Mapping[str, MeasuredFile]) -> str:
    """Return `12 kernels in 1 file for sm_80, sm_90 (PTX)`, or `1 library for sm_80`.

    The second form is of libraries that were inspected as a whole: their kernels were not counted.
    """
    kernels = sum(file.get("kernels", 0) for file in with_code.values())
    if kernels:
        code = f"{plural(kernels, 'kernel')} in {plural(len(with_code), 'file')}"
    else:
        code = plural(len(with_code), "library", "libraries")

    archs = []
    for arch, form in expect["archs"].items():
        suffix = " (PTX)" if form == "jit" else ""
        archs.append(f"sm_{arch}{suffix}")
    return f"{code} for {', '.join(archs)}"


def judge_pruned(expect: PrunedExpect, files: Mapping[str, MeasuredFile]) -> Finding:
    """Pass if pruning took all GPU code out of libraries that the image's GPUs never run.

    `files`: path of a library -> what was measured.
    """
    with_code: dict[str, MeasuredFile] = {}
    for path, file in files.items():
        if "error" not in file and (file["archs"] or file["whole"] or file["marked"]):
            with_code[path] = file
    unreadable = list(describe_unreadable(files))
    # Such an image has torch, which has GPU code. If none was seen, the check looked at nothing.
    if not with_code and not unreadable and not list_undecoded(files):
        return failed(
            "the image has no library with GPU code at all, so its torch can't use a GPU",
            "run `docker run --rm IMAGE python -c 'import torch; print(torch.version.cuda)'`: if "
            "it prints None or fails, a step of your Dockerfile removed torch or put one for CPUs "
            "in its place, so take that step out and build the image again; if it prints a "
            f"version of CUDA, {BUILD_ANEW}",
        )

    archs = listed([f"sm_{arch}" for arch in expect["archs"]])
    unpruned = list(describe_unpruned(archs, with_code))
    finding = conclude([*unreadable, *unpruned], describe_pruned(expect, archs, with_code))
    if unpruned:
        step = (
            "nothing is broken, this code only takes space; to remove it: if your Dockerfile "
            "installs this package again, take that step out and build the image again; if it "
            f"does not, {BUILD_ANEW}"
        )
        finding = finding._replace(next_step=step)
    return finding


def describe_unpruned(archs: str, with_code: Mapping[str, MeasuredFile]) -> Iterator[str]:
    """Yield a sentence for each library with GPU code that pruning should have taken out.

    For example `pkg/lib.so still has 1,500,000 bytes of code for sm_80, which ... never run`. The
    libraries with the most of it come first. `archs` names the GPU architectures of the image.
    """
    for path, file in sorted(with_code.items(), key=lambda item: -item[1]["surplus_bytes"]):
        if file["surplus_entries"]:
            size = f"{file['surplus_bytes']:,} bytes"
            yield (
                f"{path} still has {size} of code for {listed(file['surplus'])}, which the GPUs of "
                f"this image ({archs}) never run: it should have been taken out"
            )
        if file["marked"]:
            size = f"{file['marked_bytes'] / 1e6:.1f} MB"
            yield (
                f"{path} still has {size} of code for {listed(file['marked'])}, which is only "
                "marked as taken out: it should have been removed"
            )


def describe_pruned(expect: PrunedExpect, archs: str, with_code: Mapping[str, MeasuredFile]) -> str:
    """Return what libraries still hold after pruning: `7 libraries with code for sm_86 alone`.

    Code for another architecture follows if it serves the claimed one: `, and sm_80 where a library
    has none`. `archs` names the claimed architectures.
    """
    libraries = plural(len(with_code), "library", "libraries")
    text = f"{libraries} with code for {archs} alone"

    others: set[str] = set()
    for file in with_code.values():
        others.update(file["archs"])
    for arch in expect["archs"]:
        # `a` and `f` are variants: code for just this architecture, or for its family.
        others -= {f"sm_{arch}", f"sm_{arch}a", f"sm_{arch}f"}
    if others:
        text += f", and {listed(sorted(others))} where a library has none"

    # Regions of a library that the pruner did not touch may hold code for any GPU. That is no
    # fault, but the reason of the PASS says so.
    whole_regions = sum(file["whole"] for file in with_code.values())
    if whole_regions:
        text += f"; {whole_regions} regions left unpruned because they lack kernels for it"
    return text


CLAIMS = {"device-code": judge}
_DAMAGED = (
    "this library is damaged: if a step of your Dockerfile changes it (`strip`, another pruner), "
    f"remove that step and build the image again; if none does, {BUILD_ANEW}"
)
NEXT_STEPS = {
    "device-code": {
        "can't be read": _DAMAGED,
        "": "if a step of your Dockerfile takes code out of the package (`rm`, `strip`, another "
        "pruner), remove that step and build the image again; if none does, "
        f"{pin('a release of the package with code for this GPU architecture')}",
    },
    "device-code/pruned": _DAMAGED,
}
