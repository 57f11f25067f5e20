"""additions: a user without root adds a package with pip, and no package that wants another torch gets one.

The wheels are made here, so no network is needed: one that needs nothing, one that needs torch 99, and a torch 99.
pip is offered all three; without the image's constraints it would take the last.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.judging import Finding, conclude, telling_line, unproven

SETTINGS = Settings(run_as=RunAs.EACH_CLAIM)

_SECONDS = 300
_TORCH = (
    "import importlib.metadata as m, importlib.util as u; print(m.version('torch')); print(u.find_spec('torch').origin)"
)
_CONSTRAINTS = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given = {**user_environment.recorded().environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder)
        _wheel(wheels, "validate_plain", "1.0", [])
        _wheel(wheels, "validate_mover", "1.0", ["torch>=99"])
        _wheel(wheels, "torch", "99.0", [])
        free = {name: value for name, value in given.items() if name not in _CONSTRAINTS}
        pip = ["pip", "install", "--no-index", "--find-links", str(wheels), "--no-color"]
        held = {}
        if given.get("PIP_CONSTRAINT"):
            with contextlib.suppress(OSError):
                lines = Path(given["PIP_CONSTRAINT"]).read_text(encoding="utf-8").splitlines()
                pairs = (line.partition("==") for line in lines if not line.startswith("#"))
                held = {name: version for name, _, version in pairs if version}
        before = _torch(given)
        plain = _run(given, [*pip, "validate-plain"])
        imported = _run(given, ["python3", "-c", "import validate_plain; print(validate_plain.__file__)"])
        mover = _run(given, [*pip, "validate-mover"])
        control = _run(free, [*pip, "validate-mover", "--dry-run"])
        evidence = {
            "uid": os.getuid(),
            "constraints": held,
            "plain": plain,
            "imported": imported["said"].strip() if imported["code"] == 0 else "",
            "mover": mover,
            "control": control,
            "before": before,
            "after": _torch(given),
        }
        yield from ((claim.subject, evidence) for claim in claims)


def _wheel(folder: Path, name: str, version: str, needs: Sequence[str]) -> None:
    """A wheel of one empty module."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {one}\n" for one in needs),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: validate\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def _run(given: Mapping[str, str], command: Sequence[str]) -> Mapping[str, Any]:
    """By the user's PATH: where packages were added, their environment comes first."""
    program = shutil.which(command[0], path=given.get("PATH", ""))
    if program is None:
        return {"code": 127, "said": f"there is no {command[0]} on the PATH"}
    try:
        done = subprocess.run(
            [program, *command[1:]], env=dict(given), capture_output=True, text=True, timeout=_SECONDS, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"code": 126, "said": str(error)}
    return {"code": done.returncode, "said": (done.stdout + done.stderr)[-2000:]}


def _torch(given: Mapping[str, str]) -> Mapping[str, Any]:
    found = _run(given, ["python3", "-c", _TORCH])
    version, _, file = found["said"].strip().partition("\n")
    return {"version": version, "file": file} if found["code"] == 0 else {"version": "", "file": found["said"][-300:]}


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """additions. expect: {uid, gid, folder, mount, held: {distribution: version that no addition may move}}.

    evidence: {uid, constraints: what the file that pip is told of holds, plain: how pip ended for a package that needs
    nothing ({code, said}), imported: where that was imported from, mover: the same of one that needs another torch,
    control: without the constraints, before and after: torch's {version, file}}.
    """
    if evidence["uid"] != expect["uid"]:
        return unproven(f"the probe ran as uid {evidence['uid']}, not {expect['uid']}")
    good = (
        f"pip adds a package for uid {evidence['uid']}, refuses one that wants another torch, "
        f"and torch {evidence['after']['version']} stays; {len(expect['held'])} distributions are held"
    )
    return conclude(_faults(expect, evidence), good)


def _faults(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    held = evidence["constraints"]
    wrong = [f"{name} {held.get(name, 'not')}" for name, version in expect["held"].items() if held.get(name) != version]
    if wrong:
        yield f"the constraints hold {', '.join(wrong[:3])}{' and others' if len(wrong) > 3 else ''} as validated"
    if evidence["plain"]["code"] != 0:
        yield f"pip can't add a package: {telling_line(evidence['plain']['said'])}"
    elif not evidence["imported"].startswith(f"{expect['folder']}/"):
        yield f"the added package is imported from {evidence['imported'] or 'nowhere'}"
    if evidence["control"]["code"] != 0:
        yield f"control: without constraints pip refuses as well ({telling_line(evidence['control']['said'])})"
    said = evidence["mover"]["said"]
    if evidence["mover"]["code"] == 0:
        yield "pip replaces torch where a package asks for another"
    elif not any(word in said for word in ("ResolutionImpossible", "conflicting dependencies")):
        yield f"pip refuses another torch, but not for the constraints: {telling_line(said)}"
    if not evidence["before"]["version"] or evidence["after"] != evidence["before"]:
        yield f"torch was {evidence['before']}, and is {evidence['after']}"


CLAIMS = {"additions": judge}
