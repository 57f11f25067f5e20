"""Find the shared libraries that glibc's loader would load for a file, without loading any.

The loader looks for a library in this order (ld.so(8)):

1. libraries of that name that the process has loaded already;
2. DT_RPATH of the file that needs the library, then of the files that needed that file; only if the
   first file has no DT_RUNPATH;
3. LD_LIBRARY_PATH;
4. DT_RUNPATH of the file that needs the library;
5. ld.so.cache;
6. the default folders.

Hardware-capability subfolders of a search path are left out: no CUDA or Python package uses them.
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
    """A kind of processor that images are made for."""

    name: str
    """What `uname -m` and wheel tags call it: `x86_64`."""
    spoken: str
    """What sentences for people call it: `x86-64`."""
    number: int
    """e_machine of its ELF files (System V ABI, and its supplement for AArch64)."""
    triplet: str
    """The name of Debian's multiarch folder: `x86_64-linux-gnu`."""
    cache_flags: int
    """The flags of its libraries in ld.so.cache (glibc, sysdeps/generic/ldconfig.h)."""

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
_MACHINES = {X86_64.name: X86_64, AARCH64.name: AARCH64}


def machine_named(name: str) -> Machine:
    """Return the machine that `uname -m` calls so.

    Raises KeyError for one that no image is made for.
    """
    return _MACHINES[name]


def name_machine(number: int) -> str:
    """Return what sentences call the machine with this e_machine.

    `x86-64`, or `machine 243` for one that no image is made for.
    """
    for machine in _MACHINES.values():
        if machine.number == number:
            return machine.spoken
    return f"machine {number}"


# The search path of TensorFlow's libraries has 20 KB, more than elf.py reads of a string. That file
# is part of recorded recipes, so it stays as it is, and the limit is raised here.
elf._LONGEST_STRING = 1 << 20

CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_ENTRY = struct.Struct("<iIIIQ")
_CACHE_HEADER_BYTES = 48
_OLD_MAGIC, _OLD_HEADER_BYTES, _OLD_ENTRY_BYTES = b"ld.so-1.7.0", 16, 12


def read_cache(data: bytes, machine: Machine = X86_64) -> dict[str, list[str]]:
    """Read an ld.so.cache, and return name of a library -> its paths, in the order of the cache.

    `data` is the content of the file. Libraries for other machines than `machine` are left out.
    Raises ElfError if the cache is damaged or has only the format from before glibc 2.32.

    Layout: glibc, sysdeps/generic/dl-cache.h (struct cache_file_new).
    """
    start = _start_of_new_cache(data)
    if not data.startswith(_CACHE_MAGIC, start) or len(data) < start + _CACHE_HEADER_BYTES:
        raise ElfError("it is no ld.so.cache of the format that glibc 2.32 and later write")

    cache = data[start:]
    (count,) = struct.unpack_from("<I", cache, len(_CACHE_MAGIC))
    if _CACHE_HEADER_BYTES + count * _CACHE_ENTRY.size > len(cache):
        raise ElfError(f"ld.so.cache ends before its {count} entries do")

    paths: dict[str, list[str]] = {}
    for index in range(count):
        entry_offset = _CACHE_HEADER_BYTES + index * _CACHE_ENTRY.size
        flags, name_offset, path_offset, _, _ = _CACHE_ENTRY.unpack_from(cache, entry_offset)
        if flags == machine.cache_flags:
            name = _cache_text(cache, name_offset)
            paths.setdefault(name, []).append(_cache_text(cache, path_offset))
    return paths


def _start_of_new_cache(data: bytes) -> int:
    """Return the offset at which the table of the new format begins in an ld.so.cache.

    The file may begin with a table of the old format. Then the new one follows at the next multiple
    of eight bytes (glibc, elf/dl-cache.c).
    """
    if not data.startswith(_OLD_MAGIC) or len(data) < _OLD_HEADER_BYTES:
        return 0
    count: int = struct.unpack_from("<I", data, _OLD_HEADER_BYTES - 4)[0]
    end_of_old = _OLD_HEADER_BYTES + count * _OLD_ENTRY_BYTES
    return (end_of_old + 7) & ~7


def _cache_text(cache: bytes, offset: int) -> str:
    """Return the null-terminated string at an offset.

    Raises ElfError if it is not inside the cache.
    """
    end = cache.find(b"\0", offset)
    if offset >= len(cache) or end < 0:
        raise ElfError("ld.so.cache names a string outside of itself")
    return os.fsdecode(cache[offset:end])


@dataclass(frozen=True, kw_only=True)
class SearchPath:
    """Where a process looks for libraries, besides the DT_RPATH and DT_RUNPATH of its files."""

    library_path: tuple[str, ...] = ()
    """Folders of LD_LIBRARY_PATH. An empty entry of the variable is the working directory."""
    cache: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Library name -> paths, from ld.so.cache."""
    defaults: tuple[str, ...] = X86_64.folders
    triplet: str = X86_64.triplet

    @classmethod
    def of(
        cls,
        environ: Mapping[str, str],
        directory: str,
        machine: Machine,
        cache: str | None = CACHE,
    ) -> SearchPath:
        """Return the search path of a process with this environment and working directory.

        `cache` is the file of the loader's cache; a missing one counts as empty, and None leaves it
        out. Raises ElfError if it is damaged, OSError if it can't be read.
        """
        value = environ.get("LD_LIBRARY_PATH", "")
        # The loader takes `;` like `:`. Relative and empty entries begin in the working directory.
        entries = value.replace(";", ":").split(":") if value else []
        library_path = [str(Path(directory, entry)) for entry in entries]

        cached_paths: dict[str, list[str]] = {}
        if cache is not None and Path(cache).exists():
            cached_paths = read_cache(Path(cache).read_bytes(), machine)

        return cls(
            library_path=tuple(library_path),
            cache=cached_paths,
            defaults=machine.folders,
            triplet=machine.triplet,
        )

    def everywhere(self, name: str, from_runpath: Iterable[str] = ()) -> Iterator[str]:
        """Yield each path at which the loader looks for a library of this name, in its order.

        The paths need not exist. `from_runpath`: the paths to which DT_RUNPATH of the file that
        needs the library leads; they come after LD_LIBRARY_PATH.
        """
        for folder in self.library_path:
            yield f"{folder}/{name}"
        yield from from_runpath
        yield from self.cache.get(name, ())
        for folder in self.defaults:
            yield f"{folder}/{name}"


@dataclass(frozen=True)
class Missing:
    """A library that a file needs and the loader does not find."""

    name: str
    needed_by: str


class Files:
    """ELF files by path, each read once.

    A file that can't be read or is for another machine counts as absent: the loader passes over it,
    too.
    """

    def __init__(self, machine: Machine = X86_64) -> None:
        self.machine = machine
        self.known: dict[str, Elf | None] = {}
        """Path -> what was read of it; None: it can't be read, or is no ELF file."""

    def get(self, path: str) -> Elf | None:
        """Return what a file says of itself; None if it can't be read or is no ELF file."""
        if path not in self.known:
            try:
                self.known[path] = elf.read(path)
            except (OSError, ElfError):
                self.known[path] = None
        return self.known[path]

    def is_loadable(self, path: str) -> bool:
        """Return whether the loader of this machine can load a file."""
        file = self.get(path)
        return file is not None and file.dynamic and file.machine == self.machine.number


class Process:
    """The libraries that a process has loaded, by file name and soname."""

    def __init__(
        self, search: SearchPath, files: Files, loaded: Mapping[str, str] | None = None
    ) -> None:
        """Begin a process that has loaded these libraries (name -> path), by default none.

        `search`: where it looks for libraries. `files`: what was read of them; several processes
        may share it.
        """
        self._search = search
        self._files = files
        self.loaded: dict[str, str] = dict(loaded or {})
        """File name or soname of each loaded library -> its path."""

    def copy(self) -> Process:
        """Return a process that has loaded the same libraries, and can load others of its own."""
        return Process(self._search, self._files, self.loaded)

    def load(self, path: str) -> list[Missing]:
        """Load a file and all libraries that it needs.

        Returns the libraries that were not found.
        """
        _, missing = self.load_with_scope(path)
        return missing

    def load_with_scope(self, path: str) -> tuple[list[str], list[Missing]]:
        """Load a file and all libraries that it needs, breadth first, as the loader does.

        Returns the file's local scope (the paths of the file and of all these libraries, in the
        order in which symbols are looked up), and the libraries that were not found.
        """
        missing: list[Missing] = []
        # Files to load, each with the chain of files that led to it: `path` comes first. The loop
        # also visits what it appends.
        queue: list[tuple[str, tuple[str, ...]]] = [(path, ())]
        # Files that are loaded later and need a library of this name get this one.
        self._remember(os.path.basename(path), path)  # noqa: PTH119
        seen = {path}
        for current, ancestors in queue:
            file = self._files.get(current)
            if file is None:
                continue
            for name in file.needed:
                library = self.resolve(name, current, ancestors)
                if library is None:
                    missing.append(Missing(name, current))
                elif library not in seen:
                    seen.add(library)
                    self._remember(name, library)
                    queue.append((library, (*ancestors, current)))
        return [path for path, _ in queue], missing

    def resolve(self, name: str, needed_by: str, ancestors: Sequence[str] = ()) -> str | None:
        """Return the path of the library that a file gets under a name; None if there is none.

        needed_by: the file that asks.
        ancestors: the chain of files that led to that file being loaded.
        """
        # A library that is loaded already under this name is taken, wherever it lies.
        if name in self.loaded:
            return self.loaded[name]
        # A name with a slash is a path already.
        candidates = [name] if "/" in name else self._candidates(name, needed_by, ancestors)
        for path in candidates:
            if self._files.is_loadable(path):
                return os.path.realpath(path)
        return None

    def _candidates(self, name: str, needed_by: str, ancestors: Sequence[str]) -> Iterator[str]:
        """Yield each path at which the loader looks for a library of this name, in its order.

        The paths need not exist. A file may name folders to search: DT_RUNPATH or, in older files,
        DT_RPATH.

        needed_by: the file that needs the library.
        ancestors: the chain of files that led to that file being loaded.
        """
        needing_file = self._files.get(needed_by)
        runpath = needing_file.runpath if needing_file else ()
        # Only if the file has no DT_RUNPATH does its DT_RPATH count, and after it the DT_RPATH of
        # each file in the chain, the nearest one first.
        if not runpath:
            for path in (needed_by, *reversed(ancestors)):
                file = self._files.get(path)
                if file and not file.runpath:
                    yield from self._expand(file.rpath, path, name)
        from_runpath = self._expand(runpath, needed_by, name)
        yield from self._search.everywhere(name, from_runpath)

    def _expand(self, folders: Iterable[str], path: str, name: str) -> Iterator[str]:
        """Yield the path of a library in each of the folders that a file names to search.

        In these, `$ORIGIN` stands for the folder of the file, which is `path`.
        """
        origin = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
        for folder in folders:
            expanded = folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
            expanded = expanded.replace("$LIB", f"lib/{self._search.triplet}")
            yield f"{expanded}/{name}"

    def _remember(self, name: str, path: str) -> None:
        """Note that a file is loaded, under the name by which it was needed and under its soname.

        A name that is taken keeps the file that was loaded first.
        """
        self.loaded.setdefault(name, path)
        file = self._files.get(path)
        if file and file.soname:
            self.loaded.setdefault(file.soname, path)


@dataclass(frozen=True)
class Binary:
    """A library or program of the image, with what was read of it."""

    path: str
    elf: Elf
    owners: tuple[str, ...]
    """Names of the distributions that list it in their RECORDs."""


def find_binaries(locations: Sequence[str], owned_files: Iterable[str]) -> Iterator[str]:
    """Yield paths that by their names are libraries or programs of Python packages.

    That is each file that is named as a library (`.so`) or lies in a folder `bin`. Files are not
    read, so it may be something else.

    locations: the folders of packages on sys.path. They are searched with all folders below.
    owned_files: the paths of all files that packages list. Of those outside the locations, only
        programs are yielded. They need not exist.
    """
    yield from find_binaries_under(locations)
    prefixes = tuple(f"{location}/" for location in locations)
    # Packages also install programs elsewhere: /opt/venv/bin/ninja.
    for path in owned_files:
        if "/bin/" in path and not path.startswith(prefixes):
            yield path


def find_binaries_under(folders: Iterable[str]) -> Iterator[str]:
    """Yield the files below these folders that are named as libraries or are in a folder `bin`."""
    for top in folders:
        for folder, _, names in os.walk(top):
            is_for_programs = Path(folder).name == "bin"
            for name in names:
                if is_for_programs or name.endswith(".so") or ".so." in name:
                    yield f"{folder}/{name}"


def read_binaries(
    paths: Iterable[str], owners: Mapping[str, tuple[str, ...]], files: Files
) -> tuple[list[Binary], list[dict[str, Any]]]:
    """Read the libraries and programs (ELF files) among these paths.

    Returns those that the loader can load, and rows about those that it can't:

    - `{path, error}` for a damaged or unreadable file. These come first;
    - `{path, error, owners}` for a file for another machine. _add_replacements adds a key.

    owners: path -> the names of the distributions that list the file.
    files: gets what was read of each file.
    """
    libraries: list[Binary] = []
    damaged: list[dict[str, Any]] = []
    for_other_machines: list[dict[str, Any]] = []
    for path in dict.fromkeys(paths):
        if not _should_be_elf(path):
            continue
        file_owners = owners.get(path, ())

        wrong_machine = ""
        try:
            file = elf.read(path)
            files.known[path] = file
            if file.machine != files.machine.number:
                built_for = name_machine(file.machine)
                wrong_machine = f"it is built for {built_for}, not {files.machine.spoken}"
        except elf.OtherClassError as error:
            wrong_machine = str(error)
        except (OSError, ElfError) as error:
            damaged.append({"path": path, "error": str(error)})
            continue

        if wrong_machine:
            for_other_machines.append(
                {"path": path, "error": wrong_machine, "owners": list(file_owners)}
            )
        elif files.is_loadable(path):
            libraries.append(Binary(path, file, file_owners))

    _add_replacements(for_other_machines, libraries)
    return libraries, [*damaged, *for_other_machines]


def _add_replacements(for_other_machines: list[dict[str, Any]], libraries: list[Binary]) -> None:
    """Add to each row about a file for another machine what its package has for this machine.

    The key is `alternative` for a library of the same name, and `beside` for any other library.
    There is neither if the package has nothing for this machine.

    for_other_machines: rows as read_binaries returns them. They are changed in place.
    libraries: those that this machine can load.
    """
    # If a package has several libraries, the last one is named.
    path_by_owner_and_name: dict[tuple[str, str], str] = {}
    path_by_owner: dict[str, str] = {}
    for library in libraries:
        for owner in library.owners:
            path_by_owner_and_name[owner, Path(library.path).name] = library.path
            path_by_owner[owner] = library.path

    for row in for_other_machines:
        name = Path(row["path"]).name
        owners = row["owners"]
        with_same_name = [owner for owner in owners if (owner, name) in path_by_owner_and_name]
        with_any = [owner for owner in owners if owner in path_by_owner]
        if with_same_name:
            row["alternative"] = path_by_owner_and_name[with_same_name[0], name]
        elif with_any:
            row["beside"] = path_by_owner[with_any[0]]


def _should_be_elf(path: str) -> bool:
    """Return whether a file is an ELF file (by its first bytes) or should be one (by its name).

    Some files are named `.so` although they are text: linker scripts, which only compilers read. A
    file that can't be read counts as an ELF file, so that it is reported.
    """
    try:
        if Path(path).is_fifo():  # reading it would wait for ever
            return False
        with Path(path).open("rb") as stream:
            head = stream.read(512)
    except OSError:
        return True
    if head.startswith(elf.MAGIC):
        return True

    is_linker_script = head.isascii() and (b"INPUT" in head or b"GROUP" in head)
    return _is_library_name(Path(path).name) and not is_linker_script


def _is_library_name(name: str) -> bool:
    """Return whether a file is named as a shared library:

    `libz.so` or `libz.so.1.3`, but not `libz.so.txt`.
    """
    _, separator, version = name.rpartition(".so.")
    has_version = separator != "" and version.replace(".", "").isdigit()
    return name.endswith(".so") or has_version


_PRELOADED = ("libnvrtc", "libnvJitLink")
"""What torch/__init__.py loads by path after libtorch_global_deps.so (torch 2.6 to 2.15)."""


def load_torch(
    process: Process, locations: Sequence[str], libraries: Sequence[Binary]
) -> list[Missing]:
    """Load the libraries that `import torch` loads, in the same order.

    Returns the libraries that were not found. Nothing is loaded if torch is not installed.

    locations: the folders of packages on sys.path. The first one that has torch counts.
    libraries: those of all packages.
    """
    folders = [Path(location, "torch", "lib") for location in locations]
    existing_folders = [folder for folder in folders if folder.is_dir()]
    if not existing_folders:
        return []
    torch_folder = existing_folders[0]

    missing = process.load(str(torch_folder / "libtorch_global_deps.so"))
    # torch loads some libraries of NVIDIA's packages by their paths.
    for library in libraries:
        is_of_nvidia = f"{os.sep}nvidia{os.sep}" in library.path
        if is_of_nvidia and library_stem(library.elf.soname) in _PRELOADED:
            missing += process.load(library.path)
    missing += process.load(str(torch_folder / "libtorch_python.so"))
    return missing


def library_stem(name: str) -> str:
    """Return `libcudart` for `libcudart.so.12`."""
    return name.partition(".so")[0]
