"""What holds for any image with these packages: claims, written from what is installed, and their judges. Pure.

Nobody promised anything of such an image, so a claim here never says which version should be there. It says that
what is there is whole, and fits together.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from packaging.version import InvalidVersion, Version

from images.audit import survey
from images.audit.device_code import LibraryCode
from images.audit.survey import Rule
from images.config import yamlfile
from images.config.facts import Facts
from images.config.names import Arch, ImageName, Minor
from images.planning import chooser, expectations
from images.planning.chooser import Machine
from images.planning.image import Base, Image, Pin
from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.device_code import device_code_claims
from validate.checks import Judges
from validate.checks.static import environment, files, libraries, symbols
from validate.checks.static.environment import EnvironmentEvidence
from validate.checks.static.files import FilesEvidence
from validate.checks.static.libraries import LibrariesEvidence, LinkedLibrary
from validate.checks.static.symbols import SymbolsEvidence
from validate.claims import HOST_PROBE, Claim, ClaimSet
from validate.compute_capability import target_runs_on
from validate.environment.installed import canonical
from validate.judging import Finding, Status, conclude, matches, passed

_NAME = re.compile(r"[\w.-]+")
_SHARE = 5
"""torch has an architecture if it holds a fifth of what it holds for the best served one: torch 2.7 has some kernels
for sm_89 alone, and is not made for it."""
_OF_A_MATRIX = frozenset(("users", "additions"))
"""Claims about the home and the constraints that our images have."""
_WHOLE_LIBRARIES = frozenset(("cuda-libraries", "pruned"))
_RULES = yamlfile.table("audit.yaml")
_IMPORTED = {
    *_RULES["imported"],
    *expectations.NATIVE,
    *expectations.IMPORTED,
    *expectations.IMPORT_TORCH_FIRST,
}
DEBIANS = "/usr/lib/python3/dist-packages"
"""Debian's packages fill it, and dpkg keeps the hashes. Most bring no RECORD, some one with hashes in another form
(python3-blinker 1.5-1: hexadecimal)."""
_LAYER = "installed"
AUDIT = "audit"
"""The claims that only an audit has."""


def environment_claims(
    environment: Mapping[str, Any], code: Sequence[LibraryCode], facts: Facts
) -> tuple[list[Claim], dict[str, str]]:
    """Return the claims of one surveyed environment, and the packages of which nothing is known, with the reason.

    `code`: of all libraries of the image.
    """
    image, left_out = as_image(environment, code, facts)
    conda = sorted(
        row["name"] for row in environment["distributions"] if row["installer"] == "conda"
    )
    files = {
        "unowned": dict(expectations.START_FILES),
        "aside": [DEBIANS],
        "conda": conda,
        "kind": environment["kind"],
    }
    links = {
        "of": "environment",
        "home": "",
        "cuda_libraries": expectations.cuda_libraries(image.wheel_cuda.major) if image else {},
        "host": list(expectations.HOST_LIBRARIES),
        "other_platforms": list(expectations.OTHER_PLATFORMS),
        "requires": {
            str(row["name"]): _required(row["requires"]) for row in environment["distributions"]
        },
        "exceptions": [*expectations.LINK_EXCEPTIONS, *_RULES["optional_plugins"]],
    }
    symbol_hosts = {"host": list(expectations.HOST_LIBRARIES), "exceptions": []}
    start = {
        "required": {},
        "denied": dict(expectations.DENIED_VARIABLES),
        "start_files": expectations.START_FILES,
    }
    claims = [
        claim(
            "files",
            "recorded",
            "static.files",
            "every installed file is as its wheel recorded it",
            files,
        ),
        claim(
            "files",
            "strays",
            "static.files",
            "no file that Python can import belongs to nobody",
            files,
            required=False,
        ),
        claim(
            "libraries",
            "linked",
            "static.libraries",
            "every library finds what it needs, of one CUDA",
            links,
        ),
        claim(
            "libraries",
            "rivals",
            "static.libraries",
            "no other copy of a package's CUDA library is on the loader's path",
            links,
            required=False,
        ),
        claim(
            "symbols",
            "resolved",
            "static.symbols",
            "every symbol that a library needs is exported",
            symbol_hosts,
        ),
        claim(
            "environment",
            "start",
            "static.environment",
            "nothing of unknown owner runs when Python starts",
            start,
            required=False,
        ),
    ]
    if image:
        claims += _torch_claims(
            ClaimContext(image=image, facts=facts, no_gpu="an audit runs on no GPU"), code
        )
    return claims, left_out


def _torch_claims(context: ClaimContext, code: Sequence[LibraryCode]) -> Iterator[Claim]:
    """Yield the claims of our images about device code, and of the cpu tier, that need no promise."""
    for device_code in device_code_claims(context):
        if device_code.subject not in _WHOLE_LIBRARIES:
            yield _where_served(device_code, code)
    for on_cpu in cpu_claims(context):
        if on_cpu.check not in _OF_A_MATRIX:
            unproven = context.image.unproven.get(on_cpu.key, on_cpu.unproven)
            yield replace(
                on_cpu, unproven=unproven, required=on_cpu.key not in _RULES["not_required"]
            )


def image_claims() -> list[Claim]:
    """Return the claims of the whole image that our checks measure: leftovers and secrets."""
    ours = ("/workspace/*", "/root/.local/*")
    leftovers = {
        pattern: what for pattern, what in expectations.LEFTOVERS.items() if pattern not in ours
    }
    expect = {"leftovers": leftovers}
    nothing_left = "no cache, package list or temporary file of the build is left"
    return [
        claim("hygiene", "leftovers", "static.hygiene", nothing_left, expect, required=False),
        claim("hygiene", "secrets", "static.hygiene", "no file holds a credential", expect),
        claim("image", "history", HOST_PROBE, "no credential in variables, labels and build steps"),
    ]


def of_rules(rules: Sequence[Rule]) -> list[Claim]:
    """Return a claim for each rule that is judged by what the survey saw."""
    return [
        claim(AUDIT, rule.subject, HOST_PROBE, rule.statement, required=rule.required)
        for rule in rules
    ]


def not_audited(reasons: Mapping[str, str]) -> list[Claim]:
    """Return a claim for each thing that was not looked at, with the reason: what is left out is never green."""
    return [
        claim(AUDIT, f"of-{name}", HOST_PROBE, f"{name} is sound", required=False, unproven=reason)
        for name, reason in reasons.items()
    ]


def machine_claim(
    environment: Mapping[str, Any], code: Sequence[LibraryCode], facts: Facts, machine: Machine
) -> Claim:
    """Return the claim that an environment runs on a machine, with what facts say against it."""
    image, _ = as_image(environment, code, facts)
    if image:
        summary = chooser.summary(image, facts)
        against = list(chooser.answer(summary, machine, chooser.Options()).against)
    else:
        against = list(chooser.wrong_for_gpu(machine))
    against = [f"torch {text}" if text.startswith("has no code") else text for text in against]
    return claim(
        AUDIT,
        survey.MACHINE,
        HOST_PROBE,
        f"it runs on {machine}",
        {"machine": str(machine), "against": against},
    )


def conflicts_claim(facts: Facts) -> Claim:
    """Return the claim that no releases are installed that are known to fail together."""
    rows = [conflict.model_dump(mode="json") for conflict in facts.conflicts]
    statement = "no releases here are known to fail together"
    return claim(AUDIT, survey.CONFLICTS, HOST_PROBE, statement, {"conflicts": rows})


def readable_here(claims: ClaimSet, environment: Mapping[str, Any]) -> ClaimSet:
    """Return the claims as a folder's packages can be held to them by this machine's Python, which may be another."""
    is_another = environment["version"] != "{}.{}".format(*sys.version_info)
    found = []
    for asked in claims.claims:
        # Symbols of the interpreter are those of another release.
        if asked.check == "symbols":
            expect = {**asked.expect, "any_python": is_another}
            asked = replace(asked, expect=expect)
        found.append(asked)
    return replace(claims, claims=tuple(found))


def archs(environment: Mapping[str, Any], code: Sequence[LibraryCode]) -> tuple[Arch, ...]:
    """Return the architectures that torch was made for, by the bytes of machine code in its largest library."""
    folder = str(environment["torch"].get("file", "")).rpartition("/")[0]
    of_torch = [
        library.archs
        for library in code
        if folder and library.path.startswith(f"{folder}/lib/libtorch_cuda")
    ]
    largest = max(of_torch, key=lambda sizes: sum(sizes.values()), default={})
    # `sm_90a` has kernels for some instructions only.
    sizes = {
        name[3:]: size
        for name, size in largest.items()
        if name.startswith("sm_") and name[3:].isdigit()
    }
    enough = max(sizes.values(), default=0) / _SHARE
    return tuple(
        sorted(Arch(*divmod(int(number), 10)) for number, size in sizes.items() if size >= enough)
    )


def _where_served(device_code: Claim, code: Sequence[LibraryCode]) -> Claim:
    """Return a claim on device code for those GPUs only that the library has any code for."""
    patterns = [f"*/{pattern}" for pattern in device_code.expect["files"]]
    targets = {
        target for library in code if matches(library.path, patterns) for target in library.archs
    }
    if not targets:
        return device_code
    served = {}
    for arch, kind in device_code.expect["archs"].items():
        gpu = divmod(int(arch), 10)
        if any(target_runs_on(target, gpu) for target in targets):
            served[arch] = kind
    return replace(device_code, expect={**device_code.expect, "archs": served})


def as_image(
    environment: Mapping[str, Any], code: Sequence[LibraryCode], facts: Facts
) -> tuple[Image | None, dict[str, str]]:
    """Return the environment as if the matrix had made it, to write claims from; None: it has no torch for CUDA.

    Beside it, the packages of which nothing is known, with the reason.
    """
    torch = environment["torch"]
    try:
        cuda, version = Minor.parse(str(torch["cuda"])), Minor.parse(str(torch["version"]))
        expectations.cuda_libraries(cuda.major)
    except (KeyError, ValueError):
        return None, {}
    # Known packages; those whose checks need facts that are not there are left out, with the reason.
    known: dict[str, Pin] = {}
    left_out: dict[str, str] = {}
    for row in environment["distributions"]:
        name, has = str(row["name"]), str(row["version"]).partition("+")[0]
        if name not in _IMPORTED or name in known:
            continue
        try:
            Version(has)
        except InvalidVersion:
            left_out[name] = f"{has} is no version that can be compared"
            continue
        if has not in facts.companions.get(name, [has]):
            left_out[name] = f"facts.yaml has no row of {has}"
        else:
            known[name] = Pin(name=name, version=has, layer=_LAYER)
    pins = tuple(known.values())
    python = Minor.parse(str(environment["version"]))
    image = Image(
        name=ImageName(cuda=cuda, torch=version),
        base=Base(key="", reference="", suite=None, python=python, glibc=Minor(2, 0)),
        python=python,
        toolkit_cuda=cuda,
        wheel_cuda=cuda,
        index=None,
        archs=archs(environment, code),
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
    return image, left_out


# --- judges: the ordinary ones, on evidence without what is no fault in other people's images ------------------------

_ASIDE = frozenset(("tests", "test", "docs", "examples", "benchmarks", "scripts"))
"""Top folders that packages should not install, and often do: two of them may own one file there."""


def _judge_files(subject: str, expect: Any, evidence: FilesEvidence) -> Finding:
    """Judge files against RECORD, but not those of conda, which rewrites files and keeps hashes of its own."""
    if not evidence["files"]:
        return passed("no distribution records a file: there is nothing to compare")
    conda = set(expect["conda"])
    wrong = []
    for file in evidence["wrong"]:
        owners = {name.partition(" ")[0] for name in file["owners"]}
        if not owners <= conda:
            wrong.append(file)
    own: FilesEvidence = {
        **evidence,
        "wrong": wrong,
        "in_conflict": [file for file in evidence["in_conflict"] if not _is_aside(file["path"])],
        "unowned": [],
        "unowned_count": 0,
        "without_record": [row for row in evidence["without_record"] if row["name"] not in conda],
    }
    return files.judge(subject, expect, own)


def _judge_strays(subject: str, expect: Any, evidence: FilesEvidence) -> Finding:
    """Judge files that nobody owns, and those beside the code that two packages own."""
    if expect["kind"] == "conda":
        return passed("conda owns files that no RECORD lists: not looked at")
    aside = [file for file in evidence["in_conflict"] if _is_aside(file["path"])]
    own: FilesEvidence = {
        **evidence,
        "files": 1,
        "wrong": [],
        "without_record": [],
        "in_conflict": aside,
    }
    finding = files.judge(subject, expect, own)
    if finding.status is Status.PASS:
        return passed("every file that Python can import has an owner")
    return finding


def _is_aside(path: str) -> bool:
    """Tell whether a file is no code, or lies in a folder that packages install by mistake."""
    name = path.rpartition("/")[2]
    is_code = name.endswith((".py", ".so")) or ".so." in name
    top_folder = path.rpartition("-packages/")[2].partition("/")[0]
    return not is_code or top_folder in _ASIDE


def _judge_libraries(subject: str, expect: Any, evidence: LibrariesEvidence) -> Finding:
    """Judge what libraries link. What a required package offers is there once that was imported."""
    if not evidence["files"]:
        return passed("there is no shared library in this environment")
    linked: list[LinkedLibrary] = []
    for library in evidence["linked"]:
        required = {
            name for owner in library["owners"] for name in expect["requires"].get(owner, ())
        }
        missing = []
        for name in library["missing"]:
            offered_by = library.get("offered", {}).get(name, ())
            if required.isdisjoint(offered_by):
                missing.append(name)
        linked.append({**library, "missing": missing})
    own: LibrariesEvidence = {**evidence, "second_owners": [], "linked": linked}
    return libraries.judge(subject, expect, own)


def _judge_symbols(subject: str, expect: Any, evidence: SymbolsEvidence) -> Finding:
    """Judge symbols. What other libraries have depends on who is loaded first; of variants for torches one must fit."""
    if not evidence["files"]:
        return passed("there is no shared library in this environment")
    lacking = []
    for library in evidence["lacking"]:
        all_elsewhere = library.get("elsewhere") == library["undefined_count"]
        if not library.get("alternatives") and (library["versions"] or not all_elsewhere):
            lacking.append(library)
    count = evidence["lacking_count"] - len(evidence["lacking"]) + len(lacking)
    own: SymbolsEvidence = {**evidence, "lacking": lacking, "lacking_count": count}
    return symbols.judge(subject, expect, own)


def _required(lines: Sequence[Any]) -> list[str]:
    """Return the names that a distribution requires without an extra."""
    names = []
    for line in lines:
        name = _NAME.match(str(line))
        if name and "extra ==" not in line:
            names.append(canonical(name[0]))
    return names


def _judge_rivals(_subject: str, _expect: Any, evidence: Any) -> Finding:
    """Judge whether another copy of a package's CUDA library is on the loader's path."""
    rivals = []
    for library in evidence["second_owners"]:
        owners = ", ".join(library["owners"])
        rivals.append(
            f"{library['name']} of {owners} has a rival on the loader's path: {library['other']}"
        )
    return conclude(rivals, "no package's CUDA library has a rival on the loader's path")


def _judge_start(subject: str, expect: Any, evidence: EnvironmentEvidence) -> Finding:
    """Judge the code that runs when Python starts; a rule of the survey is about variables."""
    own: EnvironmentEvidence = {
        "required": {},
        "denied": {},
        "in_files": [],
        "settings_files": {},
        "start": evidence["start"],
    }
    finding = environment.judge(subject, expect, own)
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
    f"{AUDIT}/{survey.MACHINE}": survey.judge_machine,
    f"{AUDIT}/{survey.CONFLICTS}": survey.judge_conflicts,
}
"""They stand before the check's own (validate/judge.py)."""
