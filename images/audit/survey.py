"""What the survey of an image's files and the engine's description of it show: evidence, and judges of it. Pure.

The survey (validate/survey/main.py) runs nothing of the image. Each rule here has found a fault in a public image, or
a report names it; docs/audit.md has the list.
"""

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from images.audit.device_code import LibraryCode, support
from images.config import yamlfile
from images.config.facts import Conflict
from images.engine import ImageInfo
from images.planning import expectations, silent
from images.planning.silent import SilentFault
from validate.environment.installed import canonical
from validate.judging import Finding, conclude, listed, matches

_RULES = yamlfile.table("audit.yaml")
_DEBIANS = "/usr/lib/python3/dist-packages"
_LONGEST_VALUE = 80

Evidence = Mapping[str, Any]
Faults = Iterator[str]


# --- of the whole image ----------------------------------------------------------------------------------------------


def find_driver_files(evidence: Evidence) -> Faults:
    """Yield each file of the host's driver that the image brings: it would hide the host's own."""
    for path in evidence["driver_files"]:
        yield f"the image brings the host driver's {path} itself"


def find_preloaded(evidence: Evidence) -> Faults:
    """Yield each library of /etc/ld.so.preload."""
    for path in evidence["preload"]:
        yield f"/etc/ld.so.preload loads {path} into every process"


def find_grave_variables(evidence: Evidence) -> Faults:
    """Yield each variable with which results come from another path, or GPUs are hidden."""
    for name, value in evidence["variables"].items():
        if matches(name, _RULES["grave_variables"]):
            yield f"{name}={value} is set: {_why_denied(name)}"


def find_local_settings(evidence: Evidence) -> Faults:
    """Yield each variable that fits one machine or network only."""
    for name, value in evidence["variables"].items():
        if not matches(name, _RULES["grave_variables"]):
            yield f"{name}={value} is set: {_why_denied(name)}"


def _why_denied(name: str) -> str:
    """Return why images should not set a variable; empty: they may."""
    if matches(name, _RULES["allowed_variables"]):
        return ""
    for pattern, reason in expectations.DENIED_VARIABLES.items():
        if fnmatch.fnmatchcase(name, pattern):
            return str(reason)
    return ""


def find_root(evidence: Evidence) -> Faults:
    """Yield that the image runs as root."""
    if evidence["user"].partition(":")[0] in ("", "0", "root"):
        yield "it runs as root"


def find_hidden_gpus(evidence: Evidence) -> Faults:
    """Yield each variable that keeps the container runtime from attaching GPUs."""
    environment = evidence["nvidia"]
    capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"compute", "all"} & set(capabilities.split(",")):
        yield f"NVIDIA_DRIVER_CAPABILITIES={capabilities} leaves CUDA out"
    if environment.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none"):
        yield f"NVIDIA_VISIBLE_DEVICES={environment['NVIDIA_VISIBLE_DEVICES']} hides every GPU"
    if environment.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        yield "NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off"


def image_evidence(info: ImageInfo, survey: Mapping[str, Any]) -> dict[str, Evidence]:
    """Return the evidence of the rules about a whole image: subject -> what was found."""
    # Only variables that a rule names: an environment can hold secrets.
    denied = {
        name: value[:_LONGEST_VALUE]
        for name, value in sorted(info.env.items())
        if value and _why_denied(name)
    }
    nvidia = {name: value for name, value in info.env.items() if name.startswith("NVIDIA_")}
    return {
        "driver": {"driver_files": list(survey["driver_files"])},
        "preload": {"preload": list(survey["preload"])},
        "variables": {"variables": denied},
        "settings": {"variables": denied},
        "user": {"user": info.user},
        "runtime": {"nvidia": nvidia},
    }


# --- of an environment -----------------------------------------------------------------------------------------------


def find_unmet_requirements(evidence: Evidence) -> Faults:
    """Yield each requirement that nothing installed meets, as `pip check` reports them."""
    # The first of a name on the path is the one that is imported.
    installed = {
        canonical(row["name"]): row["version"] for row in reversed(evidence["distributions"])
    }
    for row in evidence["distributions"]:
        for line in row["requires"]:
            try:
                yield from _unmet(row, Requirement(line), installed, evidence["python"])
            except (InvalidRequirement, InvalidVersion, UndefinedEnvironmentName):
                # pip ignores what it can't read, too.
                continue


def _unmet(
    row: Mapping[str, str], requirement: Requirement, installed: Mapping[str, str], python: str
) -> Faults:
    # This process is CPython on Linux for x86-64, as what was read. The files say X.Y only: a marker counts where the
    # first and the last release of X.Y both meet it.
    for patch in (0, 999):
        full = f"{python}.{patch}"
        release = {
            "python_version": python,
            "python_full_version": full,
            "implementation_version": full,
            "extra": "",
        }
        if requirement.marker and not requirement.marker.evaluate(release):
            return
    there = installed.get(canonical(requirement.name))
    if there is None:
        yield f"{row['name']} {row['version']} requires {requirement.name}, which is not installed"
    elif not requirement.specifier.contains(Version(there), prereleases=True):
        needs = f"{requirement.name}{requirement.specifier}"
        yield f"{row['name']} {row['version']} requires {needs}, {there} is installed"


def find_duplicates(evidence: Evidence) -> Faults:
    """Yield each distribution that is installed twice: Python takes the first folder, pip may change the other."""
    copies: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
    for row in evidence["distributions"]:
        copies[row["name"]].append(row)
    for name, rows in sorted(copies.items()):
        # pip installs over what Debian's packages brought, into a folder before theirs: that is how it is meant.
        is_over_debians = len(rows) == 2 and rows[1]["location"] == _DEBIANS
        if len(rows) > 1 and not is_over_debians:
            places = [f"{row['version']} in {row['location']}" for row in rows]
            yield f"{name} is there {len(rows)} times: {listed(places)}"


def find_old_extensions(evidence: Evidence) -> Faults:
    """Yield each extension that was compiled for NumPy 1, beside NumPy 2: it can't be imported."""
    numpy = evidence["numpy"]
    if numpy and numpy.partition(".")[0] not in ("0", "1"):
        for path in evidence["compiled_for_numpy_1"]:
            yield f"{path} is compiled for NumPy 1, {numpy} is installed"


def find_other_toolkits(evidence: Evidence) -> Faults:
    """Yield each toolkit of another CUDA major than torch's: extensions can't be compiled with it."""
    cuda = evidence["cuda"]
    for toolkit in evidence["toolkits"]:
        version = toolkit["version"]
        if cuda and version and version.partition(".")[0] != cuda.partition(".")[0]:
            yield f"{toolkit['home']} is CUDA {version}, torch is built for CUDA {cuda}"


def find_ordinary_silent_faults(evidence: Evidence) -> Faults:
    """Yield what these versions compute wrong without an error, in plain training."""
    for fault in _silent_faults(evidence):
        if fault.is_ordinary(evidence["versions"].get("torch", "0")):
            yield str(fault)


def find_rare_silent_faults(evidence: Evidence) -> Faults:
    """Yield what these versions compute wrong without an error, in cases that few programs meet."""
    for fault in _silent_faults(evidence):
        if not fault.is_ordinary(evidence["versions"].get("torch", "0")):
            yield str(fault)


def _silent_faults(evidence: Evidence) -> list[SilentFault]:
    return list(silent.known(evidence["versions"]).values())


def environment_evidence(
    environment: Mapping[str, Any], toolkits: Sequence[Mapping[str, str]]
) -> dict[str, Evidence]:
    """Return the evidence of the rules about an environment: subject -> what was found."""
    versions: dict[str, str] = {}
    distributions = []
    for row in environment["distributions"]:
        name, version = str(row["name"]), str(row["version"])
        distributions.append(
            {
                "name": name,
                "version": version,
                "location": str(row["location"]),
                "requires": [str(line) for line in row["requires"]],
            }
        )
        versions.setdefault(name, version.partition("+")[0])
        if name.startswith("nvidia-cudnn-cu"):
            versions["cudnn"] = version
    metadata = {"python": str(environment["version"]), "distributions": distributions}
    return {
        "requirements": metadata,
        "duplicates": metadata,
        "numpy": {
            "numpy": versions.get("numpy", ""),
            "compiled_for_numpy_1": list(environment.get("numpy_1", ())),
        },
        "toolkit": {"cuda": str(environment["torch"].get("cuda", "")), "toolkits": list(toolkits)},
        "silent-faults": {"versions": versions},
        "rare-silent-faults": {"versions": versions},
        CONFLICTS: {"versions": versions},
    }


# --- the rules -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What every image should keep, whoever built it."""

    subject: str
    statement: str
    find_faults: Callable[[Evidence], Faults]
    fix: str
    required: bool = True
    """False: it misleads or wastes, and breaks nothing by itself."""


_SET_ELSEWHERE = "take the variable out of the image; set it where it is needed"
_OTHER_VERSION = "take a version without it, or keep away from that case"

OF_IMAGE = (
    Rule(
        "driver",
        "no library or program of the host's driver is in the image",
        find_driver_files,
        "remove it, and its package: the container runtime mounts the host's own",
    ),
    Rule(
        "preload",
        "nothing is loaded into every process",
        find_preloaded,
        "empty /etc/ld.so.preload",
    ),
    Rule(
        "variables",
        "no variable sends results over another path",
        find_grave_variables,
        _SET_ELSEWHERE,
    ),
    Rule(
        "settings",
        "no variable fits one machine only",
        find_local_settings,
        _SET_ELSEWHERE,
        required=False,
    ),
    Rule(
        "user",
        "it runs as a user",
        find_root,
        "add a user, and `USER` with its number",
        required=False,
    ),
    Rule(
        "runtime",
        "nothing keeps the container runtime from attaching GPUs",
        find_hidden_gpus,
        "set NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
)
OF_ENVIRONMENT = (
    Rule(
        "requirements",
        "every requirement of what is installed is met",
        find_unmet_requirements,
        "install versions that fit together (`pip check` lists the same)",
        required=False,
    ),
    Rule(
        "duplicates",
        "each distribution is there once",
        find_duplicates,
        "uninstall both, then install one",
    ),
    Rule(
        "numpy",
        "no extension is compiled for another NumPy",
        find_old_extensions,
        "a newer release of that package, or numpy<2",
    ),
    Rule(
        "toolkit",
        "the toolkits are of torch's CUDA major",
        find_other_toolkits,
        "install a toolkit of torch's CUDA, or a torch for the toolkit's",
        required=False,
    ),
    Rule(
        "silent-faults",
        "no version here is known to compute something wrong without an error",
        find_ordinary_silent_faults,
        _OTHER_VERSION,
        required=False,
    ),
    Rule(
        "rare-silent-faults",
        "none is known to do so in rare cases",
        find_rare_silent_faults,
        _OTHER_VERSION,
        required=False,
    ),
)
_BY_SUBJECT = {rule.subject: rule for rule in (*OF_IMAGE, *OF_ENVIRONMENT)}
MACHINE, CONFLICTS = "machine", "conflicts"
"""Claims that facts stand beside: what is expected is written where the facts are at hand (expected.py)."""


def judge(subject: str, _expect: Mapping[str, Any], evidence: Evidence) -> Finding:
    """Judge a rule: FAIL with the faults, and what to do about them."""
    rule = _BY_SUBJECT[subject]
    return _with_fix(conclude(rule.find_faults(evidence), rule.statement), rule.fix)


def machine_evidence(code: Sequence[LibraryCode], cuda: str, archs: Sequence[str]) -> Evidence:
    """Return the evidence of the claim about a machine: package -> architecture -> which code it has."""
    return {"packages": support(code, cuda, archs)}


def judge_machine(_subject: str, expect: Mapping[str, Any], evidence: Evidence) -> Finding:
    """Judge whether it runs on a machine.

    expect: {machine, against: what facts about its driver and about torch say against it}. evidence: machine_evidence.
    """
    faults = list(expect["against"])
    for package, kinds in evidence["packages"].items():
        lacking = [f"sm_{arch}" for arch, kind in kinds.items() if kind == "no"]
        # What is said of torch takes its compilers into account, too.
        if lacking and package != "torch":
            faults.append(f"{package} has no code for {', '.join(lacking)}")
    finding = conclude(faults, f"it runs on {expect['machine']}")
    return _with_fix(
        finding, "`truetag choose` with the same GPU and driver names a stack that runs"
    )


def judge_conflicts(_subject: str, expect: Mapping[str, Any], evidence: Evidence) -> Finding:
    """Judge whether releases are installed that fail together, though no requirement forbids it.

    expect: {conflicts: rows of `conflicts` in facts.yaml}. evidence: {versions: {name: version}}.
    """
    faults = []
    for row in expect["conflicts"]:
        conflict = Conflict.model_validate(row)
        if conflict.applies_to(evidence["versions"]):
            faults.append(conflict.sentence(evidence["versions"]))
    finding = conclude(faults, "no releases here are known to fail together")
    return _with_fix(finding, "install other releases of them")


def _with_fix(finding: Finding, fix: str) -> Finding:
    if finding.status == "FAIL":
        return finding._replace(reason=f"{finding.reason}. Fix: {fix}")
    return finding
