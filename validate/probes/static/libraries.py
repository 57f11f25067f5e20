"""S3: every shared library and program of the Python environment (apart: of the toolkit), linked as the loader would.

A library is looked at as `import torch` leaves the process, because all that needs CUDA is imported after torch: first
the interpreter's own libraries, then torch's closure, then the library itself. Programs start alone. What is missing
but lies in the same distribution is taken to be loaded by that distribution first; it is listed under `assumed`, as
this is the one guess.

Claim `expect`: {"of": "environment" or "toolkit", "home": the toolkit's folder, "cuda_libraries": {stem: major}}.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validate import elf, installed, interpreter, surroundings
from validate.claims import Claim
from validate.elf import Elf, ElfError
from validate.installed import Distribution
from validate.loader import Files, Process, SearchPath

_PRELOADED = ("libnvrtc", "libnvJitLink")
"""What torch/__init__.py loads by path after libtorch_global_deps.so (torch 2.6 to 2.15)."""


@dataclass(frozen=True)
class _Found:
    path: str
    elf: Elf
    owners: tuple[str, ...]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, dict[str, Any]]]:
    given = surroundings.recorded()
    search = SearchPath.of(given.environ, given.directory)
    files = Files()
    for claim in claims:
        if claim.expect["of"] == "toolkit":
            yield claim.subject, _toolkit(Path(claim.expect["home"]), search, files)
        else:
            start = interpreter.start(given)
            everything = installed.distributions(entry or given.directory for entry in start.path)
            yield claim.subject, _environment(claim, given.python, everything, search, files)


def _toolkit(home: Path, search: SearchPath, files: Files) -> dict[str, Any]:
    found, unreadable = _read_all(_objects_under([str(home)]), {}, files)
    process = Process(search, files)
    return {
        "files": len(found),
        "unreadable": unreadable,
        "linked": [entry for library in found if (entry := _link(library, process, (), {}))["missing"]],
    }


def _environment(
    claim: Claim, python: str, everything: Sequence[Distribution], search: SearchPath, files: Files
) -> dict[str, Any]:
    owners = {
        path: tuple(sorted({owner.name for owner in owning})) for path, owning in installed.owners(everything).items()
    }
    locations = list(dict.fromkeys(distribution.location for distribution in everything))
    found, unreadable = _read_all(_objects(locations, owners), owners, files)
    interpreter_alone = Process(search, files)
    missing_at_start = interpreter_alone.load(os.path.realpath(python))
    with_torch = interpreter_alone.copy()
    missing_at_start += _import_torch(with_torch, locations, found)
    stems = claim.expect["cuda_libraries"]
    holders = _holders(found)
    linked = [_link(library, with_torch, stems, holders, alone=interpreter_alone) for library in found]
    return {
        "files": len(found),
        "unreadable": unreadable,
        "torch_misses": [{"path": missing.needed_by, "name": missing.name} for missing in missing_at_start],
        "torch_holds": {
            name: {"path": path, "owners": list(owners.get(path, ()))}
            for name, path in sorted(with_torch.held.items())
            if _stem(name) in stems
        },
        "linked": [entry for entry in linked if entry["missing"] or entry["needs_cuda"] or entry["assumed"]],
        "second_owners": list(_second_owners(found, stems, search, files, owners)),
        "provided": sorted(
            {
                (library.elf.soname, library.path, library.owners)
                for library in found
                if _stem(library.elf.soname) in stems
            }
        ),
    }


def _objects(locations: Sequence[str], owners: Mapping[str, Any]) -> Iterator[str]:
    """Files below sys.path's package folders, and files that distributions own elsewhere (the scripts folder)."""
    yield from _objects_under(locations)
    for path in owners:
        if "/bin/" in path and not path.startswith(tuple(f"{location}/" for location in locations)):
            yield path


def _objects_under(folders: Iterable[str]) -> Iterator[str]:
    """Files named as shared libraries, and files in folders of programs."""
    for top in folders:
        for folder, _, names in os.walk(top):
            for name in names:
                if name.endswith(".so") or ".so." in name or Path(folder).name == "bin":
                    yield f"{folder}/{name}"


def _read_all(
    paths: Iterable[str], owners: Mapping[str, tuple[str, ...]], files: Files
) -> tuple[list[_Found], list[dict[str, str]]]:
    """Readable ELF files, and those named as libraries (or begun as ELF) that the loader could not read."""
    found: list[_Found] = []
    unreadable: list[dict[str, str]] = []
    for path in dict.fromkeys(paths):
        if not _claims_to_be_elf(path):
            continue
        try:
            seen = elf.read(path)
        except (OSError, ElfError) as error:
            unreadable.append({"path": path, "error": str(error)})
            continue
        if seen.machine != elf.X86_64:
            unreadable.append({"path": path, "error": f"it is built for machine {seen.machine}, not x86-64"})
        elif files.loadable(path):
            found.append(_Found(path, seen, owners.get(path, ())))
    return found, unreadable


def _claims_to_be_elf(path: str) -> bool:
    """By its name, or by its first bytes. Linker scripts, which are text named `.so`, are for compilers only."""
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(512)
    except OSError:
        return True
    if head[:4] == elf.MAGIC:
        return True
    name = Path(path).name
    named = name.endswith(".so") or (".so." in name and name.rpartition(".so.")[2].replace(".", "").isdigit())
    return named and not (head.isascii() and (b"INPUT" in head or b"GROUP" in head))


def _import_torch(process: Process, locations: Sequence[str], found: Sequence[_Found]) -> list[Any]:
    """What `import torch` loads, in its order; gives back what it would not find."""
    folders = [Path(location, "torch", "lib") for location in locations]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        return []
    missing = process.load(str(folder / "libtorch_global_deps.so"))
    for library in found:
        if _stem(library.elf.soname) in _PRELOADED and f"{os.sep}nvidia{os.sep}" in library.path:
            missing += process.load(library.path)
    return missing + process.load(str(folder / "libtorch_python.so"))


def _holders(found: Sequence[_Found]) -> dict[tuple[str, str], str]:
    """(distribution, library name) to the file that bears that name."""
    table: dict[tuple[str, str], str] = {}
    for library in found:
        for owner in library.owners:
            table.setdefault((owner, Path(library.path).name), library.path)
            if library.elf.soname:
                table.setdefault((owner, library.elf.soname), library.path)
    return table


def _link(
    library: _Found,
    process: Process,
    stems: Iterable[str],
    holders: Mapping[tuple[str, str], str],
    *,
    alone: Process | None = None,
) -> dict[str, Any]:
    before = alone if alone is not None and library.elf.executable else process
    missing = sorted({missing.name for missing in before.copy().load(library.path)})
    own = {name: holders[owner, name] for name in missing for owner in library.owners if (owner, name) in holders}
    return {
        "path": library.path,
        "owners": list(library.owners),
        "missing": [name for name in missing if name not in own],
        "assumed": own,
        "needs_cuda": sorted(name for name in library.elf.needed if _stem(name) in stems),
    }


def _second_owners(
    found: Sequence[_Found],
    stems: Iterable[str],
    search: SearchPath,
    files: Files,
    owners: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """CUDA libraries of a distribution that the loader's general path offers from elsewhere too."""
    for library in found:
        names = {library.elf.soname, Path(library.path).name}
        for name in sorted(name for name in names if library.owners and _stem(name) in stems):
            for candidate in search.everywhere(name):
                real = os.path.realpath(candidate)
                if real not in owners and files.loadable(real):
                    yield {"name": name, "path": library.path, "owners": list(library.owners), "other": candidate}


def _stem(name: str) -> str:
    return name.partition(".so")[0]
