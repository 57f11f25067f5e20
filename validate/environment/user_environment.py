"""The environment that the image gives its users, before the suite changes it, and how Python starts there."""

import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
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
    user: str = ""
    """Whom the image starts as, as its USER says: `1001`, `1001:0`, `trainer`; empty: root."""
    machine: str = field(default_factory=lambda: os.uname().machine)
    """Whose programs it runs, in the kernel's words. An emulator answers as the machine that it stands for."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """How that interpreter would start (`Start`), read from files; empty: of that nothing was read."""
    hidden: Sequence[str] = ()
    """Files of the image that can't be seen, as another is mounted over each."""


@functools.cache
def of_this_process() -> UserEnvironment:
    """Read from the kernel what this process was started with: sitecustomize may have edited os.environ since."""
    try:
        raw = Path("/proc/self/environ").read_bytes()
        pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0") if b"=" in entry)
        environ = {name: value for name, _, value in pairs}
    except OSError:
        environ = dict(os.environ)
    return UserEnvironment(environ=environ, directory=str(Path.cwd()), python=sys.executable)


def record(user: UserEnvironment) -> dict[str, str]:
    """The variable that tells probes of it."""
    return {_RECORDED_IN: json.dumps(asdict(user))}


def read(file: Path) -> UserEnvironment:
    """Of a file that the host wrote."""
    return UserEnvironment(**json.loads(file.read_text(encoding="utf-8", errors="surrogateescape")))


def recorded() -> UserEnvironment:
    """What the suite recorded before it started this probe; outside of the suite, this process's own."""
    text = os.environ.get(_RECORDED_IN)
    return UserEnvironment(**json.loads(text)) if text else of_this_process()


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a user's interpreter starts, by the image's files (validate/survey/environments.py): none is asked."""

    path: Sequence[str]
    """sys.path, without the working directory."""
    optimize: int
    modules: Mapping[str, str]
    """Those that site.py imports, and their files."""
    version: str
    """`3.11`."""
    prefix: str


def runs(file: Path) -> bool:
    """Whether site.py executes lines of a .pth file: those that begin with `import`."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith(("import ", "import\t")) for line in lines)
