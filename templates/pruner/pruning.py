"""Takes device code for other GPUs out of the libraries of installed packages. Zeros take its place, which pack well.

Nothing moves: a file keeps its length and every byte but the code that is taken out and, in front of it, the two that
say what kind of code it is. So loaders, the driver and debuggers find all where it was. What
validate/binaries/fatbin.py does not know stays, and so does all of a region where `device-code` would miss it
(validate/binaries/kernel_states.py). A file that it can't read, or where parts overlap, is refused, and then nothing is
changed at all. Standard library alone.
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
from validate.binaries.kernel_states import Each, Excuses, KernelByDesign

_CHUNK = 1 << 24
_MARK = fatbin.TAKEN_OUT.to_bytes(2, "little")


class PruningError(Exception):
    """A package can't be pruned. Nothing of the file that it names was changed."""


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """Libraries of which one is loaded: the same for other versions of CUDA, say."""

    files: str
    """Pattern of their paths, from the packages' folder on."""
    keep: tuple[str, ...]
    """Patterns of those that stay: each must be there."""


@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """What to take out."""

    arch: int
    """90 for sm_90."""
    nvidia: bool
    """NVIDIA's own libraries, too: their licence restricts modification, so the matrix must say it."""
    alternatives: tuple[Alternatives, ...] = ()
    by_design: Mapping[str, Sequence[KernelByDesign]] = field(default_factory=dict)
    """Kernels that `device-code` excuses, as its claims have them, by package (canonical name)."""

    def may_prune(self, name: str, path: str) -> bool:
        return self.nvidia or not fatbin.is_nvidias(name, path)

    def excuses(self, name: str, path: str) -> Excuses | None:
        """None for NVIDIA's own, which `device-code` judges as a whole."""
        return None if fatbin.is_nvidias(name, path) else Excuses(self.by_design.get(name, ()))


@dataclass(frozen=True, kw_only=True)
class Change:
    """What became of one file of a package. Sizes in bytes."""

    path: str
    """As its RECORD has it."""
    size: int
    taken_out: int
    digest: str
    """RECORD's form of the new content's hash; empty: the file is gone."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What to take out of a file of `size` bytes: entries that no GPU asked for has a use for, in their order."""

    entries: tuple[Entry, ...]
    size: int

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where (begin, end) their code lies: it becomes zeros."""
        return tuple((entry.offset, entry.offset + entry.room) for entry in self.entries)

    @property
    def marks(self) -> tuple[int, ...]:
        """Where their kind stands, two bytes: it becomes one that the driver passes over."""
        return tuple(entry.at for entry in self.entries)

    @property
    def taken_out(self) -> int:
        return sum(entry.room for entry in self.entries)

    def kept(self) -> Iterator[tuple[int, int]]:
        """What lies between."""
        position = 0
        for begin, end in (*self.spans, (self.size, self.size)):
            if begin > position:
                yield position, begin
            position = end


def cut(data: Buffer, arch: int, excuses: Excuses | None, each: Each = map) -> Cut:
    """What to take out of an ELF file: nothing where it has no section table, as `device-code` says of device code in
    such a file that it can't be read. Raises FatbinError, also where anything overlaps, as in no sound file."""
    sections = _sections(data)
    if not sections:
        return Cut(entries=(), size=len(data))
    _require_apart(data, sections)
    entries = (entry for found in kernel_states.surplus(data, (arch,), excuses, each) for entry in found.entries)
    return Cut(entries=tuple(sorted(entries, key=lambda entry: entry.at)), size=len(data))


def _sections(data: Buffer) -> list[Section]:
    try:
        return list(elf.sections(data))
    except ElfError as error:
        raise FatbinError(str(error)) from error


def _require_apart(data: Buffer, sections: Sequence[Section]) -> None:
    """Sections with device code share no byte with each other, with another section or with the file's headers."""
    ours = [(one.offset, one.offset + one.size) for one in sections if one.size and one.name in fatbin.ALL]
    others = [(one.offset, one.offset + one.size) for one in sections if one.size and one.name not in fatbin.ALL]
    for begin, end in ours:
        if any(begin < after and before < end for before, after in (*others, *elf.headers(data))):
            raise FatbinError("its device code overlaps with something else")
    if any(after < end for (_, end), (after, _) in pairwise(sorted(ours))):
        raise FatbinError("its sections of device code overlap")


def plan_file(path: Path, arch: int, excuses: Excuses | None, each: Each = map) -> Cut:
    """What to take out of a library; nothing of what no 64-bit process loads as one. Raises PruningError."""
    try:
        with path.open("rb") as stream:
            begin = stream.read(elf.HEADER_BYTES)
            if not begin.startswith(elf.MAGIC) or elf.is_32bit(begin):
                return Cut(entries=(), size=0)
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return cut(data, arch, excuses, each)
    except (FatbinError, OSError, ValueError) as error:
        raise PruningError(f"{path}: {error}") from error


def prune_file(path: Path, wanted: Cut) -> None:
    """Prune one library in its place. Raises OSError.

    The new file takes the old one's name in one step, with its mode, owner and times. It is another inode, so whatever
    else the old one is linked to (an installer's cache) is not changed; and what was taken out is a hole, on no disk.
    """
    with path.open("rb") as stream:
        source, status = stream.fileno(), os.fstat(stream.fileno())
        beside = path.with_name(f".{path.name}.pruning")
        with _new(beside) as target:
            os.ftruncate(target, wanted.size)
            for begin, end in wanted.kept():
                _copy(source, target, begin, end)
            for at in wanted.marks:
                _write(target, _MARK, at)
            os.fchown(target, status.st_uid, status.st_gid)
            os.fchmod(target, status.st_mode & 0o7777)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            beside.replace(path)


@contextmanager
def _new(path: Path) -> Iterator[int]:
    """The descriptor of a new file, which is gone again where something fails."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        yield target
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(target)


def _write(target: int, content: bytes, at: int) -> None:
    """All of it: the last bytes that fit on a disk are written without an error."""
    while content:
        written = os.pwrite(target, content, at)
        content, at = content[written:], at + written


def _copy(source: int, target: int, begin: int, end: int) -> None:
    os.lseek(target, begin, os.SEEK_SET)
    while begin < end:
        sent = os.sendfile(target, source, begin, min(end - begin, _CHUNK))
        if not sent:
            raise OSError("it became shorter while it was read")
        begin += sent


def prune_packages(records: Sequence[Path], options: PruneOptions, tell: Callable[[Change], None]) -> None:
    """Prune what these RECORD files list, and renew them, so that hashes stay true.

    All files are read before one is written. Raises PruningError.
    """
    names = (re.sub(r"[-_.]+", "-", record.parent.name.partition("-")[0]).lower() for record in records)  # PEP 503
    packages = list(zip(records, names, strict=True))
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        plans = [_plan(record, name, options, pool) for record, name in packages if options.may_prune(name, "")]
        for plan in plans:
            _carry_out(plan, pool, tell)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is to become of one package: paths as its RECORD has them."""

    record: Path
    gone: Mapping[str, int]
    """Their sizes."""
    cuts: Mapping[str, Cut]

    def file(self, path: str) -> Path:
        return self.record.parent.parent / path


def _plan(record: Path, name: str, options: PruneOptions, pool: ThreadPoolExecutor) -> _Plan:
    location = record.parent.parent
    listed = [path for path in _listed(record) if ".so" in path.rpartition("/")[2] and (location / path).is_file()]
    gone = frozenset(_superfluous(listed, options.alternatives))
    rest = [path for path in listed if path not in gone and options.may_prune(name, path)]
    paths = [path for path in rest if not (location / path).is_symlink()]
    cuts = {path: plan_file(location / path, options.arch, options.excuses(name, path), pool.map) for path in paths}
    return _Plan(
        record=record,
        gone={path: (location / path).stat().st_size for path in sorted(gone)},
        cuts={path: one for path, one in cuts.items() if one.entries},
    )


def _carry_out(plan: _Plan, pool: ThreadPoolExecutor, tell: Callable[[Change], None]) -> None:
    changes = [_remove(plan, path) for path in plan.gone]
    changes += pool.map(lambda path: _prune(plan, path), plan.cuts)
    if changes:
        with _refused(plan.record):
            _renew(plan.record, {change.path: change for change in changes})
    for change in changes:
        tell(change)


def _listed(record: Path) -> list[str]:
    with _refused(record), record.open(encoding="utf-8", newline="") as lines:
        return [row[0] for row in csv.reader(lines) if row]


def _superfluous(listed: Sequence[str], alternatives: Iterable[Alternatives]) -> Iterator[str]:
    for one in alternatives:
        found = [path for path in listed if fnmatch.fnmatchcase(path, one.files)]
        for pattern in one.keep if found else ():
            if not any(fnmatch.fnmatchcase(path, pattern) for path in found):
                raise PruningError(f"of {one.files}, {pattern} should stay, and it is not there")
        yield from (path for path in found if not any(fnmatch.fnmatchcase(path, pattern) for pattern in one.keep))


def _remove(plan: _Plan, path: str) -> Change:
    """Another package that lists the same file may have done so before."""
    with _refused(plan.file(path)):
        plan.file(path).unlink(missing_ok=True)
    return Change(path=path, size=plan.gone[path], taken_out=plan.gone[path], digest="")


def _prune(plan: _Plan, path: str) -> Change:
    file, wanted = plan.file(path), plan.cuts[path]
    with _refused(file):
        prune_file(file, wanted)
        return Change(path=path, size=wanted.size, taken_out=wanted.taken_out, digest=_digest(file))


@contextmanager
def _refused(file: Path) -> Iterator[None]:
    """Says of which file the system refused something, or which is no text as RECORD is."""
    try:
        yield
    except (OSError, UnicodeError, csv.Error) as error:
        raise PruningError(f"{file}: {error}") from error


def _digest(file: Path) -> str:
    """As RECORD has it (Python packaging: "Recording installed projects")."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _renew(record: Path, changes: Mapping[str, Change]) -> None:
    """New hashes for changed files, no line for removed ones; every other line stays as it is."""
    lines = io.StringIO(record.read_bytes().decode(), newline="\n")
    content = "".join(_line(line, changes) for line in lines)
    status = record.stat()
    beside = record.with_name(".RECORD.pruning")
    with _new(beside) as target:
        _write(target, content.encode(), 0)
        os.fchown(target, status.st_uid, status.st_gid)
        os.fchmod(target, status.st_mode & 0o7777)
        beside.replace(record)


def _line(line: str, changes: Mapping[str, Change]) -> str:
    path, *_ = next(csv.reader([line]), [""])
    change = changes.get(path)
    if change is None:
        return line
    if not change.digest:
        return ""
    end = line[len(line.rstrip("\r\n")) :]
    quoted = f'"{path}"' if line.startswith('"') else path
    return f"{quoted},{change.digest},{change.size}{end}"
