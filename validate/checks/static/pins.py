"""pins: check that each pinned package is installed at its version, and is what `import` loads.

The claim about the lock (`pins/lock`) compares everything installed with the lock. The claim about
additions (`pins/additions`) looks in a derived image for packages that are known to fail there.
"""

import ast
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from validate.environment.user_environment import Start, UserEnvironment
from validate.judging import Finding, conclude, failed, listed
from validate.next_steps import AS_LOCKED, take_out

SETTINGS = Settings(reads_files_only=True)

_OFF = frozenset(("", "0", "false", "no", "off", "n", "f"))
"""Values, in lower case, with which a variable switches nothing on."""


class _PinExpect(TypedDict):
    version: str
    locals: list[str]
    """Local versions (`cu126` of `2.7.1+cu126`) that this wheel may have."""
    modules: list[str]
    python: str
    shares: list[str]
    """Other distributions that install files into its modules by design."""


class PinExpect(_PinExpect, total=False):
    """What a claim about a pinned distribution says."""

    machine: str
    """As `uname -m` prints it; absent: x86_64."""
    cuda: str
    """Of torch only: the CUDA that it is built for."""


class LockExpect(TypedDict):
    """What a claim about the lock says."""

    versions: Mapping[str, str]
    """Distribution -> version."""
    closed: bool
    """Nothing else may be installed."""


class KnownFailure(TypedDict):
    """A package or an environment variable that is known to fail in the base image."""

    name: str
    unless: list[str]
    """Packages (`torch>=2.7`) and variables any of which makes it work."""
    why: str


class KnownConflict(TypedDict):
    """Releases of packages that fail together."""

    packages: Mapping[str, str]
    """Package -> range of releases, such as `>=4.45,<5`; empty: every release."""
    why: str


class _AdditionsExpect(TypedDict):
    pinned: list[str]
    """The base image's distributions."""
    known: list[KnownFailure]


class AdditionsExpect(_AdditionsExpect, total=False):
    """What a claim about the additions of a derived image says."""

    conflicts: list[KnownConflict]
    """Absent in claims of old runs."""


class InstalledCopy(TypedDict):
    """One copy of a distribution."""

    version: str
    location: str
    """The folder of sys.path that holds it."""
    has_record: bool


class _Module(TypedDict):
    file: str | None
    owners: list[str]
    """Distributions whose RECORD lists the file."""
    providers: list[str]
    """Distributions that install files into the module."""


class Module(_Module, total=False):
    """What `import` of a name would load."""

    through: str
    """Where there is a file: the entry of sys.path that leads to it."""
    namespace: list[str]
    """Where there is none: the folders of a namespace package of this name, if there are any."""


class TorchVersion(TypedDict):
    """What torch/version.py states. All values are None where there is no such file."""

    file: str | None
    __version__: str | None
    cuda: str | None


class _PinEvidence(TypedDict):
    python: str
    installed: list[InstalledCopy]
    modules: dict[str, Module]


class PinEvidence(_PinEvidence, total=False):
    """How a pinned distribution is installed, and what its modules would be imported from."""

    machine: str
    """As `uname -m` prints it; absent in old runs."""
    torch: TorchVersion
    """Of the claim about torch only."""


class _LockEvidence(TypedDict):
    installed: dict[str, list[str]]
    """Distribution -> its versions."""


class LockEvidence(_LockEvidence, total=False):
    """Everything that is installed."""

    variables: list[str]
    """Of a derived image: the variables of known failures that are switched on."""


class Candidate(NamedTuple):
    """A place from which Python could import a module."""

    path_entry: str
    """The entry of sys.path that leads to it."""
    spec: ModuleSpec


class Finder(NamedTuple):
    """What finds modules in one folder."""

    path_entry: str
    """The entry of sys.path that leads to the folder."""
    finder: FileFinder


Loaders = Sequence[tuple[Any, list[str]]]
"""Classes of loaders, each with the suffixes of the files that it loads: what FileFinder takes."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, PinEvidence | LockEvidence]]:
    """Yield, for each claim, the installed copies of a package, and the files of its modules.

    The subject of a claim is the name of the package. The claims about the lock and about additions
    get the versions of all installed packages instead. The one about additions also gets the
    variables of known failures that are switched on.
    """
    user, start, distributions = installed.read_user_python()
    # Path of a file -> the distributions that list it.
    owners = installed.names_of_owners(distributions)
    # Name of a module -> the distributions that install files into it.
    providers = list_providers(distributions)
    loaders = list_loaders(user, start)
    finders = list_finders(user, start, loaders)

    for claim in claims:
        if claim.subject in ("lock", "additions"):
            everything: LockEvidence = {"installed": list_versions(distributions)}
            # Only the claim about additions has known failures, and it may have none.
            known_failures = claim.expect.get("known", ())
            if known_failures:
                variables = list_variables_switched_on(known_failures, user.environ)
                everything["variables"] = variables
            yield claim.subject, everything
            continue

        copies = [copy for copy in distributions if copy.name == claim.subject]
        modules: dict[str, Module] = {}
        for name in claim.expect["modules"]:
            modules[name] = locate_module(name, owners, providers, finders, loaders)
        evidence: PinEvidence = {
            "python": start.version,
            "installed": [describe_copy(copy) for copy in copies],
            "modules": modules,
            "machine": user.machine,
        }
        if claim.subject == "torch":
            evidence["torch"] = read_torch_version(installed.locations(copies))
        yield claim.subject, evidence


def list_providers(distributions: Iterable[Distribution]) -> dict[str, set[str]]:
    """Return for each top-level module the distributions that install files into it."""
    providers: dict[str, set[str]] = {}
    for distribution in distributions:
        for module in distribution.modules():
            providers.setdefault(module, set()).add(distribution.name)
    return providers


def list_loaders(user: UserEnvironment, start: Start) -> Loaders:
    """Return the loaders of the image's Python, each with the suffixes of its files.

    There is one for compiled modules, one for source and one for bytecode; Python tries them in
    this order. This code may run on another Python, so it can't take that one's suffixes. Raises
    KeyError for a processor that no image is made for.
    """
    # The first suffix is `.cpython-311-x86_64-linux-gnu.so`.
    triplet = machine_named(user.machine).triplet
    version = start.version.replace(".", "")
    return [
        (ExtensionFileLoader, [f".cpython-{version}-{triplet}.so", ".abi3.so", ".so"]),
        (SourceFileLoader, [".py"]),
        (SourcelessFileLoader, [".pyc"]),
    ]


def list_finders(user: UserEnvironment, start: Start, loaders: Loaders) -> list[Finder]:
    """Return what finds modules, for each folder on sys.path of the image's Python.

    `import` asks the same finders, in this order. They name a module's file without importing it.
    """
    folders = list(start.path)
    # Python looks first in the folder in which it starts.
    if not user.environ.get("PYTHONSAFEPATH"):
        folders.insert(0, user.directory)
    return [Finder(folder, FileFinder(folder, *loaders)) for folder in folders]


def list_versions(distributions: Iterable[Distribution]) -> dict[str, list[str]]:
    """Return distribution -> its installed versions: more than one if several copies lie there."""
    versions: dict[str, list[str]] = {}
    for distribution in distributions:
        versions.setdefault(distribution.name, []).append(distribution.version)
    return versions


def list_variables_switched_on(
    known: Iterable[KnownFailure], environ: Mapping[str, str]
) -> list[str]:
    """Return the variables of known failures that are switched on in `environ`, by name.

    A failure names a variable or a package that fails (`name`), and variables or packages that
    prevent that (`unless`). A variable is switched on if it is set, and not to "0", "off" and so on
    (_OFF).
    """
    names: set[str] = set()
    for failure in known:
        names.add(failure["name"])
        names.update(failure["unless"])
    # Names of packages, such as `torch>=2.7`, are not among the names of variables.
    variables = sorted(names & environ.keys())
    return [name for name in variables if not is_off(environ[name])]


def is_off(value: str) -> bool:
    """Return whether a variable with this value switches nothing on."""
    return value.lower() in _OFF


def describe_copy(distribution: Distribution) -> InstalledCopy:
    """Return the version and place of an installed distribution as evidence."""
    return {
        "version": distribution.version,
        "location": distribution.location,
        "has_record": distribution.entries is not None,
    }


def locate_module(
    module: str,
    owners: Mapping[str, Sequence[str]],
    providers: Mapping[str, Collection[str]],
    finders: Sequence[Finder],
    loaders: Loaders,
) -> Module:
    """Return which file `import module` would load, and which packages own it.

    Nothing is imported. A namespace package, which has folders but no code, has no file.

    owners: path -> the distributions that list it.
    providers: top-level module -> the distributions that install files into it.
    finders: find modules in the folders of sys.path, in its order.
    """
    # `import a.b` finds `a` on sys.path, and then `b` in the folders of `a`.
    candidates: list[Candidate] = []
    for part in module.split("."):
        candidates = find_candidates(part, finders)
        finders = finders_inside(candidates, loaders)

    own_providers = sorted(providers.get(module, ()))
    for candidate in candidates:
        # Only a namespace package has no loader.
        if candidate.spec.loader:
            # The file may be a link: RECORD lists it under its own name, not that of its target.
            folder, name = os.path.split(str(candidate.spec.origin))
            file = os.path.join(os.path.realpath(folder), name)  # noqa: PTH118
            return {
                "file": file,
                "through": candidate.path_entry,
                "owners": list(owners.get(file, ())),
                "providers": own_providers,
            }

    without_file: Module = {"file": None, "owners": [], "providers": own_providers}
    namespace_folders: list[str] = []
    for candidate in candidates:
        namespace_folders += candidate.spec.submodule_search_locations or ()
    if namespace_folders:
        without_file["namespace"] = namespace_folders
    return without_file


def find_candidates(name: str, finders: Sequence[Finder]) -> list[Candidate]:
    """Return what Python would import under a name without dots; empty if it can't be imported.

    That is one module or package. If there is none, it is all folders of this name that have no
    `__init__.py`: together they are a namespace package (PEP 420).
    """
    namespace_parts = []
    for path_entry, finder in finders:
        spec = finder.find_spec(name)
        if spec and spec.loader:
            # A module or package with code hides all namespace packages of its name, also those
            # that come before it on sys.path.
            return [Candidate(path_entry, spec)]
        if spec:
            namespace_parts.append(Candidate(path_entry, spec))
    return namespace_parts


def finders_inside(packages: Iterable[Candidate], loaders: Loaders) -> list[Finder]:
    """Return finders for the folders of these packages, to look for submodules in."""
    finders = []
    for package in packages:
        for folder in package.spec.submodule_search_locations or ():
            finders.append(Finder(package.path_entry, FileFinder(folder, *loaders)))
    return finders


def read_torch_version(folders: Iterable[str]) -> TorchVersion:
    """Return `__version__` and `cuda` as torch/version.py states them. torch is not imported.

    The file is looked for in these folders; the first one counts. All values are None without one.
    """
    for folder in folders:
        file = Path(folder, "torch", "version.py")
        if file.is_file():
            constants = read_constants(file)
            return {
                "file": str(file),
                "__version__": constants.get("__version__"),
                "cuda": constants.get("cuda"),
            }
    return {"file": None, "__version__": None, "cuda": None}


def read_constants(file: Path) -> dict[str, str | None]:
    """Return the top-level variables that a Python file sets to a constant, as text.

    `cuda = "12.6"` and `hip = None` give `{"cuda": "12.6", "hip": None}`. Empty for a file that
    can't be parsed. Raises OSError if it can't be read.
    """
    try:
        statements = ast.parse(file.read_text(encoding="utf-8", errors="replace")).body
    except (SyntaxError, ValueError):
        return {}

    constants: dict[str, str | None] = {}
    for statement in statements:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if not isinstance(statement.value, ast.Constant):
            continue
        value = statement.value.value
        # `first = second = 1` has two targets.
        for target in targets:
            if isinstance(target, ast.Name):
                constants[target.id] = None if value is None else str(value)
    return constants


def judge(subject: str, expect: PinExpect, evidence: PinEvidence) -> Finding:
    """Pass if a pinned package is installed once, at its version, and `import` loads just that.

    `subject` names the package. Its local version (`cu126` of `2.7.1+cu126`) must be one of
    `expect["locals"]`. torch must also be built for the CUDA in `expect["cuda"]`.
    """
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
        faults.append(f"{subject} {version} is installed, and {expect['version']} is expected")
    if not copies[0]["has_record"]:
        faults.append(f"{subject} has no RECORD, so its files can't be told from others'")
    faults += find_interpreter_faults(expect, evidence)
    for name in expect["modules"]:
        faults += find_module_faults(subject, expect, name, evidence["modules"][name])
    if "cuda" in expect:
        faults += find_torch_faults(expect, evidence["torch"])
    return conclude(faults, f"{version}, imported from its own files")


def find_interpreter_faults(expect: PinExpect, evidence: PinEvidence) -> Iterator[str]:
    """Yield what is wrong if Python is for another machine or of another release than expected."""
    # Claims name the machine only if it is not x86-64, and old evidence does not name it at all.
    machine = evidence.get("machine", X86_64.name)
    expected_machine = expect.get("machine", X86_64.name)
    if machine != expected_machine:
        yield f"the Python is for {machine}, and {expected_machine} is expected"
    if evidence["python"] != expect["python"]:
        yield (
            f"the interpreter is Python {evidence['python']}, and {expect['python']} is expected"
        )


def find_module_faults(subject: str, expect: PinExpect, name: str, module: Module) -> Iterator[str]:
    """Yield what is wrong if `import NAME` does not load the package's own file.

    Other packages that install files into the module are a fault as well, unless they are expected
    to (`expect["shares"]`). `subject` is the package, `module` is what was found under the name.
    """
    if module["file"] is None:
        namespace = module.get("namespace")
        problem = "finds no module"
        if namespace:
            problem = f"finds folders without code (a namespace): {listed(namespace)}"
        yield f"`import {name}` {problem}"
        return

    if subject not in module["owners"]:
        owner = listed(module["owners"]) or "no installed package"
        file = f"{module['file']}, which belongs to {owner}"
        yield f"`import {name}` loads {file}, found through {module['through']}"
    others = set(module["providers"]) - {subject} - set(expect["shares"])
    if others:
        yield f"the package {listed(sorted(others))} also installs files into the module {name}"


def find_torch_faults(expect: PinExpect, torch: TorchVersion) -> Iterator[str]:
    """Yield what is wrong if torch/version.py states another CUDA or version than expected.

    The package's metadata does not say for which CUDA torch is built.
    """
    version = torch["__version__"]
    if torch["cuda"] != expect["cuda"]:
        built = f"for CUDA {torch['cuda']}" if torch["cuda"] else "for no CUDA at all"
        yield (
            f"torch {version} is built {built}, and CUDA {expect['cuda']} is expected "
            f"({torch['file']})"
        )
    elif str(version).partition("+")[0] != expect["version"]:
        yield f"{torch['file']} says {version}, and {expect['version']} is expected"


def judge_lock(_subject: str, expect: LockExpect, evidence: LockEvidence) -> Finding:
    """Pass if each package of the lock is installed, once and at its version.

    `expect["versions"]` is package -> version in the lock. `evidence["installed"]` is package ->
    the versions of its copies. Local versions (`+cu126`) are not compared. Packages that are not in
    the lock are a fault only if the claim says `closed`.
    """
    expected = expect["versions"]
    measured = evidence["installed"]
    faults = []
    for name, version in expected.items():
        if name not in measured:
            faults.append(f"{name} {version} is not installed")

    for name, versions in measured.items():
        locked = expected.get(name)
        if locked is None:
            if expect["closed"]:
                faults.append(f"{name} {listed(versions)} is installed, but not in the lock")
            continue
        public_versions = [version.partition("+")[0] for version in versions]
        # Exactly one copy, of the version in the lock.
        if public_versions != [locked.partition("+")[0]]:
            both = " and ".join(versions)
            faults.append(f"{name} {both} is installed, and the lock has {locked}")
    return conclude(faults, f"all {len(expected)} locked distributions, each at its version")


def judge_additions(_subject: str, expect: AdditionsExpect, evidence: LockEvidence) -> Finding:
    """Fail if an image has packages or variables that are known to fail with its base image.

    Some releases of packages are also known to fail together (`conflicts`), whether they were added
    or came with the base image. `expect["pinned"]` are the packages of the base image.
    """
    installed_versions = evidence["installed"]
    faults = []
    for failure in expect["known"]:
        fault = describe_failure(failure, expect["pinned"], evidence)
        if fault:
            faults.append(fault)

    for conflict in expect.get("conflicts", ()):
        packages = conflict["packages"]
        if all(is_installed(name, bounds, evidence) for name, bounds in packages.items()):
            # `transformers 4.57.1 and peft 0.13.2 fail together: ...`
            releases = [f"{name} {listed(installed_versions[name])}" for name in packages]
            faults.append(f"{' and '.join(releases)} fail together: {conflict['why']}")

    added = [name for name in installed_versions if name not in expect["pinned"]]
    text = f"{len(added)} distributions were added, and none of them is known to fail here"
    return conclude(faults, text)


def describe_failure(failure: KnownFailure, pinned: list[str], evidence: LockEvidence) -> str:
    """Return a sentence on why a package that was added, or a variable that is set, fails.

    Empty if the package or variable (`failure["name"]`) is not there, or if something makes it work
    (`failure["unless"]`). `pinned` are the packages of the base image.
    """
    name = failure["name"]
    switched_on = evidence["variables"]
    is_added = name in evidence["installed"] and name not in pinned
    if not is_added and name not in switched_on:
        return ""
    # An entry is either the name of a variable, or a requirement such as `torch>=2.7`.
    for remedy in failure["unless"]:
        package, bounds = split_requirement(remedy)
        if remedy in switched_on or is_installed(package, bounds, evidence):
            return ""

    if is_added:
        versions = listed(evidence["installed"][name])
        return f"{name} {versions} was added: {failure['why']}"
    return f"{name} is set: {failure['why']}"


def split_requirement(requirement: str) -> tuple[str, str]:
    """Split a requirement into name and bounds: `torch>=2.7,<3` -> `torch` and `>=2.7,<3`."""
    name = re.split("[<>]", requirement, maxsplit=1)[0]
    return name, requirement[len(name) :]


def is_installed(name: str, bounds: str, evidence: LockEvidence) -> bool:
    """Return whether a package is installed in a release within these bounds (see is_within)."""
    return any(is_within(version, bounds) for version in evidence["installed"].get(name, []))


def is_within(version: str, bounds: str) -> bool:
    """Return whether a version lies within bounds: 4.50.1 lies within `>=4.45,<5`.

    The only operators are `>=` and `<`. Every version lies within empty bounds.
    """
    release = release_numbers(version)
    # An empty text is split into one empty bound.
    for bound in filter(None, bounds.split(",")):
        if bound.startswith(">="):
            fits = release >= release_numbers(bound.removeprefix(">="))
        else:
            fits = release < release_numbers(bound.removeprefix("<"))
        if not fits:
            return False
    return True


def release_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, to compare it with others: `4.45.0` -> (4, 45).

    Zeros at the end are left out, and so is all that follows the numbers: 5.0rc1 -> (5,).
    """
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


CLAIMS = {"pins/lock": judge_lock, "pins/additions": judge_additions, "pins": judge}
NEXT_STEPS = {
    "pins": {
        "` loads ": take_out("this file, or the PYTHONPATH or .pth line that leads to it,"),
        "": AS_LOCKED,
    },
    "pins/lock": AS_LOCKED,
    "pins/additions": "take the package or variable that the reason names out of your Dockerfile, "
    "or install a release of the package for which the reason does not hold, and build the image "
    "again",
}
