"""The environment that the image gives its users, as it was before the suite changed anything for its own purposes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_RECORDED_IN = "VALIDATE_SURROUNDINGS"


@dataclass(frozen=True, kw_only=True)
class UserEnvironment:
    """How a user's process would start in this image."""

    environ: Mapping[str, str]
    directory: str
    """Working directory."""
    python: str
    """The interpreter that ran the suite: the environment's own."""
    machine: str = field(default_factory=lambda: os.uname().machine)
    """Whose programs it runs, in the kernel's words. An emulator answers as the machine that it stands for."""
    start: Mapping[str, Any] | None = None
    """How that interpreter would start (environment/interpreter.py), read from files because nobody may run it."""


def of_this_process() -> UserEnvironment:
    """Read from the kernel what this process was started with: sitecustomize may have edited os.environ since."""
    try:
        raw = Path("/proc/self/environ").read_bytes()
        pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0") if b"=" in entry)
        environ = {name: value for name, _, value in pairs}
    except OSError:
        environ = dict(os.environ)
    return UserEnvironment(environ=environ, directory=str(Path.cwd()), python=sys.executable)


def record(user: UserEnvironment, file: Path) -> dict[str, str]:
    """Write them down for probes; the variable that tells where is to be added to a probe's environment."""
    file.write_text(json.dumps(asdict(user)), encoding="utf-8", errors="surrogateescape")
    return {_RECORDED_IN: str(file)}


def read(file: Path) -> UserEnvironment:
    """What `record` wrote down."""
    return UserEnvironment(**json.loads(file.read_text(encoding="utf-8", errors="surrogateescape")))


def recorded() -> UserEnvironment:
    """What the suite recorded before it started this probe; outside of the suite, this process's own."""
    file = os.environ.get(_RECORDED_IN)
    if not file:
        return of_this_process()
    return read(Path(file))
