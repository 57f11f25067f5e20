"""environment: check that no variable, settings file or start-up code changes what users run.

Such a setting can make a computation take another path than the one that was validated. Only
variables that the claim names are recorded, because an environment can hold secrets.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import debian, installed, user_environment
from validate.environment.installed import Distribution
from validate.environment.user_environment import Start, UserEnvironment
from validate.judging import Finding, conclude, listed, matches
from validate.next_steps import take_out

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
"""Files that set variables when a user logs in or starts a shell."""
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
"""Files that programs read without a variable that names them. They must have comments only."""

_ASSIGNMENT = re.compile(
    r"^\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_][A-Za-z0-9_]*)(?:=|\s+DEFAULT=)(.*)"
)
"""`export NAME=VALUE`, `declare -x NAME=VALUE`, or `NAME DEFAULT=VALUE` of pam_env.conf."""
_LONGEST_VALUE = 200
_CANNOT_BE_READ = "what it holds can't be read here"


class _EnvironmentExpect(TypedDict):
    required: Mapping[str, str]
    """Variable -> its value."""
    denied: Mapping[str, str]
    """Pattern of variables that must not be set -> why not."""
    start_files: Mapping[str, str]
    """Pattern of start-up files that may belong to no distribution -> why."""


class EnvironmentExpect(_EnvironmentExpect, total=False):
    """What a claim about the environment says."""

    reported_files: list[str]
    """On a custom base: settings files that may have settings, which are reported."""
    allowed: list[str]
    """Patterns of variables that a derived image may set to another value."""
    declared: dict[str, str]
    """Variables that a derived image declares -> the value that it sets on purpose."""
    harmless: list[str]
    """Patterns of variables that need not be reported of a derived image."""


class Assignment(TypedDict):
    """A line of a shell's start file that sets a denied variable."""

    file: str
    name: str
    value: str


_SITECUSTOMIZE_OF_DEBIAN = "d6b276695157bde06a56ba1b2bc53670"
"""The MD5 sum of /etc/python3.X/sitecustomize.py in Debian and Ubuntu (dpkg's record of python3.11,
libpython3.11-minimal 3.11.2-6). It calls a hook of Ubuntu's apport if that is installed."""


class StartFile(TypedDict):
    """A file whose code runs at every start of Python."""

    file: str
    owners: list[str]
    """Distributions that list it."""
    of_debian: bool
    """It is as a Debian package brought it."""


class StartFlags(TypedDict):
    """Flags of the interpreter."""

    optimize: int


class PythonStart(TypedDict):
    """How the user's Python starts."""

    flags: StartFlags
    code: list[StartFile]


class _EnvironmentEvidence(TypedDict):
    required: dict[str, str | None]
    """The value of each required variable; None: it is not set."""
    denied: dict[str, str]
    """Denied variables that are set."""
    in_files: list[Assignment]
    settings_files: dict[str, list[str]]
    """File -> its lines that are no comments. Files that are not there are left out."""
    start: PythonStart


class EnvironmentEvidence(_EnvironmentEvidence, total=False):
    """Variables, settings files and start-up code of the image. Values are cut."""

    unknown: list[str]
    """Of a derived image: the names of variables that are neither ours nor known to be harmless."""


class TextFile(NamedTuple):
    """The path of a file, and its lines; none if it can't be read."""

    path: str
    lines: list[str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, EnvironmentEvidence]]:
    """Yield the variables, settings files and start-up code of the image's user.

    Each claim has patterns of variables that must not be set (`denied`): they are looked for in the
    user's variables, and in files that shells read (`in_files`).
    """
    user, start, distributions = installed.read_user_python()
    environ = dict(sorted(user.environ.items()))
    settings_files: dict[str, list[str]] = {}
    for file in read_files(_SETTINGS_FILES, user):
        settings_files[file.path] = list_settings(file.lines)
    # Our own mounts hide these files of the image (images/validation/own_python.py). Their content
    # is not known, so each is reported as if it had a setting.
    for path in user.hidden:
        settings_files[path] = [_CANNOT_BE_READ]
    python_start: PythonStart = {
        "flags": {"optimize": start.optimize},
        "code": list(find_start_files(start, distributions)),
    }

    for claim in claims:
        denied = claim.expect["denied"]
        denied_values: dict[str, str] = {}
        for name, value in environ.items():
            if matches(name, denied):
                denied_values[name] = value[:_LONGEST_VALUE]
        evidence: EnvironmentEvidence = {
            "required": {name: environ.get(name) for name in claim.expect["required"]},
            "denied": denied_values,
            "in_files": list(find_assignments(denied, user)),
            "settings_files": settings_files,
            "start": python_start,
        }
        if "harmless" in claim.expect:
            evidence["unknown"] = list_unknown(environ, claim.expect)
        yield claim.subject, evidence


def list_unknown(names: Iterable[str], expect: Mapping[str, Any]) -> list[str]:
    """Return the variables that a claim about a derived image says nothing about.

    `names` are those that the image sets. `expect` has patterns of names under four keys.
    """
    patterns: list[str] = []
    for key in ("required", "denied", "allowed", "harmless"):
        patterns.extend(expect[key])

    unknown = []
    for name in names:
        if not matches(name, patterns):
            unknown.append(name)
    return unknown


def find_assignments(denied: Iterable[str], user: UserEnvironment) -> Iterator[Assignment]:
    """Yield the lines of shells' start files that set a variable whose name matches `denied`."""
    for file in read_files(_SHELL_FILES, user):
        for line in file.lines:
            match = _ASSIGNMENT.match(line)
            if match and matches(match[1], denied):
                value = match[2].strip()[:_LONGEST_VALUE]
                yield {"file": file.path, "name": match[1], "value": value}


def list_settings(lines: Iterable[str]) -> list[str]:
    """Return the lines that are neither empty nor comments, stripped and cut."""
    settings = []
    for line in lines:
        text = line.strip()
        if text and not text.startswith("#"):
            settings.append(text[:_LONGEST_VALUE])
    return settings


def read_files(patterns: Iterable[str], user: UserEnvironment) -> Iterator[TextFile]:
    """Yield the existing files that match these patterns, with their lines.

    A pattern may begin with `~`, the user's home, or with `$HF_HOME`, and may have `*` in its last
    part. A file that can't be read is yielded without lines.
    """
    hugging_face_home = user.environ.get("HF_HOME") or "~/.cache/huggingface"
    home = user.environ.get("HOME") or "/nonexistent"
    for pattern in patterns:
        path = Path(pattern.replace("$HF_HOME", hugging_face_home).replace("~", home))
        # Skip folders that this user can't list.
        with contextlib.suppress(OSError):
            for file in sorted(path.parent.glob(path.name)):
                if not file.is_file():
                    continue
                lines: list[str] = []
                with contextlib.suppress(OSError):
                    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                yield TextFile(str(file), lines)


def find_start_files(start: Start, distributions: tuple[Distribution, ...]) -> Iterator[StartFile]:
    """Yield each file whose code Python runs at its start, before a user's first line.

    These are the modules that site.py imports (sitecustomize, for example), and .pth files with
    lines that import.
    """
    owners = installed.names_of_owners(distributions)
    # `modules` is name -> file.
    paths = {os.path.realpath(path) for path in start.modules.values()}
    for folder in start.path:
        for file in Path(folder).glob("*.pth"):
            if user_environment.has_import_lines(file):
                paths.add(str(file))
    for path in sorted(paths):
        yield {
            "file": path,
            "owners": list(owners.get(path, ())),
            "of_debian": is_as_debian_brought(path, debian.read_package_files()),
        }


def is_as_debian_brought(path: str, packages: debian.PackageFiles) -> bool:
    """Return whether a file belongs to a Debian package and has the MD5 sum that dpkg recorded.

    Debian brings one file that Python runs when it starts: sitecustomize.py.
    """
    recorded = packages.md5.get(debian.real_path(path))
    # If the owner of a base image removed dpkg, nothing is recorded. Its content is known.
    if not packages.md5 and path.endswith("/sitecustomize.py"):
        recorded = _SITECUSTOMIZE_OF_DEBIAN
    if recorded is None or not Path(path).is_file():
        return False
    # MD5 is not secure, but dpkg records nothing stronger.
    return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest() == recorded


def judge(_subject: str, expect: EnvironmentExpect, evidence: EnvironmentEvidence) -> Finding:
    """Fail if a variable, a settings file or start-up code changes what users run.

    Faults are: a `required` variable has another value, a `denied` one is set, a settings file has
    more than comments, or code that belongs to no package runs whenever Python starts.

    A derived image may set variables that are `allowed`, and those that it declares. Its other
    variables are only reported, and so are some settings files of custom bases
    (`reported_files`).
    """
    faults = list(find_variable_faults(expect, evidence))
    reported_files = []
    for path, lines in evidence["settings_files"].items():
        if lines and path in expect.get("reported_files", ()):
            reported_files.append(path)
        elif lines:
            faults.append(f"the settings file {path} is not empty: {listed(lines)}")
    faults += find_start_faults(evidence["start"], expect["start_files"])
    good = f"{len(expect['required'])} variables as expected, none that misleads"
    good += ", no start-up code of unknown owner"
    reported = [
        *reported_files,
        *sorted(expect.get("declared", {})),
        *evidence.get("unknown", ()),
    ]
    if reported:
        good += f"; reported: {listed(reported, limit=10)}"
    return conclude(faults, good)


def find_variable_faults(expect: EnvironmentExpect, evidence: EnvironmentEvidence) -> Iterator[str]:
    """Yield a sentence for each variable that is not set as required, or is set although denied.

    Variables are set in the image's configuration, or by files that shells read. One may be both
    required by its name and denied by a pattern. Then its required value is right.
    """
    yield from find_required_faults(expect, evidence["required"])
    yield from find_denied_faults(expect, evidence["denied"])

    # Lines of files that shells read, such as `export NAME="VALUE"`. All of them set a variable
    # that is denied, which is right only if it is required and gets the required value.
    for line in evidence["in_files"]:
        file = line["file"]
        name = line["name"]
        value = line["value"]
        if value.strip("\"'") != expect["required"].get(name):
            reason = reason_against(name, expect["denied"])
            yield f"{file} sets {name}={value}: {reason}"


def find_required_faults(
    expect: EnvironmentExpect, values: Mapping[str, str | None]
) -> Iterator[str]:
    """Yield a sentence for each variable that does not have the value that it must have.

    `values`: name of a required variable -> its value in the image; None: it is not set.
    """
    allowed = expect.get("allowed", ())
    declared = expect.get("declared", {})
    for name, measured in values.items():
        expected = expect["required"][name]
        if measured is None:
            yield f"the variable {name} is not set, and {expected!r} is expected"
            continue
        # A derived image may change an allowed variable, but not empty it.
        is_allowed = measured != "" and matches(name, allowed)
        is_expected = measured in (expected, declared.get(name))
        if not is_expected and not is_allowed:
            yield f"the variable {name} is {measured!r}, and {expected!r} is expected"


def find_denied_faults(expect: EnvironmentExpect, values: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that is set in the image, although it is denied.

    `values`: name of each variable that matches a denied pattern -> its value in the image.
    """
    required = expect["required"]
    denied = expect["denied"]
    allowed = expect.get("allowed", ())
    declared = expect.get("declared", {})
    for name, value in values.items():
        # find_required_faults judges required variables.
        if name in required or matches(name, allowed):
            continue
        # Values of denied variables are cut in evidence.
        is_declared = name in declared and value == declared[name][:_LONGEST_VALUE]
        if not is_declared:
            reason = reason_against(name, denied)
            yield f"the variable {name}={value} is set: {reason}"


def reason_against(name: str, denied: Mapping[str, str]) -> str:
    """Return why a variable must not be set, by the first pattern that matches its name."""
    for pattern, reason in denied.items():
        if fnmatch.fnmatchcase(name, pattern):
            return reason
    return "no image may set this variable"


def find_start_faults(start: PythonStart, start_files: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each way in which Python's start changes users' programs.

    These are optimisation, and files that Python runs at its start (`sitecustomize.py`, *.pth) and
    that no package brought. `start_files` has patterns of file names that are no fault.
    """
    if start["flags"]["optimize"]:
        yield "Python starts with optimisation (PYTHONOPTIMIZE), so every `assert` is gone"
    for file in start["code"]:
        is_brought = file["owners"] or file["of_debian"]
        name = PurePosixPath(file["file"]).name
        if not is_brought and not matches(name, start_files):
            yield (
                f"{file['file']} runs at every start of Python, and belongs to no installed package"
            )


CLAIMS = {"environment": judge}
NEXT_STEPS = {
    "environment": {
        "the settings file ": take_out("the step that writes to this file"),
        "runs at every start": take_out("the step that brings this file"),
        "": f"{take_out('the line that sets, changes or empties this variable')}; to keep a "
        "variable that you set on purpose, declare it in /opt/truetag/derived.toml of your image, "
        "under [variables]",
    }
}
