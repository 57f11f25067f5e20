"""The rules of an audit that are judged by the survey of an image's files, and their evidence.

The survey (validate/survey/main.py) runs nothing of the image. Each rule here has found a fault in
a public image, or a report names it; docs/audit.md has the list. This module is pure: it turns the
survey, and the engine's description of an image, into evidence, and judges that.
"""

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from images.config import yamlfile
from images.config.facts import Conflict
from images.config.platforms import Platform, of_machine
from images.engine import ImageInfo
from images.planning import expectations, silent
from validate.environment.installed import canonical
from validate.judging import Finding, Status, conclude, known_fault, listed, matches

_RULES = yamlfile.table("audit.yaml")
_DEBIANS = "/usr/lib/python3/dist-packages"
"""The folder of Debian's own Python packages."""
_MISSING = "which is not installed"
_LONGEST_VALUE = 80
"""How many characters of a variable's value are recorded."""

Survey = Mapping[str, Any]
"""What the survey prints: `environments`, `toolkits`, `device_code` and `driver_files`. A caller
adds `preload`, the libraries of /etc/ld.so.preload."""
SurveyedEnvironment = Mapping[str, Any]
"""One of the survey's `environments`: `prefix`, `kind`, `version` (`3.11`), `distributions`
(InstalledPackage of validate/survey/environments.py), `numpy_1` (files compiled for NumPy 1),
`processors` (processor -> number of libraries for it), and `torch` with `file`, `version` and
`cuda`, empty if there is no torch."""
Evidence = Mapping[str, Any]
"""What one rule is judged by."""
Faults = Iterator[str]
"""Sentences without a full stop; none: the rule is kept."""


def platform_of(environment: SurveyedEnvironment) -> Platform | None:
    """Return the platform that the libraries of an environment are built for.

    If they are of several, it is that of most. None if it has no library, or only libraries for
    processors that no image is made for.
    """
    # Processor, as `uname -m` calls it -> number of libraries.
    counts: Mapping[str, int] = environment.get("processors", {})
    if not counts:
        return None
    most_frequent = max(counts, key=lambda processor: counts[processor])
    return of_machine(most_frequent)


# --- rules about a whole image --------------------------------------------------------------------


def find_driver_files(evidence: Evidence) -> Faults:
    """Yield each file of the NVIDIA driver in the image: it would hide the host's own file."""
    for path in evidence["driver_files"]:
        yield f"the image brings the host driver's {path} itself"


def find_preloaded(evidence: Evidence) -> Faults:
    """Yield each library that /etc/ld.so.preload names."""
    for path in evidence["preload"]:
        yield f"/etc/ld.so.preload loads {path} into every process"


def find_denied_variables(evidence: Evidence, *, are_grave: bool) -> Faults:
    """Yield each denied variable of one kind.

    Grave ones change how results are computed, or hide GPUs. The value of any other one fits one
    machine or network only.
    """
    for name, value in evidence["variables"].items():
        if matches(name, _RULES["grave_variables"]) is are_grave:
            yield f"{name}={value} is set: {_reason_against(name)}"


def _reason_against(name: str) -> str:
    """Return why images should not set a variable; empty if they may."""
    if matches(name, _RULES["allowed_variables"]):
        return ""
    for pattern, reason in expectations.DENIED_VARIABLES.items():
        if fnmatch.fnmatchcase(name, pattern):
            return str(reason)
    return ""


def find_root(evidence: Evidence) -> Faults:
    """Yield a fault if the image runs as root."""
    # The engine has it as USER[:GROUP]; an image without it runs as root.
    user = evidence["user"].partition(":")[0]
    if user in ("", "0", "root"):
        yield "it runs as root"


def find_hidden_gpus(evidence: Evidence) -> Faults:
    """Yield each variable that keeps the container runtime from attaching GPUs.

    `evidence`: `nvidia` holds the variables NVIDIA_* of the image. The NVIDIA Container Toolkit
    reads them.
    """
    variables = evidence["nvidia"]
    capabilities = variables.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"compute", "all"} & set(capabilities.split(",")):
        yield f"NVIDIA_DRIVER_CAPABILITIES={capabilities} leaves CUDA out"
    devices = variables.get("NVIDIA_VISIBLE_DEVICES")
    if devices in ("void", "none"):
        yield f"NVIDIA_VISIBLE_DEVICES={devices} hides every GPU"
    if variables.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        yield "NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off"


def image_evidence(info: ImageInfo, survey: Survey) -> dict[str, Evidence]:
    """Return what each rule of OF_IMAGE is judged by: subject of the rule -> evidence.

    For example `{"user": {"user": "1000"}, "preload": {"preload": []}, ...}`. `info` is the
    engine's description of the image, `survey` what was read of its files.
    """
    # An environment can hold secrets, so only variables that images should not set are recorded.
    denied_variables = {}
    for name, value in sorted(info.env.items()):
        is_denied = bool(_reason_against(name))
        if value and is_denied:
            denied_variables[name] = value[:_LONGEST_VALUE]
    nvidia_variables = {
        name: value for name, value in info.env.items() if name.startswith("NVIDIA_")
    }
    return {
        "driver": {"driver_files": list(survey["driver_files"])},
        "preload": {"preload": list(survey["preload"])},
        # find_denied_variables takes the grave ones for the one rule, all others for the other.
        "variables": {"variables": denied_variables},
        "settings": {"variables": denied_variables},
        "user": {"user": info.user},
        "runtime": {"nvidia": nvidia_variables},
    }


# --- rules about an environment -------------------------------------------------------------------


def find_unmet_requirements(evidence: Evidence, *, at_import: bool = False) -> Faults:
    """Yield a sentence for each requirement that no installed package meets, as `pip check` does.

    Releases that do not fit come before what is missing. `at_import`: True: only requirements that
    a package checks when it is imported; False: only all others.

    In `evidence`, `python` is the release (`3.11`), `processor` is what the libraries are for, and
    `distributions` are the installed packages in the order of sys.path. Each has its name, version
    and requirements.
    """
    installed_versions = _installed_versions(evidence)
    faults = []
    for distribution in evidence["distributions"]:
        checked = _checked_at_import(distribution, installed_versions)
        for line in distribution["requires"]:
            try:
                requirement = Requirement(line)
                if not _applies(requirement, evidence["python"], evidence.get("processor", "")):
                    continue
                complaint = _complaint_about(requirement, installed_versions)
            except (InvalidRequirement, InvalidVersion, UndefinedEnvironmentName):
                # pip, too, ignores a requirement, a version or a marker that it can't read.
                continue
            if complaint and (canonical(requirement.name) in checked) is at_import:
                release = f"{distribution['name']} {distribution['version']}"
                faults.append(f"{release} requires {complaint}")
    yield from sorted(faults, key=lambda fault: fault.endswith(_MISSING))


def _checked_at_import(
    distribution: Mapping[str, Any], installed_versions: Mapping[str, str]
) -> set[str]:
    """Return the packages whose releases a distribution looks at when it is imported.

    `installed_versions`: canonical name -> version.
    """
    check = _RULES["checked_at_import"].get(canonical(distribution["name"]))
    if not check:
        return set()
    try:
        if Version(distribution["version"]) < Version(check["since"]):
            return set()
    except InvalidVersion:
        return set()
    return {*check["always"], *(installed_versions.keys() & check["if_installed"])}


def _installed_versions(evidence: Evidence) -> dict[str, str]:
    """Return the versions of what is installed, by canonical name.

    Of two distributions of a name, Python imports the first on its path.
    """
    versions: dict[str, str] = {}
    for distribution in evidence["distributions"]:
        versions.setdefault(canonical(distribution["name"]), str(distribution["version"]))
    return versions


def _applies(requirement: Requirement, python: str, processor: str) -> bool:
    """Return whether a requirement counts in a surveyed environment, by its marker.

    The marker of `tomli>=2; python_version < "3.11"` is what follows the semicolon. `python` is the
    environment's release (`3.11`), and `processor` what its libraries are for (`aarch64`); empty:
    this machine's. Everything else in a marker is evaluated for this process, which is CPython on
    Linux, too. The patch release is not known, so the marker must be met by the first and the last.
    """
    if not requirement.marker:
        return True
    # 999: later than any release that there will be.
    for patch in (0, 999):
        full_version = f"{python}.{patch}"
        facts = {
            "python_version": python,
            "python_full_version": full_version,
            "implementation_version": full_version,
            "extra": "",
        }
        if processor:
            facts["platform_machine"] = processor
        if not requirement.marker.evaluate(facts):
            return False
    return True


def _complaint_about(requirement: Requirement, installed_versions: Mapping[str, str]) -> str:
    """Return what is required and what is installed instead; empty if the requirement is met.

    `installed_versions`: canonical name -> version. Raises InvalidVersion.
    """
    version = installed_versions.get(canonical(requirement.name))
    if version is None:
        return f"{requirement.name}, {_MISSING}"
    if requirement.specifier.contains(Version(version), prereleases=True):
        return ""
    return f"{requirement.name}{requirement.specifier}, {version} is installed"


def find_duplicates(evidence: Evidence) -> Faults:
    """Yield a sentence for each package that is installed in several folders.

    Python imports the copy in the first folder, and pip may change another one. In `evidence`,
    `distributions` has each copy, in the order of sys.path, and `venv` is the folder of the virtual
    environment. Copies that are there on purpose are no fault: in a virtual environment, over those
    of the Python that it was made with; in front of Debian's; and of an editable install.
    """
    # Name of a package -> its copies.
    copies: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
    # Empty: the Python is not in a virtual environment. Old runs do not say it.
    prefix = evidence.get("venv", "")
    for distribution in evidence["distributions"]:
        # A virtual environment may see the packages of the Python that it was made with (its base).
        # Its own copies come first.
        is_of_base = prefix and not distribution["location"].startswith(f"{prefix}/")
        if is_of_base and is_folder_of_packages(distribution["location"]):
            continue
        copies[distribution["name"]].append(distribution)
    for name, distributions in sorted(copies.items()):
        # pip installs a newer release of Debian's package into a folder that comes first on the
        # path, and leaves Debian's, the second, alone.
        is_over_debians = len(distributions) == 2 and distributions[1]["location"] == _DEBIANS
        if len(distributions) > 1 and not is_over_debians and not _is_editable(distributions):
            places = [f"version {copy['version']} in {copy['location']}" for copy in distributions]
            yield f"{name} is installed {len(distributions)} times: {listed(places)}"


def _is_editable(copies: Sequence[Mapping[str, str]]) -> bool:
    """Return whether copies of a distribution are one editable install (`pip install -e`).

    That puts the project's folder on sys.path. There its build has left metadata, of the version
    that is installed.
    """
    installed = [copy for copy in copies if is_folder_of_packages(copy["location"])]
    versions = {copy["version"] for copy in copies}
    return len(installed) == 1 and len(versions) == 1


def is_folder_of_packages(folder: str) -> bool:
    """Return whether installers put packages into a folder: site-packages or dist-packages.

    A folder that is on sys.path by a .pth file or PYTHONPATH is a project's own.
    """
    return folder.endswith(("/site-packages", "/dist-packages"))


def find_old_extensions(evidence: Evidence) -> Faults:
    """Yield each extension that was compiled for NumPy 1, if NumPy 2 or newer is installed.

    Such an extension can't be imported.
    """
    numpy = evidence["numpy"]
    if numpy and numpy.partition(".")[0] not in ("0", "1"):
        for path in evidence["compiled_for_numpy_1"]:
            yield f"{path} is compiled for NumPy 1, and NumPy {numpy} is installed"


def find_other_toolkits(evidence: Evidence) -> Faults:
    """Yield each CUDA toolkit of another major than torch's: extensions can't be compiled with it.

    `evidence`: `cuda` is that of torch (`12.6`), `toolkits` have `home` and `version`. No fault is
    yielded for a toolkit, or a torch, whose CUDA is not known (empty).
    """
    torch_cuda = evidence["cuda"]
    if not torch_cuda:
        return
    torch_major = torch_cuda.partition(".")[0]
    for toolkit in evidence["toolkits"]:
        version = toolkit["version"]
        if version and version.partition(".")[0] != torch_major:
            yield f"{toolkit['home']} is CUDA {version}, torch is built for CUDA {torch_cuda}"


def find_silent_faults(evidence: Evidence, *, are_ordinary: bool) -> Faults:
    """Yield the known faults of these versions that give wrong numbers without an error.

    Ordinary ones happen in plain training; all others happen only in rare cases. `evidence`:
    `versions` has the version of each distribution and of the library cuDNN (`cudnn`); `uses_gpus`
    is whether torch is built for CUDA.
    """
    versions = evidence["versions"]
    # Evidence of old runs does not say it.
    uses_gpus = evidence.get("uses_gpus", True)
    for fault in silent.find_faults(versions).values():
        # A torch for the CPU meets only faults of the CPU's code.
        if not uses_gpus and not fault.cpu:
            continue
        # Some packages bring a cuDNN of their own, or none: its version is not known then, so
        # nothing is known to be wrong with it.
        if "cudnn" in fault.affected and "cudnn" not in versions:
            continue
        if fault.is_ordinary(versions.get("torch", "0")) == are_ordinary:
            # What to do stands behind a colon, as several faults share a line.
            yield str(fault).replace("); ", "): ")


def environment_evidence(
    environment: SurveyedEnvironment, toolkits: Sequence[Mapping[str, str]]
) -> dict[str, Evidence]:
    """Return what each rule of OF_ENVIRONMENT is judged by: subject of the rule -> evidence.

    `toolkits`: the CUDA toolkits of the image, with `home` (the folder) and `version`.
    """
    distributions = []
    versions: dict[str, str] = {}
    for distribution in environment["distributions"]:
        name, version = str(distribution["name"]), str(distribution["version"])
        distributions.append(
            {
                "name": name,
                "version": version,
                "location": str(distribution["location"]),
                "requires": [str(line) for line in distribution["requires"]],
            }
        )
        # The first of a name is the one that Python imports. The local part (+cu126) is left out.
        versions.setdefault(name, version.partition("+")[0])
        # nvidia-cudnn-cu12 or -cu13: silent faults know the library by one name.
        if name.startswith("nvidia-cudnn-cu"):
            versions["cudnn"] = version
    platform = platform_of(environment)
    metadata = {
        "python": str(environment["version"]),
        "processor": platform.machine if platform else "",
        "venv": str(environment["prefix"]) if environment["kind"] == "venv" else "",
        "distributions": distributions,
    }
    cuda = str(environment["torch"].get("cuda", ""))
    with_processor = {**versions, "processor": platform.machine} if platform else versions
    silent_evidence = {"versions": with_processor, "uses_gpus": bool(cuda)}
    return {
        "requirements": metadata,
        "import-requirements": metadata,
        "duplicates": metadata,
        "numpy": {
            "numpy": versions.get("numpy", ""),
            "compiled_for_numpy_1": list(environment.get("numpy_1", ())),
        },
        "toolkit": {"cuda": cuda, "toolkits": list(toolkits)},
        "silent-faults": silent_evidence,
        "rare-silent-faults": silent_evidence,
        CONFLICTS: {"versions": versions},
        LIMITS: {"versions": versions},
    }


# --- the rules ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule that every image should keep, whoever built it."""

    subject: str
    """The subject of its claim, and the key of its evidence."""
    statement: str
    find_faults: Callable[[Evidence], Faults]
    fix: str = ""
    """What to do about a fault."""
    faults_are_known: bool = False
    """True: its faults were not measured here. They are known of these versions: KNOWN, no FAIL."""
    required: bool = True
    """False: a fault misleads or wastes something, and breaks nothing by itself."""


_WITH_UV = (
    "and leave torch and all other packages at their versions: docs/audit.md, "
    '"What a fix changes", has the three commands of uv that do this'
)
_FITTING = f"install what is missing, and newer releases where one does not fit, {_WITH_UV}"
_SET_ELSEWHERE = (
    "take the variable's `ENV` line out of the Dockerfile, and build again; where a program needs "
    "it, set it for that run (`docker run --env`)"
)

OF_IMAGE = (
    Rule(
        subject="driver",
        statement="no library or program of the host's driver is in the image",
        find_faults=find_driver_files,
        fix="remove the package that brings it (`dpkg -S`, with its path, names it), or the file "
        "if it is of none, and build again: the container runtime mounts the host's own",
    ),
    Rule(
        subject="preload",
        statement="nothing is loaded into every process",
        find_faults=find_preloaded,
        fix="remove the step of the Dockerfile that writes it, or add `RUN rm /etc/ld.so.preload` "
        "after that, and build again",
    ),
    Rule(
        subject="variables",
        statement="no variable sends results over another path",
        find_faults=partial(find_denied_variables, are_grave=True),
        fix=_SET_ELSEWHERE,
    ),
    Rule(
        subject="settings",
        statement="no variable fits one machine only",
        find_faults=partial(find_denied_variables, are_grave=False),
        fix=_SET_ELSEWHERE,
        required=False,
    ),
    Rule(
        subject="user",
        statement="it runs as a user",
        find_faults=find_root,
        fix="add `RUN useradd --uid 1000 trainer` and `USER 1000` to the Dockerfile, then build",
        required=False,
    ),
    Rule(
        subject="runtime",
        statement="nothing keeps the container runtime from attaching GPUs",
        find_faults=find_hidden_gpus,
        fix="set NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
)
OF_ENVIRONMENT = (
    Rule(
        subject="requirements",
        statement="every requirement that is not checked at import is met",
        find_faults=find_unmet_requirements,
        fix=_FITTING,
        required=False,
    ),
    Rule(
        subject="import-requirements",
        statement="no package refuses to be imported because of another one's release",
        find_faults=partial(find_unmet_requirements, at_import=True),
        fix=_FITTING,
    ),
    Rule(
        subject="duplicates",
        statement="each distribution is there once",
        find_faults=find_duplicates,
        fix="`pip uninstall` each package named here until pip says that it is not installed, then "
        "`pip install` the one version of it that you want",
    ),
    Rule(
        subject="numpy",
        statement="no extension is compiled for another NumPy",
        find_faults=find_old_extensions,
        fix="install a newer release of the package that the file is of (its folder in "
        "site-packages has that name), or `pip install 'numpy<2'`",
    ),
    Rule(
        subject="toolkit",
        statement="the toolkits are of torch's CUDA major",
        find_faults=find_other_toolkits,
        fix="install a toolkit of torch's CUDA, or a torch for the toolkit's",
        required=False,
    ),
    Rule(
        subject="silent-faults",
        statement="no version here is known to compute something wrong without an error",
        find_faults=partial(find_silent_faults, are_ordinary=True),
        fix="install a version without this fault, or keep away from that case",
        required=False,
    ),
    Rule(
        subject="rare-silent-faults",
        statement="none is known to do so in rare cases",
        find_faults=partial(find_silent_faults, are_ordinary=False),
        faults_are_known=True,
        fix="if your program does one of these, do what stands behind its colon; if not, nothing "
        "needs to be done",
        required=False,
    ),
)
_BY_SUBJECT = {rule.subject: rule for rule in (*OF_IMAGE, *OF_ENVIRONMENT)}
CONFLICTS = "conflicts"
LIMITS = "limits"
"""Subjects of claims that are no rules: the claim holds the facts that it is judged by
(expected.py)."""


def judge(subject: str, _expect: Mapping[str, Any], evidence: Evidence) -> Finding:
    """Judge a rule by its subject: FAIL or KNOWN with all faults and what to do about them."""
    rule = _BY_SUBJECT[subject]
    finding = conclude(rule.find_faults(evidence), rule.statement)
    if rule.faults_are_known and finding.status is Status.FAIL:
        return known_fault(finding.reason, rule.fix)
    return _with_fix_if_failed(finding, rule.fix)


def judge_conflicts(_subject: str, expect: Mapping[str, Any], evidence: Evidence) -> Finding:
    """Pass if no releases are installed that fail together, though no requirement forbids it.

    `expect`: `conflicts` holds the rows of that name in facts.yaml, each with releases that fail
    together. `evidence`: `versions` are those installed, by name.
    """
    versions = evidence["versions"]
    faults = []
    fixes: list[str] = []
    requirements: list[str] = []
    for fields in expect["conflicts"]:
        conflict = Conflict.model_validate(fields)
        if not conflict.applies_to(versions):
            continue
        faults.append(conflict.sentence(versions))
        if conflict.fix:
            fixes.append(conflict.fix)
        else:
            requirements += [f"'{line}'" for line in conflict.requirements_without(versions)]
    finding = conclude(faults, "no releases here are known to fail together")
    if requirements:
        fixes.append(f"install {' '.join(requirements)}, {_WITH_UV}")
    return _with_fix_if_failed(finding, "; ".join(fixes))


def judge_limits(_subject: str, expect: Mapping[str, Any], evidence: Evidence) -> Finding:
    """Pass if no releases are installed that are known to fail together at one thing, else KNOWN.

    `expect`: `limits` holds the rows of that name in facts.yaml. `evidence`: `versions` are those
    installed, by name.
    """
    versions = evidence["versions"]
    faults = []
    for fields in expect["limits"]:
        limit = Conflict.model_validate(fields)
        if limit.applies_to(versions):
            faults.append(f"{limit.releases(versions)}: {limit.why}")
    finding = conclude(faults, "no releases here are known to fail together at one thing")
    if finding.status is Status.FAIL:
        return known_fault(finding.reason)
    return finding


def _with_fix_if_failed(finding: Finding, fix: str) -> Finding:
    """Return the finding, with what to do about it if it is a FAIL."""
    if finding.status is Status.FAIL:
        return finding._replace(next_step=fix)
    return finding
