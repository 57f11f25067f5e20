"""What a wheel brings, in a form that is the same for the wheel's own RECORD and for the one of its installed files.

An installer lists the same files under other paths, adds files of its own (its notes, bytecode, launchers of entry
points) and writes its interpreter into scripts. All of that is left out or undone here, so that a digest of the wheel's
RECORD, measured outside any image, tells whether an installed RECORD is that wheel's. Paths: `torch/version.py` below
site-packages, `:bin/f2py` below the environment. Standard library.
"""

import base64
import contextlib
import hashlib
import importlib.metadata
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from validate.environment.installed import Distribution

Rows = Mapping[str, str]
"""Path -> sha256 as RECORD has it, without padding; empty where it has none."""

_NOTES = re.compile(
    r"[^/]+\.dist-info/(RECORD(\.jws|\.p7s)?|INSTALLER|REQUESTED|direct_url\.json|uv_cache\.json|uv_build\.json)"
)
_DATA = re.compile(r"[^/]+\.data/(?P<scheme>[a-z]+)/(?P<rest>.+)")
_HEADERS = re.compile(r":include/site/python\d+\.\d+/")
_PLACEHOLDER = b"#!python"
_SCRIPTS = ":bin/"
_LAUNCHERS = (
    """\
#!{python}
# -*- coding: utf-8 -*-
import sys
from {module} import {first}
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit({function}())
""",
    """\
#!{python}
import sys
from {module} import {first}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({function}())
""",
    """\
#!{python}
# -*- coding: utf-8 -*-
import re
import sys
from {module} import {first}
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit({function}())
""",
)
"""What uv writes for an entry point (crates/uv-install-wheel/src/wheel.rs), and pip (operations/install/wheel.py): its
newer form and the one of its older releases, as 23.2.1.
"""


def digest_of(rows: Rows) -> str:
    """Return the one digest of a RECORD: of its paths and their hashes, in whatever order."""
    lines = sorted(f"{path}\0{digest}\n" for path, digest in rows.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def rows_of_wheel(record: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the rows of a RECORD as a wheel holds it."""
    rows = {}
    for row in record:
        if row and not _is_installers(row[0]):
            digest = row[1] if len(row) > 1 else ""
            rows[installed_path(row[0])] = digest.removeprefix("sha256=").rstrip("=")
    return rows


def installed_path(path: str) -> str:
    """Return where an installer puts a file of a wheel (binary distribution format, "The .data directory")."""
    found = _DATA.fullmatch(path)
    if not found:
        return path
    scheme, rest = found["scheme"], found["rest"]
    if scheme in ("purelib", "platlib"):
        return rest
    if scheme == "headers":
        return f":include/site/{path.split('-')[0]}/{rest}"
    return f"{_SCRIPTS}{rest}" if scheme == "scripts" else f":{rest}"


def rows_of_installed(distribution: Distribution, environment: str) -> dict[str, str]:
    """Return the RECORD of a distribution in the virtual environment of this folder, as its wheel would have it.

    Reads the distribution's scripts, too.
    """
    python = f"{environment}/bin/python"
    launchers = {
        name: [record_hash(text) for text in _launcher_forms(target, python)]
        for name, target in _entry_points(distribution.info).items()
    }

    rows = {}
    for entry in distribution.entries or ():
        path = os.path.relpath(entry.path, distribution.location)
        if path.startswith("../"):
            below_environment = os.path.relpath(entry.path, environment)
            path = _HEADERS.sub(":include/site/", f":{below_environment}")
        if _is_installers(path):
            continue

        script = path.removeprefix(_SCRIPTS) if path.startswith(_SCRIPTS) else ""
        # A launcher that the installer wrote for an entry point is in no wheel.
        if entry.sha256 in launchers.get(script, ()):
            continue
        hash_in_wheel = _script_hash_in_wheel(entry.path, python) if script else ""
        rows[path] = hash_in_wheel or entry.sha256
    return rows


def _entry_points(info: Path) -> dict[str, str]:
    """Return command -> `module:function`; nothing of a file that can't be read, whatever is wrong with it."""
    commands = {}
    with contextlib.suppress(Exception):
        for point in importlib.metadata.PathDistribution(info).entry_points:
            if point.group in ("console_scripts", "gui_scripts"):
                commands[point.name] = point.value.partition("[")[0].strip()
    # uv adds those that pip's own installation makes.
    if info.name.startswith("pip-") and "pip" in commands:
        version = info.parent.parent.name.removeprefix("python")
        commands["pip3"] = commands[f"pip{version}"] = commands["pip"]
    return commands


def _launcher_forms(target: str, python: str) -> Iterator[bytes]:
    """Yield each text that an installer may write as the launcher of `module:function`."""
    module, _, function = (part.strip() for part in target.partition(":"))
    first = function.partition(".")[0]
    for form in _LAUNCHERS:
        yield form.format(python=python, module=module, first=first, function=function).encode()


def _script_hash_in_wheel(script: str, python: str) -> str:
    """Return RECORD's hash of a script as its wheel has it; empty where the installer wrote no interpreter into it."""
    try:
        content = Path(script).read_bytes()
    except OSError:
        return ""
    shebang = f"#!{python}".encode()
    after_shebang = content[len(shebang) :]
    if not content.startswith(shebang) or after_shebang[:1] not in (b"\n", b"\r", b" "):
        return ""
    return record_hash(_PLACEHOLDER + after_shebang)


def record_hash(content: bytes) -> str:
    """Return RECORD's form of a hash, without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def is_note(path: str) -> bool:
    """Return whether a file is where an installer says of a distribution what it likes."""
    return bool(_NOTES.fullmatch("/".join(path.rsplit("/", 2)[-2:])))


def _is_installers(path: str) -> bool:
    """Return whether an installer writes a file itself."""
    is_bytecode = "/__pycache__/" in f"/{path}" and path.endswith(".pyc")
    return bool(_NOTES.fullmatch(path)) or is_bytecode
