"""S7: variables, settings files and start-up code of the image can make a right answer come from the wrong path.

Only variables that the claim names are recorded: an environment can hold secrets.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypedDict, cast

from validate.claims import Claim
from validate.environment import debian, installed, user_environment
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, conclude, listed, matches


class EnvironmentExpect(TypedDict):
    required: dict[str, str]
    denied: dict[str, str]
    start_files: dict[str, str]


class ShellAssignment(TypedDict):
    file: str
    name: str
    value: str


class StartCode(TypedDict):
    file: str
    owners: list[str]
    of_debian: bool
    does_nothing: bool


class Start(TypedDict):
    flags: dict[str, int]
    changes: dict[str, str]
    code: list[StartCode]


class EnvironmentEvidence(TypedDict):
    required: dict[str, str | None]
    denied: dict[str, str]
    in_files: list[ShellAssignment]
    settings_files: dict[str, list[str]]
    start: Start


_SHELL_FILES = (
    "/etc/environment",
    "/etc/security/pam_env.conf",
    "/etc/profile",
    "/etc/profile.d/*.sh",
    "/etc/bash.bashrc",
    "/etc/zsh/zshenv",
    "~/.bashrc",
    "~/.bash_profile",
    "~/.profile",
    "~/.pam_environment",
)
_SETTINGS_FILES = (
    "/etc/nccl.conf",
    "~/.nccl.conf",
    "/etc/ld.so.preload",
    "/etc/pip.conf",
    "/etc/xdg/pip/pip.conf",
    "~/.config/pip/pip.conf",
    "~/.pip/pip.conf",
    "/etc/uv/uv.toml",
    "~/.config/uv/uv.toml",
    "~/.config/accelerate/default_config.yaml",
)
"""Files that act without a variable; each line that is no comment counts."""

_ASSIGNMENT = re.compile(r"^\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_][A-Za-z0-9_]*)(?:=|\s+DEFAULT=)(.*)")
_LONGEST_VALUE = 200
_SET_BY_PYTHON = frozenset({"LC_CTYPE", "__PYVENV_LAUNCHER__"})
"""Python's own changes to its environment at start (PEP 538)."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, EnvironmentEvidence]]:
    given = user_environment.recorded()
    for claim in claims:
        expect = cast(EnvironmentExpect, claim.expect)
        denied, required = expect["denied"], expect["required"]
        start = user_environment.start(given)
        before = given.environ
        after = start.environ
        # Variables that starting Python changes: only start-up code does that.
        names = (set(before) ^ set(after)) | {name for name in set(before) & set(after) if before[name] != after[name]}
        yield (
            claim.subject,
            {
                "required": {name: given.environ.get(name) for name in required},
                "denied": {
                    name: value[:_LONGEST_VALUE]
                    for name, value in sorted(given.environ.items())
                    if matches(name, denied)
                },
                "in_files": list(_in_shell_files(given, denied)),
                "settings_files": dict(_settings_files(given)),
                "start": {
                    "flags": dict(start.flags),
                    "changes": {name: after.get(name, "")[:_LONGEST_VALUE] for name in sorted(names - _SET_BY_PYTHON)},
                    "code": list(_start_code(start, given)),
                },
            },
        )


def _expand(pattern: str, given: UserEnvironment) -> list[Path]:
    path = pattern.replace("~", given.environ.get("HOME") or "/nonexistent", 1) if pattern[0] == "~" else pattern
    folder, name = Path(path).parent, Path(path).name
    try:
        return sorted(found for found in folder.glob(name) if found.is_file())
    except OSError:
        return []


def _in_shell_files(given: UserEnvironment, denied: Mapping[str, str]) -> Iterator[ShellAssignment]:
    for pattern in _SHELL_FILES:
        for file in _expand(pattern, given):
            for line in _lines(file):
                found = _ASSIGNMENT.match(line)
                if found and matches(found[1], denied):
                    yield {"file": str(file), "name": found[1], "value": found[2].strip()[:_LONGEST_VALUE]}


def _settings_files(given: UserEnvironment) -> Iterator[tuple[str, list[str]]]:
    for pattern in _SETTINGS_FILES:
        for file in _expand(pattern, given):
            lines = [line.strip() for line in _lines(file)]
            yield str(file), [line[:_LONGEST_VALUE] for line in lines if line and not line.startswith("#")]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _start_code(start: user_environment.Start, given: UserEnvironment) -> Iterator[StartCode]:
    """Each file that runs before a user's first line: modules imported at start, and .pth files that import."""
    owners = installed.owners(installed.distributions(entry or given.directory for entry in start.path))
    imported = {file for name, file in start.modules.items() if name.partition(".")[0] not in start.standard}
    lines = {
        str(file)
        for entry in start.path
        if entry
        for file in sorted(Path(entry).glob("*.pth"))
        if user_environment.runs(file)
    }
    packages = debian.owned()
    for path in sorted({os.path.realpath(path) for path in imported} | lines):
        yield {
            "file": path,
            "owners": sorted({owner.name for owner in owners.get(path, ())}),
            "of_debian": _of_debian(path, packages),
            "does_nothing": _does_nothing(Path(path)),
        }


def _of_debian(path: str, packages: debian.Owned) -> bool:
    """Whether this is a file that one of Debian's packages brought, unchanged."""
    recorded = packages.md5.get(debian.real(path))
    if recorded is None or not Path(path).is_file():
        return False
    # Not a matter of security: dpkg records nothing stronger, and S2 does not cover these files.
    return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest() == recorded


def _does_nothing(file: Path) -> bool:
    """Whether a Python file holds nothing but comments and a docstring."""
    try:
        statements = ast.parse(file.read_text(encoding="utf-8", errors="replace")).body
    except (OSError, SyntaxError, ValueError):
        return False
    return all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in statements)


def judge(_subject: str, expect: EnvironmentExpect, evidence: EnvironmentEvidence) -> Finding:
    """S7. expect: {required: {name: value}, denied: {pattern: why}, start_files: {name pattern: why}}."""
    required, denied = expect["required"], expect["denied"]
    faults = [
        f"{name} is {'not set' if found is None else repr(found)}, {required[name]!r} is expected"
        for name, found in evidence["required"].items()
        if found != required[name]
    ]
    faults += [
        f"{name}={value} is set: {_why(name, denied)}"
        for name, value in evidence["denied"].items()
        if name not in required
    ]
    for one in evidence["in_files"]:
        if required.get(one["name"]) != one["value"].strip("\"'"):
            faults.append(f"{one['file']} sets {one['name']}={one['value']}: {_why(one['name'], denied)}")
    faults += [f"{path} is not empty: {listed(lines)}" for path, lines in evidence["settings_files"].items() if lines]
    faults += _start_faults(expect, evidence["start"])
    good = f"{len(required)} variables as expected, none that misleads, no start-up code of unknown owner"
    return conclude(faults, good)


def _why(name: str, denied: Mapping[str, str]) -> str:
    return next((why for pattern, why in denied.items() if fnmatch.fnmatchcase(name, pattern)), "it is denied")


def _start_faults(expect: EnvironmentExpect, start: Start) -> Iterator[str]:
    if start["flags"]["optimize"]:
        yield "Python starts with optimisation: every `assert` is gone"
    for name, value in start["changes"].items():
        yield f"starting Python sets {name}={value!r}"
    for one in start["code"]:
        harmless = one["owners"] or one["of_debian"] or one["does_nothing"]
        if not harmless and not matches(PurePosixPath(one["file"]).name, expect["start_files"]):
            yield f"{one['file']} runs at every start of Python and belongs to no distribution"


CLAIMS = {"S7": judge}
