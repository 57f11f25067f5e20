"""Take device code for other GPUs out of the libraries of installed packages.

Zeros take the place of the code; they compress to next to nothing in a layer. Nothing moves: a file
keeps its length, and all bytes but the code that is taken out and, before that, the two bytes that
say what kind of code it is. So loaders, the driver and debuggers find everything where it was.

Code that validate/binaries/fatbin.py does not know stays. So does all code of a region in which
`device-code` would otherwise miss a fault (validate/binaries/kernel_states.py). If a file can't be
read, or parts of it overlap, it is refused, and then no file is changed at all.

Standard library only: it runs in the environment that it prunes.
"""

from __future__ import annotations

import base64
import csv
import fnmatch
import hashlib
import io
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from validate.binaries import elf, fatbin, kernel_states
from validate.binaries.elf import ElfError, Section
from validate.binaries.fatbin import Buffer, Entry, FatbinError
from validate.binaries.kernel_states import Excuses, KernelByDesign, MapRegions

_COPIED_AT_ONCE = 1 << 24
_HASHED_AT_ONCE = 1 << 20
_MARK = fatbin.TAKEN_OUT.to_bytes(2, "little")

Span = tuple[int, int]
"""Where bytes of a file begin and end."""


class PruningError(Exception):
    """A package can't be pruned. Nothing of the file that the message names was changed."""


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """Libraries of which only some are ever loaded: the others are for other versions of CUDA."""

    files: str
    """Pattern of their paths below the packages' folder: `bitsandbytes/libbitsandbytes_*.so`."""
    keep: tuple[str, ...]
    """Patterns of those that stay. Each must match a file."""


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """What to take out."""

    arch: int
    """The GPU to prune for: 90 for sm_90."""
    nvidia: bool
    """Whether NVIDIA's own libraries are pruned, too. Their licence restricts modification, so the
    matrix must say it."""
    alternatives: tuple[Alternatives, ...] = ()
    by_design: Mapping[str, Sequence[KernelByDesign]] = field(default_factory=dict)
    """Package (canonical name) -> kernels that the claims of `device-code` excuse."""

    def may_prune(self, package: str, path: str) -> bool:
        """Return whether a package's library may be changed. `path` may be empty: any of it."""
        return self.nvidia or not fatbin.is_nvidia_library(package, path)

    def excuses(self, package: str, path: str) -> Excuses | None:
        """Return the excuses that `device-code` has for kernels of a package's library.

        None: the library is NVIDIA's own, and `device-code` judges it as a whole.
        """
        if fatbin.is_nvidia_library(package, path):
            return None
        return Excuses(self.by_design.get(package, ()))


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of one file of a package."""

    path: str
    """As its RECORD has it."""
    size: int
    taken_out: int
    """Bytes of code, or of the whole file if it was removed."""
    digest: str
    """The hash of the new content, as RECORD has it; empty: the file was removed."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What to take out of one file."""

    entries: tuple[Entry, ...]
    """In the order in which they lie in the file."""
    size: int
    """Bytes of the file."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the code of these entries lies. It becomes zeros."""
        spans = []
        for entry in self.entries:
            spans.append((entry.code_offset, entry.code_offset + entry.room))
        return tuple(spans)

    @property
    def marks(self) -> tuple[int, ...]:
        """Where the kinds of these entries stand, two bytes each. They become fatbin.TAKEN_OUT."""
        return tuple(entry.header_offset for entry in self.entries)

    @property
    def taken_out(self) -> int:
        """Bytes of code that are taken out."""
        return sum(entry.room for entry in self.entries)

    def remaining_spans(self) -> Iterator[Span]:
        """Yield what lies between the spans that become zeros, in their order."""
        position = 0
        for begin, end in self.spans:
            if begin > position:
                yield position, begin
            position = end
        if self.size > position:
            yield position, self.size


def cut(data: Buffer, arch: int, excuses: Excuses | None, map_regions: MapRegions = map) -> Cut:
    """Return what to take out of an ELF file so that a GPU of `arch` misses nothing.

    Nothing if its section headers are stripped: `device-code` reports device code in such a file as
    unreadable. Raises FatbinError for a damaged file, also if any parts overlap.
    """
    sections = _read_sections(data)
    if not sections:
        return Cut(entries=(), size=len(data))
    _require_no_overlap(data, sections)

    entries: list[Entry] = []
    for surplus in kernel_states.find_surplus(data, (arch,), excuses, map_regions):
        entries += surplus.entries
    entries.sort(key=lambda entry: entry.header_offset)
    return Cut(entries=tuple(entries), size=len(data))


def _read_sections(data: Buffer) -> list[Section]:
    """Return the sections of a file. Raises FatbinError."""
    try:
        return list(elf.sections(data))
    except ElfError as error:
        raise FatbinError(str(error)) from error


def _require_no_overlap(data: Buffer, sections: Sequence[Section]) -> None:
    """Raise FatbinError if a section with device code shares bytes with anything else.

    That would be another section, or the file's headers: to take out code would damage them.
    """
    device_code: list[Span] = []
    others: list[Span] = []
    for section in sections:
        if section.size:
            spans = device_code if section.name in fatbin.ALL_SECTIONS else others
            spans.append((section.offset, section.offset + section.size))

    for begin, end in device_code:
        for other_begin, other_end in (*others, *elf.headers(data)):
            if begin < other_end and other_begin < end:
                raise FatbinError("its device code overlaps with something else")
    for (_, end), (next_begin, _) in pairwise(sorted(device_code)):
        if next_begin < end:
            raise FatbinError("its sections of device code overlap")


def plan_file(path: Path, arch: int, excuses: Excuses | None, map_regions: MapRegions = map) -> Cut:
    """Return what to take out of a file; nothing if it is no 64-bit ELF file.

    Linker scripts, for example, have names of libraries, too. Raises PruningError.
    """
    try:
        with path.open("rb") as stream:
            header = stream.read(elf.HEADER_BYTES)
            if not header.startswith(elf.MAGIC) or elf.is_32bit(header):
                return Cut(entries=(), size=0)
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return cut(data, arch, excuses, map_regions)
    except (FatbinError, OSError, ValueError) as error:
        raise PruningError(f"{path}: {error}") from error


def prune_file(path: Path, wanted: Cut) -> None:
    """Take code out of one library. Raises OSError.

    A new file, with the old one's mode, owner and times, takes its name in one step. It is another
    inode, so other hard links to the old one (from an installer's cache) keep their content. What
    was taken out is a hole in the new file, and takes no room on the disk.
    """
    with path.open("rb") as stream:
        source = stream.fileno()
        status = os.fstat(source)
        new_path = path.with_name(f".{path.name}.pruning")
        with _create(new_path) as target:
            # All zeros at first: only what remains is copied.
            os.ftruncate(target, wanted.size)
            for begin, end in wanted.remaining_spans():
                _copy(source, target, begin, end)
            for offset in wanted.marks:
                _write(target, _MARK, offset)

            os.fchown(target, status.st_uid, status.st_gid)
            os.fchmod(target, status.st_mode & 0o7777)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            new_path.replace(path)


@contextmanager
def _create(path: Path) -> Iterator[int]:
    """Create a file and return its descriptor. If anything fails, remove the file again."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield target
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(target)


def _write(target: int, content: bytes, offset: int) -> None:
    """Write all of `content` to a file at an offset. Raises OSError.

    On a disk that is nearly full, pwrite writes only what fits, without an error.
    """
    while content:
        written = os.pwrite(target, content, offset)
        content = content[written:]
        offset += written


def _copy(source: int, target: int, begin: int, end: int) -> None:
    """Copy bytes of one file to the same place in another. Raises OSError."""
    os.lseek(target, begin, os.SEEK_SET)
    while begin < end:
        copied = os.sendfile(target, source, begin, min(end - begin, _COPIED_AT_ONCE))
        if not copied:
            raise OSError("it became shorter while it was read")
        begin += copied


def prune_packages(
    records: Sequence[Path], options: PruneOptions, tell: Callable[[Change], None]
) -> None:
    """Prune the files that these RECORD files list, and write the new hashes into the RECORDs.

    `tell` gets each change. All files are read before one is written. Raises PruningError.
    """
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        plans = []
        for record in records:
            package = _package_name(record)
            if options.may_prune(package, ""):
                plans.append(_plan_package(record, package, options, pool))
        for plan in plans:
            _carry_out(plan, pool, tell)


def _package_name(record: Path) -> str:
    """Return the canonical name (PEP 503) of the package that a RECORD belongs to.

    `flash-attn` for flash_attn-2.8.3.dist-info/RECORD.
    """
    name = record.parent.name.partition("-")[0]
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, kw_only=True)
class _PackagePlan:
    """What to do to the files of one package. Paths are as its RECORD has them."""

    record: Path
    removals: Mapping[str, int]
    """Files to remove, with their sizes."""
    cuts: Mapping[str, Cut]
    """Files to take code out of."""

    def file(self, path: str) -> Path:
        """Return where a path of the RECORD leads."""
        return _packages_folder(self.record) / path


def _packages_folder(record: Path) -> Path:
    """Return site-packages for site-packages/NAME.dist-info/RECORD."""
    return record.parent.parent


def _plan_package(
    record: Path, package: str, options: PruneOptions, pool: ThreadPoolExecutor
) -> _PackagePlan:
    """Read the libraries of a package, and return what to do to them. Raises PruningError."""
    folder = _packages_folder(record)
    libraries = []
    for path in _listed_paths(record):
        file_name = path.rpartition("/")[2]
        if ".so" in file_name and (folder / path).is_file():
            libraries.append(path)

    removals: dict[str, int] = {}
    for path in sorted(_never_loaded(libraries, options.alternatives)):
        removals[path] = (folder / path).stat().st_size

    cuts: dict[str, Cut] = {}
    for path in libraries:
        # A link is as its target, which has a line of its own.
        is_link = (folder / path).is_symlink()
        if path in removals or is_link or not options.may_prune(package, path):
            continue
        excuses = options.excuses(package, path)
        file_cut = plan_file(folder / path, options.arch, excuses, pool.map)
        if file_cut.entries:
            cuts[path] = file_cut
    return _PackagePlan(record=record, removals=removals, cuts=cuts)


def _listed_paths(record: Path) -> list[str]:
    """Return the paths that a RECORD lists. Raises PruningError if it can't be read."""
    with _naming(record), record.open(encoding="utf-8", newline="") as lines:
        return [row[0] for row in csv.reader(lines) if row]


def _never_loaded(paths: Sequence[str], all_alternatives: Iterable[Alternatives]) -> set[str]:
    """Return the libraries of which an alternative is loaded instead.

    Raises PruningError if one that should stay is missing.
    """
    never_loaded: set[str] = set()
    for alternatives in all_alternatives:
        candidates = _matching(paths, alternatives.files)
        if not candidates:
            continue
        kept: set[str] = set()
        for pattern in alternatives.keep:
            matching = _matching(candidates, pattern)
            if not matching:
                raise PruningError(
                    f"of {alternatives.files}, {pattern} should stay, and it is not there"
                )
            kept.update(matching)
        never_loaded.update(path for path in candidates if path not in kept)
    return never_loaded


def _matching(paths: Iterable[str], pattern: str) -> list[str]:
    """Return the paths that match a pattern, whose `*` also stands for slashes."""
    return [path for path in paths if fnmatch.fnmatchcase(path, pattern)]


def _carry_out(
    plan: _PackagePlan, pool: ThreadPoolExecutor, tell: Callable[[Change], None]
) -> None:
    """Change the files of a package, then its RECORD. Raises PruningError."""
    changes = [_remove(plan, path) for path in plan.removals]
    changes += pool.map(lambda path: _prune(plan, path), plan.cuts)
    if changes:
        with _naming(plan.record):
            _renew_record(plan.record, {change.path: change for change in changes})
    for change in changes:
        tell(change)


def _remove(plan: _PackagePlan, path: str) -> Change:
    """Remove a file. Raises PruningError."""
    size = plan.removals[path]
    with _naming(plan.file(path)):
        # Another package that lists the file may have removed it already.
        plan.file(path).unlink(missing_ok=True)
    return Change(path=path, size=size, taken_out=size, digest="")


def _prune(plan: _PackagePlan, path: str) -> Change:
    """Take code out of a file. Raises PruningError."""
    file = plan.file(path)
    wanted = plan.cuts[path]
    with _naming(file):
        prune_file(file, wanted)
        digest = _record_digest(file)
    return Change(path=path, size=wanted.size, taken_out=wanted.taken_out, digest=digest)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Raise PruningError, which names the file, for what the system or the csv reader refuses."""
    try:
        yield
    except (OSError, UnicodeError, csv.Error) as error:
        raise PruningError(f"{file}: {error}") from error


def _record_digest(file: Path) -> str:
    """Return the hash of a file as RECORD has it: `sha256=` and base64 without padding.

    Python packaging: "Recording installed projects".
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_HASHED_AT_ONCE))
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _renew_record(record: Path, changes: Mapping[str, Change]) -> None:
    """Write changed files' new hashes into a RECORD, and remove the lines of removed files.

    All other lines stay as they are. `changes` are by the path in RECORD. Raises OSError,
    UnicodeError, csv.Error.
    """
    # Splits at "\n" only, and leaves "\r\n" as it is.
    lines = io.StringIO(record.read_bytes().decode(), newline="\n")
    content = "".join(_renew_line(line, changes) for line in lines)

    status = record.stat()
    new_record = record.with_name(".RECORD.pruning")
    with _create(new_record) as target:
        _write(target, content.encode(), 0)
        os.fchown(target, status.st_uid, status.st_gid)
        os.fchmod(target, status.st_mode & 0o7777)
        new_record.replace(record)


def _renew_line(line: str, changes: Mapping[str, Change]) -> str:
    """Return what a line of RECORD (path,hash,size) becomes; empty if its file was removed."""
    path, *_ = next(csv.reader([line]), [""])
    change = changes.get(path)
    if change is None:
        return line
    if not change.digest:
        return ""
    # Written by hand, so that quotes and line end stay as the installer wrote them.
    quoted_path = f'"{path}"' if line.startswith('"') else path
    line_end = line[len(line.rstrip("\r\n")) :]
    return f"{quoted_path},{change.digest},{change.size}{line_end}"
