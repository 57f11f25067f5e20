"""pins: `import` gives a user the pinned version, of the right build, from its own distribution, and nothing else.

The evidence of the claim about the lock (subject `lock`) lists everything installed.
"""

import ast
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import (
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from validate.binaries.loader import X86_64, machine_named
from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.installed import Distribution
from validate.judging import Finding, conclude, failed, listed

SETTINGS = Settings(reads_files_only=True)

_OFF = frozenset(("", "0", "false", "no", "off", "n", "f"))


class _PinExpect(TypedDict):
    version: str
    locals: list[str]
    """Local versions that name this wheel."""
    modules: list[str]
    python: str
    shares: list[str]
    """Distributions that put files into its package by design."""


class PinExpect(_PinExpect, total=False):
    """A pinned distribution."""

    machine: str
    """In the kernel's words; absent: x86_64."""
    cuda: str
    """What torch is built for."""


class LockExpect(TypedDict):
    """What the lock has. `closed`: nothing besides may be installed."""

    versions: Mapping[str, str]
    closed: bool


class KnownFailure(TypedDict):
    """A package or variable that is known to fail in the base image, `unless` one of these is there, too."""

    name: str
    unless: list[str]
    why: str


class KnownConflict(TypedDict):
    """Releases that fail together: package -> range."""

    packages: Mapping[str, str]
    why: str


class _AdditionsExpect(TypedDict):
    pinned: list[str]
    """The base image's distributions."""
    known: list[KnownFailure]


class AdditionsExpect(_AdditionsExpect, total=False):
    """What a derived image must not add. Claims of runs long ago have no conflicts."""

    conflicts: list[KnownConflict]


class InstalledCopy(TypedDict):
    """One copy of a distribution."""

    version: str
    location: str
    has_record: bool


class _Module(TypedDict):
    file: str | None
    owners: list[str]
    """Distributions whose RECORD lists the file."""
    providers: list[str]
    """Distributions that install files into the module."""


class Module(_Module, total=False):
    """What `import` of a name would load. Without a file: perhaps the folders of a namespace package."""

    through: str
    """The entry of sys.path that leads to it."""
    namespace: list[str]


class TorchVersion(TypedDict):
    """What torch/version.py states; the file is None where there is none."""

    file: str | None
    __version__: str | None
    cuda: str | None


class _PinEvidence(TypedDict):
    python: str
    installed: list[InstalledCopy]
    modules: dict[str, Module]


class PinEvidence(_PinEvidence, total=False):
    """A distribution as it is installed. `torch`: of that one alone. Runs long ago name no machine."""

    machine: str
    torch: TorchVersion


class _LockEvidence(TypedDict):
    installed: dict[str, list[str]]
    """Distribution -> its versions."""


class LockEvidence(_LockEvidence, total=False):
    """Everything that is installed; in a derived image, the variables that are switched on of those asked for."""

    variables: list[str]


class Candidate(NamedTuple):
    """A place from which Python could import a module."""

    path_entry: str
    """Of sys.path, that leads to it."""
    spec: ModuleSpec


Finders = Sequence[tuple[str, FileFinder]]
"""An entry of sys.path, and what finds modules there."""
Loaders = Sequence[tuple[Any, list[str]]]
"""A class of loaders, and the ends of names of files that it loads."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, PinEvidence | LockEvidence]]:
    """Look up every pinned distribution, and how its modules would be imported."""
    user, start, distributions = installed.of_user()
    owners = installed.names_of_owners(distributions)
    providers: dict[str, set[str]] = {}
    for distribution in distributions:
        for module in distribution.modules():
            providers.setdefault(module, set()).add(distribution.name)

    # Where Python starts, it looks first.
    folders = list(start.path)
    if not user.environ.get("PYTHONSAFEPATH"):
        folders.insert(0, user.directory)
    triplet = machine_named(user.machine).triplet
    suffixes = [f".cpython-{start.version.replace('.', '')}-{triplet}.so", ".abi3.so", ".so"]
    loaders = [
        (ExtensionFileLoader, suffixes),
        (SourceFileLoader, [".py"]),
        (SourcelessFileLoader, [".pyc"]),
    ]
    finders = [(folder, FileFinder(folder, *loaders)) for folder in folders]

    for claim in claims:
        if claim.subject in ("lock", "additions"):
            yield (
                claim.subject,
                list_everything(distributions, claim.expect.get("known", ()), user.environ),
            )
            continue
        copies = [
            distribution for distribution in distributions if distribution.name == claim.subject
        ]
        modules: dict[str, Module] = {}
        for name in claim.expect["modules"]:
            modules[name] = locate_module(
                name, owners, sorted(providers.get(name, ())), finders, loaders
            )
        evidence: PinEvidence = {
            "python": start.version,
            "installed": [describe_copy(distribution) for distribution in copies],
            "modules": modules,
            "machine": user.machine,
        }
        if claim.subject == "torch":
            evidence["torch"] = torch_version(installed.locations(copies))
        yield claim.subject, evidence


def list_everything(
    distributions: Iterable[Distribution], known: Iterable[KnownFailure], environ: Mapping[str, str]
) -> LockEvidence:
    """Return the versions of all that is installed, and the variables of known failures that are switched on."""
    versions: dict[str, list[str]] = {}
    for distribution in distributions:
        versions.setdefault(distribution.name, []).append(distribution.version)
    asked: set[str] = set()
    for failure in known:
        asked.update((failure["name"], *failure["unless"]))
    if not asked:
        return {"installed": versions}
    switched_on = [name for name in sorted(asked) if environ.get(name, "").lower() not in _OFF]
    return {"installed": versions, "variables": switched_on}


def describe_copy(distribution: Distribution) -> InstalledCopy:
    """Return where a copy of a distribution is."""
    return {
        "version": distribution.version,
        "location": distribution.location,
        "has_record": distribution.entries is not None,
    }


def locate_module(
    module: str,
    owners: Mapping[str, Sequence[str]],
    providers: list[str],
    finders: Finders,
    loaders: Loaders,
) -> Module:
    """Return the file that `import module` would load, found without importing anything.

    A dotted name is resolved part by part, as Python does: each part in the folders of the package before it. A name
    that leads to a namespace package only has no file.
    """
    candidates: list[Candidate] = []
    for part in module.split("."):
        candidates = find_candidates(part, finders)
        finders = []
        for candidate in candidates:
            for folder in candidate.spec.submodule_search_locations or ():
                finders.append((candidate.path_entry, FileFinder(folder, *loaders)))

    for candidate in candidates:
        if candidate.spec.loader:
            # RECORD lists a file by its own name, whatever it is a link to.
            folder, name = os.path.split(str(candidate.spec.origin))
            file = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118
            owned_by = list(owners.get(file, ()))
            return {
                "file": file,
                "through": candidate.path_entry,
                "owners": owned_by,
                "providers": providers,
            }

    missing: Module = {"file": None, "owners": [], "providers": providers}
    parts: list[str] = []
    for candidate in candidates:
        parts += candidate.spec.submodule_search_locations or ()
    if parts:
        missing["namespace"] = parts
    return missing


def find_candidates(name: str, finders: Finders) -> list[Candidate]:
    """Return what Python would import under a name: the first module or regular package, else a namespace's parts."""
    parts = []
    for path_entry, finder in finders:
        spec = finder.find_spec(name)
        if spec and spec.loader:
            # It hides namespace packages of its name (PEP 420).
            return [Candidate(path_entry, spec)]
        if spec:
            parts.append(Candidate(path_entry, spec))
    return parts


def torch_version(folders: Iterable[str]) -> TorchVersion:
    """Return `__version__` and `cuda` as torch/version.py states them, read as text: torch is not imported."""
    for folder in folders:
        file = Path(folder, "torch", "version.py")
        if file.is_file():
            values = read_constants(file)
            return {
                "file": str(file),
                "__version__": values.get("__version__"),
                "cuda": values.get("cuda"),
            }
    return {"file": None, "__version__": None, "cuda": None}


def read_constants(file: Path) -> dict[str, str | None]:
    """Return the variables of a Python file to which constants are assigned; none of one that can't be parsed."""
    values: dict[str, str | None] = {}
    with contextlib.suppress(SyntaxError, ValueError):
        for statement in ast.parse(file.read_text(encoding="utf-8", errors="replace")).body:
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(
                statement.value, ast.Constant
            ):
                continue
            value = statement.value.value
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    values[target.id] = None if value is None else str(value)
    return values


def judge(subject: str, expect: PinExpect, evidence: PinEvidence) -> Finding:
    """Judge whether a distribution is there once, of its version and build, and imported from its own files."""
    copies = evidence["installed"]
    if not copies:
        return failed(f"{subject} is not installed")
    if len(copies) > 1:
        places = [f"{copy['version']} in {copy['location']}" for copy in copies]
        return failed(f"{subject} is installed {len(copies)} times: {listed(places)}")

    faults: list[str] = []
    version = copies[0]["version"]
    public, _, local = version.partition("+")
    if public != expect["version"] or local not in expect["locals"]:
        faults.append(f"{subject} {version} is installed, {expect['version']} is expected")
    if not copies[0]["has_record"]:
        faults.append(f"{subject} has no RECORD, so its files can't be told from others'")
    faults += find_interpreter_faults(expect, evidence)
    for name in expect["modules"]:
        faults += find_module_faults(subject, expect, name, evidence["modules"][name])
    if "cuda" in expect:
        faults += find_torch_faults(expect, evidence["torch"])
    return conclude(faults, f"{version}, imported from its own files")


def find_interpreter_faults(expect: PinExpect, evidence: PinEvidence) -> Iterator[str]:
    """Yield what of the interpreter is another than expected."""
    machine = evidence.get("machine", X86_64.name)
    expected_machine = expect.get("machine", X86_64.name)
    if machine != expected_machine:
        yield f"the interpreter is of {machine}, {expected_machine} is expected"
    if evidence["python"] != expect["python"]:
        yield f"the interpreter is Python {evidence['python']}, {expect['python']} is expected"


def find_module_faults(subject: str, expect: PinExpect, name: str, module: Module) -> Iterator[str]:
    """Yield why `import` of a module does not load the distribution's own file."""
    if module["file"] is None:
        namespace = module.get("namespace")
        what = f"is a namespace over {listed(namespace)}" if namespace else "can't be found"
        yield f"`import {name}` {what}"
        return
    if subject not in module["owners"]:
        owner = listed(module["owners"]) or "no distribution"
        yield f"`import {name}` loads {module['file']} of {owner}, found through {module['through']}"
    others = set(module["providers"]) - {subject} - set(expect["shares"])
    if others:
        yield f"{listed(sorted(others))} also installs files into {name}"


def find_torch_faults(expect: PinExpect, torch: TorchVersion) -> Iterator[str]:
    """Yield what torch says of itself and is not expected: a wheel for the CPU may have the same number."""
    version = torch["__version__"]
    if torch["cuda"] != expect["cuda"]:
        built = f"for CUDA {torch['cuda']}" if torch["cuda"] else "for no CUDA at all"
        yield f"{torch['file']}: torch {version} is built {built}, {expect['cuda']} is expected"
    elif str(version).partition("+")[0] != expect["version"]:
        yield f"{torch['file']} says {version}, {expect['version']} is expected"


def judge_lock(_subject: str, expect: LockExpect, evidence: LockEvidence) -> Finding:
    """Judge the whole closure: nothing missing, nothing at another version, and (`closed`) nothing besides."""
    expected, measured = expect["versions"], evidence["installed"]
    faults = [
        f"{name} {version} is not installed"
        for name, version in expected.items()
        if name not in measured
    ]
    for name, versions in measured.items():
        locked = expected.get(name)
        if locked is None:
            if expect["closed"]:
                faults.append(f"{name} {listed(versions)} is installed, but not in the lock")
        elif [version.partition("+")[0] for version in versions] != [locked.partition("+")[0]]:
            faults.append(f"{name} {' and '.join(versions)} is installed, the lock has {locked}")
    return conclude(faults, f"all {len(expected)} locked distributions, each at its version")


def judge_additions(_subject: str, expect: AdditionsExpect, evidence: LockEvidence) -> Finding:
    """Judge whether anything that a derived image added is known to fail in its base image, or beside another."""
    measured = evidence["installed"]
    added = {
        name: listed(versions)
        for name, versions in measured.items()
        if name not in expect["pinned"]
    }
    switched_on = evidence["variables"]
    faults = []
    for failure in expect["known"]:
        name = failure["name"]
        is_excused = any(
            excuse in switched_on or _has(excuse, evidence) for excuse in failure["unless"]
        )
        if is_excused or (name not in added and name not in switched_on):
            continue
        what = f"{name} {added[name]} was added" if name in added else f"{name} is set"
        faults.append(f"{what}: {failure['why']}")

    for conflict in expect.get("conflicts", ()):
        packages = conflict["packages"]
        if all(_has(f"{name}{releases}", evidence) for name, releases in packages.items()):
            releases = [f"{name} {listed(measured[name])}" for name in packages]
            faults.append(f"{' and '.join(releases)} fail together: {conflict['why']}")
    return conclude(
        faults, f"{len(added)} distributions were added, and none of them is known to fail here"
    )


def _has(wanted: str, evidence: LockEvidence) -> bool:
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
