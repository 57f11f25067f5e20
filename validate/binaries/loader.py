"""How glibc's dynamic loader finds a shared library, replayed over files: nothing is loaded.

Order (ld.so(8)): what the process already holds under that name; DT_RPATH of the asking file and of those that asked
for it, where the asking file has no DT_RUNPATH; LD_LIBRARY_PATH; DT_RUNPATH; ld.so.cache; the default folders.
Not replayed: hardware-capability subfolders of a search path (no CUDA or Python package uses them).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validate.binaries import elf
from validate.binaries.elf import Elf, ElfError


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One processor."""

    name: str
    """The kernel's word, and that of wheel tags."""
    spoken: str
    """For sentences."""
    number: int
    """e_machine (System V ABI, and its supplement for AArch64)."""
    triplet: str
    """Debian's multiarch folder."""
    cache_flags: int
    """Of ld.so.cache's entries for libraries of glibc (glibc, sysdeps/generic/ldconfig.h)."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The loader's default folders, Debian's and Red Hat's, in Debian's order."""
        return (
            f"/lib/{self.triplet}",
            f"/usr/lib/{self.triplet}",
            "/lib64",
            "/usr/lib64",
            "/lib",
            "/usr/lib",
        )


X86_64 = Machine(
    name="x86_64",
    spoken="x86-64",
    number=elf.X86_64,
    triplet="x86_64-linux-gnu",
    cache_flags=0x0303,
)
AARCH64 = Machine(
    name="aarch64", spoken="AArch64", number=183, triplet="aarch64-linux-gnu", cache_flags=0x0A03
)
_ALL = (X86_64, AARCH64)


def machine_named(name: str) -> Machine:
    """The machine that `uname -m` calls so. Raises KeyError for one that no image is made for."""
    return {one.name: one for one in _ALL}[name]


def machine_spoken(number: int) -> str:
    """What a file of this e_machine is built for."""
    return next((one.spoken for one in _ALL if one.number == number), f"machine {number}")


CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_CACHE_HEADER_BYTES = 48
_OLD_MAGIC, _OLD_HEADER_BYTES, _OLD_ENTRY_BYTES = b"ld.so-1.7.0", 16, 12


def read_cache(data: bytes, machine: Machine = X86_64) -> dict[str, list[str]]:
    """Name to files of an ld.so.cache, in its order, of one machine. Raises ElfError on a damaged one.

    Layout: glibc, sysdeps/generic/dl-cache.h (struct cache_file_new).
    """
    begin = _after_old_cache(data)
    if not data.startswith(_CACHE_MAGIC, begin) or len(data) < begin + _CACHE_HEADER_BYTES:
        raise ElfError("it is no ld.so.cache of the format that glibc 2.32 and later write")
    data = data[begin:]
    (count,) = struct.unpack_from("<I", data, len(_CACHE_MAGIC))
    if _CACHE_HEADER_BYTES + count * _CACHE_ENTRY.size > len(data):
        raise ElfError(f"ld.so.cache ends before its {count} entries do")
    table: dict[str, list[str]] = {}
    for index in range(count):
        flags, name, path, _, _ = _CACHE_ENTRY.unpack_from(
            data, _CACHE_HEADER_BYTES + index * _CACHE_ENTRY.size
        )
        if flags == machine.cache_flags:
            table.setdefault(_text(data, name), []).append(_text(data, path))
    return table


def _after_old_cache(data: bytes) -> int:
    """Where the loader looks for the new format: behind a table of the old one, aligned (elf/dl-cache.c). Elsewhere it
    is not seen, and the old table counts."""
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER_BYTES:
        return 0
    count: int = struct.unpack_from("<I", data, _OLD_HEADER_BYTES - 4)[0]
    return (_OLD_HEADER_BYTES + count * _OLD_ENTRY_BYTES + 7) & ~7


def _text(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset)
    if offset >= len(data) or end < 0:
        raise ElfError("ld.so.cache names a string outside of itself")
    return os.fsdecode(data[offset:end])


@dataclass(frozen=True, kw_only=True)
class SearchPath:
    """What the environment and the system add to a file's own search path."""

    library_path: tuple[str, ...] = ()
    """LD_LIBRARY_PATH's folders; an empty entry is the working directory."""
    cache: Mapping[str, Sequence[str]] = field(default_factory=dict)
    defaults: tuple[str, ...] = X86_64.folders
    triplet: str = X86_64.triplet

    @classmethod
    def of(
        cls,
        environ: Mapping[str, str],
        directory: str,
        machine: Machine = X86_64,
        cache: str = CACHE,
    ) -> SearchPath:
        """The search path of a process with this environment and working directory. Raises ElfError, see read_cache."""
        value = environ.get("LD_LIBRARY_PATH", "")
        entries = value.replace(";", ":").split(":") if value else []
        found = read_cache(Path(cache).read_bytes(), machine) if Path(cache).exists() else {}
        return cls(
            library_path=tuple(str(Path(directory, entry)) for entry in entries),
            cache=found,
            defaults=machine.folders,
            triplet=machine.triplet,
        )

    def everywhere(self, name: str, between: Iterable[str] = ()) -> Iterator[str]:
        """Each file that this search path offers under a name, in the loader's order. `between`: what the asking file's
        DT_RUNPATH offers."""
        yield from (f"{folder}/{name}" for folder in self.library_path)
        yield from between
        yield from self.cache.get(name, ())
        yield from (f"{folder}/{name}" for folder in self.defaults)


@dataclass(frozen=True)
class Missing:
    """A library that a file needs and the loader does not find."""

    name: str
    needed_by: str


class Files:
    """Files by path, each read once; what can't be read, or is for another machine, counts as absent, as it does for
    the loader."""

    def __init__(self, machine: Machine = X86_64) -> None:
        self.machine = machine
        self.known: dict[str, Elf | None] = {}
        """None: it can't be read."""

    def get(self, path: str) -> Elf | None:
        if path not in self.known:
            try:
                self.known[path] = elf.read(path)
            except (OSError, ElfError):
                self.known[path] = None
        return self.known[path]

    def loadable(self, path: str) -> bool:
        found = self.get(path)
        return found is not None and found.dynamic and found.machine == self.machine.number


class Process:
    """The libraries that a process holds, by the names it knows them under."""

    def __init__(
        self, search: SearchPath, files: Files, held: Mapping[str, str] | None = None
    ) -> None:
        self._search = search
        self._files = files
        self.held: dict[str, str] = dict(held or {})

    def copy(self) -> Process:
        return Process(self._search, self._files, self.held)

    def load(self, path: str) -> list[Missing]:
        """Load a file and all that it needs; gives back what was not found."""
        return self.scope(path)[1]

    def scope(self, path: str) -> tuple[list[str], list[Missing]]:
        """Load a file and all that it needs, breadth first as the loader does: its local scope in lookup order, and
        what was not found."""
        missing: list[Missing] = []
        queue: list[tuple[str, tuple[str, ...]]] = [(path, ())]
        self._hold(os.path.basename(path), path)  # noqa: PTH119
        seen = {path}
        for current, ancestors in queue:
            found = self._files.get(current)
            for name in found.needed if found else ():
                resolved = self.resolve(name, current, ancestors)
                if resolved is None:
                    missing.append(Missing(name, current))
                elif resolved not in seen:
                    seen.add(resolved)
                    self._hold(name, resolved)
                    queue.append((resolved, (*ancestors, current)))
        return [path for path, _ in queue], missing

    def resolve(self, name: str, asking: str, ancestors: Sequence[str] = ()) -> str | None:
        """The file that `asking` gets for a NEEDED name. None: there is none."""
        if name in self.held:
            return self.held[name]
        candidates = [name] if "/" in name else self._candidates(name, asking, ancestors)
        return next(
            (os.path.realpath(path) for path in candidates if self._files.loadable(path)), None
        )

    def _candidates(self, name: str, asking: str, ancestors: Sequence[str]) -> Iterator[str]:
        own = self._files.get(asking)
        runpath = own.runpath if own else ()
        if not runpath:
            for path in (asking, *reversed(ancestors)):
                found = self._files.get(path)
                if found and not found.runpath:
                    yield from self._in(found.rpath, path, name)
        yield from self._search.everywhere(name, self._in(runpath, asking, name))

    def _in(self, folders: Iterable[str], path: str, name: str) -> Iterator[str]:
        origin = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
        for folder in folders:
            expanded = folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
            yield f"{expanded.replace('$LIB', f'lib/{self._search.triplet}')}/{name}"

    def _hold(self, name: str, path: str) -> None:
        found = self._files.get(path)
        self.held.setdefault(name, path)
        if found and found.soname:
            self.held.setdefault(found.soname, path)


_PRELOADED = ("libnvrtc", "libnvJitLink")
"""What torch/__init__.py loads by path after libtorch_global_deps.so (torch 2.6 to 2.15)."""


@dataclass(frozen=True)
class Found:
    """A library or program, read."""

    path: str
    elf: Elf
    owners: tuple[str, ...]


def objects(locations: Sequence[str], owners: Iterable[str]) -> Iterator[str]:
    """Files below sys.path's package folders, and files that distributions own elsewhere (the scripts folder)."""
    yield from objects_under(locations)
    for path in owners:
        if "/bin/" in path and not path.startswith(tuple(f"{location}/" for location in locations)):
            yield path


def objects_under(folders: Iterable[str]) -> Iterator[str]:
    """Files named as shared libraries, and files in folders of programs."""
    for top in folders:
        for folder, _, names in os.walk(top):
            of_programs = Path(folder).name == "bin"
            for name in names:
                if of_programs or name.endswith(".so") or ".so." in name:
                    yield f"{folder}/{name}"


def read_all(
    paths: Iterable[str], owners: Mapping[str, tuple[str, ...]], files: Files
) -> tuple[list[Found], list[dict[str, Any]]]:
    """Readable ELF files; and {path, error} of those named as libraries (or begun as ELF) that the loader can't read.

    Files for other machines come last, with their `owners` and perhaps an `alternative`: the library of the same name
    that one of these distributions brings for this machine, so that nothing loads this one here; else with what lies
    `beside`: another file of theirs that this machine loads.
    """
    found: list[Found] = []
    unreadable: list[dict[str, Any]] = []
    for path in dict.fromkeys(paths):
        if not _claims_to_be_elf(path):
            continue
        try:
            seen = elf.read(path)
            files.known[path] = seen
            spoken = f"it is built for {machine_spoken(seen.machine)}, not {files.machine.spoken}"
            wrong = spoken if seen.machine != files.machine.number else ""
        except elf.OtherClassError as error:
            wrong = str(error)
        except (OSError, ElfError) as error:
            unreadable.append({"path": path, "error": str(error)})
            continue
        if wrong:
            unreadable.append({"path": path, "error": wrong, "owners": list(owners.get(path, ()))})
        elif files.loadable(path):
            found.append(Found(path, seen, owners.get(path, ())))
    brought = {(owner, Path(one.path).name): one.path for one in found for owner in one.owners}
    works = {owner: one.path for one in found for owner in one.owners}
    for one in unreadable:
        name, theirs = Path(one["path"]).name, one.get("owners", ())
        same = [brought[owner, name] for owner in theirs if (owner, name) in brought]
        others = [works[owner] for owner in theirs if owner in works]
        one |= {"alternative": same[0]} if same else {"beside": others[0]} if others else {}
    return found, sorted(unreadable, key=lambda one: "owners" in one)


def _claims_to_be_elf(path: str) -> bool:
    """By its name, or by its first bytes. Linker scripts, which are text named `.so`, are for compilers only."""
    if Path(path).is_fifo():  # to read it is to wait for ever
        return False
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(512)
    except OSError:
        return True
    if head[:4] == elf.MAGIC:
        return True
    name = Path(path).name
    named = name.endswith(".so") or (
        ".so." in name and name.rpartition(".so.")[2].replace(".", "").isdigit()
    )
    return named and not (head.isascii() and (b"INPUT" in head or b"GROUP" in head))


def import_torch(
    process: Process, locations: Sequence[str], found: Sequence[Found]
) -> list[Missing]:
    """What `import torch` loads, in its order; gives back what it would not find."""
    folders = [Path(location, "torch", "lib") for location in locations]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        return []
    missing = process.load(str(folder / "libtorch_global_deps.so"))
    for library in found:
        if stem(library.elf.soname) in _PRELOADED and f"{os.sep}nvidia{os.sep}" in library.path:
            missing += process.load(library.path)
    return missing + process.load(str(folder / "libtorch_python.so"))


def stem(name: str) -> str:
    """`libcudart` of `libcudart.so.12`."""
    return name.partition(".so")[0]
