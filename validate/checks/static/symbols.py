"""S4: a library whose symbols nothing exports fails at the first call, or at import: every need is looked up.

The scope of a library is the loader's: the interpreter and what it needs, torch's RTLD_GLOBAL dependencies, then the
NEEDED closure of what was opened: libtorch_python.so for all that `import torch` loads, else the library itself, found
as S3 finds it. Where a closure lacks a library S3 has said so. What it lacks of the host's driver is known by name, so
the symbols that only the driver has are counted apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from validate.binaries import dynsym
from validate.binaries.demangle import readable
from validate.binaries.dynsym import Symbols
from validate.binaries.elf import ElfError
from validate.binaries.loader import (
    Files,
    Found,
    Process,
    SearchPath,
    Unreadable,
    import_torch,
    machine_named,
    objects,
    read_all,
)
from validate.claims import Claim
from validate.environment import installed, user_environment
from validate.harness.forked import on_all_cores
from validate.judging import Finding, conclude, failed, listed, matches


class SymbolException(TypedDict):
    path: str
    symbols: list[str]
    reason: str


class SymbolsExpect(TypedDict):
    host: list[str]
    exceptions: list[SymbolException]


class LackingSymbols(TypedDict):
    path: str
    owners: list[str]
    undefined: list[str]
    undefined_count: int
    versions: list[tuple[str, str, str]]
    """Version, library, the file that does not define it."""


class SymbolsEvidence(TypedDict):
    files: int
    checked: int
    symbols: int
    unreadable: list[Unreadable]
    lacking: list[LackingSymbols]
    lacking_count: int


_MOST_NAMED = 5
_MOST_LISTED = 60
_DRIVER_SYMBOL = re.compile(rb"cu[A-Z]\w+|nvml[A-Z]\w+")
_ONE_NAME = Symbols(exports=frozenset(), undefined=frozenset(), defined_versions=frozenset(), needed_versions={})


@dataclass(frozen=True)
class _Task:
    path: str
    owners: tuple[str, ...]
    scope: tuple[str, ...]
    """Files in which its symbols are looked up."""
    named: Mapping[str, str]
    """NEEDED name -> the file that the loader takes for it."""
    driver: bool
    """Something in the scope needs the host's driver."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, SymbolsEvidence]]:
    given = user_environment.recorded()
    machine = machine_named(given.machine)
    search = SearchPath.of(given.environ, given.directory, machine)
    start = user_environment.start(given)
    everything = installed.distributions(entry or given.directory for entry in start.path)
    owners = {
        path: tuple(sorted({owner.name for owner in owning})) for path, owning in installed.owners(everything).items()
    }
    locations = list(dict.fromkeys(distribution.location for distribution in everything))
    files = Files(machine)
    found, _ = read_all(objects(locations, owners), owners, files)
    for claim in claims:
        host = cast(SymbolsExpect, claim.expect)["host"]
        tasks = list(_tasks(given.python, locations, found, search, files, host))
        yield claim.subject, _check(tasks, len(found))


def _tasks(
    python: str,
    locations: Sequence[str],
    found: Sequence[Found],
    search: SearchPath,
    files: Files,
    host: Sequence[str],
) -> Iterator[_Task]:
    """Libraries whose closure is whole, or lacks the driver alone: of the others nothing can be said."""
    alone = Process(search, files)
    program, _ = alone.scope(os.path.realpath(python))
    with_torch = alone.copy()
    import_torch(with_torch, locations, found)
    shared = [*program, *_scope_of(with_torch, found, "libtorch_global_deps.so")]
    of_torch = _scope_of(with_torch, found, "libtorch_python.so")
    for library in found:
        process = (alone if library.elf.executable else with_torch).copy()
        own, missing = process.scope(library.path)
        lacking = [one.name for one in missing]
        if all(matches(name, host) for name in lacking):
            before = [] if library.elf.executable else shared
            opened = of_torch if library.path in of_torch else own
            yield _Task(
                path=library.path,
                owners=library.owners,
                scope=tuple(dict.fromkeys([*before, *opened])),
                named={name: process.held[name] for name in library.elf.needed if name in process.held},
                driver=bool(lacking),
            )


def _scope_of(process: Process, found: Sequence[Found], name: str) -> list[str]:
    path = next((one.path for one in found if Path(one.path).name == name), None)
    return process.copy().scope(path)[0] if path else []


def _check(tasks: Sequence[_Task], files: int) -> SymbolsEvidence:
    unreadable: list[Unreadable] = []
    symbols = _read_all(sorted({path for task in tasks for path in task.scope}), unreadable)
    lacking = [facts for task in tasks if (facts := _lacks(task, symbols))]
    return {
        "files": files,
        "checked": len(tasks),
        "symbols": sum(len(symbols[task.path].undefined) for task in tasks if task.path in symbols),
        "unreadable": unreadable,
        "lacking": sorted(lacking, key=lambda facts: facts["path"])[:_MOST_LISTED],
        "lacking_count": len(lacking),
    }


def _read_all(paths: Sequence[str], unreadable: list[Unreadable]) -> dict[str, Symbols]:
    """Each file once, the big ones first, by as many processes as there are cores."""
    weighed = sorted(paths, key=lambda path: Path(path).stat().st_size, reverse=True)
    found: dict[str, Symbols] = {}
    for path, symbols, error in on_all_cores(_read, weighed, chunk=4):
        found[path] = symbols
        if error:
            unreadable.append({"path": path, "error": error})
    return found


def _read(path: str) -> tuple[str, Symbols, str]:
    try:
        return path, dynsym.read(path), ""
    except (ElfError, OSError) as error:
        return path, _ONE_NAME, str(error)


def _lacks(task: _Task, symbols: Mapping[str, Symbols]) -> LackingSymbols | None:
    """What of a library's needs no file of its scope has; None: nothing."""
    own = symbols[task.path]
    left = own.undefined
    for path in task.scope:
        if not left:
            break
        left = left - symbols[path].exports
    of_driver = {name for name in left if task.driver and _DRIVER_SYMBOL.fullmatch(name)}
    undefined = sorted(left - of_driver)
    versions = sorted(_versions(own, task, symbols))
    if not undefined and not versions:
        return None
    return {
        "path": task.path,
        "owners": list(task.owners),
        "undefined": [name.decode("utf-8", "replace") for name in undefined[:_MOST_NAMED]],
        "undefined_count": len(undefined),
        "versions": versions[:_MOST_NAMED],
    }


def _versions(own: Symbols, task: _Task, symbols: Mapping[str, Symbols]) -> Iterator[tuple[str, str, str]]:
    """(version, library, file) where that file, which has versions, does not define the one that is needed."""
    for name, versions in own.needed_versions.items():
        file = task.named.get(name, "")
        defined = symbols[file].defined_versions if file in symbols else frozenset()
        if defined:
            yield from ((version, name, file) for version in versions - defined)


def judge(_subject: str, expect: SymbolsExpect, evidence: SymbolsEvidence) -> Finding:
    """S4. expect: {host, other_platforms, exceptions: [{path, symbols, reason}]}."""
    if not evidence["checked"]:
        return failed("there is no library whose symbols could be looked up")
    faults = [f"{one['path']} can't be read: {one['error']}" for one in evidence["unreadable"]]
    lacking = [one for one in evidence["lacking"] if not _may_lack(expect, one)]
    faults += [_lacking(one) for one in lacking]
    if hidden := evidence["lacking_count"] - len(evidence["lacking"]):
        faults.append(f"{hidden} more libraries lack symbols")
    good = f"{evidence['symbols']} symbols that {evidence['checked']} libraries and programs need are there"
    return conclude(faults, good)


def _may_lack(expect: SymbolsExpect, one: LackingSymbols) -> bool:
    names = [*one["undefined"], *(version for version, _, _ in one["versions"])]
    rows = expect["exceptions"]
    return any(
        matches(one["path"], [f"*/{row['path']}"]) and all(matches(name, row["symbols"]) for name in names)
        for row in rows
    )


def _lacking(one: LackingSymbols) -> str:
    owner = listed(one["owners"]) or "no distribution"
    if one["versions"]:
        version, name, file = one["versions"][0]
        return f"{one['path']} of {owner} needs {version} of {name}, which {file} does not define"
    names = [readable(name) for name in one["undefined"]]
    count = one["undefined_count"]
    more = f" and {count - len(names[:2])} more" if count > len(names[:2]) else ""
    return f"{one['path']} of {owner} needs {', '.join(names[:2])}{more}, which none of its libraries has"


CLAIMS = {"S4": judge}
