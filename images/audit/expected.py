"""What holds for any image with these packages: claims, written from what is installed, and their judges. Pure.

Nobody promised anything of such an image, so a claim here never says which version should be there. It says that
what is there is whole, and fits together.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from packaging.version import InvalidVersion, Version

from images.audit.model import LibraryCode
from images.config import yamlfile
from images.config.facts import Facts
from images.config.names import Arch, ImageName, Minor
from images.planning import expectations
from images.planning.image import Base, Image, Pin
from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.cpu import cpu_claims
from images.validation.claims.device_code import device_code_claims
from validate.checks import Judges
from validate.checks.static import environment, files, libraries, symbols
from validate.claims import Claim, ClaimSet
from validate.compute_capability import target_runs_on
from validate.environment.installed import canonical
from validate.judging import Finding, conclude, matches, passed

_NAME = re.compile(r"[\w.-]+")
_SHARE = 5
"""torch has an architecture if it holds a fifth of what it holds for the best served one: torch 2.7 has some kernels
for sm_89 alone, and is not made for it."""
_OF_A_MATRIX = frozenset(("users", "additions"))
"""Claims about the home and the constraints that our images have."""
_WHOLE_LIBRARIES = frozenset(("cuda-libraries", "pruned"))
_RULES = yamlfile.table("audit.yaml")
_IMPORTED = {*_RULES["imported"], *expectations.NATIVE, *expectations.IMPORTED, *expectations.IMPORT_TORCH_FIRST}
DEBIANS = "/usr/lib/python3/dist-packages"
"""Debian's packages fill it, and dpkg keeps the hashes. Most bring no RECORD, some one with hashes in another form
(python3-blinker 1.5-1: hexadecimal)."""
_LAYER = "installed"


def expected(
    environment: Mapping[str, Any], code: Sequence[LibraryCode], facts: Facts
) -> tuple[ClaimSet, Sequence[str]]:
    """Claims of one surveyed environment, and the packages at versions of which nothing is known, with the reason.

    `code`: of all libraries of the image.
    """
    image, left_out = as_image(environment, code, facts)
    conda = sorted(one["name"] for one in environment["distributions"] if one["installer"] == "conda")
    links = {
        "of": "environment",
        "home": "",
        "cuda_libraries": expectations.cuda_libraries(image.wheel_cuda.major) if image else {},
        "host": list(expectations.HOST_LIBRARIES),
        "other_platforms": list(expectations.OTHER_PLATFORMS),
        "requires": {str(one["name"]): _required(one["requires"]) for one in environment["distributions"]},
        "exceptions": [*expectations.LINK_EXCEPTIONS, *_RULES["optional_plugins"]],
    }
    unowned, start = dict(expectations.START_FILES), expectations.START_FILES
    expects = {
        "static.files": {"unowned": unowned, "aside": [DEBIANS], "conda": conda, "kind": environment["kind"]},
        "static.libraries": links,
        "static.symbols": {"host": list(expectations.HOST_LIBRARIES), "exceptions": []},
        "static.environment": {"required": {}, "denied": dict(expectations.DENIED_VARIABLES), "start_files": start},
    }
    claims = [*_claims("environment_claims", expects)]
    if image:
        context = ClaimContext(image=image, facts=facts, no_gpu="an audit runs on no GPU")
        of_libraries = (one for one in device_code_claims(context) if one.subject not in _WHOLE_LIBRARIES)
        claims += [_where_served(one, code) for one in of_libraries]
        unproven = image.unproven
        claims += [
            replace(one, unproven=unproven.get(one.key, one.unproven))
            for one in cpu_claims(context)
            if one.check not in _OF_A_MATRIX
        ]
    return ClaimSet(image=str(environment["prefix"]), claims=tuple(claims)), left_out


def hygiene() -> ClaimSet:
    """Claims of the whole image: leftovers and secrets."""
    ours = ("/workspace/*", "/root/.local/*")
    expect = {"leftovers": {pattern: what for pattern, what in expectations.LEFTOVERS.items() if pattern not in ours}}
    return ClaimSet(image="image", claims=tuple(_claims("image_claims", {"static.hygiene": expect})))


def _claims(table: str, expects: Mapping[str, Mapping[str, Any]]) -> Iterator[Claim]:
    """Those of a table of audit.yaml. `expects`: by probe."""
    for key, (probe, statement) in _RULES[table].items():
        check, _, subject = key.partition("/")
        yield claim(check, subject, probe, statement, expects[probe])


def archs(environment: Mapping[str, Any], code: Sequence[LibraryCode]) -> tuple[Arch, ...]:
    """Architectures that torch was made for, by the bytes of machine code that its largest library has for each."""
    folder = str(environment["torch"].get("file", "")).rpartition("/")[0]
    own = [one.archs for one in code if folder and one.path.startswith(f"{folder}/lib/libtorch_cuda")]
    torch_code = max(own, key=lambda found: sum(found.values()), default={})
    cubins = {name.removeprefix("sm_"): size for name, size in torch_code.items() if name.startswith("sm_")}
    most = max(cubins.values(), default=0)
    found = (name for name, size in cubins.items() if name.isdigit() and size * _SHARE >= most)
    return tuple(sorted(Arch(*divmod(int(name), 10)) for name in found))


def _where_served(found: Claim, code: Sequence[LibraryCode]) -> Claim:
    """A claim on device code for the GPUs alone that the library has code for: a table shows the others, no fault."""
    own = [one.archs for one in code if matches(one.path, [f"*/{pattern}" for pattern in found.expect["files"]])]
    if not own:
        return found
    served = {
        arch: how
        for arch, how in found.expect["archs"].items()
        if any(target_runs_on(target, divmod(int(arch), 10)) for archs in own for target in archs)
    }
    return replace(found, expect={**found.expect, "archs": served})


def as_image(
    environment: Mapping[str, Any], code: Sequence[LibraryCode], facts: Facts
) -> tuple[Image | None, Sequence[str]]:
    """The environment as if the matrix had made it, which claims are written from; None: it has no torch for CUDA."""
    torch = environment["torch"]
    try:
        cuda, version = Minor.parse(str(torch["cuda"])), Minor.parse(str(torch["version"]))
        expectations.cuda_libraries(cuda.major)
    except (KeyError, ValueError):
        return None, ()
    # Known packages; those whose checks need facts that are not there are left out, with the reason.
    known: dict[str, Pin] = {}
    left_out = []
    for one in environment["distributions"]:
        name, has = str(one["name"]), str(one["version"]).partition("+")[0]
        if name not in _IMPORTED or name in known:
            continue
        try:
            Version(has)
        except InvalidVersion:
            left_out.append(f"{name} {has}: no version that can be compared")
            continue
        if has not in facts.companions.get(name, [has]):
            left_out.append(f"{name} {has}: facts.yaml has no row of it")
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
        unproven=expectations.unproven({pin.name: pin.version for pin in pins}),
    )
    return image, left_out


_ASIDE = frozenset(("tests", "test", "docs", "examples", "benchmarks", "scripts"))
"""Top folders that packages should not install, and often do: two of them may own one file there."""


def _files(subject: str, expect: Any, evidence: Any) -> Finding:
    """files without what conda installed: it rewrites files, and keeps hashes of its own."""
    conda = set(expect["conda"])
    own: Any = {
        **evidence,
        "wrong": [one for one in evidence["wrong"] if not {name.partition(" ")[0] for name in one["owners"]} <= conda],
        "in_conflict": [one for one in evidence["in_conflict"] if not _is_aside(one)],
        "unowned": [],
        "unowned_count": 0,
        "without_record": [one for one in evidence["without_record"] if one["name"] not in conda],
    }
    if not evidence["files"]:
        return passed("no distribution records a file: there is nothing to compare")
    return files.judge(subject, expect, own)


def _strays(subject: str, expect: Any, evidence: Any) -> Finding:
    if expect["kind"] == "conda":
        return passed("conda owns files that no RECORD lists: not looked at")
    own: Any = {**evidence, "files": 1, "wrong": [], "without_record": []}
    own["in_conflict"] = [one for one in evidence["in_conflict"] if _is_aside(one)]
    found = files.judge(subject, expect, own)
    return found if found.status != "PASS" else passed("every file that Python can import has an owner")


def _is_aside(one: Mapping[str, Any]) -> bool:
    """No code, or in a folder that packages install by mistake."""
    path = PurePosixPath(one["path"])
    inside = next((path.parts[at + 1 :] for at, part in enumerate(path.parts) if part.endswith("-packages")), ())
    return (path.suffix not in (".py", ".so") and ".so." not in path.name) or (bool(inside) and inside[0] in _ASIDE)


def _linked(subject: str, expect: Any, evidence: Any) -> Finding:
    """`libraries` without rivals, and `symbols`. A package that requires another takes what it links of that after
    importing it; what other libraries have is a matter of who is loaded first, and of variants for several torches one
    has to fit."""
    if not evidence["files"]:
        return passed("there is no shared library in this environment")
    if subject == "resolved":
        lacking = [
            one
            for one in evidence["lacking"]
            if not one.get("alternatives") and (one["versions"] or one.get("elsewhere") != one["undefined_count"])
        ]
        count = evidence["lacking_count"] - len(evidence["lacking"]) + len(lacking)
        return symbols.judge(subject, expect, {**evidence, "lacking": lacking, "lacking_count": count})
    linked = [
        {**one, "missing": [name for name in one["missing"] if not _from_required(one, name, expect["requires"])]}
        for one in evidence["linked"]
    ]
    own: Any = {**evidence, "second_owners": [], "linked": linked}
    return libraries.judge(subject, expect, own)


def _from_required(one: Mapping[str, Any], name: str, requires: Mapping[str, Sequence[str]]) -> bool:
    needed = {required for owner in one["owners"] for required in requires.get(owner, ())}
    return not needed.isdisjoint(one.get("offered", {}).get(name, ()))


def _required(lines: Sequence[Any]) -> list[str]:
    """The names that a distribution requires without an extra."""
    return [canonical(found[0]) for line in lines if "extra ==" not in line and (found := _NAME.match(str(line)))]


def _rivals(_subject: str, _expect: Any, evidence: Any) -> Finding:
    said = "{} of {} has a rival on the loader's path: {}".format
    found = [said(one["name"], ", ".join(one["owners"]), one["other"]) for one in evidence["second_owners"]]
    return conclude(found, "no package's CUDA library has a rival on the loader's path")


def _start(subject: str, expect: Any, evidence: Any) -> Finding:
    """environment's start-up code alone: variables are told once, for the whole image."""
    own: Any = {**evidence, "denied": {}, "in_files": [], "settings_files": {}, "required": {}}
    found = environment.judge(subject, expect, own)
    return found if found.status != "PASS" else passed("nothing of unknown owner runs when Python starts")


AUDIT_JUDGES: Judges = {
    "files/recorded": _files,
    "files/strays": _strays,
    "libraries/linked": _linked,
    "libraries/rivals": _rivals,
    "symbols": _linked,
    "environment": _start,
}
"""They stand before the suite's own (validate/judge.py)."""
