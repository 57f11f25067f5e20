"""libraries: check that the dynamic loader finds every library that the image's files need.

This is asked of each shared library and program of the Python environment, and of the toolkit. All
that needs CUDA is imported after torch. So each library is loaded, by the rules of the loader, into
the process that `import torch` leaves: it holds the interpreter's own libraries and those of torch.
Programs start in a process of their own.

A missing library that lies in the same distribution is assumed to be loaded by that distribution
first. This is the only assumption, and the evidence lists it under `assumed`.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, cast

from validate.binaries.loader import (
    Binary,
    Files,
    Process,
    SearchPath,
    find_binaries,
    find_binaries_under,
    library_stem,
    load_torch,
    machine_named,
    read_binaries,
)
from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, failed, listed, matches
from validate.next_steps import BUILD_ANEW, pin

NVIDIAS_LIBRARIES = (
    *("cublas", "cudart", "cudnn", "cudss", "cufft", "cufile", "cupti", "curand", "cusolver"),
    *("cusparse", "cutensor", "nccl", "npp", "nvJitLink", "nvToolsExt", "nvcomp", "nvfatbin"),
    *("nvinfer", "nvjpeg", "nvrtc", "nvshmem"),
)
"""How the names of libraries begin that are in a Python package of NVIDIA's, without `lib`."""
_TORCHS_LIBRARIES = ("libc10", "libtorch.", "libtorch_c", "libtorch_python")
"""Beginnings of the names of torch's own libraries."""


class LinkException(TypedDict):
    """A file that may lack some libraries."""

    path: str
    """Pattern of the end of its path."""
    names: list[str]
    """Patterns of the libraries that it may lack."""
    reason: str


class _LibrariesExpect(TypedDict):
    of: Literal["environment", "toolkit"]
    home: str
    """The folder of the toolkit."""
    cuda_libraries: Mapping[str, str | None]
    """`libcudart` -> the major in its SONAME that torch's CUDA has; None: it says nothing."""
    host: list[str]
    """Patterns of libraries that the container runtime brings from the host: the driver's."""
    other_platforms: list[str]
    """Patterns of libraries that exist on other platforms only: ROCm's, say."""
    exceptions: list[LinkException]


class LibrariesExpect(_LibrariesExpect, total=False):
    """What a claim about libraries says."""

    pinned: list[str]
    """Of a derived image: the distributions of its base image. The others were added."""


class _Unreadable(TypedDict):
    path: str
    error: str


class Unreadable(_Unreadable, total=False):
    """A file with the name or the beginning of a library that the loader can't read.

    The fields below stand only where the file is for another machine.
    """

    owners: list[str]
    alternative: str
    """A library of the same name that one of the owners brings for this machine."""
    beside: str
    """Where there is no alternative: any library of the owners that is for this machine."""


class MissingLibrary(TypedDict):
    """A library that is not found, and the file that needs it."""

    path: str
    name: str


class HeldLibrary(TypedDict):
    """The file that torch's process has for a CUDA library."""

    path: str
    owners: list[str]


class _LinkedLibrary(TypedDict):
    path: str
    owners: list[str]
    missing: list[str]
    """Names of libraries that are not found. What these would need is not known."""
    assumed: dict[str, str]
    """Name -> the file of the same distribution that is taken to be loaded first."""
    needs_cuda: list[str]
    """CUDA libraries that the file itself names, found or not."""


class LinkedLibrary(_LinkedLibrary, total=False):
    """A library or program, and how the loader resolves what it needs."""

    offered: dict[str, list[str]]
    """Name of a missing library -> distributions that have a file of that name."""


class Rival(TypedDict):
    """A CUDA library of a distribution that the loader's search path has a second time."""

    name: str
    path: str
    owners: list[str]
    other: str
    """The second file, which no distribution lists."""


class _LibrariesEvidence(TypedDict):
    files: int
    unreadable: list[Unreadable]
    linked: list[LinkedLibrary]
    """Of the toolkit: those that miss something. Of the environment: the telling ones."""


class LibrariesEvidence(_LibrariesEvidence, total=False):
    """How the loader resolves libraries. The fields below are those of the environment only."""

    torch_misses: list[MissingLibrary]
    """What `import torch` would not find."""
    torch_holds: dict[str, HeldLibrary]
    """Name of a CUDA library -> the file that torch gets, and the distributions that list it."""
    second_owners: list[Rival]
    """CUDA libraries that are there a second time, outside of any distribution."""
    provided: list[tuple[str, str, tuple[str, ...]]]
    """SONAME, path and owners of each CUDA library in the environment, used by torch or not."""


class UserLibraries(NamedTuple):
    """The libraries and programs of the user's Python environment."""

    libraries: list[Binary]
    unreadable: list[Unreadable]
    files: Files
    """Everything that was read, so that no file is read twice."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, LibrariesEvidence]]:
    """Find out whether libraries and programs would find all the libraries that they need.

    A claim is about those of the CUDA toolkit, or of the Python environment. Nothing is loaded: the
    files are read, and looked for where the dynamic loader would look. Yields the subject of each
    claim and what is missing, or of another CUDA.
    """
    user, _, _ = installed.read_user_python()
    search = SearchPath.of(user.environ, user.directory, machine_named(user.machine))
    for claim in claims:
        if claim.expect["of"] == "toolkit":
            yield claim.subject, measure_toolkit(claim.expect["home"], search)
        else:
            cuda_stems = claim.expect["cuda_libraries"]
            yield claim.subject, measure_environment(cuda_stems, user.python, search)


@cache
def read_user_libraries() -> UserLibraries:
    """Read every library and program of the user's Python environment, once a process."""
    user, _, distributions = installed.read_user_python()
    owners = installed.names_of_owners(distributions)
    files = Files(machine_named(user.machine))
    paths = find_binaries(installed.locations(distributions), owners)
    libraries, unreadable = read_binaries(paths, owners, files)
    return UserLibraries(libraries, cast("list[Unreadable]", unreadable), files)


SETTINGS = Settings(reads_files_only=True, shared_reads=(read_user_libraries,))


def measure_toolkit(home: str, search: SearchPath) -> LibrariesEvidence:
    """Return which libraries and programs of the CUDA toolkit miss a library that they need.

    `home` is the toolkit's folder. `search` says where the dynamic loader looks for libraries.
    """
    _, _, distributions = installed.read_user_python()
    owners = installed.names_of_owners(distributions)

    # The toolkit of a -devel image has links to torch's CUDA libraries. The claim about the Python
    # environment covers these.
    of_environment = set()
    for path in find_binaries(installed.locations(distributions), owners):
        if Path(path).exists():
            of_environment.add(os.path.realpath(path))
    toolkits_own = []
    for path in find_binaries_under([home]):
        if os.path.realpath(path) not in of_environment:
            toolkits_own.append(path)

    # No Python distribution lists the toolkit's files, so they have no owners. `files` remembers
    # what was read of each file, so that none is read twice.
    files = read_user_libraries().files
    libraries, unreadable = read_binaries(toolkits_own, {}, files)
    empty_process = Process(search, files)
    linked = []
    for library in libraries:
        # `cuda_stems` and `holders` are only of use for files of distributions.
        resolved = resolve_needs(library, empty_process, cuda_stems=(), holders={})
        if resolved["missing"]:
            linked.append(resolved)
    return {
        "files": len(libraries),
        "unreadable": cast("list[Unreadable]", unreadable),
        "linked": linked,
    }


def measure_environment(
    cuda_stems: Collection[str], python: str, search: SearchPath
) -> LibrariesEvidence:
    """Return which libraries the files of the Python environment would get, and which they miss.

    `python` is the interpreter. `search` says where the dynamic loader looks for libraries.
    `cuda_stems` are the names of CUDA's libraries up to `.so`: `libcudart`.
    """
    _, _, distributions = installed.read_user_python()
    owners = installed.names_of_owners(distributions)
    libraries, unreadable, files = read_user_libraries()

    # Imitate two processes: one that has started Python, and one that has imported torch, too.
    # `load` and `load_torch` return the libraries that are not found.
    interpreter_only = Process(search, files)
    missing_at_start = interpreter_only.load(os.path.realpath(python))
    with_torch = interpreter_only.copy()
    missing_at_start += load_torch(with_torch, installed.locations(distributions), libraries)

    linked = resolve_all(libraries, interpreter_only, with_torch, cuda_stems)
    torch_misses: list[MissingLibrary] = []
    for missing in missing_at_start:
        torch_misses.append({"path": missing.needed_by, "name": missing.name})
    return {
        "files": len(libraries),
        "unreadable": unreadable,
        "torch_misses": torch_misses,
        "torch_holds": list_cuda_of_torch(with_torch, cuda_stems, owners),
        "linked": select_for_judge(linked),
        "second_owners": list(find_rivals(libraries, cuda_stems, search, files, owners)),
        "provided": list_cuda_libraries(libraries, cuda_stems),
    }


def resolve_all(
    libraries: Sequence[Binary],
    interpreter_only: Process,
    with_torch: Process,
    cuda_stems: Collection[str],
) -> list[LinkedLibrary]:
    """Return which libraries each file would get, and which it would miss.

    A missing library may be in the environment all the same, where the loader does not look. The
    result names the distributions that have it (`offered`).

    `interpreter_only` and `with_torch` are processes without and with torch. Libraries are loaded
    after torch; programs start in a process of their own. `cuda_stems` are the names of CUDA's
    libraries up to `.so`.
    """
    holders = index_by_owner(libraries)
    owners_by_name = list_owners_by_name(libraries)
    linked = []
    for library in libraries:
        process = interpreter_only if library.elf.executable else with_torch
        resolved = resolve_needs(library, process, cuda_stems, holders)
        resolved["offered"] = {}
        for name in resolved["missing"]:
            if name in owners_by_name:
                resolved["offered"][name] = sorted(owners_by_name[name])
        linked.append(resolved)
    return linked


def list_owners_by_name(libraries: Iterable[Binary]) -> dict[str, set[str]]:
    """Return the name of each library's file -> the distributions that have a file of that name."""
    owners: dict[str, set[str]] = {}
    for library in libraries:
        owners.setdefault(Path(library.path).name, set()).update(library.owners)
    return owners


def list_cuda_of_torch(
    with_torch: Process, cuda_stems: Collection[str], owners: Mapping[str, Sequence[str]]
) -> dict[str, HeldLibrary]:
    """Return the CUDA libraries that `import torch` loads: name -> file, and who brought it.

    `with_torch` is a process that has imported torch. `cuda_stems` are the names of CUDA's
    libraries up to `.so`. `owners` is path -> the distributions that list it.
    """
    cuda_libraries: dict[str, HeldLibrary] = {}
    for name, path in sorted(with_torch.loaded.items()):
        if library_stem(name) in cuda_stems:
            cuda_libraries[name] = {"path": path, "owners": list(owners.get(path, ()))}
    return cuda_libraries


def list_cuda_libraries(
    libraries: Iterable[Binary], cuda_stems: Collection[str]
) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return SONAME, path and owners of each CUDA library among these, sorted."""
    provided = set()
    for library in libraries:
        if library_stem(library.elf.soname) in cuda_stems:
            provided.add((library.elf.soname, library.path, library.owners))
    return sorted(provided)


def index_by_owner(libraries: Iterable[Binary]) -> dict[tuple[str, str], str]:
    """Return (distribution, name of a library) -> the file of that distribution and name.

    A library stands under the name of its file, and under its SONAME, the name by which other files
    ask for it. If a distribution has several files of one name, the first one counts.
    """
    holders: dict[tuple[str, str], str] = {}
    for library in libraries:
        for owner in library.owners:
            holders.setdefault((owner, Path(library.path).name), library.path)
            if library.elf.soname:
                holders.setdefault((owner, library.elf.soname), library.path)
    return holders


def resolve_needs(
    library: Binary,
    process: Process,
    cuda_stems: Collection[str],
    holders: Mapping[tuple[str, str], str],
) -> LinkedLibrary:
    """Find out which of the libraries that a library or program needs are missing.

    `process` is the one into which it would be loaded. `holders` has the libraries of each
    distribution (see index_by_owner), `cuda_stems` the names of CUDA's libraries up to `.so`.
    """
    # Load it into a copy, so that the next library does not find what this one has loaded.
    not_found = process.copy().load(library.path)
    names_not_found = sorted({missing_library.name for missing_library in not_found})

    # If the package itself has a library of that name, it is assumed to load it first.
    assumed = {}
    for name in names_not_found:
        for owner in library.owners:
            if (owner, name) in holders:
                assumed[name] = holders[owner, name]
    needs_cuda = [name for name in library.elf.needed if library_stem(name) in cuda_stems]
    return {
        "path": library.path,
        "owners": list(library.owners),
        "missing": [name for name in names_not_found if name not in assumed],
        "assumed": assumed,
        "needs_cuda": sorted(needs_cuda),
    }


def select_for_judge(linked: Sequence[LinkedLibrary]) -> list[LinkedLibrary]:
    """Return the libraries that the judge needs to see. The others would only make evidence large.

    The judge looks at libraries that miss another one, need one of CUDA, or rely on one that is
    assumed to be loaded first. It may excuse a library for another one of the same distribution
    that works. So if one library of a distribution misses something, the judge needs all of them.
    """
    distributions_with_missing: set[str] = set()
    for library in linked:
        if library["missing"]:
            distributions_with_missing.update(library["owners"])

    selected = []
    for library in linked:
        is_judged = library["missing"] or library["needs_cuda"] or library["assumed"]
        may_excuse_another = not distributions_with_missing.isdisjoint(library["owners"])
        if is_judged or may_excuse_another:
            selected.append(library)
    return selected


def find_rivals(
    libraries: Sequence[Binary],
    cuda_stems: Collection[str],
    search: SearchPath,
    files: Files,
    owners: Mapping[str, object],
) -> Iterator[Rival]:
    """Yield each second copy of a CUDA library that the loader could take instead of a package's.

    libraries: all libraries of the Python environment.
    cuda_stems: the names of CUDA's libraries up to `.so`.
    search: where the loader looks for libraries.
    files: knows which files this machine can load.
    owners: path -> the distributions that list it. A file of a distribution is no rival.
    """
    for library in libraries:
        if not library.owners:
            continue
        # A program may ask for the library by its SONAME or by the name of its file.
        for name in sorted({library.elf.soname, Path(library.path).name}):
            if library_stem(name) not in cuda_stems:
                continue
            # `everywhere` yields all paths at which the loader looks. Most of them do not exist.
            for candidate in search.everywhere(name):
                real = os.path.realpath(candidate)
                if real not in owners and files.is_loadable(real):
                    yield {
                        "name": name,
                        "path": library.path,
                        "owners": list(library.owners),
                        "other": candidate,
                    }


class JudgedLibrary(NamedTuple):
    """A library or program, and what of its needs is a fault."""

    path: str
    owners: list[str]
    needs_cuda: list[str]
    missing: list[str]
    """What the loader does not find, without the driver's libraries: they come from the host."""
    troubles: list[str]
    """The missing libraries, and those of another CUDA major than torch's, found or not. A library
    without troubles works."""


def judge(_subject: str, expect: LibrariesExpect, evidence: LibrariesEvidence) -> Finding:
    """Pass if every library and program finds the libraries that it needs, all of torch's CUDA.

    Libraries of the host's driver (`expect["host"]`) may be missing: the container runtime brings
    them. If the claim is about the CUDA toolkit, only missing libraries are a fault.
    """
    if not evidence["files"]:
        return failed(
            f"there is no shared library in the {expect['of']}, so nothing could be checked",
            "if a step of your Dockerfile removes these libraries, take that step out and build "
            f"the image again; if none does, {BUILD_ANEW}",
        )
    faults = list(describe_unreadable(expect, evidence["unreadable"]))
    # If `import torch` misses a library, so does everything that needs torch. Only the first faults
    # are shown, so this one comes before those that follow from it.
    for missing in evidence.get("torch_misses", ()):
        if not matches(missing["name"], expect["host"]):
            faults.append(f"`import torch` misses {missing['name']}, needed by {missing['path']}")
    faults += find_link_faults(expect, evidence["linked"])
    good = f"all {evidence['files']} libraries and programs find what they need"
    if expect["of"] == "toolkit":
        return conclude(faults, good)

    faults += find_cuda_faults(expect, evidence)
    good += ", one CUDA"
    # Libraries that work only if their package loads another of its libraries first.
    assumed = {Path(library["path"]).name for library in evidence["linked"] if library["assumed"]}
    if assumed:
        good += f" (taking {listed(sorted(assumed))} to be loaded after their siblings)"
    return conclude(faults, good)


def describe_unreadable(expect: LibrariesExpect, unreadable: Sequence[Unreadable]) -> Iterator[str]:
    """Yield a sentence for each file that can't be loaded, unless its package works without it."""
    for file in unreadable:
        # The package has another build of this library that can be loaded here.
        has_alternative = "alternative" in file
        # A package that a user added may bring libraries for several machines.
        is_extra = "beside" in file and is_added(expect, file.get("owners", ()))
        if not has_alternative and not is_extra:
            yield f"{file['path']} can't be loaded: {file['error']}"


def find_link_faults(expect: LibrariesExpect, linked: Sequence[LinkedLibrary]) -> Iterator[str]:
    """Yield sentences about libraries and programs that do not find the libraries they need.

    `linked` are the image's libraries and programs. A library that one of them needs is missing, or
    is of another CUDA major than torch's: these are its `troubles`. There is one sentence for each
    package that a user added to the image, and then one for each other library or program.
    """
    judged = [judge_library(expect, library) for library in linked]
    of_added = []
    of_image = []
    for library in judged:
        # Some are excused: for example, the same library for torch's CUDA is among the judged ones.
        if not library.troubles or is_excused(expect, library, judged):
            continue
        if is_added(expect, library.owners):
            of_added.append(library)
        else:
            of_image.append(library)
    # Those that use CUDA come first.
    of_image.sort(key=lambda library: (not library.needs_cuda, library.path))

    yield from describe_added(expect, of_added)
    for library in of_image:
        needs = f"{library.path} of {listed(library.owners) or 'no Python package'} needs"
        # Missing ones say more: those of another CUDA major are then left out of the sentence.
        if library.missing:
            names = listed(sort_telling_first(expect, library.missing))
            yield f"{needs} {names}, which the loader does not find"
        else:
            yield f"{needs} {listed(library.troubles)} of another CUDA major than torch's"


def judge_library(expect: LibrariesExpect, library: LinkedLibrary) -> JudgedLibrary:
    """Return a library with its troubles: the names of libraries that it needs and does not get.

    These are missing ones, and CUDA's of another major than torch's. Whether there is an excuse for
    a trouble is not asked here.
    """
    # The driver's libraries need not be in the image. The container runtime brings them from the
    # host.
    missing = [name for name in library["missing"] if not matches(name, expect["host"])]
    of_other_cuda = [name for name in library["needs_cuda"] if is_of_other_cuda(expect, name)]
    return JudgedLibrary(
        path=library["path"],
        owners=library["owners"],
        needs_cuda=library["needs_cuda"],
        missing=missing,
        troubles=sorted({*missing, *of_other_cuda}),
    )


def is_added(expect: LibrariesExpect, owners: Sequence[str]) -> bool:
    """Return whether a file was added to the base image, by the distributions that own it.

    It was if none of them is one of the base image's (`pinned`). Only claims about derived images
    name those.
    """
    if not owners or "pinned" not in expect:
        return False
    return set(owners).isdisjoint(expect["pinned"])


def describe_added(expect: LibrariesExpect, libraries: Sequence[JudgedLibrary]) -> Iterator[str]:
    """Yield one sentence for each package that was added, about what its libraries do not find.

    `libraries` are those that do not find something. A package may have many: torchcodec has one
    for each release of FFmpeg. A sentence for each library would name the package over and over.
    """
    by_package: dict[str, list[JudgedLibrary]] = {}
    for library in libraries:
        by_package.setdefault(listed(library.owners), []).append(library)

    for package, of_package in by_package.items():
        troubles: set[str] = set()
        for library in of_package:
            troubles.update(library.troubles)
        names = sort_telling_first(expect, troubles)
        of_other_cuda = [name for name in names if is_of_other_cuda(expect, name)]
        if of_other_cuda:
            needs = f"{listed(of_other_cuda)} of another CUDA major than torch's"
        else:
            needs = f"{listed(names)}, which the loader does not find"
        # `libtorchcodec_core4.so and 3 more`
        files = listed([Path(library.path).name for library in of_package], limit=1)
        yield f"{package}, which was added, needs {needs} ({files})"


def sort_telling_first(expect: LibrariesExpect, names: Iterable[str]) -> list[str]:
    """Sort names of missing libraries: CUDA's first, then torch's, then all others.

    Where CUDA is missing, the others matter little.
    """

    def rank(name: str) -> tuple[bool, bool, str]:
        is_cudas = library_stem(name) in expect["cuda_libraries"]
        is_torchs = name.startswith(_TORCHS_LIBRARIES)
        # False sorts before True.
        return (not is_cudas, not is_torchs, name)

    return sorted(names, key=rank)


def is_excused(
    expect: LibrariesExpect, library: JudgedLibrary, judged: Sequence[JudgedLibrary]
) -> bool:
    """Return whether it is all right that a library does not find what it needs (its `troubles`).

    That is so in three cases:

    - The claim has an exception for the library.
    - A user added its package, and another library of that package works in its place. CUDA's and
      torch's libraries must be found all the same.
    - The library is for another platform (ROCm) or another CUDA, and the same library for our CUDA
      works.

    `judged` are all libraries of the image. The ones that work are looked for among them.
    """
    for exception in expect["exceptions"]:
        if is_covered(exception, library.path, library.troubles):
            return True

    lacks_cuda_or_torch = any(
        library_stem(name) in expect["cuda_libraries"] or name.startswith(_TORCHS_LIBRARIES)
        for name in library.troubles
    )
    if is_added(expect, library.owners) and not lacks_cuda_or_torch:
        return has_working_alternative(library, judged)

    is_for_another_platform = all(
        matches(name, expect["other_platforms"]) or is_of_other_cuda(expect, name)
        for name in library.troubles
    )
    return is_for_another_platform and has_sibling_for_our_cuda(expect, library, judged)


def has_working_alternative(library: JudgedLibrary, judged: Sequence[JudgedLibrary]) -> bool:
    """Return whether another library of the same distributions works in place of this one.

    In place of a Python module, only a module of the same name works: mpi4py has MPI.mpich.*.so and
    MPI.openmpi.*.so. In place of any other library, every library of the package will do: it may be
    a plugin, or there is one for each release of FFmpeg.
    """
    # `library` itself does not work, so it is not taken for its own alternative.
    is_module = library.path.endswith(".abi3.so") or ".cpython-" in library.path
    for other in judged:
        works = not other.troubles
        if not works or other.owners != library.owners:
            continue
        if not is_module or import_path(other.path) == import_path(library.path):
            return True
    return False


def has_sibling_for_our_cuda(
    expect: LibrariesExpect, library: JudgedLibrary, judged: Sequence[JudgedLibrary]
) -> bool:
    """Return whether a package also has this library for torch's CUDA, with all that it needs.

    bitsandbytes, for example, brings libbitsandbytes_cuda126.so, libbitsandbytes_cuda130.so and
    others, and loads one of them. The others may lack libraries without harm.

    expect: of the claim; it says which CUDA is torch's.
    judged: all libraries of the image, each with what it needs and what is wrong with it.
    """
    # `bitsandbytes/libbitsandbytes_`
    path_of_all = common_path(library.path)
    for other in judged:
        works = not other.troubles
        if not works or common_path(other.path) != path_of_all:
            continue
        if any(is_of_our_cuda(expect, name) for name in other.needs_cuda):
            return True
    return False


def import_path(path: str) -> str:
    """Return the path of a module without the suffixes of its name: `mpi4py/MPI`."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}"


def common_path(path: str) -> str:
    """Return the part of a path that libraries for several CUDAs share: up to the last underscore.

    `bnb/libbnb_cuda126.so` becomes `bnb/libbnb_`. A path without an underscore stays whole.
    """
    folder, _, name = path.rpartition("/")
    head, underscore, _ = name.partition(".so")[0].rpartition("_")
    return f"{folder}/{head}{underscore}" if head else path


def is_covered(exception: LinkException, path: str, names: Iterable[str]) -> bool:
    """Return whether an exception is about this file and allows each of these libraries."""
    if not matches(path, [f"*/{exception['path']}"]):
        return False
    return all(matches(name, exception["names"]) for name in names)


def find_cuda_faults(expect: LibrariesExpect, evidence: LibrariesEvidence) -> Iterator[str]:
    """Yield a sentence for each CUDA library that may be loaded in place of the right one.

    There are three kinds: one that torch gets from outside of the wheels, one of another CUDA
    major, and a second copy of one that a wheel brings.
    """
    # The CUDA libraries that `import torch` loads. If one of them is a wheel's, all must be. If
    # none is, CUDA comes from elsewhere, such as a base image.
    torch_holds = evidence["torch_holds"]
    is_from_wheels = any(library["owners"] for library in torch_holds.values())
    for name, library in torch_holds.items():
        if is_from_wheels and not library["owners"]:
            yield (
                f"torch gets {name} from {library['path']}, which belongs to no installed package"
            )

    # All CUDA libraries in the environment, whether torch uses them or not.
    for soname, path, owners in evidence["provided"]:
        is_allowed = any(
            is_covered(exception, path, [soname]) for exception in expect["exceptions"]
        )
        if is_of_other_cuda(expect, soname) and not is_allowed:
            owner = listed(list(owners)) or "no package at all"
            yield f"{path} of {owner} is {soname}, of another CUDA major than torch's"

    # Copies that no distribution brought, by the name of a library that one did bring.
    for rival in evidence["second_owners"]:
        name = f"{rival['name']} of {listed(rival['owners'])}"
        yield f"{name} has a second copy on the loader's path: {rival['other']}"


def is_of_our_cuda(expect: LibrariesExpect, name: str) -> bool:
    """Return whether a name is that of a CUDA library, and of the major of torch's CUDA."""
    library, major = split_soname(name)
    return bool(major) and expect["cuda_libraries"].get(library) == major


def is_of_other_cuda(expect: LibrariesExpect, name: str) -> bool:
    """Return whether a name is that of a CUDA library of another major than torch's CUDA.

    False for names without a version, and for libraries whose version says nothing of CUDA's.
    """
    library, major = split_soname(name)
    expected = expect["cuda_libraries"].get(library)
    return bool(major) and expected is not None and major != expected


def split_soname(name: str) -> tuple[str, str]:
    """Return name and major version of a SONAME: `libcudart` and `11` of `libcudart.so.11.0`.

    The major is empty where there is no version.
    """
    library, _, version = name.partition(".so.")
    return library, version.partition(".")[0]


CLAIMS = {"libraries": judge}
_PIN = pin("the release of the package that the reason names that was made for this torch and CUDA")
_ADD = pin(
    "NVIDIA's package that has the missing library (of CUDA 12, nvidia-curand-cu12 has "
    "libcurand.so.10), or, if the missing library is of another CUDA than torch's, the "
    "release of the package that was made for this torch and CUDA"
)
_REMOVE_COPY = (
    "remove the copy that no package brings, or the LD_LIBRARY_PATH line or /etc/ld.so.conf.d file "
    "that leads to it, in your Dockerfile or base image, and build the image again"
)
_REMOVE_FILE = (
    "remove the file that the reason names in the step that brings it, and build the image again"
)
NEXT_STEPS = {
    "libraries": {
        " second copy ": _REMOVE_COPY,
        "torch gets ": _REMOVE_COPY,
        "no package at all": _REMOVE_FILE,
        "no Python package": "install the Debian package that has the missing library (`apt-get "
        "install`) in your Dockerfile or base image; if Debian has none, remove the file that "
        "needs it in the step that brings that file; then build the image again",
        " CUDA major": _PIN,
        "can't be loaded": "if the file that the reason names is of a Python package, "
        f"{pin('the release of that package that was made for this torch and CUDA')}; if not, "
        "remove the file in the step that brings it, and build the image again",
        **{f" needs lib{name}": _ADD for name in NVIDIAS_LIBRARIES},
        " needs libtorch": _PIN,
        " needs libc10": _PIN,
        "": "install the Debian package that has the missing library (`apt-get install`) in your "
        "Dockerfile or base image, and build the image again",
    }
}
