"""added: check that the packages a derived image adds can be imported, and have what they require.

`pip install` ends with 0 although a package can't be used afterwards: it was built for another
numpy (cocodataset/cocoapi#248), a library of the system is missing (opencv/opencv-python#386), or a
later step moved what it requires (tensorflow/tensorboard#5708). The claims are `added/imports` and
`added/requirements`.
"""

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.environment.installed import Distribution
from validate.harness.error_codes import ErrorEvidence
from validate.harness.forked import describe_error, half_of_the_cores, measure_in_forks
from validate.judging import Finding, conclude, listed, root_cause, unproven

SETTINGS = Settings(starts_first=True)

STRAY_MODULES = frozenset(
    ("tests", "test", "docs", "examples", "scripts", "tools", "benchmarks", "conftest")
)
"""Folders that packages install by mistake, and that nobody imports."""
_EDITABLE_FINDER = "__editable__"
"""How setuptools begins the names of the modules that lead to a source folder (PEP 660)."""
_EXTENSION = re.compile(r"(?P<name>.+)\.(cpython-\d+-[\w-]+|abi3)\.so")
"""The file of a compiled module. A plain `.so` may be any library."""
_DRIVER = "libcuda.so.1"
"""The library of NVIDIA's driver: a container without a GPU has none."""
_ASKS_FOR_A_GPU = ("/torch/cuda/__init__.py", "/triton/runtime/driver.py")
"""Modules in which torch and Triton look for a GPU, and raise if there is none."""


class AddedExpect(TypedDict):
    """What the claims about added packages say."""

    base: Mapping[str, str]
    """The packages of the base image -> their versions. An empty version is not known."""


class ImportedPackage(TypedDict, total=False):
    """The import of one package. Without `error`, all its modules could be imported."""

    version: str
    modules: list[str]
    """Its modules, as far as they were imported."""
    error: ErrorEvidence
    asks_for_gpu: bool
    """Whether it failed because it looks for a GPU while it is imported."""
    missing_module: str
    """Whether it failed for a module of which nothing is installed: that module's name."""


class ImportsEvidence(TypedDict):
    """The import of each package that was added or moved, in a process of its own."""

    packages: Mapping[str, ImportedPackage]


class UnmetRequirement(TypedDict):
    """A requirement of an installed package that the image does not meet."""

    package: str
    requires: str
    installed: str
    """The version of the required package that is installed; empty: none."""


class RequirementsEvidence(TypedDict, total=False):
    """The requirements that the additions do not meet, or leave unmet."""

    checked: int
    """How many requirements were looked at."""
    unmet: list[UnmetRequirement]
    cannot_check: str
    """Why requirements can't be evaluated here. Then nothing else is there."""


class Import(NamedTuple):
    """A package to import."""

    distribution: Distribution
    modules: list[str]
    """Its top-level modules."""
    extensions: list[str]
    """Its compiled modules, by their dotted names."""


def measure(
    claims: Sequence[Claim],
) -> Iterator[tuple[str, ImportsEvidence | RequirementsEvidence]]:
    """Check the packages that a derived image added to its base image, or has in another version.

    For the claim `requirements`, yield their requirements that are not met. For any other claim,
    import them, and yield how that went. `expect["base"]` of a claim has the packages of the base
    image and their versions.
    """
    # This process was started as a user's would be, so its sys.path is the user's.
    distributions = installed.distributions(sys.path)
    for claim in claims:
        base = claim.expect["base"]
        changed = []
        for distribution in distributions:
            if is_changed(distribution, base):
                changed.append(distribution)

        if claim.subject == "requirements":
            yield claim.subject, check_requirements(distributions, changed, base)
        else:
            yield claim.subject, import_all(changed)


def is_changed(distribution: Distribution, base: Mapping[str, str]) -> bool:
    """Return whether the base image lacks this package, or has another version of it.

    Local versions are not compared: 2.5.1+cu124 is a build of 2.5.1.
    """
    base_version = base.get(distribution.name)
    if base_version is None:
        return True
    # The version is empty if it is not known.
    is_known = base_version != ""
    return is_known and public(distribution.version) != public(base_version)


def public(version: str) -> str:
    """Return a version without its local part: `2.5.1` of `2.5.1+cu124`."""
    return version.partition("+")[0]


def import_all(distributions: Iterable[Distribution]) -> ImportsEvidence:
    """Import the modules of each package in a fork of this process, which has imported none.

    The result has for each package its version, the modules that were imported, and the error if
    one raised. A package without a module, such as one with only a program, is left out.
    """
    imports = []
    for distribution in distributions:
        modules = list_modules(distribution)
        extensions = list_extensions(distribution)
        if modules or extensions:
            imports.append(Import(distribution, modules, extensions))

    # Import each package in a fork of its own. A result comes with the index of its import.
    works = [partial(import_modules, work.modules, work.extensions) for work in imports]
    packages: dict[str, ImportedPackage] = {}
    for number, imported in measure_in_forks(works, half_of_the_cores()):
        distribution = imports[number].distribution
        version = distribution.version
        packages[distribution.name] = {**imported, "version": version}
    return {"packages": dict(sorted(packages.items()))}


def list_modules(distribution: Distribution) -> list[str]:
    """Return the names by which a package's top-level modules are imported.

    Private modules (`_yaml`) count only if there are no others. An editable installation has no
    modules beside it: their names are in top_level.txt, which setuptools writes.
    """
    names = set()
    for name in distribution.modules():
        if not name.startswith(_EDITABLE_FINDER) and name not in STRAY_MODULES:
            names.add(name)
    if not names:
        names = read_top_level(distribution.info) - STRAY_MODULES
    public_names = {name for name in names if not name.startswith("_")}
    return sorted(public_names or names)


def list_extensions(distribution: Distribution) -> list[str]:
    """Return the dotted names of a package's compiled modules, sorted: `pycocotools._mask`.

    These fail if they were built for another numpy. A package may import them only when they are
    used, so `import PACKAGE` does not show that. Those of its tests are left out.
    """
    names = []
    for entry in distribution.entries or ():
        if not entry.path.startswith(f"{distribution.location}/"):
            continue
        # The path below site-packages, such as `pycocotools/_mask.cpython-312-x86_64-linux-gnu.so`.
        below = entry.path[len(distribution.location) + 1 :]
        module = _EXTENSION.fullmatch(below)
        if module:
            parts = module["name"].split("/")
            if STRAY_MODULES.isdisjoint(parts) and all(part.isidentifier() for part in parts):
                names.append(".".join(parts))
    return sorted(names)


def read_top_level(info: Path) -> set[str]:
    """Return the module names in a distribution's top_level.txt; none if there is no such file."""
    file = info / "top_level.txt"
    if not file.is_file():
        return set()
    names = set()
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        name = line.strip()
        # setuptools also lists folders inside packages there, such as `bin/tool`.
        if name.isidentifier():
            names.add(name)
    return names


def import_modules(modules: Sequence[str], extensions: Sequence[str] = ()) -> ImportedPackage:
    """Import these modules in this process, up to the first error, and return which were imported.

    `extensions` are compiled modules. Some can't be imported first, because they are part of a
    circular import (`scipy.linalg._matfuncs_sqrtm_triu` of scipy 1.17.1): these are left out.

    After an error, the result also has `error`, `asks_for_gpu` (it was raised for lack of a GPU)
    and `missing_module` (the module that is not installed, if that is the cause).
    """
    imported: list[str] = []
    for name in [*modules, *extensions]:
        # `try_import` returns the exception, or None if the import succeeded. Kernels for torch
        # need its libraries in the process, so after an error import torch and try again.
        error = try_import(name)
        if error and not try_import("torch"):
            error = try_import(name)
        if error and name in extensions and is_circular(error):
            continue
        if error:
            return {
                "modules": imported,
                "error": describe_error(error),
                "asks_for_gpu": asks_for_gpu(error),
                "missing_module": find_missing_module(error),
            }
        imported.append(name)
    return {"modules": imported}


def try_import(module: str) -> Exception | None:
    """Import a module and return what it raised; None if it was imported."""
    try:
        importlib.import_module(module)
    except Exception as error:
        return error
    return None


def is_circular(error: Exception) -> bool:
    """Return whether Python says that an import failed because modules import each other.

    The words are those of CPython (import_from in Python/ceval.c, module_getattro in
    Objects/moduleobject.c).
    """
    return "partially initialized module" in str(error)


def asks_for_gpu(error: BaseException) -> bool:
    """Return whether an error was raised because there is no GPU.

    Such an error was raised by the code of torch or Triton that looks for a GPU, or because the
    loader did not find the driver's library. Errors that led to this one count as well.
    """
    cause: BaseException | None = error
    while cause is not None:
        for frame in traceback.extract_tb(cause.__traceback__):
            if frame.filename.endswith(_ASKS_FOR_A_GPU):
                return True
        # glibc begins the message of dlopen with the library that it did not find.
        if isinstance(cause, (ImportError, OSError)) and str(cause).startswith(_DRIVER):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def find_missing_module(error: Exception) -> str:
    """Return the module that an import did not find, if nothing of its package is installed.

    Empty for any other error, and where the package is there but lacks the module.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    return "" if importlib.util.find_spec(package) else package


def check_requirements(
    distributions: Sequence[Distribution],
    changed: Sequence[Distribution],
    base: Mapping[str, str],
) -> RequirementsEvidence:
    """Return the requirements that are not met because of what a derived image changed.

    Such a requirement is one of a changed package, or names a changed or removed package. Others
    are the base image's own, which was validated as it is.

    distributions: all installed packages.
    changed: those that were added, or have another version than in the base image.
    base: package of the base image -> its version.
    """
    requirement_class = find_requirement_class()
    if requirement_class is None:
        return {
            "cannot_check": "neither packaging nor pip can be imported, so truetag can't read what "
            "packages require"
        }

    versions = {distribution.name: distribution.version for distribution in distributions}
    removed = base.keys() - versions.keys()
    touched = {distribution.name for distribution in changed} | removed
    checked = 0
    unmet: list[UnmetRequirement] = []
    for distribution in distributions:
        for text in distribution.requires:
            # None: the requirement is for another platform or an extra, or is not valid.
            requirement = parse_requirement(requirement_class, text)
            if requirement is None:
                continue
            required_name = installed.canonical(requirement.name)
            if distribution.name not in touched and required_name not in touched:
                continue
            checked += 1
            version = versions.get(required_name, "")
            # By default, specifiers do not match development releases.
            is_met = version and requirement.specifier.contains(version, prereleases=True)
            if not is_met:
                package = f"{distribution.name} {distribution.version}"
                unmet.append({"package": package, "requires": text, "installed": version})
    return {"checked": checked, "unmet": unmet}


def find_requirement_class() -> Any:
    """Return packaging's class Requirement, or pip's copy of it; None if there is neither."""
    for module in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return importlib.import_module(module).Requirement
        except Exception:
            continue
    return None


def parse_requirement(requirement_class: Any, text: str) -> Any:
    """Return a requirement such as `six>=1`; None if it does not apply here, or is not valid.

    It does not apply if it is for another platform, another Python, or an extra.
    """
    try:
        requirement = requirement_class(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    except Exception:
        return None
    return requirement if applies else None


def judge_imports(_subject: str, _expect: AddedExpect, evidence: ImportsEvidence) -> Finding:
    """Fail if a package that was added or moved can't be imported.

    Two kinds of packages are only reported: those that ask for a GPU while they are imported, as
    there is none here; and those that need a package that is not installed. If their metadata
    requires it, the claim `added/requirements` fails.
    """
    faults = []
    asking: list[str] = []
    lacking: list[str] = []
    for name, package in evidence["packages"].items():
        if "error" not in package:
            continue
        if package.get("asks_for_gpu"):
            asking.append(name)
            continue
        if package.get("missing_module"):
            lacking.append(f"{name} without {package['missing_module']}")
            continue
        reason = root_cause({**package["error"], "log": ""})
        faults.append(f"{name} {package['version']} can't be imported: {reason}")

    if not evidence["packages"]:
        return conclude(faults, "no package was added that can be imported")
    count = len(evidence["packages"]) - len(asking) - len(lacking)
    good = f"{count} added packages can be imported"
    if asking:
        good += f"; {listed(asking)} asked for a GPU, and could not be imported here"
    if lacking:
        good += f"; not imported: {listed(lacking)}, which it does not require"
    return conclude(faults, good)


def judge_requirements(
    _subject: str, _expect: AddedExpect, evidence: RequirementsEvidence
) -> Finding:
    """Fail if packages that a user added require something that is missing or of another version.

    The same holds for packages whose requirements are not met any more because of what was added.
    `evidence["unmet"]` has these requirements. If none could be read, `cannot_check` says why, and
    the verdict is UNPROVEN.
    """
    if "cannot_check" in evidence:
        return unproven(
            evidence["cannot_check"],
            "install `packaging` or `pip` in your Dockerfile, then build the image again and "
            "validate it",
        )
    faults = []
    for requirement in evidence["unmet"]:
        state = "which is not installed"
        if requirement["installed"]:
            state = f"but {requirement['installed']} is installed"
        package = requirement["package"]
        faults.append(f"{package} requires {requirement['requires']}, {state}")

    good = f"{evidence['checked']} requirements of added packages are met"
    return conclude(faults, good)


CLAIMS = {"added/imports": judge_imports, "added/requirements": judge_requirements}
NEXT_STEPS = {
    "added/imports": "see the whole error by `docker run --rm IMAGE python -c 'import PACKAGE'`, "
    "with the package that the reason names; then install what the error lacks, or another release "
    "of the package, in your Dockerfile, or take the package out of it, and build the image again",
    "added/requirements": "add the requirement that the reason names to the same `pip install` of "
    "your Dockerfile; or, if the required package belongs to the base image, which keeps its "
    "release, take a release of your own package that accepts that one; then build the image again",
}
