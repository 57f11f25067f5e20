"""pins: `import` gives a user the pinned version, of the right build, from its own distribution, and nothing else.

The evidence of the claim about the lock (subject `lock`) lists everything installed.
"""

import ast
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ExtensionFileLoader, FileFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from typing import Any

from validate.binaries.loader import X86_64, machine_named
from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, failed, listed

SETTINGS = Settings(reads_files_only=True)

_OFF = frozenset(("", "0", "false", "no", "off", "n", "f"))


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given, start, everything = installed.of_user()
    owners, providers = installed.names_of_owners(everything), dict[str, set[str]]()
    for distribution in everything:
        for module in distribution.modules():
            providers.setdefault(module, set()).add(distribution.name)
    # Where Python starts, it looks first.
    folders = [*([] if given.environ.get("PYTHONSAFEPATH") else [given.directory]), *start.path]
    machine = machine_named(given.machine)
    suffixes = [f".cpython-{start.version.replace('.', '')}-{machine.triplet}.so", ".abi3.so", ".so"]
    loaders = (ExtensionFileLoader, suffixes), (SourceFileLoader, [".py"]), (SourcelessFileLoader, [".pyc"])
    finders = [(folder, FileFinder(folder, *loaders)) for folder in folders]
    for claim in claims:
        if claim.subject in ("lock", "additions"):
            versions: dict[str, list[str]] = {}
            for distribution in everything:
                versions.setdefault(distribution.name, []).append(distribution.version)
            asked = {name for row in claim.expect.get("known", ()) for name in (row["name"], *row["unless"])}
            on = [name for name in sorted(asked) if given.environ.get(name, "").lower() not in _OFF]
            yield claim.subject, {"installed": versions, **({"variables": on} if asked else {})}
        else:
            of_this_name = [distribution for distribution in everything if distribution.name == claim.subject]
            evidence = {
                "python": start.version,
                "installed": [
                    {
                        "version": distribution.version,
                        "location": distribution.location,
                        "has_record": distribution.entries is not None,
                    }
                    for distribution in of_this_name
                ],
                "modules": {
                    name: {**_module(name, owners, finders, loaders), "providers": sorted(providers.get(name, ()))}
                    for name in claim.expect["modules"]
                },
            }
            if claim.subject == "torch":
                evidence["torch"] = torch_version(installed.locations(of_this_name))
            yield claim.subject, {**evidence, "machine": given.machine}


def _module(
    module: str,
    owners: Mapping[str, Sequence[str]],
    finders: Sequence[tuple[str, FileFinder]],
    loaders: Sequence[Any],
) -> Mapping[str, Any]:
    """Where a module is imported from: one of a package, in the package's folders."""
    for name in module.split("."):
        found = [(entry, spec) for entry, finder in finders if (spec := finder.find_spec(name))]
        regular = [one for one in found if one[1].loader][:1] or found
        inside = [(entry, folder) for entry, spec in regular for folder in spec.submodule_search_locations or ()]
        finders = [(entry, FileFinder(folder, *loaders)) for entry, folder in inside]
    entry, origin = next(((entry, str(spec.origin)) for entry, spec in found if spec.loader), ("", ""))
    if not origin:
        parts = [folder for _, spec in found for folder in spec.submodule_search_locations or ()]
        return {"file": None, **({"namespace": parts} if parts else {}), "owners": []}
    file = os.path.join(os.path.realpath(os.path.dirname(origin)), os.path.basename(origin))  # noqa: PTH118 PTH119 PTH120
    return {"file": file, "through": entry, "owners": list(owners.get(file, ()))}


def torch_version(folders: Iterable[str]) -> Mapping[str, str | None]:
    """`__version__` and `cuda` as torch/version.py states them, read as text: torch is not imported."""
    for folder in folders:
        file = Path(folder, "torch", "version.py")
        if file.is_file():
            found: dict[str, str | None] = {"file": str(file), "__version__": None, "cuda": None}
            with contextlib.suppress(SyntaxError, ValueError):
                for statement in ast.parse(file.read_text(encoding="utf-8", errors="replace")).body:
                    if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
                        told = statement.value.value
                        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                        names = {target.id for target in targets if isinstance(target, ast.Name)}
                        for name in names & {"__version__", "cuda"}:
                            found[name] = None if told is None else str(told)
            return found
    return {"file": None, "__version__": None, "cuda": None}


def judge(subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """pins. expect: {version, locals: local versions that name this wheel, modules, python, shares: distributions that
    put files into its package by design, machine: in the kernel's words; absent: x86_64}, and of torch {cuda}.

    evidence: {python, machine: absent: x86_64, installed: [{version, location, has_record}], modules:
    {name: {file, owners, providers, through: the entry of sys.path that supplied it}, without a file the folders of a
    `namespace` or `error`}}, and of torch {torch: torch_version's}.
    """
    found = evidence["installed"]
    if not found:
        return failed(f"{subject} is not installed")
    if len(found) > 1:
        places = [f"{one['version']} in {one['location']}" for one in found]
        return failed(f"{subject} is installed {len(found)} times: {listed(places)}")
    faults: list[str] = []
    public, _, local = found[0]["version"].partition("+")
    if public != expect["version"] or local not in expect["locals"]:
        faults.append(f"{subject} {found[0]['version']} is installed, {expect['version']} is expected")
    if not found[0]["has_record"]:
        faults.append(f"{subject} has no RECORD, so its files can't be told from others'")
    faults += _interpreter_faults(expect, evidence)
    for module in expect["modules"]:
        faults += _module_faults(subject, expect, module, evidence["modules"][module])
    if "cuda" in expect:
        torch = evidence["torch"]
        if torch["cuda"] != expect["cuda"]:
            built = f"for CUDA {torch['cuda']}" if torch["cuda"] else "for no CUDA at all"
            faults.append(
                f"{torch['file']}: torch {torch['__version__']} is built {built}, {expect['cuda']} is expected"
            )
        elif str(torch["__version__"]).partition("+")[0] != expect["version"]:
            faults.append(f"{torch['file']} says {torch['__version__']}, {expect['version']} is expected")
    return conclude(faults, f"{found[0]['version']}, imported from its own files")


def _interpreter_faults(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    machine, wanted = evidence.get("machine", X86_64.name), expect.get("machine", X86_64.name)
    if machine != wanted:
        yield f"the interpreter is of {machine}, {wanted} is expected"
    if evidence["python"] != expect["python"]:
        yield f"the interpreter is Python {evidence['python']}, {expect['python']} is expected"


def _module_faults(subject: str, expect: Mapping[str, Any], module: str, found: Mapping[str, Any]) -> Iterator[str]:
    if found["file"] is None:
        what = f"is a namespace over {listed(found['namespace'])}" if found.get("namespace") else "can't be found"
        yield f"`import {module}` {what} {found.get('error', '')}".rstrip()
        return
    if subject not in found["owners"]:
        owner = listed(found["owners"]) or "no distribution"
        yield f"`import {module}` loads {found['file']} of {owner}, found through {found['through']}"
    if others := set(found["providers"]) - {subject} - set(expect["shares"]):
        yield f"{listed(sorted(others))} also installs files into {module}"


def judge_lock(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """The whole closure: nothing missing, nothing at another version, and (`closed`) nothing besides.

    expect: {versions: {distribution: version}, closed}. evidence: {installed: {distribution: versions}}.
    """
    expected, found = expect["versions"], evidence["installed"]
    faults = [f"{name} {version} is not installed" for name, version in expected.items() if name not in found]
    for name, versions in found.items():
        wanted = expected.get(name)
        if wanted is None:
            if expect["closed"]:
                faults.append(f"{name} {listed(versions)} is installed, but not in the lock")
        elif [version.partition("+")[0] for version in versions] != [wanted.partition("+")[0]]:
            faults.append(f"{name} {' and '.join(versions)} is installed, the lock has {wanted}")
    return conclude(faults, f"all {len(expected)} locked distributions, each at its version")


def judge_additions(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """Of what a derived image added, nothing is known to fail in its base image, or beside another package.

    expect: {pinned: the base image's distributions, known: [{name: of a package or variable, unless: names, why}],
    conflicts: [{packages: {name: range}, why}], which old evidence does not have}.
    evidence: judge_lock's, and {variables: which of those are switched on}.
    """
    added = {name: listed(found) for name, found in evidence["installed"].items() if name not in expect["pinned"]}
    on = evidence["variables"]
    faults = []
    for row in expect["known"]:
        name = row["name"]
        if (name in added or name in on) and not any(one in on or _has(one, evidence) for one in row["unless"]):
            what = f"{name} {added[name]} was added" if name in added else f"{name} is set"
            faults.append(f"{what}: {row['why']}")
    for conflict in expect.get("conflicts", ()):
        packages = conflict["packages"]
        if all(_has(f"{name}{releases}", evidence) for name, releases in packages.items()):
            releases = [f"{name} {listed(evidence['installed'][name])}" for name in packages]
            faults.append(f"{' and '.join(releases)} fail together: {conflict['why']}")
    return conclude(faults, f"{len(added)} distributions were added, and none of them is known to fail here")


def _has(wanted: str, evidence: Mapping[str, Any]) -> bool:
    """Whether a package is installed; of `NAME>=X,<Y`, in one of these releases."""
    start = next((at for at, character in enumerate(wanted) if character in "<>"), len(wanted))
    name, bounds = wanted[:start], wanted[start:]
    return any(_is_within(version, bounds) for version in evidence["installed"].get(name, []))


def _is_within(version: str, bounds: str) -> bool:
    """Whether a release lies in a range of `>=X`, `<Y` or both; in an empty one every release does."""
    release = _release(version)
    for bound in filter(None, bounds.split(",")):
        if bound.startswith(">="):
            fits = release >= _release(bound[2:])
        else:
            fits = release < _release(bound[1:])
        if not fits:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, without zeros at the end: 4.45.0 is 4.45, and 5.0rc1 counts as 5.0."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


CLAIMS = {"pins/lock": judge_lock, "pins/additions": judge_additions, "pins": judge}
