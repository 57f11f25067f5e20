"""symbols: check that the libraries of each library export every symbol that it needs.

A symbol that nothing exports fails at the first call, or at import. The loader looks symbols up in
the *scope* of a library, a list of files: first the interpreter and its libraries, then what torch
opens for everybody (RTLD_GLOBAL), then the file that was opened and all that it needs. That file is
libtorch_python.so for all that `import torch` loads, else the library itself.

The files of a scope are found as `libraries` finds them. A scope that lacks a library is left to
that check. Only the host's driver may be missing here: its symbols are known by their names.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from validate.binaries import dynsym
from validate.binaries.dynsym import Symbols
from validate.binaries.elf import ElfError
from validate.binaries.loader import Binary, Process, SearchPath, load_torch, machine_named
from validate.checks import Settings
from validate.checks.static import libraries
from validate.claims import Claim
from validate.environment import installed
from validate.harness.forked import map_on_all_cores
from validate.judging import Finding, conclude, count_unlisted, failed, listed, matches
from validate.next_steps import REPORT, pin

SETTINGS = Settings(reads_files_only=True, shared_reads=(libraries.read_user_libraries,))

_NUMBER = re.compile(r"\d+")
_MOST_NAMED = 5
_LONGEST_NAME = 100
_MOST_LISTED = 60
_DRIVER_SYMBOL = re.compile(rb"cu[A-Z]\w+|nvml[A-Z]\w+")
_PYTHON_SYMBOL = re.compile(rb"_?Py[A-Z_]\w+")
_NO_SYMBOLS = Symbols(
    exports=frozenset(), undefined=frozenset(), defined_versions=frozenset(), needed_versions={}
)


class SymbolException(TypedDict):
    """A library that may lack some symbols."""

    path: str
    """Pattern of the end of its path."""
    symbols: list[str]
    """Patterns of the symbols, or of their versions."""
    reason: str


class _SymbolsExpect(TypedDict):
    host: list[str]
    """Patterns of libraries that the container runtime brings from the host: the driver's."""
    exceptions: list[SymbolException]


class SymbolsExpect(_SymbolsExpect, total=False):
    """What a claim about symbols says."""

    any_python: bool
    """Another release stands in for the image's Python, and may lack what that one exports."""


class UnreadableFile(TypedDict):
    """A file whose symbols can't be read."""

    path: str
    error: str


class LackingSymbols(TypedDict):
    """What a library needs and no library of its scope exports.

    Lists are cut. What no exception allows comes first in them.
    """

    path: str
    owners: list[str]
    elsewhere: int
    """How many of its undefined symbols some other library of the image exports."""
    undefined: list[str]
    undefined_count: int
    versions: list[tuple[str, str, str]]
    """Symbol version that is needed, the library by its name, and its file, which lacks it."""


class LackingLibrary(LackingSymbols):
    """What a library lacks, and the files that could stand in for it."""

    alternatives: list[str]
    """Files that do the same for another release, and lack nothing."""


class SymbolsEvidence(TypedDict):
    """Symbols of the libraries and programs of the Python environment."""

    files: int
    checked: int
    """Files whose scope is whole, so that their symbols could be looked up."""
    symbols: int
    """How many symbols these need."""
    unreadable: list[UnreadableFile]
    lacking: list[LackingLibrary]
    """The list is cut."""
    lacking_count: int


class SymbolTask(NamedTuple):
    """A library or program whose symbols are to be looked up."""

    path: str
    owners: tuple[str, ...]
    scope: tuple[str, ...]
    """Files in which its symbols are looked up, its own among them."""
    file_of: Mapping[str, str]
    """Name of a library that it needs -> the file that the loader takes."""
    needs_driver: bool
    """Something in the scope needs a library of the host's driver."""
    any_python: bool
    """Another release stands in for the image's Python."""
    allowed: tuple[str, ...] = ()
    """Patterns of the symbols, or of their versions, that exceptions allow it to lack."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, SymbolsEvidence]]:
    """Look up every symbol (function or variable) that the environment's libraries need of others.

    Nothing is loaded: the files are read. Yields the subject of each claim, and the libraries and
    programs that need a symbol which no library exports.
    """
    binaries = libraries.read_user_libraries().libraries
    for claim in claims:
        tasks = list(list_tasks(binaries, claim.expect))
        # Path of a file -> the symbols that it exports, and those that it needs.
        symbols, unreadable = read_symbols(tasks)
        needed_symbols = sum(len(symbols[task.path].undefined) for task in tasks)

        lacking = []
        for task in tasks:
            lacking_symbols = find_lacking(task, symbols)
            if lacking_symbols:
                lacking.append(lacking_symbols)
        lacking.sort(key=lambda library: library["path"])

        # For each of the first, add the files beside it that may be used in its place.
        lacking_paths = {library["path"] for library in lacking}
        first_lacking: list[LackingLibrary] = []
        for library in lacking[:_MOST_LISTED]:
            alternatives = find_alternatives(library["path"], tasks, symbols, lacking_paths)
            first_lacking.append({**library, "alternatives": alternatives})
        evidence: SymbolsEvidence = {
            "files": len(binaries),
            "checked": len(tasks),
            "symbols": needed_symbols,
            "unreadable": unreadable,
            "lacking": first_lacking,
            "lacking_count": len(lacking),
        }
        yield claim.subject, evidence


def list_tasks(binaries: Sequence[Binary], expect: Mapping[str, Any]) -> Iterator[SymbolTask]:
    """Yield a task for each library or program, to look up the symbols that it needs of others.

    A task has the scope of its file: the files in which the loader looks for symbols, in its order.
    A file gets no task if a library of its scope is not found: that one might export the symbols,
    and the check `libraries` reports it. Only libraries of the host's driver may be missing.

    binaries: the libraries and programs of the Python environment.
    expect: of the claim. `expect["host"]` has the names of the host's driver's libraries.
    """
    processes = imitate_processes(binaries)
    for binary in binaries:
        # Load the file as its user would, and see which libraries come with it. A program runs in a
        # process of its own.
        is_program = binary.elf.executable
        process = (processes.new if is_program else processes.with_torch).copy()
        own_scope, missing = process.load_with_scope(binary.path)
        is_only_driver_missing = all(matches(library.name, expect["host"]) for library in missing)
        if not is_only_driver_missing:
            continue

        # A program sees only what it loads itself. A library also sees what is open for all (see
        # Processes), and those of torch see each other.
        if is_program:
            scope = own_scope
        elif binary.path in processes.torch_scope:
            scope = processes.global_scope + processes.torch_scope
        else:
            scope = processes.global_scope + own_scope
        # Name of each library that it needs -> the file that the loader takes.
        file_of = {}
        for name in binary.elf.needed:
            if name in process.loaded:
                file_of[name] = process.loaded[name]
        yield SymbolTask(
            path=binary.path,
            owners=binary.owners,
            # Each file once, where it comes first.
            scope=tuple(dict.fromkeys(scope)),
            file_of=file_of,
            needs_driver=bool(missing),
            any_python=expect.get("any_python", False),
            allowed=list_allowed_symbols(binary.path, expect["exceptions"]),
        )


class Processes(NamedTuple):
    """Two imitated processes of the user's Python, and what libraries can see in the second."""

    new: Process
    """Has started Python, and imported nothing."""
    with_torch: Process
    """Has also imported torch."""
    global_scope: list[str]
    """Files whose symbols every library sees: Python's, and those that torch opens for all."""
    torch_scope: list[str]
    """Files whose symbols torch's own libraries see, because `import torch` opens them at once."""


def imitate_processes(binaries: Sequence[Binary]) -> Processes:
    """Imitate how Python starts and imports torch, without starting anything.

    Returns two processes with the libraries that are loaded in them: a new one, and one that has
    imported torch; without torch, they are the same. It also returns two scopes, which are lists of
    files in which the loader looks up symbols: one for all libraries, and one for torch's.

    `binaries`: the libraries and programs of the environment.
    """
    user, _, distributions = installed.read_user_python()
    search = SearchPath.of(user.environ, user.directory, machine_named(user.machine))
    new_process = Process(search, libraries.read_user_libraries().files)
    python_scope, _ = new_process.load_with_scope(os.path.realpath(user.python))

    with_torch = new_process.copy()
    load_torch(with_torch, installed.locations(distributions), binaries)
    # torch/__init__.py opens libtorch_global_deps.so with RTLD_GLOBAL: all libraries see it.
    opened_for_all = scope_of(with_torch, "libtorch_global_deps.so", binaries)
    return Processes(
        new=new_process,
        with_torch=with_torch,
        global_scope=python_scope + opened_for_all,
        torch_scope=scope_of(with_torch, "libtorch_python.so", binaries),
    )


def list_allowed_symbols(path: str, exceptions: Sequence[SymbolException]) -> tuple[str, ...]:
    """Return patterns of the symbols that a file may lack, by the exceptions that are about it."""
    allowed: list[str] = []
    for exception in exceptions:
        if is_about(exception, path):
            allowed += exception["symbols"]
    return tuple(allowed)


def scope_of(process: Process, name: str, binaries: Sequence[Binary]) -> list[str]:
    """Return the file of a library and of all that it needs, in the order of the loader's search.

    `name` is the name of its file. Empty if no library of `binaries` has it.
    """
    for library in binaries:
        if Path(library.path).name == name:
            scope, _ = process.copy().load_with_scope(library.path)
            return scope
    return []


def read_symbols(
    tasks: Sequence[SymbolTask],
) -> tuple[dict[str, Symbols], list[UnreadableFile]]:
    """Read the symbols of all files that the loader would search for these tasks.

    A task is a library or program to check, and its scope the files in which the loader looks for
    the symbols that it needs. Returns path -> symbols, and a list of the files that can't be read:
    these have no symbols.
    """
    paths: set[str] = set()
    for task in tasks:
        paths.update(task.scope)
    # Begin with the largest files. Otherwise one core may still read a large one when all others
    # have finished.
    ordered = sorted(sorted(paths), key=lambda path: -Path(path).stat().st_size)

    symbols: dict[str, Symbols] = {}
    unreadable: list[UnreadableFile] = []
    for path, own_symbols, error in map_on_all_cores(read_file, ordered, chunk=4):
        # `error` is empty if the file could be read. If not, `own_symbols` is empty.
        symbols[path] = own_symbols
        if error:
            unreadable.append({"path": path, "error": error})
    return symbols, unreadable


def read_file(path: str) -> tuple[str, Symbols, str]:
    """Return the path, its symbols, and an error; with an error, there are no symbols."""
    try:
        return path, dynsym.read(path), ""
    except (ElfError, OSError) as error:
        return path, _NO_SYMBOLS, str(error)


def find_lacking(task: SymbolTask, symbols: Mapping[str, Symbols]) -> LackingSymbols | None:
    """Return the symbols that a library needs and no file exports; None if it lacks none.

    `task` names the library and its scope, the files in which the loader looks for symbols.
    `symbols` is the path of a file -> the symbols that it exports, and those that it needs.
    """
    missing = symbols[task.path].undefined
    for path in task.scope:
        missing = missing - symbols[path].exports
        if not missing:
            break

    # Names of symbols are bytes, as in the file.
    undefined = []
    for name in sorted(missing):
        # The host's driver is not in the image, so its symbols are known by their names. So are
        # Python's, if another release of Python stands in for the image's own.
        is_drivers = task.needs_driver and _DRIVER_SYMBOL.fullmatch(name)
        is_pythons = task.any_python and _PYTHON_SYMBOL.fullmatch(name)
        if not is_drivers and not is_pythons:
            undefined.append(name)
    versions = sorted(find_lacking_versions(task, symbols))
    if not undefined and not versions:
        return None

    # Both lists are cut. What no exception allows comes first, so that the judge sees it.
    undefined.sort(key=lambda name: matches(name.decode("utf-8", "replace"), task.allowed))
    versions.sort(key=lambda version: matches(version[0], task.allowed))

    # Count the symbols that some other library of the image exports. If these are all, `audit`
    # excuses the library: its package may load that other library first.
    elsewhere = 0
    for name in undefined:
        if any(name in other.exports for other in symbols.values()):
            elsewhere += 1
    return {
        "path": task.path,
        "owners": list(task.owners),
        "elsewhere": elsewhere,
        "undefined": [name.decode("utf-8", "replace") for name in undefined[:_MOST_NAMED]],
        "undefined_count": len(undefined),
        "versions": versions[:_MOST_NAMED],
    }


def find_lacking_versions(
    task: SymbolTask, symbols: Mapping[str, Symbols]
) -> Iterator[tuple[str, str, str]]:
    """Yield the symbol versions that a library needs of other libraries, and that these lack.

    For example `GLIBC_2.38` of `libc.so.6`. The third value is the file of that other library.
    `task` names the library to check. `symbols` is path -> what the file exports and needs.
    """
    for name, needed_versions in symbols[task.path].needed_versions.items():
        # Libraries of the host's driver have no file in the image. And if a file defines no
        # versions at all, the loader does not compare any.
        file = task.file_of.get(name)
        if file is None or file not in symbols or not symbols[file].defined_versions:
            continue
        for version in needed_versions - symbols[file].defined_versions:
            yield version, name, file


def find_alternatives(
    path: str,
    tasks: Sequence[SymbolTask],
    symbols: Mapping[str, Symbols],
    lacking_paths: Collection[str],
) -> list[str]:
    """Return files in the folder of a library that may be used in its place, and lack no symbol.

    Packages bring one file for each release of torch: `_C_torch26.so`, `_C_torch27.so`. Such files
    differ only in a number in their names, and export more than half of the same symbols.

    path: the library's.
    tasks: all files to choose from.
    symbols: path of a file -> what it exports.
    lacking_paths: the files that lack a symbol.
    """
    library = Path(path)
    exports = symbols[path].exports
    alternatives = []
    for task in tasks:
        other = Path(task.path)
        if task.path in lacking_paths or other.parent != library.parent:
            continue
        differs_in_number_only = _NUMBER.sub("", other.name) == _NUMBER.sub("", library.name)
        common_exports = exports & symbols[task.path].exports
        if differs_in_number_only and len(common_exports) > len(exports) / 2:
            alternatives.append(task.path)
    return alternatives


def judge(_subject: str, expect: SymbolsExpect, evidence: SymbolsEvidence) -> Finding:
    """Pass if every library finds each symbol, in the version that it needs, in another library.

    Fails with each library that lacks some, unless `expect["exceptions"]` allows it; with each file
    that could not be read; and if there was no library to look at.
    """
    if not evidence["checked"]:
        return failed(
            "the image has no library whose symbols could be looked up",
            "if a step of your Dockerfile removes torch or its libraries (`docker run --rm IMAGE "
            "python -m pip list` shows whether the image has torch), take that step out and build "
            f"the image again; if none does, {REPORT}",
        )
    faults = []
    for file in evidence["unreadable"]:
        faults.append(f"{file['path']} can't be read: {file['error']}")
    for library in evidence["lacking"]:
        if not is_excused(library, expect["exceptions"]):
            faults.append(describe_lacking(library))
    # The evidence lists only the first libraries, and counts all: add a fault for the others.
    faults += count_unlisted(evidence, "lacking", "libraries lack symbols")

    needs = f"{evidence['symbols']} symbols that {evidence['checked']} libraries and programs need"
    return conclude(faults, f"{needs} are there")


def is_excused(library: LackingLibrary, exceptions: Sequence[SymbolException]) -> bool:
    """Return whether one exception allows all that a library lacks."""
    lacking = list(library["undefined"])
    lacking += [version for version, _, _ in library["versions"]]
    for exception in exceptions:
        allows_all = all(matches(name, exception["symbols"]) for name in lacking)
        if allows_all and is_about(exception, library["path"]):
            return True
    return False


def is_about(exception: SymbolException, path: str) -> bool:
    """Return whether an exception is about the library at this path."""
    return matches(path, [f"*/{exception['path']}"])


def describe_lacking(library: LackingLibrary) -> str:
    """Return a sentence about what a library lacks: a version of symbols, else the first symbols.

    For example `pkg/lib.so of pkg needs the symbols f, g and 3 more, which none of ... has`.
    """
    needs = f"{library['path']} of {listed(library['owners']) or 'no Python package'} needs"
    if library["versions"]:
        version, name, file = library["versions"][0]
        return f"{needs} {version} of {name}, which {file} does not define"

    names = [name[:_LONGEST_NAME] for name in library["undefined"][:2]]
    hidden = library["undefined_count"] - len(names)
    more = f" and {hidden} more" if hidden > 0 else ""
    symbols = f"the symbols {', '.join(names)}{more}"
    return f"{needs} {symbols}, which none of the libraries that it loads has"


CLAIMS = {"symbols": judge}
NEXT_STEPS = {
    "symbols": {
        "GLIBC": "take a base image with a newer Debian or Ubuntu (`--base`, or FROM of your "
        "Dockerfile), or an older release of the package, and build the image again",
        "": f"{pin('the release of the package that was made for this torch')}, or compile the "
        "package against this torch",
    }
}
