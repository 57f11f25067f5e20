"""The check `additions`: pip adds a package for a user without root, and refuses to replace torch.

The probe makes the wheels itself and needs no network: `validate-plain` requires nothing,
`validate-user` requires torch, whatever its version, `validate-mover` requires torch 99, and there
is a torch 99. pip may take any of them. Only the constraints of the image (PIP_CONSTRAINT) keep it
from taking that torch.

`validate-user` catches a fault of ours: the images with another cuDNN than their torch requires
held it by a constraint, and pip then refused every package that requires torch, such as trl.
"""

import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.judging import PROVES_NOTHING, Finding, conclude, listed, telling_line, unproven
from validate.next_steps import REPORT, RUN_AS_ASKED

SETTINGS = Settings(run_as=RunAs.EACH_CLAIM)

_TIMEOUT_SECONDS = 300
"""How long a program may take: a pip that waits for something would hang."""
_PRINT_TORCH = (
    "import importlib.metadata as m, importlib.util as u; "
    "print(m.version('torch')); print(u.find_spec('torch').origin)"
)
"""Prints two lines: the version of the torch that would be imported, and its file."""
_PRINT_PLAIN_FILE = "import validate_plain; print(validate_plain.__file__)"
_CONSTRAINT_VARIABLES = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")
_CONFLICT_MESSAGES = ("ResolutionImpossible", "conflicting dependencies")
"""Texts of which pip prints one where constraints and requirements contradict each other."""
_NOT_FOUND = 127
_NOT_RUN = 126
"""Exit codes of a shell, for a program that is not there and for one that can't be run."""


class AdditionsExpect(TypedDict):
    """The user that adds packages, and what the check must find."""

    uid: int
    gid: int
    folder: str
    """Where added packages are put."""
    mount: str
    """What lies on the cache folder (home.py, HomeExpect)."""
    held: Mapping[str, str]
    """Distribution -> the version that no addition may move."""


class ProgramRun(TypedDict):
    """How a program ended."""

    code: int
    """Its exit code."""
    said: str
    """The end of what it printed to stdout and stderr, or why it could not be run."""


class Torch(TypedDict):
    """The torch that the user's Python imports."""

    version: str
    """Empty where there is none."""
    file: str
    """Its file, or why there is none."""


class _NewerEvidence(TypedDict, total=False):
    """What evidence of before 2026-11-29 lacks."""

    user: ProgramRun
    """pip adds a package that requires torch, whatever its version."""


class AdditionsEvidence(_NewerEvidence):
    """What pip did, and what it left of torch."""

    uid: int
    """The user that ran the probe."""
    constraints: Mapping[str, str]
    """Distribution -> its version in the image's file of constraints."""
    plain: ProgramRun
    """pip adds a package that requires nothing."""
    imported: str
    """The file from which that package is imported; empty where it can't be imported."""
    mover: ProgramRun
    """pip is asked for a package that requires another torch."""
    control: ProgramRun
    """pip is asked for it without the constraints, and would install it."""
    before: Torch
    """The torch of the image, before pip was called."""
    after: Torch
    """The torch after all of this."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, AdditionsEvidence]]:
    """Add packages with pip as the image's user, and yield what happened for each claim.

    The image has constraints (PIP_CONSTRAINT) that keep pip from replacing torch. What happened is
    the same for every claim.
    """
    environ = {**user_environment.recorded().environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    unconstrained = dict(environ)
    for name in _CONSTRAINT_VARIABLES:
        unconstrained.pop(name, None)

    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder)
        # Make wheels of empty modules: one requires nothing, one any torch, and one a torch that is
        # newer than all. The last wheel is that torch.
        _write_wheel(wheels, "validate_plain", "1.0", [])
        _write_wheel(wheels, "validate_user", "1.0", ["torch"])
        _write_wheel(wheels, "validate_mover", "1.0", ["torch>=99"])
        _write_wheel(wheels, "torch", "99.0", [])
        pip_install = ["pip", "install", "--no-index", "--find-links", folder, "--no-color"]

        # A package that is added must be imported, and torch must stay what it was.
        before = _imported_torch(environ)
        plain = _run(environ, [*pip_install, "validate-plain"])
        printed_file = _run(environ, ["python3", "-c", _PRINT_PLAIN_FILE])
        imported = ""
        if printed_file["code"] == 0:
            imported = printed_file["said"].strip()
        user = _run(environ, [*pip_install, "validate-user"])
        mover = _run(environ, [*pip_install, "validate-mover"])
        # The control shows that pip would replace torch, were it not for the constraints.
        control = _run(unconstrained, [*pip_install, "validate-mover", "--dry-run"])
        evidence: AdditionsEvidence = {
            "uid": os.getuid(),
            "constraints": _read_constraints(environ.get("PIP_CONSTRAINT", "")),
            "plain": plain,
            "imported": imported,
            "user": user,
            "mover": mover,
            "control": control,
            "before": before,
            "after": _imported_torch(environ),
        }
    for claim in claims:
        yield claim.subject, evidence


def _read_constraints(file: str) -> dict[str, str]:
    """Return distribution -> version, from the lines `NAME==VERSION` of a file of constraints.

    Empty where `file` is empty, or can't be read.
    """
    if not file:
        return {}
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    versions = {}
    for line in lines:
        name, _, version = line.partition("==")
        if version and not line.startswith("#"):
            versions[name] = version
    return versions


def _write_wheel(folder: Path, name: str, version: str, requirements: Sequence[str]) -> None:
    """Write a wheel of one empty module to the folder, which pip can install.

    `name`: of the module, such as `validate_plain`; that of the distribution has `-` for `_`.
    `requirements`: such as `torch>=99`.
    """
    dist_info = f"{name}-{version}.dist-info"
    distribution = name.replace("_", "-")
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    for requirement in requirements:
        metadata += f"Requires-Dist: {requirement}\n"
    wheel_metadata = (
        "Wheel-Version: 1.0\nGenerator: validate\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    contents = {
        f"{name}.py": "",
        f"{dist_info}/METADATA": metadata,
        f"{dist_info}/WHEEL": wheel_metadata,
    }
    # RECORD lists every file, itself too; hashes and sizes may be left empty.
    record = f"{dist_info}/RECORD"
    contents[record] = "".join(f"{path},,\n" for path in (*contents, record))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in contents.items():
            wheel.writestr(path, content)


def _run(environ: Mapping[str, str], command: Sequence[str]) -> ProgramRun:
    """Run a program in this environment, and return how it ended.

    `command` is its name and its arguments. The program is looked up on the environment's own PATH:
    where packages were added, it begins with their virtual environment. The result has the exit
    code (`code`), and the end of what was printed or why it could not be run (`said`). A program
    that is not there, does not run or takes too long gets the exit code that a shell gives it.
    """
    name, *arguments = command
    program = shutil.which(name, path=environ.get("PATH", ""))
    if program is None:
        return {"code": _NOT_FOUND, "said": f"there is no {name} on the PATH"}
    try:
        completed = subprocess.run(
            [program, *arguments],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"code": _NOT_RUN, "said": str(error)}
    output = completed.stdout + completed.stderr
    return {"code": completed.returncode, "said": output[-2000:]}


def _imported_torch(environ: Mapping[str, str]) -> Torch:
    """Return the torch that `python3` of this environment would import: no version if none."""
    printed = _run(environ, ["python3", "-c", _PRINT_TORCH])
    if printed["code"] != 0:
        return {"version": "", "file": printed["said"][-300:]}
    version, _, file = printed["said"].strip().partition("\n")
    return {"version": version, "file": file}


def judge(_subject: str, expect: AdditionsExpect, evidence: AdditionsEvidence) -> Finding:
    """Pass if a user can add a package with pip, and pip refuses one that would replace torch.

    `expect["held"]` has the packages whose versions no addition may change. The claim is about one
    user of the image (`expect["uid"]`): it is UNPROVEN if the probe ran as another.
    """
    if evidence["uid"] != expect["uid"]:
        return unproven(
            f"the container ran as user {evidence['uid']}, and the claim is about user "
            f"{expect['uid']}",
            RUN_AS_ASKED,
        )
    reason_if_passed = (
        f"pip adds a package for uid {evidence['uid']}, refuses one that wants another torch, "
        f"and torch {evidence['after']['version']} stays; "
        f"{len(expect['held'])} distributions are held"
    )
    return conclude(_faults(expect, evidence), reason_if_passed)


def _faults(expect: AdditionsExpect, evidence: AdditionsEvidence) -> Iterator[str]:
    """Yield a sentence for each thing that went wrong when a user added packages with pip.

    The evidence has four runs of pip: `plain` and `user` add a package, `mover` one that wants
    another torch, and `control` the same without the image's constraints. pip must refuse only
    `mover`.
    """
    yield from _constraint_faults(expect["held"], evidence["constraints"])

    # At the first start of Python, the image makes an environment in the cache folder (`folder`) of
    # the user. pip must add to it.
    plain = evidence["plain"]
    if plain["code"] != 0:
        yield f"pip can't add a package: {telling_line(plain['said'])}"
    elif not evidence["imported"].startswith(f"{expect['folder']}/"):
        place = evidence["imported"] or "nowhere"
        yield f"the package that pip added is imported from {place}, not from {expect['folder']}"

    user = evidence.get("user")
    if user is not None and user["code"] != 0:
        yield f"pip can't add a package that requires torch: {telling_line(user['said'])}"

    # Without the constraints, pip must take the other torch. Otherwise its refusal proves nothing.
    control = evidence["control"]
    if control["code"] != 0:
        line = telling_line(control["said"])
        yield (
            f"{PROVES_NOTHING}pip refuses another torch even without the image's constraints "
            f"({line})"
        )

    # With the constraints it must refuse, and for no other reason, such as a full disk.
    mover = evidence["mover"]
    names_conflict = any(message in mover["said"] for message in _CONFLICT_MESSAGES)
    if mover["code"] == 0:
        yield "pip replaces the image's torch if a package asks for another release of it"
    elif not names_conflict:
        line = telling_line(mover["said"])
        yield f"pip refuses another torch for another reason than the image's constraints: {line}"

    # If there was no torch at first, an equal answer at the end would prove nothing.
    if not evidence["before"]["version"] or evidence["after"] != evidence["before"]:
        before, after = evidence["before"], evidence["after"]
        yield (
            f"torch was {before['version']} ({before['file']}) before pip ran, and is "
            f"{after['version']} ({after['file']}) now"
        )


def _constraint_faults(fixed: Mapping[str, str], constraints: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence if the image's constraints differ from the versions that must not move.

    Both are package -> version: `fixed` as it must be, `constraints` as the image has it.
    """
    differing = []
    for name, version in fixed.items():
        constraint = constraints.get(name)
        if constraint is None:
            differing.append(f"{name} is missing")
        elif constraint != version:
            differing.append(f"{name} is {constraint}, not {version}")
    if differing:
        yield f"pip's constraints are not the versions of this image: {listed(differing)}"


CLAIMS = {"additions": judge}
NEXT_STEPS = {
    "additions": "take the lines that change PIP_CONSTRAINT, PIP_PYTHON or /opt/truetag out of "
    f"your Dockerfile, and build the image again; if you have no such line, {REPORT}"
}
