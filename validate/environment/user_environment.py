"""The environment that the image gives its users, before the suite changes it, and how Python starts there."""

from __future__ import annotations

import functools
import json
import os
import subprocess
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
    machine: str = field(default_factory=lambda: os.uname().machine)
    """Whose programs it runs, in the kernel's words. An emulator answers as the machine that it stands for."""
    start: Mapping[str, Any] | None = None
    """How that interpreter would start (`Start`), read from files because nobody may run it."""
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


_MARK = "validate:start:"
_SECONDS = 120
_QUESTION = """
import sys
import os
at_start = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
flags = {"optimize": sys.flags.optimize, "no_site": sys.flags.no_site, "isolated": sys.flags.isolated}
path, environ = list(sys.path), dict(os.environ)
import importlib.util
import json
def find(name):
    try:
        spec = importlib.util.find_spec(name)
    except Exception as error:
        return {"error": repr(error)}
    if spec is None:
        return None
    return {"origin": spec.origin, "locations": list(spec.submodule_search_locations or ())}
print("\\n" + MARK + json.dumps({
    "path": path,
    "flags": flags,
    "environ": environ,
    "modules": {name: file for name, file in at_start.items() if file},
    "standard": sorted(sys.stdlib_module_names),
    "version": "%d.%d" % sys.version_info[:2],
    "release": sys.version.split()[0],
    "prefix": sys.prefix,
    "glibc": (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc ", ""),
    "found": {name: find(name) for name in sys.argv[1:]},
}))
"""


class StartError(RuntimeError):
    """Python does not start, or does not answer."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a user's interpreter is before it has run a line."""

    path: Sequence[str]
    """sys.path; an empty entry is the working directory."""
    flags: Mapping[str, int]
    environ: Mapping[str, str]
    """After sitecustomize and .pth files have run."""
    modules: Mapping[str, str]
    """Already imported modules that come from a file, by name."""
    standard: Sequence[str]
    """Names of the standard library's modules."""
    version: str
    """`3.11`."""
    prefix: str
    release: str = ""
    """`3.11.2`."""
    glibc: str = ""
    """Its C library's version; empty where nobody ran it."""
    found: Mapping[str, Mapping[str, Any] | None]
    """Where each asked top-level module would be imported from; None: nowhere."""


def start(user: UserEnvironment, modules: Sequence[str] = ()) -> Start:
    """Start Python as a user would and ask where it would find these top-level modules. Raises StartError.

    Nothing is started where `user` brings what files say of it.
    """
    if user.start is not None:
        return Start(**user.start)
    command = [user.python, "-c", _QUESTION.replace("MARK", repr(_MARK)), *modules]
    try:
        done = subprocess.run(
            command,
            env=dict(user.environ),
            cwd=user.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise StartError(f"python did not start in {_SECONDS} s") from error
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            return Start(**json.loads(line[len(_MARK) :]))
    said = done.stderr.decode("utf-8", "replace")[-2000:] or "no word"
    # Python itself can't be asked: it does not start.
    files = sorted(Path(user.python).parent.parent.glob("lib/python*/*-packages/*.pth"))
    suspects = ", ".join(str(file) for file in files if runs(file)) or "no .pth file that imports"
    raise StartError(f"python ended with status {done.returncode} and {said}; what runs before that: {suspects}")


def runs(file: Path) -> bool:
    """Whether site.py executes lines of a .pth file: those that begin with `import`."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith(("import ", "import\t")) for line in lines)


EMULATED = {"VALIDATE_EMULATED": "1"}


def is_emulated() -> bool:
    """Then imports take many seconds each: what is the same in each fork is done once, before it."""
    return all(os.environ.get(name) == text for name, text in EMULATED.items())
