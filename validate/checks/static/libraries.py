"""libraries: the loader finds what each shared library and program needs, in the Python environment and in the toolkit.

The probe loads each library into the process that `import torch` leaves, because all that needs CUDA is imported after
torch: first the interpreter's own libraries, then torch's closure, then the library itself. Programs start alone. A
missing library that lies in the same distribution is assumed to be loaded by that distribution first. This is the only
assumption, and the evidence lists it under `assumed`.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from validate.binaries.loader import (
    Files,
    Found,
    Process,
    SearchPath,
    import_torch,
    machine_named,
    objects,
    objects_under,
    read_all,
    stem,
)
from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, failed, listed, matches

_TORCHS = ("libc10", "libtorch.", "libtorch_c", "libtorch_python")
"""So begin the names of torch's own libraries."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given, _, everything = installed.of_user()
    search = SearchPath.of(given.environ, given.directory, machine_named(given.machine))
    locations = installed.locations(everything)
    for claim in claims:
        expect = claim.expect
        if expect["of"] == "toolkit":
            theirs, files = objects(locations, installed.names_of_owners(everything)), of_user()[2]
            yield claim.subject, _toolkit(expect["home"], theirs, Process(search, files), files)
        else:
            yield (
                claim.subject,
                _environment(expect["cuda_libraries"], given.python, locations, search),
            )


@cache
def of_user() -> tuple[Sequence[Found], Sequence[dict[str, Any]], Files]:
    """The libraries and programs of the user's environment, those that can't be read, and what was read for that."""
    given, _, everything = installed.of_user()
    owners, files = installed.names_of_owners(everything), Files(machine_named(given.machine))
    return *read_all(objects(installed.locations(everything), owners), owners, files), files


SETTINGS = Settings(reads_files_only=True, shared_reads=(of_user,))


def _toolkit(home: str, theirs: Iterable[str], process: Process, files: Files) -> Mapping[str, Any]:
    """Its own files. A -devel image's toolkit has links to torch's CUDA libraries: those are the environment's."""
    read_there = {os.path.realpath(path) for path in theirs if Path(path).exists()}
    own = [path for path in objects_under([home]) if os.path.realpath(path) not in read_there]
    found, unreadable = read_all(own, {}, files)
    return {
        "files": len(found),
        "unreadable": unreadable,
        "linked": [
            entry for library in found if (entry := _link(library, process, (), {}))["missing"]
        ],
    }


def _environment(
    stems: Collection[str], python: str, locations: Sequence[str], search: SearchPath
) -> Mapping[str, Any]:
    (found, unreadable, files), owners = (
        of_user(),
        installed.names_of_owners(installed.of_user()[2]),
    )
    interpreter_alone = Process(search, files)
    missing_at_start = interpreter_alone.load(os.path.realpath(python))
    with_torch = interpreter_alone.copy()
    missing_at_start += import_torch(with_torch, locations, found)
    # (distribution, library name) to the file that bears that name.
    holders: dict[tuple[str, str], str] = {}
    offered: dict[str, set[str]] = {}
    for library in found:
        offered.setdefault(Path(library.path).name, set()).update(library.owners)
        for owner in library.owners:
            holders.setdefault((owner, Path(library.path).name), library.path)
            if library.elf.soname:
                holders.setdefault((owner, library.elf.soname), library.path)
    linked = [
        _link(library, with_torch, stems, holders, alone=interpreter_alone) for library in found
    ]
    for entry in linked:
        entry["offered"] = {
            name: sorted(offered[name]) for name in entry["missing"] if name in offered
        }
    troubled = {owner for entry in linked if entry["missing"] for owner in entry["owners"]}
    return {
        "files": len(found),
        "unreadable": unreadable,
        "torch_misses": [
            {"path": missing.needed_by, "name": missing.name} for missing in missing_at_start
        ],
        "torch_holds": {
            name: {"path": path, "owners": list(owners.get(path, ()))}
            for name, path in sorted(with_torch.held.items())
            if stem(name) in stems
        },
        "linked": [
            entry
            for entry in linked
            if entry["missing"]
            or entry["needs_cuda"]
            or entry["assumed"]
            or not troubled.isdisjoint(entry["owners"])
        ],
        "second_owners": list(_second_owners(found, stems, search, files, owners)),
        "provided": sorted(
            {
                (one.elf.soname, one.path, one.owners)
                for one in found
                if stem(one.elf.soname) in stems
            }
        ),
    }


def _link(
    library: Found,
    process: Process,
    stems: Collection[str],
    holders: Mapping[tuple[str, str], str],
    *,
    alone: Process | None = None,
) -> dict[str, Any]:
    before = alone if alone is not None and library.elf.executable else process
    missing = sorted({missing.name for missing in before.copy().load(library.path)})
    own = {
        name: holders[owner, name]
        for name in missing
        for owner in library.owners
        if (owner, name) in holders
    }
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
) -> Iterator[Mapping[str, Any]]:
    """CUDA libraries of a distribution that the loader's general path offers from elsewhere too."""
    for library in found:
        names = {library.elf.soname, Path(library.path).name}
        for name in sorted(name for name in names if library.owners and stem(name) in stems):
            for candidate in search.everywhere(name):
                real = os.path.realpath(candidate)
                if real not in owners and files.loadable(real):
                    yield {
                        "name": name,
                        "path": library.path,
                        "owners": list(library.owners),
                        "other": candidate,
                    }


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """libraries. expect: {of: `environment` or `toolkit`, home, cuda_libraries: {stem: SONAME version of this CUDA, or
    null where it says nothing of it}, host: libraries that the host injects, other_platforms: names of what only those
    have, exceptions: [{path, names, reason}], of a child pinned: its parent's distributions}.

    evidence: {files, unreadable: read_all's, linked: [{path, owners, missing, needs_cuda: what of CUDA it needs,
    assumed: {name that its distribution is taken to load: file}, offered: {what it misses: distributions that have a
    file of that name}}]}, and of the environment {torch_misses: [{name,
    path: of what needs it}], torch_holds: {SONAME of a CUDA library: {path, owners}}, second_owners: [{name, path,
    owners, other: the file that the loader's path offers}], provided: [(SONAME, path, owners) of each CUDA library]}.
    """
    if not evidence["files"]:
        return failed(f"there is no shared library in the {expect['of']}")
    faults = [
        f"{one['path']} can't be loaded: {one['error']}"
        for one in evidence["unreadable"]
        if "alternative" not in one and not ("beside" in one and _is_added(expect, one))
    ]
    # What `import torch` misses, all that needs torch misses too: the root comes first.
    torch_misses = [
        one for one in evidence.get("torch_misses", ()) if not matches(one["name"], expect["host"])
    ]
    faults += [
        f"`import torch` misses {one['name']}, needed by {one['path']}" for one in torch_misses
    ]
    linked = [_with_troubles(expect, one) for one in evidence["linked"]]
    troubled = [one for one in linked if one["troubles"] and not _excused(expect, one, linked)]
    faults += _of_added(expect, [one for one in troubled if _is_added(expect, one)])
    ours = [one for one in troubled if not _is_added(expect, one)]
    for one in sorted(ours, key=lambda one: (not one["needs_cuda"], one["path"])):
        what = f"{one['path']} of {listed(one['owners']) or 'no distribution'} needs"
        if one["missing"]:
            faults.append(
                f"{what} {listed(_telling_first(expect, one['missing']))}, which the loader does not find"
            )
        else:
            faults.append(f"{what} {listed(one['troubles'])} of another CUDA major than torch's")
    if expect["of"] == "toolkit":
        return conclude(
            faults, f"all {evidence['files']} libraries and programs find what they need"
        )
    torch_holds = evidence["torch_holds"]
    # Where wheels bring CUDA, torch must get all of it from wheels.
    if any(held["owners"] for held in torch_holds.values()):
        for name, held in torch_holds.items():
            if not held["owners"]:
                faults.append(f"torch gets {name} from {held['path']}, which no distribution owns")
    for soname, path, owners in evidence["provided"]:
        excused = any(_covers(exception, path, [soname]) for exception in expect["exceptions"])
        if _is_major(expect, soname, own=False) and not excused:
            faults.append(
                f"{path} of {listed(list(owners)) or 'no distribution'} is {soname}: another CUDA major than torch's"
            )
    faults += [
        f"{one['name']} of {listed(one['owners'])} has a rival on the loader's path: {one['other']}"
        for one in evidence["second_owners"]
    ]
    good = f"all {evidence['files']} libraries and programs find what they need, one CUDA"
    assumed = sorted({Path(one["path"]).name for one in linked if one["assumed"]})
    return conclude(
        faults,
        f"{good} (taking {listed(assumed)} to be loaded after their siblings)" if assumed else good,
    )


def _with_troubles(expect: Mapping[str, Any], one: Mapping[str, Any]) -> Mapping[str, Any]:
    """`troubles`: what it needs and does not find, and what of another CUDA it needs, found or not.

    The driver's libraries come from the host.
    """
    missing = [name for name in one["missing"] if not matches(name, expect["host"])]
    foreign = [name for name in one["needs_cuda"] if _is_major(expect, name, own=False)]
    return {**one, "missing": missing, "troubles": sorted({*missing, *foreign})}


def _is_added(expect: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    """Whether a file is of a package that a child added."""
    return (
        bool(one.get("owners"))
        and "pinned" in expect
        and not set(one["owners"]) & set(expect["pinned"])
    )


def _of_added(expect: Mapping[str, Any], troubled: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence a package: of alternatives, each lacks another release of the same."""
    for owner in dict.fromkeys(listed(one["owners"]) for one in troubled):
        of_owner = [one for one in troubled if listed(one["owners"]) == owner]
        names = _telling_first(expect, {name for one in of_owner for name in one["troubles"]})
        files = listed([Path(one["path"]).name for one in of_owner], limit=1)
        foreign = [name for name in names if _is_major(expect, name, own=False)]
        of = (
            " of another CUDA major than torch's" if foreign else ", which the loader does not find"
        )
        yield f"{owner}, which was added, needs {listed(foreign or names)}{of} ({files})"


def _telling_first(expect: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """CUDA's libraries, then torch's, then the rest: where those lack, the rest is beside the point."""
    cuda = expect["cuda_libraries"]
    return sorted(
        names, key=lambda name: (stem(name) not in cuda, not name.startswith(_TORCHS), name)
    )


def _excused(
    expect: Mapping[str, Any], one: Mapping[str, Any], linked: Sequence[Mapping[str, Any]]
) -> bool:
    """A named exception, or an alternative: made for another platform, where a sibling serves this image's CUDA.

    Of an added package: what it lacks is not CUDA's or torch's, where another of the package works: there is one for
    each release of FFmpeg, or it is a plugin. Of a module of Python's, one of its name: mpi4py has MPI.mpich.*.so and
    MPI.openmpi.*.so. A package of which none works can't be used.
    """
    if any(_covers(exception, one["path"], one["troubles"]) for exception in expect["exceptions"]):
        return True
    cudas = any(
        stem(name) in expect["cuda_libraries"] or name.startswith(_TORCHS)
        for name in one["troubles"]
    )
    if _is_added(expect, one) and not cudas:
        working = [
            other for other in linked if not other["troubles"] and other["owners"] == one["owners"]
        ]
        is_module = one["path"].endswith(".abi3.so") or ".cpython-" in one["path"]
        return any(
            _imported_as(other["path"]) == _imported_as(one["path"]) for other in working
        ) or bool(working and not is_module)
    foreign = expect["other_platforms"]
    elsewhere = all(
        matches(name, foreign) or _is_major(expect, name, own=False) for name in one["troubles"]
    )
    # One that finds all it needs, and is linked against this image's CUDA.
    siblings = (
        other
        for other in linked
        if _family(other["path"]) == _family(one["path"]) and not other["troubles"]
    )
    return elsewhere and any(
        _is_major(expect, name, own=True) for other in siblings for name in other["needs_cuda"]
    )


def _imported_as(path: str) -> str:
    """Folder and name of a module, without what tells its alternatives apart."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def _covers(exception: Mapping[str, Any], path: str, names: Iterable[str]) -> bool:
    return matches(path, [f"*/{exception['path']}"]) and all(
        matches(name, exception["names"]) for name in names
    )


def _family(path: str) -> str:
    """What alternatives share: `.../bitsandbytes/libbitsandbytes_` of `libbitsandbytes_cuda126.so`."""
    folder, _, name = path.rpartition("/")
    head, underscore, _ = name.partition(".so")[0].rpartition("_")
    return f"{folder}/{head}{underscore}" if head else path


def soname_major(name: str) -> tuple[str, str]:
    """`("libcudart", "11")` of `libcudart.so.11.0`."""
    stem, _, version = name.partition(".so.")
    return stem, version.partition(".")[0]


def _is_major(expect: Mapping[str, Any], name: str, *, own: bool) -> bool:
    """Whether a name is that of a CUDA library of this image's major (`own`), or of another."""
    stem, major = soname_major(name)
    expected = expect["cuda_libraries"].get(stem)
    return expected is not None and bool(major) and (expected == major) is own


CLAIMS = {"libraries": judge}
