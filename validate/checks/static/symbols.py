"""symbols: a library whose symbols nothing exports fails at the first call, or at import: every need is looked up.

The scope of a library is the loader's: the interpreter and what it needs, torch's RTLD_GLOBAL dependencies, then the
NEEDED closure of what was opened: libtorch_python.so for all that `import torch` loads, else the library itself, found
as `libraries` finds it. Where a closure lacks a library `libraries` has said so. What it lacks of the host's driver is
known by name, so the symbols that only the driver has are counted apart."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from validate.binaries import dynsym
from validate.binaries.dynsym import Symbols
from validate.binaries.elf import ElfError
from validate.binaries.loader import Found, Process, SearchPath, import_torch, machine_named
from validate.checks import Settings
from validate.checks.static import libraries
from validate.claims import Claim
from validate.environment import installed
from validate.harness.forked import map_on_all_cores
from validate.judging import Finding, conclude, cut, failed, listed, matches

SETTINGS = Settings(reads_files_only=True, shared_reads=(libraries.of_user,))

_NUMBER = re.compile(r"\d+")
_MOST_NAMED = 5
_LONGEST_NAME = 100
_MOST_LISTED = 60
_DRIVER_SYMBOL = re.compile(rb"cu[A-Z]\w+|nvml[A-Z]\w+")
_PYTHON_SYMBOL = re.compile(rb"_?Py[A-Z_]\w+")
_ONE_NAME = Symbols(
    exports=frozenset(), undefined=frozenset(), defined_versions=frozenset(), needed_versions={}
)


class _Task(NamedTuple):
    path: str
    owners: tuple[str, ...]
    scope: tuple[str, ...]
    """Files in which its symbols are looked up."""
    named: Mapping[str, str]
    """NEEDED name -> the file that the loader takes for it."""
    driver: bool
    """Something in the scope needs the host's driver."""
    any_python: bool
    """Another release stands for its Python, and may lack what that one exports."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given, _, everything = installed.of_user()
    locations, (found, _, files) = installed.locations(everything), libraries.of_user()
    alone = Process(
        SearchPath.of(given.environ, given.directory, machine_named(given.machine)), files
    )
    for claim in claims:
        tasks = list(_tasks(alone.copy(), given.python, locations, found, claim.expect))
        # Each file once, the big ones first.
        paths = sorted(
            {path for task in tasks for path in task.scope},
            key=lambda path: -Path(path).stat().st_size,
        )
        symbols, unreadable = dict[str, Symbols](), list[Mapping[str, str]]()
        for path, own, error in map_on_all_cores(_read, paths, chunk=4):
            symbols[path] = own
            unreadable += [{"path": path, "error": error}] if error else []
        lacking = [facts for task in tasks if (facts := _lacks(task, symbols))]
        for facts in lacking:
            facts["alternatives"] = _alternatives(
                facts, tasks, symbols, {str(one["path"]) for one in lacking}
            )
        evidence = {
            "files": len(found),
            "checked": len(tasks),
            "symbols": sum(
                len(symbols[task.path].undefined) for task in tasks if task.path in symbols
            ),
            "unreadable": unreadable,
            "lacking": sorted(lacking, key=lambda facts: str(facts["path"]))[:_MOST_LISTED],
            "lacking_count": len(lacking),
        }
        yield claim.subject, evidence


def _tasks(
    alone: Process,
    python: str,
    locations: Sequence[str],
    found: Sequence[Found],
    expect: Mapping[str, Any],
) -> Iterator[_Task]:
    """Libraries whose closure is whole, or lacks the driver alone: of the others nothing can be said."""
    program, _ = alone.scope(os.path.realpath(python))
    with_torch = alone.copy()
    import_torch(with_torch, locations, found)

    def scope_of(name: str) -> list[str]:
        path = next((one.path for one in found if Path(one.path).name == name), None)
        return with_torch.copy().scope(path)[0] if path else []

    shared = [*program, *scope_of("libtorch_global_deps.so")]
    of_torch = scope_of("libtorch_python.so")
    for library in found:
        process = (alone if library.elf.executable else with_torch).copy()
        own, missing = process.scope(library.path)
        lacking = [one.name for one in missing]
        if all(matches(name, expect["host"]) for name in lacking):
            before = [] if library.elf.executable else shared
            opened = of_torch if library.path in of_torch else own
            yield _Task(
                path=library.path,
                owners=library.owners,
                scope=tuple(dict.fromkeys([*before, *opened])),
                named={
                    name: process.held[name] for name in library.elf.needed if name in process.held
                },
                driver=bool(lacking),
                any_python=expect.get("any_python", False),
            )


def _read(path: str) -> tuple[str, Symbols, str]:
    try:
        return path, dynsym.read(path), ""
    except (ElfError, OSError) as error:
        return path, _ONE_NAME, str(error)


def _alternatives(
    facts: Mapping[str, Any],
    tasks: Sequence[_Task],
    symbols: Mapping[str, Symbols],
    lacking: Collection[str],
) -> list[str]:
    """Files that do the same for another release: another number in the name, the same exports, nothing lacking."""
    path = Path(facts["path"])
    names = (Path(task.path) for task in tasks if task.path not in lacking)
    alike = (
        one
        for one in names
        if one.parent == path.parent and _NUMBER.sub("", one.name) == _NUMBER.sub("", path.name)
    )
    own = symbols[str(path)].exports
    return [str(one) for one in alike if len(own & symbols[str(one)].exports) * 2 > len(own)]


def _lacks(task: _Task, symbols: Mapping[str, Symbols]) -> dict[str, Any] | None:
    """What of a library's needs no file of its scope has; None: nothing."""
    own = symbols[task.path]
    left = own.undefined
    for path in task.scope:
        if not left:
            break
        left = left - symbols[path].exports
    elsewhere = [
        pattern
        for pattern, may in ((_DRIVER_SYMBOL, task.driver), (_PYTHON_SYMBOL, task.any_python))
        if may
    ]
    undefined = sorted(
        name for name in left if not any(pattern.fullmatch(name) for pattern in elsewhere)
    )
    versions = sorted(_versions(own, task, symbols))
    if not undefined and not versions:
        return None
    return {
        "path": task.path,
        "owners": list(task.owners),
        "elsewhere": sum(
            any(name in one.exports for one in symbols.values()) for name in undefined
        ),
        "undefined": [name.decode("utf-8", "replace") for name in undefined[:_MOST_NAMED]],
        "undefined_count": len(undefined),
        "versions": versions[:_MOST_NAMED],
    }


def _versions(
    own: Symbols, task: _Task, symbols: Mapping[str, Symbols]
) -> Iterator[tuple[str, str, str]]:
    """(version, library, file) where that file, which has versions, does not define the one that is needed."""
    for name, versions in own.needed_versions.items():
        file = task.named.get(name, "")
        defined = symbols[file].defined_versions if file in symbols else frozenset()
        if defined:
            yield from ((version, name, file) for version in versions - defined)


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """symbols. expect: {host: libraries that the host injects, exceptions: [{path, symbols, reason}], any_python:
    another release stands for its Python}.

    evidence: {files, checked, symbols, unreadable: [{path, error}], lacking: [{path, owners, undefined: some,
    undefined_count, elsewhere: how many of these other libraries have, alternatives: files that do the same,
    versions: [(what is needed, its library, the file that does not define it)]}], lacking_count}.
    """
    if not evidence["checked"]:
        return failed("there is no library whose symbols could be looked up")
    faults = [f"{one['path']} can't be read: {one['error']}" for one in evidence["unreadable"]]
    for one in evidence["lacking"]:
        lacks = [*one["undefined"], *(version for version, _, _ in one["versions"])]
        rows = [row for row in expect["exceptions"] if matches(one["path"], [f"*/{row['path']}"])]
        if any(all(matches(name, row["symbols"]) for name in lacks) for row in rows):
            continue
        what = f"{one['path']} of {listed(one['owners']) or 'no distribution'} needs"
        if one["versions"]:
            version, name, file = one["versions"][0]
            faults.append(f"{what} {version} of {name}, which {file} does not define")
        else:
            names = [name[:_LONGEST_NAME] for name in one["undefined"][:2]]
            hidden = one["undefined_count"] - len(names)
            more = f" and {hidden} more" if hidden > 0 else ""
            faults.append(f"{what} {', '.join(names)}{more}, which none of its libraries has")
    faults += cut(evidence, "lacking", "libraries lack symbols")
    good = f"{evidence['symbols']} symbols that {evidence['checked']} libraries and programs need are there"
    return conclude(faults, good)


CLAIMS = {"symbols": judge}
