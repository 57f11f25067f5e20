"""environment: variables, settings files and start-up code of the image can make a right answer come from the wrong
path.

Only variables that the claim names are recorded: an environment can hold secrets.
"""

import ast
import contextlib
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import debian, installed, user_environment
from validate.environment.installed import Distribution
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, conclude, listed, matches

SETTINGS = Settings(reads_files_only=True)

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
    "$HF_HOME/accelerate/default_config.yaml",
)
"""Files that act without a variable; each line that is no comment counts."""

_ASSIGNMENT = re.compile(
    r"^\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_][A-Za-z0-9_]*)(?:=|\s+DEFAULT=)(.*)"
)
_LONGEST_VALUE = 200
_CANNOT_BE_READ = "what it holds can't be read here"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given, start, everything = installed.of_user()
    environ = dict(sorted(given.environ.items()))
    for claim in claims:
        denied = claim.expect["denied"]
        assigned = (
            (file, found)
            for file, lines in _read(_SHELL_FILES, given)
            for found in map(_ASSIGNMENT.match, lines)
            if found
        )
        evidence = {
            "required": {name: environ.get(name) for name in claim.expect["required"]},
            "denied": {
                name: value[:_LONGEST_VALUE]
                for name, value in environ.items()
                if matches(name, denied)
            },
            "in_files": [
                {"file": file, "name": found[1], "value": found[2].strip()[:_LONGEST_VALUE]}
                for file, found in assigned
                if matches(found[1], denied)
            ],
            # Each line that is no comment. Over some files the reader's own lie (images/validation/own_python.py).
            "settings_files": {
                **{
                    file: [
                        line.strip()[:_LONGEST_VALUE]
                        for line in lines
                        if line.strip()[:1] not in ("", "#")
                    ]
                    for file, lines in _read(_SETTINGS_FILES, given)
                },
                **{file: [_CANNOT_BE_READ] for file in given.hidden},
            },
            "start": {
                "flags": {"optimize": start.optimize},
                "code": list(_start_code(start, everything)),
            },
        }
        yield claim.subject, evidence


def _read(patterns: Sequence[str], given: UserEnvironment) -> Iterator[tuple[str, list[str]]]:
    """Each file that there is, and its lines; none of one that can't be read."""
    for pattern in patterns:
        pattern = pattern.replace(
            "$HF_HOME", given.environ.get("HF_HOME") or "~/.cache/huggingface"
        )
        path = Path(pattern.replace("~", given.environ.get("HOME") or "/nonexistent"))
        with contextlib.suppress(OSError):
            for file in sorted(found for found in path.parent.glob(path.name) if found.is_file()):
                lines: list[str] = []
                with contextlib.suppress(OSError):
                    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                yield str(file), lines


def _start_code(
    start: user_environment.Start, everything: tuple[Distribution, ...]
) -> Iterator[Mapping[str, Any]]:
    """Each file that runs before a user's first line: modules imported at start, and .pth files that import."""
    owners = installed.names_of_owners(everything)
    pth = (file for entry in start.path for file in Path(entry).glob("*.pth"))
    lines = {str(file) for file in pth if user_environment.has_import_lines(file)}
    for path in sorted({os.path.realpath(path) for path in start.modules.values()} | lines):
        yield {
            "file": path,
            "owners": list(owners.get(path, ())),
            "of_debian": of_debian(path, debian.read_package_files()),
            "does_nothing": _does_nothing(Path(path)),
        }


def _does_nothing(file: Path) -> bool:
    """Whether a Python file holds nothing but comments and a docstring."""
    try:
        statements = ast.parse(file.read_text(encoding="utf-8", errors="replace")).body
    except (OSError, SyntaxError, ValueError):
        return False
    return all(
        isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in statements
    )


def of_debian(path: str, packages: debian.PackageFiles) -> bool:
    """Whether this is a file that one of Debian's packages brought, unchanged."""
    recorded = packages.md5.get(debian.real_path(path))
    if recorded is None or not Path(path).is_file():
        return False
    # Not a matter of security: dpkg records nothing stronger, and `files` does not cover these files.
    return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest() == recorded


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """environment. expect: {required: {name: value}, denied: {pattern: why}, start_files: {name pattern: why}},
    and of a child allowed: patterns of what it may set otherwise.

    evidence: {required, denied: {name: value}, in_files: [{file, name, value}] of assignments in a shell's start files,
    settings_files: {file: lines}, start: {flags, code: [{file, owners, of_debian, does_nothing}] of files that run
    then}}.
    """
    required, denied, allowed = expect["required"], expect["denied"], expect.get("allowed", ())

    def why(name: str) -> str:
        return next(
            (why for pattern, why in denied.items() if fnmatch.fnmatchcase(name, pattern)),
            "it is denied",
        )

    faults = [
        f"{name} is {'not set' if found is None else repr(found)}, {required[name]!r} is expected"
        for name, found in evidence["required"].items()
        if found != required[name] and not (found and matches(name, allowed))
    ]
    faults += [
        f"{name}={value} is set: {why(name)}"
        for name, value in evidence["denied"].items()
        if name not in required and not matches(name, allowed)
    ]
    for one in evidence["in_files"]:
        if required.get(one["name"]) != one["value"].strip("\"'"):
            faults.append(f"{one['file']} sets {one['name']}={one['value']}: {why(one['name'])}")
    faults += [
        f"{path} is not empty: {listed(lines)}"
        for path, lines in evidence["settings_files"].items()
        if lines
    ]
    faults += _start_faults(evidence["start"], expect["start_files"])
    good = f"{len(required)} variables as expected, none that misleads, no start-up code of unknown owner"
    return conclude(faults, good)


def _start_faults(start: Mapping[str, Any], start_files: Mapping[str, str]) -> Iterator[str]:
    if start["flags"]["optimize"]:
        yield "Python starts with optimisation: every `assert` is gone"
    for one in start["code"]:
        harmless = one["owners"] or one["of_debian"] or one["does_nothing"]
        if not harmless and not matches(PurePosixPath(one["file"]).name, start_files):
            yield f"{one['file']} runs at every start of Python and belongs to no distribution"


CLAIMS = {"environment": judge}
