"""Describe the environment that an image gives its users, before the suite changes it."""

import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_RECORDED_IN = "VALIDATE_SURROUNDINGS"
_STANDARD_LIBRARY = re.compile(r".*/python3\.\d+(/lib-dynload)?")


@dataclass(frozen=True, kw_only=True)
class UserEnvironment:
    """How a user's process would start in this image."""

    environ: Mapping[str, str]
    directory: str
    """Working directory."""
    python: str
    """The interpreter that ran the suite: the environment's own."""
    user: str = ""
    """The image's USER: `1001`, `1001:0`, `trainer`; empty: root."""
    machine: str = field(default_factory=lambda: os.uname().machine)
    """What `uname -m` calls the processor: `x86_64`. An emulator gives the machine that it stands
    for."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """How that interpreter would start (the fields of `Start`), read from files; empty: not read
    yet."""
    hidden: Sequence[str] = ()
    """Files of the image that can't be seen, because another file is mounted over each."""
    has_own_mounts: bool = False
    """Whether the user started the container, and may have mounted folders there. They are not the
    image's. A validation run mounts none."""


@functools.cache
def of_this_process() -> UserEnvironment:
    """Return the environment that this process was started with, as the kernel remembers it.

    That is its variables, working directory, Python and user. os.environ is used only if /proc
    can't be read: sitecustomize can change it.
    """
    environ: dict[str, str] = {}
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        environ = dict(os.environ)
    else:
        for entry in entries:
            name, equals, value = os.fsdecode(entry).partition("=")
            if equals:
                environ[name] = value
    return UserEnvironment(
        environ=environ,
        directory=str(Path.cwd()),
        python=shutil.which("python3", path=environ.get("PATH")) or sys.executable,
        user=f"{os.getuid()}:{os.getgid()}",
        has_own_mounts=True,
    )


def variable_for_probes(user: UserEnvironment) -> dict[str, str]:
    """Return the variable with which the suite hands a user's environment to its probes."""
    return {_RECORDED_IN: json.dumps(asdict(user))}


def recorded() -> UserEnvironment:
    """Return the user's environment that the suite handed to this probe.

    Outside of the suite this is the process's own.
    """
    text = os.environ.get(_RECORDED_IN)
    return UserEnvironment(**json.loads(text)) if text else of_this_process()


def read(file: Path) -> UserEnvironment:
    """Return the user's environment from a JSON file that the host wrote."""
    return UserEnvironment(**json.loads(file.read_text(encoding="utf-8", errors="surrogateescape")))


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a user's interpreter starts, by the image's files (validate/survey/environments.py)."""

    path: Sequence[str]
    """sys.path, without the working directory."""
    optimize: int
    """1 if PYTHONOPTIMIZE is set, else 0."""
    modules: Mapping[str, str]
    """The modules that site.py imports, such as `sitecustomize` -> their files."""
    version: str
    """`3.11`."""
    prefix: str

    @property
    def standard_library(self) -> list[str]:
        """Return the folders of the standard library, which lie outside of an environment."""
        return [folder for folder in self.path if _STANDARD_LIBRARY.fullmatch(folder)]


def has_import_lines(file: Path) -> bool:
    """Return whether a .pth file has lines that site.py executes: those that begin with `import`.

    False if it can't be read.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith(("import ", "import\t")) for line in lines)
