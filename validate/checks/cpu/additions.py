"""additions: a user without root adds a package with pip, and no package that wants another torch
gets one.

The wheels are made here, so no network is needed: one that needs nothing, one that needs torch 99,
and a torch 99. pip is offered all three; without the image's constraints it would take the last.
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
from validate.judging import Finding, conclude, telling_line, unproven

SETTINGS = Settings(run_as=RunAs.EACH_CLAIM)

_SECONDS = 300
_TORCH = "import importlib.metadata as m, importlib.util as u; print(m.version('torch')); print(u.find_spec('torch').origin)"
_CONSTRAINTS = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")


class AdditionsExpect(TypedDict):
    """Who adds to which folder; `held`: distribution -> the version that no addition may move."""

    uid: int
    gid: int
    folder: str
    mount: str
    held: Mapping[str, str]


class ProgramRun(TypedDict):
    """How a program ended, and the end of what it printed."""

    code: int
    said: str


class Torch(TypedDict):
    """The torch that is imported."""

    version: str
    file: str


class AdditionsEvidence(TypedDict):
    """How pip ended for a package that needs nothing (`plain`), for one that needs another torch
    (`mover`), and for that without the constraints (`control`).
    """

    uid: int
    constraints: Mapping[str, str]
    plain: ProgramRun
    imported: str
    mover: ProgramRun
    control: ProgramRun
    before: Torch
    after: Torch


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, AdditionsEvidence]]:
    """Yield the evidence, which is the same for every claim."""
    environ = {**user_environment.recorded().environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder)
        _wheel(wheels, "validate_plain", "1.0", [])
        _wheel(wheels, "validate_mover", "1.0", ["torch>=99"])
        _wheel(wheels, "torch", "99.0", [])
        unconstrained = {name: value for name, value in environ.items() if name not in _CONSTRAINTS}
        pip = ["pip", "install", "--no-index", "--find-links", str(wheels), "--no-color"]
        before = _torch(environ)
        plain = _run(environ, [*pip, "validate-plain"])
        imported = _run(
            environ, ["python3", "-c", "import validate_plain; print(validate_plain.__file__)"]
        )
        mover = _run(environ, [*pip, "validate-mover"])
        control = _run(unconstrained, [*pip, "validate-mover", "--dry-run"])
        evidence: AdditionsEvidence = {
            "uid": os.getuid(),
            "constraints": _constraints(environ.get("PIP_CONSTRAINT", "")),
            "plain": plain,
            "imported": imported["said"].strip() if imported["code"] == 0 else "",
            "mover": mover,
            "control": control,
            "before": before,
            "after": _torch(environ),
        }
        yield from ((claim.subject, evidence) for claim in claims)


def _constraints(file: str) -> dict[str, str]:
    """Return the versions that a constraints file holds; none where there is no such file."""
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


def _wheel(folder: Path, name: str, version: str, needs: Sequence[str]) -> None:
    """Write a wheel of one empty module."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": metadata
        + "".join(f"Requires-Dist: {requirement}\n" for requirement in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: validate\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def _run(environ: Mapping[str, str], command: Sequence[str]) -> ProgramRun:
    """Run a program by the user's PATH: where packages were added, their environment comes first."""
    program = shutil.which(command[0], path=environ.get("PATH", ""))
    if program is None:
        return {"code": 127, "said": f"there is no {command[0]} on the PATH"}
    try:
        done = subprocess.run(
            [program, *command[1:]],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"code": 126, "said": str(error)}
    return {"code": done.returncode, "said": (done.stdout + done.stderr)[-2000:]}


def _torch(environ: Mapping[str, str]) -> Torch:
    """Ask the user's Python which torch it imports."""
    answer = _run(environ, ["python3", "-c", _TORCH])
    if answer["code"] != 0:
        return {"version": "", "file": answer["said"][-300:]}
    version, _, file = answer["said"].strip().partition("\n")
    return {"version": version, "file": file}


def judge(_subject: str, expect: AdditionsExpect, evidence: AdditionsEvidence) -> Finding:
    """Judge that a package is added, and none moves torch."""
    if evidence["uid"] != expect["uid"]:
        return unproven(f"the probe ran as uid {evidence['uid']}, not {expect['uid']}")
    good = (
        f"pip adds a package for uid {evidence['uid']}, refuses one that wants another torch, "
        f"and torch {evidence['after']['version']} stays; {len(expect['held'])} distributions are held"
    )
    return conclude(_faults(expect, evidence), good)


def _faults(expect: AdditionsExpect, evidence: AdditionsEvidence) -> Iterator[str]:
    """Yield what is wrong with the constraints, the addition, the refusal and the control."""
    constraints = evidence["constraints"]
    differing = [
        name for name, version in expect["held"].items() if constraints.get(name) != version
    ]
    if differing:
        names = ", ".join(f"{name} {constraints.get(name, 'not')}" for name in differing[:3])
        yield f"the constraints hold {names}{' and others' if len(differing) > 3 else ''} as validated"

    if evidence["plain"]["code"] != 0:
        yield f"pip can't add a package: {telling_line(evidence['plain']['said'])}"
    elif not evidence["imported"].startswith(f"{expect['folder']}/"):
        yield f"the added package is imported from {evidence['imported'] or 'nowhere'}"

    if evidence["control"]["code"] != 0:
        yield f"control: without constraints pip refuses as well ({telling_line(evidence['control']['said'])})"

    output = evidence["mover"]["said"]
    if evidence["mover"]["code"] == 0:
        yield "pip replaces torch where a package asks for another"
    elif not any(word in output for word in ("ResolutionImpossible", "conflicting dependencies")):
        yield f"pip refuses another torch, but not for the constraints: {telling_line(output)}"
    if not evidence["before"]["version"] or evidence["after"] != evidence["before"]:
        yield f"torch was {evidence['before']}, and is {evidence['after']}"


CLAIMS = {"additions": judge}
