"""The claims of an audit, written from what is installed in an image, and how they are judged.

Nobody promised anything of such an image. So a claim here never says which version of a package
should be there, only that what is there is whole and fits together. This module is pure: it reads
and runs nothing.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from images.audit import machine, survey
from images.audit.device_code import LibraryCode
from images.audit.survey import Rule, SurveyedEnvironment, platform_of
from images.config import yamlfile
from images.config.facts import Facts
from images.config.names import Arch, ImageName, Minor
from images.config.platforms import Platform
from images.planning import expectations
from images.planning.image import Base, Image, Pin
from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.device_code import device_code_claims
from validate.checks import Judges
from validate.checks.static import environment, files, libraries, symbols
from validate.checks.static.environment import EnvironmentEvidence, EnvironmentExpect
from validate.checks.static.files import FilesEvidence
from validate.checks.static.hygiene import HygieneExpect
from validate.checks.static.libraries import LibrariesEvidence, LinkedLibrary
from validate.checks.static.symbols import LackingLibrary, SymbolsEvidence
from validate.claims import HOST_PROBE, Claim, ClaimSet
from validate.compute_capability import runs_on, target_runs_on
from validate.environment.installed import canonical
from validate.judging import Finding, Status, conclude, matches, passed

AUDIT = "audit"
"""The check of the claims that only an audit has."""
DEBIANS = "/usr/lib/python3/dist-packages"
"""The folder of Debian's own Python packages. dpkg keeps their hashes: most have no RECORD, and
some have one with hashes in another form (python3-blinker 1.5-1: hexadecimal)."""

_REQUIRED_NAME = re.compile(r"[\w.-]+")
"""The name of a distribution at the beginning of a requirement."""
_TORCH_IN_NAME = re.compile(r"torch_?(?P<digits>[1-9]\d{1,2})(?!\d)")
"""`torch25` in the name of a library that is for torch 2.5."""
_TORCH_IN_VERSION = re.compile(r"(?P<major>\d+)\.(?P<minor>\d+)")
_LARGEST_RATIO = 5
"""torch counts as made for an architecture if the best served one has at most five times as much
machine code. torch 2.7 has a few kernels for sm_89, and is not made for it."""
_PATHFINDER = "cuda-pathfinder"
"""NVIDIA's package that finds CUDA's libraries in site-packages/nvidia, and loads them by path."""
_CHECKS_OF_OUR_IMAGES = frozenset(("users", "additions"))
"""Checks of the home folder and of the constraints, which only our own images have."""
_SUBJECTS_OF_OUR_IMAGES = frozenset(("cuda-libraries", "pruned"))
"""Claims about device code that say what our own images' libraries must hold."""
_RULES = yamlfile.table("audit.yaml")
_KNOWN_PACKAGES = {
    *_RULES["imported"],
    *expectations.NATIVE,
    *expectations.IMPORTED,
    *expectations.IMPORT_TORCH_FIRST,
}
"""Packages that claims of the cpu tier import and run."""
_LAYER = "installed"
"""The name of the only layer of an image that is described from its packages."""


# --- claims ---------------------------------------------------------------------------------------


class DescribedImage(NamedTuple):
    """An environment as an image of the matrix, and the packages that this leaves out."""

    image: Image | None
    """None: the environment has no torch for CUDA."""
    left_out: dict[str, str]
    """Package whose claims need facts that we don't have -> the reason."""


def environment_claims(
    environment: SurveyedEnvironment,
    code: Sequence[LibraryCode],
    facts: Facts,
    image: Image | None,
) -> list[Claim]:
    """Return the claims about a surveyed environment: statements that checks will test.

    Every environment gets claims about its files, libraries, symbols and start-up code. One with
    torch for CUDA also gets those about device code and those of the cpu tier. `code`: the device
    code of all libraries of the image. `image`: the environment as an image of the matrix
    (`describe_as_image`).
    """
    claims = [
        *_file_claims(environment),
        *_library_claims(environment, image),
        _start_claim(),
    ]
    if image:
        context = ClaimContext(image=image, facts=facts, no_gpu="an audit runs on no GPU")
        claims += _torch_claims(context, code)
    return claims


def _start_claim() -> Claim:
    """Return the claim that no code of unknown owner runs whenever Python starts.

    A claim is a statement that a check tests, with what the check's judge expects. Such code stands
    in files like sitecustomize.py. The claim is not required: an audit reports it.
    """
    expect: EnvironmentExpect = {
        "required": {},
        "denied": dict(expectations.DENIED_VARIABLES),
        "start_files": expectations.START_FILES,
    }
    return claim(
        "environment",
        "start",
        "static.environment",
        "nothing of unknown owner runs when Python starts",
        expect,
        required=False,
    )


def _file_claims(environment: SurveyedEnvironment) -> list[Claim]:
    """Return two claims about the files of an environment that is audited.

    Each file must be as its wheel recorded it, and must belong to a package. A claim names the
    check that measures it, and what its judge expects.
    """
    conda_packages = []
    for distribution in environment["distributions"]:
        if distribution["installer"] == "conda":
            conda_packages.append(distribution["name"])
    # FilesExpect (validate/checks/static/files.py), and two keys for our own judges. Both claims
    # expect the same, because one comparison of the files with their RECORDs serves both.
    expect = {
        # Files that may be there without an owner -> why.
        "unowned": dict(expectations.START_FILES),
        # Not compared: dpkg keeps the hashes of Debian's own packages, and most have no RECORD.
        "aside": [DEBIANS],
        # For _judge_files: the packages that conda installed.
        "conda": sorted(conda_packages),
        # For _judge_strays: `conda` if the whole environment is conda's.
        "kind": environment["kind"],
    }
    recorded = claim(
        "files",
        "recorded",
        "static.files",
        "every installed file is as its wheel recorded it",
        expect,
    )
    strays = claim(
        "files",
        "strays",
        "static.files",
        "no file that Python can import belongs to nobody",
        expect,
        required=False,
    )
    return [recorded, strays]


def _library_claims(environment: SurveyedEnvironment, image: Image | None) -> list[Claim]:
    """Return the claims about what shared libraries link, and the symbols that they need.

    `image`: the environment as an image, which tells the CUDA major that libraries must have. None:
    there is no torch for CUDA, and any major will do.
    """
    # Distribution -> the names of those that it requires.
    requires = {}
    for distribution in environment["distributions"]:
        requires[str(distribution["name"])] = _names_required(distribution["requires"])
    # The driver's libraries, which the container runtime brings.
    host_libraries = list(expectations.HOST_LIBRARIES)
    symbol_exceptions = list(_RULES["optional_symbols"])
    # A bridge to torch is opened only where torch is.
    if not environment["torch"]:
        symbol_exceptions += _RULES["bridges_to_torch"]
    # LibrariesExpect (validate/checks/static/libraries.py), and one key for _judge_libraries. Both
    # claims about links expect the same, because one look at the libraries serves both.
    links = {
        "of": "environment",
        "home": "",
        "cuda_libraries": expectations.cuda_libraries(image.wheel_cuda.major) if image else {},
        "host": host_libraries,
        "other_platforms": list(expectations.OTHER_PLATFORMS),
        "requires": requires,
        "exceptions": [*expectations.LINK_EXCEPTIONS, *_RULES["optional_plugins"]],
    }
    linked = claim(
        "libraries",
        "linked",
        "static.libraries",
        "every library finds what it needs, of one CUDA",
        links,
    )
    rivals = claim(
        "libraries",
        "rivals",
        "static.libraries",
        "no other copy of a package's CUDA library is on the loader's path",
        links,
        required=False,
    )
    resolved = claim(
        "symbols",
        "resolved",
        "static.symbols",
        "every symbol that a library needs is exported",
        {
            "host": host_libraries,
            "exceptions": symbol_exceptions,
            # For _judge_symbols.
            "torch": str(environment["torch"].get("version", "")),
        },
    )
    return [linked, rivals, resolved]


def _names_required(requirements: Sequence[Any]) -> list[str]:
    """Return the canonical names of the distributions in these requirements, without extras.

    `requirements`: the lines `Requires-Dist` of a distribution, such as `numpy<2; extra == "all"`.
    """
    names = []
    for requirement in requirements:
        name = _REQUIRED_NAME.match(str(requirement))
        if name and "extra ==" not in requirement:
            names.append(canonical(name[0]))
    return names


def _torch_claims(context: ClaimContext, code: Sequence[LibraryCode]) -> Iterator[Claim]:
    """Yield the claims about an environment with torch for CUDA, taken from our own images' claims.

    They say which GPUs the libraries have code for, and what must work without a GPU: that packages
    can be imported and compute the right numbers, for example. Claims that only an image of ours
    can keep are left out. `context` has the audited environment, described as an image. `code` is
    the code for GPUs that its libraries have.
    """
    for code_claim in device_code_claims(context):
        if code_claim.subject not in _SUBJECTS_OF_OUR_IMAGES:
            yield _narrow_to_served_gpus(code_claim, code)

    # Claim -> why the installed versions can't keep it. Such a claim is not tested, but reported as
    # UNPROVEN with this reason.
    known_obstacles = context.image.unproven
    for cpu_claim in cpu_claims(context):
        if cpu_claim.check in _CHECKS_OF_OUR_IMAGES:
            continue
        yield replace(
            cpu_claim,
            unproven=known_obstacles.get(cpu_claim.key, cpu_claim.unproven),
            required=cpu_claim.key not in _RULES["not_required"],
        )


def _narrow_to_served_gpus(code_claim: Claim, code: Sequence[LibraryCode]) -> Claim:
    """Return a claim on device code without the GPUs that its libraries have no code for.

    The claim names libraries (`files`) and the architectures that they must have code for
    (`archs`). `code` has the device code of all libraries. A claim whose libraries hold no device
    code at all is returned as it is, and so fails. So is a claim that is unproven: it names none.
    """
    # Of a release that facts.yaml does not know, nobody says which libraries it must have.
    if code_claim.unproven:
        return code_claim
    # The targets, such as `sm_90` and `compute_90`, for which the claimed libraries have code.
    patterns = [f"*/{pattern}" for pattern in code_claim.expect["files"]]
    targets: set[str] = set()
    for library in code:
        if matches(library.path, patterns):
            targets.update(library.archs)
    if not targets:
        return code_claim

    served_archs = {}
    for arch, form in code_claim.expect["archs"].items():
        # `90` is compute capability 9.0, `120` is 12.0.
        gpu = divmod(int(arch), 10)
        if any(target_runs_on(target, gpu) for target in targets):
            served_archs[arch] = form
    return replace(code_claim, expect={**code_claim.expect, "archs": served_archs})


def image_claims() -> list[Claim]:
    """Return the claims of an audit about all files of an image, whoever built it.

    They are: no leftovers of its build, no credentials in files, variables, labels and steps, and
    no bytes that travel for nothing.
    """
    # Our own images leave these two folders empty. Other images may well use them.
    folders_of_users = ("/workspace/*", "/root/.local/*")
    leftovers = {}
    for pattern, description in expectations.LEFTOVERS.items():
        if pattern not in folders_of_users:
            leftovers[pattern] = description
    # One walk over the files measures both claims `hygiene`, so both name the patterns.
    expect: HygieneExpect = {"leftovers": leftovers}
    return [
        claim(
            "hygiene",
            "leftovers",
            "static.hygiene",
            "no cache, package list or temporary file of the build is left",
            expect,
            required=False,
        ),
        claim("hygiene", "secrets", "static.hygiene", "no file holds a credential", expect),
        claim("image", "history", HOST_PROBE, "no credential in variables, labels and build steps"),
        claim(
            "image",
            "bytes",
            HOST_PROBE,
            "no build step removes or copies what a lower layer brings",
            required=False,
        ),
    ]


def rule_claims(rules: Sequence[Rule]) -> list[Claim]:
    """Return a claim for each of these rules, which are judged by the survey alone."""
    return [
        claim(AUDIT, rule.subject, HOST_PROBE, rule.statement, required=rule.required)
        for rule in rules
    ]


def unaudited_claims(reasons: Mapping[str, str]) -> list[Claim]:
    """Return an unproven claim for each thing that is not audited, so that it never looks sound.

    `reasons`: package or environment -> why it is not audited.
    """
    return [
        claim(AUDIT, f"of-{name}", HOST_PROBE, f"{name} is sound", required=False, unproven=reason)
        for name, reason in reasons.items()
    ]


def conflicts_claim(facts: Facts) -> Claim:
    """Return the claim that no releases are installed together that are known to fail together."""
    conflicts = [conflict.model_dump(mode="json") for conflict in facts.conflicts]
    statement = "no releases here are known to fail together"
    return claim(AUDIT, survey.CONFLICTS, HOST_PROBE, statement, {"conflicts": conflicts})


def limits_claim(facts: Facts) -> Claim:
    """Return the claim that the installed releases can do together all that each of them can."""
    limits = [limit.model_dump(mode="json") for limit in facts.limits]
    statement = "no releases here are known to fail together at one thing"
    return claim(AUDIT, survey.LIMITS, HOST_PROBE, statement, {"limits": limits}, required=False)


def adapt_to_folder(claims: ClaimSet, python: str, why_unmeasured: str) -> ClaimSet:
    """Return the claims about an environment's folder as truetag's own Python can measure them.

    Nothing of the environment runs. So the symbols that its libraries need of an interpreter are
    looked up in truetag's own. If that is another release, the claims about symbols allow that it
    lacks some. `python`: the environment's release (`3.11`). What libraries for another processor
    than this machine's need is looked up by a loader that this machine does not have: those claims
    are unproven, with the reason `why_unmeasured` (`why_not_loadable`; empty: there is none).

    The claim about rivals is left out. It is about libraries on the loader's path, which is this
    machine's, and nothing that the environment brings.
    """
    own_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    is_other_release = python != own_version
    adapted = []
    for original in claims.claims:
        if original.key == "libraries/rivals":
            continue
        if original.check == "symbols":
            expect = {**original.expect, "any_python": is_other_release}
            adapted.append(replace(original, expect=expect, unproven=why_unmeasured))
        elif original.check == "libraries":
            adapted.append(replace(original, unproven=why_unmeasured))
        else:
            adapted.append(original)
    return replace(claims, claims=tuple(adapted))


def why_not_loadable(environment: SurveyedEnvironment, own_platform: Platform | None) -> str:
    """Return why a machine of this platform can't load an environment's libraries; empty if it can.

    It can't if most of them are for another processor. `own_platform` is None for a machine on
    which no image of ours runs.
    """
    processors: Mapping[str, int] = environment.get("processors", {})
    if not processors or platform_of(environment) is own_platform:
        return ""
    most_frequent = max(processors, key=lambda processor: processors[processor])
    own = own_platform.spoken if own_platform else "another one"
    return (
        f"not measured: {processors[most_frequent]} libraries are for the processor "
        f"{most_frequent}, and this machine's is {own}. Audit the environment on such a machine"
    )


# --- the environment as an image of the matrix ----------------------------------------------------


def describe_as_image(
    environment: SurveyedEnvironment, code: Sequence[LibraryCode], facts: Facts
) -> DescribedImage:
    """Describe an environment as if the matrix had made it, so that claims can be written from it.

    With the image are returned the packages that it leaves out, with reasons. What nobody knows of
    it, such as its base image or its glibc, is empty or as old as can be. The image is None if the
    environment has no torch, or a torch for no CUDA that we know.
    """
    # `version` and `cuda` (`12.6`), as torch's own files say; empty without torch.
    torch = environment["torch"]
    try:
        cuda = Minor.parse(str(torch["cuda"]))
        torch_version = Minor.parse(str(torch["version"]))
        # Raises KeyError for an unknown major.
        expectations.cuda_libraries(cuda.major)
    except (KeyError, ValueError):
        return DescribedImage(None, {})

    pins, left_out = _pin_known_packages(environment, facts)
    python = Minor.parse(str(environment["version"]))
    platform = platform_of(environment) or Platform.AMD64
    image = Image(
        name=ImageName(cuda=cuda, torch=torch_version, platform=platform),
        base=Base(key="", reference="", suite=None, python=python, glibc=Minor(2, 0)),
        python=python,
        toolkit_cuda=cuda,
        wheel_cuda=cuda,
        index=None,
        archs=_archs_with_boards(torch_archs(environment, code), platform, facts),
        ptx=(),
        min_driver=facts.minimum_drivers[str(cuda.major)].driver,
        cxx11_abi=True,
        pins=pins,
        toolkit=(),
        layers=(_LAYER,),
        environment={},
        revision="",
        unproven=expectations.find_unproven_claims({pin.name: pin.version for pin in pins}),
    )
    return DescribedImage(image, left_out)


def _pin_known_packages(
    environment: SurveyedEnvironment, facts: Facts
) -> tuple[tuple[Pin, ...], dict[str, str]]:
    """Return pins for the installed packages that can be checked, and why others can't be.

    Only the packages that this program knows are looked at (`_KNOWN_PACKAGES`), such as torch. The
    second value is package -> reason: its version can't be compared, or it has CUDA code of its own
    (`companions`), and facts.yaml lacks a row for this version.
    """
    pins: dict[str, Pin] = {}  # Package -> its name and version.
    left_out: dict[str, str] = {}  # Package -> the reason.
    for distribution in environment["distributions"]:
        name = str(distribution["name"])
        # 2.7.1 of 2.7.1+cu126.
        version = str(distribution["version"]).partition("+")[0]
        # A package may be installed twice. Python imports the first of them on its path.
        if name not in _KNOWN_PACKAGES or name in pins or name in left_out:
            continue
        try:
            Version(version)
        except InvalidVersion:
            left_out[name] = f"{version} is no version that can be compared"
            continue
        if name in facts.companions and version not in facts.companions[name]:
            left_out[name] = f"facts.yaml has no row of {version}"
        else:
            pins[name] = Pin(name=name, version=version, layer=_LAYER)
    return tuple(pins.values()), left_out


def _archs_with_boards(
    archs: tuple[Arch, ...], platform: Platform, facts: Facts
) -> tuple[Arch, ...]:
    """Return these architectures of torch, with those of boards that run its code, ascending.

    Boards and superchips with an ARM processor have GPUs that torch names no code for, and which
    run its code for a relative: a GB10 (sm_121) that for sm_120.
    """
    served = set(archs)
    if platform is Platform.ARM64:
        for capability, board in facts.arm64.boards.items():
            gpu = Arch.parse(capability)
            if not board.unfit and any(runs_on(arch, gpu) for arch in archs):
                served.add(gpu)
    return tuple(sorted(served))


def torch_archs(environment: SurveyedEnvironment, code: Sequence[LibraryCode]) -> tuple[Arch, ...]:
    """Return the GPU architectures that torch was made for, ascending; none if they are not known.

    `code` has the bytes of machine code for each architecture in each library. torch also has a few
    kernels for architectures that it was not made for. So an architecture counts only if torch's
    largest CUDA library has much code for it: at least 1/_LARGEST_RATIO of the most.
    """
    # `file` is .../torch/version.py.
    torch_folder = str(environment["torch"].get("file", "")).rpartition("/")[0]
    if not torch_folder:
        return ()
    # Target (`sm_90`) -> bytes, of the library with the most.
    largest: Mapping[str, int] = {}
    for library in code:
        is_torchs = library.path.startswith(f"{torch_folder}/lib/libtorch_cuda")
        if is_torchs and sum(library.archs.values()) > sum(largest.values()):
            largest = library.archs

    # Only plain targets: `sm_90a` has kernels for a few instructions, `compute_90` is PTX.
    size_by_arch: dict[Arch, int] = {}
    for target, size in largest.items():
        # `90` of sm_90 is 9.0, `120` of sm_120 is 12.0.
        number = target.removeprefix("sm_")
        if target.startswith("sm_") and number.isdigit():
            size_by_arch[Arch(*divmod(int(number), 10))] = size
    least_size = max(size_by_arch.values(), default=0) / _LARGEST_RATIO
    return tuple(sorted(arch for arch, size in size_by_arch.items() if size >= least_size))


# --- judges ---------------------------------------------------------------------------------------
#
# They take out of the evidence what is no fault in other people's images, and let the ordinary
# judge of the check decide about the rest.

_NO_CODE_FOLDERS = frozenset(("tests", "test", "docs", "examples", "benchmarks", "scripts"))
"""Folders that packages should not install beside their own, and often do. Two packages may have
the same file there."""


def _judge_files(subject: str, expect: Any, evidence: FilesEvidence) -> Finding:
    """Pass if the files of an environment are as RECORDs list them, except those of conda packages.

    A RECORD is a package's list of its files with their hashes. It passes if no file is recorded.
    conda rewrites files when it installs them, and keeps hashes of its own. Files without an owner,
    and conflicts over files that are no code, are left to _judge_strays. `expect`: `conda` holds
    the names of conda's packages.
    """
    if not evidence["files"]:
        return passed("no distribution records a file: there is nothing to compare")
    conda_packages = set(expect["conda"])
    wrong = []
    for file in evidence["wrong"]:
        # An owner is a name and a version, such as `numpy 2.0.2`.
        owner_names = {owner.partition(" ")[0] for owner in file["owners"]}
        # One owner that conda did not install is enough: the RECORD of that one should still hold.
        if not owner_names <= conda_packages:
            wrong.append(file)
    in_conflict = [file for file in evidence["in_conflict"] if _is_code(file["path"])]
    without_record = []
    for distribution in evidence["without_record"]:
        if distribution["name"] not in conda_packages:
            without_record.append(distribution)
    judged: FilesEvidence = {
        **evidence,
        "wrong": wrong,
        "in_conflict": in_conflict,
        "unowned": [],
        "unowned_count": 0,
        "without_record": without_record,
    }
    return files.judge(subject, expect, judged)


def _judge_strays(subject: str, expect: Any, evidence: FilesEvidence) -> Finding:
    """Pass if each file of an environment belongs to one package.

    Fails with files that belong to none, and with files that are no code and that two have. In a
    conda environment nothing is judged: conda owns files that no RECORD lists. `expect`: `kind` is
    the kind of the environment. `evidence` is what one comparison of all files with their RECORDs
    (a package's list of its files) found.
    """
    if expect["kind"] == "conda":
        return passed("conda owns files that no RECORD lists: not looked at")
    judged: FilesEvidence = {
        **evidence,
        # With no file at all, the ordinary judge would fail.
        "files": 1,
        "wrong": [],
        "without_record": [],
        "in_conflict": [file for file in evidence["in_conflict"] if not _is_code(file["path"])],
    }
    finding = files.judge(subject, expect, judged)
    if finding.status is Status.PASS:
        return passed("every file that Python can import has an owner")
    return finding


def _is_code(path: str) -> bool:
    """Return whether a file is Python or a library, and not in a folder such as tests/."""
    name = path.rpartition("/")[2]
    is_python_or_library = name.endswith((".py", ".so")) or ".so." in name
    # The folder right in site-packages or dist-packages.
    top_folder = path.rpartition("-packages/")[2].partition("/")[0]
    return is_python_or_library and top_folder not in _NO_CODE_FOLDERS


def _judge_libraries(subject: str, expect: Any, evidence: LibrariesEvidence) -> Finding:
    """Pass if each library of an environment finds the libraries that it links.

    A missing library that some package loads by itself is excused (_is_loaded_by_package). The rest
    is judged as in our own images. Second copies are left to _judge_rivals. `expect`: `requires`
    has, for each distribution, the names of those that it requires.
    """
    # What can't be loaded was looked at, too: the ordinary judge names it.
    if not evidence["files"] and not evidence["unreadable"]:
        return passed("there is no shared library in this environment")
    linked: list[LinkedLibrary] = []
    for library in evidence["linked"]:
        # Missing library -> the packages that have a file of that name.
        packages_with = library.get("offered", {})
        missing = []
        for name in library["missing"]:
            packages = packages_with.get(name, ())
            if not _is_loaded_by_package(library["owners"], packages, expect["requires"]):
                missing.append(name)
        linked.append({**library, "missing": missing})
    judged: LibrariesEvidence = {**evidence, "second_owners": [], "linked": linked}
    return libraries.judge(subject, expect, judged)


def _is_loaded_by_package(
    owners: Sequence[str], packages: Sequence[str], requires: Mapping[str, Sequence[str]]
) -> bool:
    """Return whether a library that the loader does not find is loaded in another way.

    owners: the packages that the library in need of it belongs to.
    packages: the packages that have a file of the missing library's name.
    requires: package -> the packages that it requires.
    """
    required_by_owners: set[str] = set()
    for owner in owners:
        required_by_owners.update(requires.get(owner, ()))

    # A package imports first what it requires, and that loads its own libraries.
    if not required_by_owners.isdisjoint(packages):
        return True
    # cuda-pathfinder finds the libraries of all NVIDIA's packages, and loads them by their paths.
    is_nvidias = any(package.startswith("nvidia-") for package in packages)
    if is_nvidias and _PATHFINDER in required_by_owners:
        return True
    # A plugin is opened by the package that requires it, and that has loaded its own libraries by
    # then: TensorFlow does so with tensorflow-io-gcs-filesystem.
    for package in packages:
        if not set(owners).isdisjoint(requires.get(package, ())):
            return True
    return False


def _judge_rivals(_subject: str, _expect: Any, evidence: Any) -> Finding:
    """Judge whether the loader's path has a second copy of a package's CUDA library: FAIL if so."""
    rivals = []
    for library in evidence["second_owners"]:
        owners = ", ".join(library["owners"])
        rivals.append(
            f"{library['name']} of {owners} has a rival on the loader's path: {library['other']}"
        )
    return conclude(rivals, "no package's CUDA library has a rival on the loader's path")


def _judge_symbols(subject: str, expect: Any, evidence: SymbolsEvidence) -> Finding:
    """Pass if the libraries of an environment find the symbols that they need.

    Libraries that may lack some (_is_excused) are taken out of the evidence, what was measured.
    Then the check of our own images judges it. An environment without libraries passes.
    """
    if not evidence["files"]:
        return passed("there is no shared library in this environment")
    lacking = []
    for library in evidence["lacking"]:
        if not _is_excused(library) and not _is_for_other_torch(library["path"], expect):
            lacking.append(library)
    # `lacking_count` counts all libraries, `lacking` lists the first of them only: so the count is
    # lowered, and not counted again.
    excused_count = len(evidence["lacking"]) - len(lacking)
    judged: SymbolsEvidence = {
        **evidence,
        "lacking": lacking,
        "lacking_count": evidence["lacking_count"] - excused_count,
    }
    return symbols.judge(subject, expect, judged)


def _is_excused(library: LackingLibrary) -> bool:
    """Return whether it is no fault that a library lacks symbols."""
    # A package may bring one variant for each torch. One of them lacks nothing, and is loaded.
    if library.get("alternatives"):
        return True
    # A version of a symbol (`IBVERBS_1.1`) is asked of one library, and no other can have it.
    if library["versions"]:
        return False
    # Some other library of the image exports each symbol. Whether that is loaded by then depends on
    # what a program imports first.
    return library.get("elsewhere") == library["undefined_count"]


def _is_for_other_torch(path: str, expect: Any) -> bool:
    """Return whether the name of a library says that it is for another torch than the installed.

    torch-c-dlpack-ext has a library for each torch (libtorch_c_dlpack_addon_torch25-cuda.so), and
    opens that of the installed one only, if there is any. `expect`: `torch` is the version of the
    installed torch; empty: there is none.
    """
    named = _TORCH_IN_NAME.search(path.rpartition("/")[2])
    installed = _TORCH_IN_VERSION.match(str(expect.get("torch", "")))
    if not named or not installed:
        return False
    return named["digits"] != f"{installed['major']}{installed['minor']}"


def _judge_start(subject: str, expect: Any, evidence: EnvironmentEvidence) -> Finding:
    """Pass if no code of unknown owner runs whenever the Python of an environment starts.

    The check of our own images is asked about this part of the evidence only. In other people's
    images, variables and settings files are judged by rules of the audit.
    """
    judged: EnvironmentEvidence = {
        "required": {},
        "denied": {},
        "in_files": [],
        "settings_files": {},
        "start": evidence["start"],
    }
    finding = environment.judge(subject, expect, judged)
    if finding.status is Status.PASS:
        return passed("nothing of unknown owner runs when Python starts")
    return finding


AUDIT_JUDGES: Judges = {
    "files/recorded": _judge_files,
    "files/strays": _judge_strays,
    "libraries/linked": _judge_libraries,
    "libraries/rivals": _judge_rivals,
    "symbols/resolved": _judge_symbols,
    "environment/start": _judge_start,
    AUDIT: survey.judge,
    f"{AUDIT}/{machine.SUBJECT}": machine.judge,
    f"{AUDIT}/{survey.CONFLICTS}": survey.judge_conflicts,
    f"{AUDIT}/{survey.LIMITS}": survey.judge_limits,
}
"""Check, or check and subject -> its judge. validate/judge.py takes these before a check's own."""
