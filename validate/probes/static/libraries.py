"""S3: the loader finds what each shared library and program needs, in the Python environment and in the toolkit.

The probe loads each library into the process that `import torch` leaves, because all that needs CUDA is imported after
torch: first the interpreter's own libraries, then torch's closure, then the library itself. Programs start alone. A
missing library that lies in the same distribution is assumed to be loaded by that distribution first. This is the only
assumption, and the evidence lists it under `assumed`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from validate.binaries import machines
from validate.binaries.linking import Found, import_torch, objects, objects_under, read_all, stem
from validate.binaries.loader import Files, Process, SearchPath
from validate.claims import Claim
from validate.contracts.static import LibrariesEvidence, LibrariesExpect, Linked, SecondOwner, ToolkitLinks
from validate.environment import installed, interpreter, user_environment
from validate.environment.installed import Distribution


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, LibrariesEvidence | ToolkitLinks]]:
    given = user_environment.recorded()
    machine = machines.named(given.machine)
    search = SearchPath.of(given.environ, given.directory, machine)
    files = Files(machine)
    start = interpreter.start(given)
    everything = installed.distributions(entry or given.directory for entry in start.path)
    packages = _Packages.of(everything)
    for claim in claims:
        expect = cast(LibrariesExpect, claim.expect)
        if expect["of"] == "toolkit":
            yield claim.subject, _toolkit(Path(expect["home"]), packages, search, files)
        else:
            yield claim.subject, _environment(expect["cuda_libraries"], given.python, packages, search, files)


@dataclass(frozen=True)
class _Packages:
    """The environment's folders, and the names of each file's distributions."""

    locations: Sequence[str]
    owners: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, everything: Sequence[Distribution]) -> _Packages:
        owning = installed.owners(everything).items()
        return cls(
            locations=list(dict.fromkeys(distribution.location for distribution in everything)),
            owners={path: tuple(sorted({owner.name for owner in owners})) for path, owners in owning},
        )


def _toolkit(home: Path, packages: _Packages, search: SearchPath, files: Files) -> ToolkitLinks:
    """Its own files. A -devel image's toolkit has links to torch's CUDA libraries: those are the environment's."""
    theirs = objects(packages.locations, packages.owners)
    read_there = {os.path.realpath(path) for path in theirs if Path(path).exists()}
    own = [path for path in objects_under([str(home)]) if os.path.realpath(path) not in read_there]
    found, unreadable = read_all(own, {}, files)
    process = Process(search, files)
    return {
        "files": len(found),
        "unreadable": unreadable,
        "linked": [entry for library in found if (entry := _link(library, process, (), {}))["missing"]],
    }


def _environment(
    stems: Collection[str], python: str, packages: _Packages, search: SearchPath, files: Files
) -> LibrariesEvidence:
    locations, owners = packages.locations, packages.owners
    found, unreadable = read_all(objects(locations, owners), owners, files)
    interpreter_alone = Process(search, files)
    missing_at_start = interpreter_alone.load(os.path.realpath(python))
    with_torch = interpreter_alone.copy()
    missing_at_start += import_torch(with_torch, locations, found)
    holders = _holders(found)
    linked = [_link(library, with_torch, stems, holders, alone=interpreter_alone) for library in found]
    return {
        "files": len(found),
        "unreadable": unreadable,
        "torch_misses": [{"path": missing.needed_by, "name": missing.name} for missing in missing_at_start],
        "torch_holds": {
            name: {"path": path, "owners": list(owners.get(path, ()))}
            for name, path in sorted(with_torch.held.items())
            if stem(name) in stems
        },
        "linked": [entry for entry in linked if entry["missing"] or entry["needs_cuda"] or entry["assumed"]],
        "second_owners": list(_second_owners(found, stems, search, files, owners)),
        "provided": sorted(
            {
                (library.elf.soname, library.path, library.owners)
                for library in found
                if stem(library.elf.soname) in stems
            }
        ),
    }


def _holders(found: Sequence[Found]) -> dict[tuple[str, str], str]:
    """(distribution, library name) to the file that bears that name."""
    table: dict[tuple[str, str], str] = {}
    for library in found:
        for owner in library.owners:
            table.setdefault((owner, Path(library.path).name), library.path)
            if library.elf.soname:
                table.setdefault((owner, library.elf.soname), library.path)
    return table


def _link(
    library: Found,
    process: Process,
    stems: Collection[str],
    holders: Mapping[tuple[str, str], str],
    *,
    alone: Process | None = None,
) -> Linked:
    before = alone if alone is not None and library.elf.executable else process
    missing = sorted({missing.name for missing in before.copy().load(library.path)})
    own = {name: holders[owner, name] for name in missing for owner in library.owners if (owner, name) in holders}
    return {
        "path": library.path,
        "owners": list(library.owners),
        "missing": [name for name in missing if name not in own],
        "assumed": own,
        "needs_cuda": sorted(name for name in library.elf.needed if stem(name) in stems),
    }


def _second_owners(
    found: Sequence[Found],
    stems: Collection[str],
    search: SearchPath,
    files: Files,
    owners: Mapping[str, object],
) -> Iterator[SecondOwner]:
    """CUDA libraries of a distribution that the loader's general path offers from elsewhere too."""
    for library in found:
        names = {library.elf.soname, Path(library.path).name}
        for name in sorted(name for name in names if library.owners and stem(name) in stems):
            for candidate in search.everywhere(name):
                real = os.path.realpath(candidate)
                if real not in owners and files.loadable(real):
                    yield {"name": name, "path": library.path, "owners": list(library.owners), "other": candidate}
