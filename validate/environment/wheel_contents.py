"""Bring the RECORD of a wheel and that of its installed files into one form, to compare them.

An installer lists the same files under other paths, adds files of its own (its notes, bytecode,
launchers of entry points) and writes its interpreter into scripts. All of that is left out or
undone here, so that a digest of the wheel's RECORD, measured outside any image, tells whether an
installed RECORD is that wheel's.

This module's form of paths: a path below site-packages stands as it is (`torch/version.py`), one
below the environment's folder begins with a colon (`:bin/f2py`).
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

_INSTALLER_NOTES = re.compile(
    r"[^/]+\.dist-info/"
    r"(RECORD(\.jws|\.p7s)?|INSTALLER|REQUESTED|direct_url\.json|uv_cache\.json|uv_build\.json)"
)
_DATA = re.compile(r"[^/]+\.data/(?P<scheme>[a-z]+)/(?P<path>.+)")
"""A file that a wheel wants to have outside of site-packages."""
_HEADERS = re.compile(r":include/site/python\d+\.\d+/")
"""The beginning of the path of a C header where an installer put it."""
_PLACEHOLDER = b"#!python"
"""The first line of scripts in a wheel, in place of which an installer writes its interpreter."""
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
"""The launchers that installers write for an entry point.

They are uv's (crates/uv-install-wheel/src/wheel.rs), pip's (operations/install/wheel.py) and that
of pip's older releases, such as 23.2.1.
"""


def digest_of(rows: Rows) -> str:
    """Return a digest of a RECORD: of its paths and their hashes, in whatever order they stand."""
    lines = sorted(f"{path}\0{digest}\n" for path, digest in rows.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def rows_of_wheel(record: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return path -> sha256 from the RECORD inside a wheel, in this module's form of paths.

    `record`: its lines, as csv.reader reads them. Files that installers write are left out.
    """
    rows = {}
    for line in record:
        if line and not _is_written_by_installer(line[0]):
            digest = line[1] if len(line) > 1 else ""
            rows[installed_path(line[0])] = digest.removeprefix("sha256=").rstrip("=")
    return rows


def installed_path(path: str) -> str:
    """Return where an installer puts a file of a wheel; `path` is as the wheel's RECORD has it.

    Most files keep their path, relative to the folder of packages. Those below `NAME.data` go
    elsewhere: `numpy-1.26.4.data/scripts/f2py` becomes `:bin/f2py`, where `:` stands for the folder
    of the environment ("The .data directory" in the specification of the binary distribution
    format).
    """
    data = _DATA.fullmatch(path)
    if not data:
        return path
    match data["scheme"]:
        case "purelib" | "platlib":
            return data["path"]
        case "headers":
            distribution = path.split("-")[0]
            return f":include/site/{distribution}/{data['path']}"
        case "scripts":
            return f"{_SCRIPTS}{data['path']}"
        case _:
            return f":{data['path']}"


def rows_of_installed(distribution: Distribution, environment: str) -> dict[str, str]:
    """Turn an installed RECORD back into the RECORD inside its wheel: return path -> sha256.

    RECORD is the list of a package's files. Files that the installer added are left out. The
    installer also wrote the path of the interpreter into scripts: the result has the hashes that
    the scripts had before.

    Paths are relative to the folder of packages. Those that begin with `:` are relative to
    `environment`, the folder of the virtual environment.
    """
    python = f"{environment}/bin/python"
    # Command of an entry point -> the hash of each launcher that an installer may write for it.
    launcher_hashes = {}
    for command, target in _entry_points(distribution.info).items():
        texts = _launcher_texts(target, python)
        launcher_hashes[command] = [record_hash(text) for text in texts]

    rows = {}
    for entry in distribution.entries or ():
        path = _in_our_form(entry.path, distribution.location, environment)
        if _is_written_by_installer(path):
            continue
        if not path.startswith(_SCRIPTS):
            rows[path] = entry.unpadded_sha256
            continue

        # A launcher that the installer wrote for an entry point is in no wheel.
        command = path.removeprefix(_SCRIPTS)
        if entry.unpadded_sha256 in launcher_hashes.get(command, ()):
            continue
        # Any other script is in the wheel. If the installer has changed its first line, compute the
        # hash that it had before.
        rows[path] = _script_hash_in_wheel(entry.path, python) or entry.unpadded_sha256
    return rows


def _in_our_form(path: str, site_packages: str, environment: str) -> str:
    """Return this module's form of the absolute path of an installed file."""
    below_packages = os.path.relpath(path, site_packages)
    if not below_packages.startswith("../"):
        return below_packages
    below_environment = os.path.relpath(path, environment)
    # The wheel's own RECORD has no release of Python in the path of a header.
    return _HEADERS.sub(":include/site/", f":{below_environment}")


def _entry_points(info: Path) -> dict[str, str]:
    """Return command -> `module:function` of a distribution's entry points.

    `info` is its `.dist-info` folder. If entry_points.txt can't be read or parsed, there are none,
    whatever is wrong with it.
    """
    commands = {}
    with contextlib.suppress(Exception):
        for point in importlib.metadata.PathDistribution(info).entry_points:
            if point.group in ("console_scripts", "gui_scripts"):
                # An entry may name extras at its end: `package.module:function [extra]`.
                commands[point.name] = point.value.partition("[")[0].strip()
    # When uv installs pip, it writes the commands `pip3` and `pip3.11`, too, as pip itself does.
    if info.name.startswith("pip-") and "pip" in commands:
        # `info` is lib/python3.11/site-packages/pip-24.0.dist-info.
        version = info.parent.parent.name.removeprefix("python")
        commands["pip3"] = commands["pip"]
        commands[f"pip{version}"] = commands["pip"]
    return commands


def _launcher_texts(target: str, python: str) -> Iterator[bytes]:
    """Yield each text that an installer may write as the launcher of `module:function`.

    `python`: the path of the environment's interpreter.
    """
    module, _, function = (part.strip() for part in target.partition(":"))
    # If the function is `Class.method`, a launcher imports the class.
    first = function.partition(".")[0]
    for template in _LAUNCHERS:
        text = template.format(python=python, module=module, first=first, function=function)
        yield text.encode()


def _script_hash_in_wheel(script: str, python: str) -> str:
    """Return the hash that an installed script has in its wheel.

    A wheel's script begins with `#!python`, and the installer replaces that by the path of its
    interpreter (`python`). This is undone before the hash is computed. Empty if the script does not
    begin with that path, or can't be read.
    """
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
    """Return the sha256 of a file's content as RECORD writes it, without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def is_installer_note(path: str) -> bool:
    """Return whether the file at this absolute path is one of those that an installer writes.

    They are in a distribution's `.dist-info` folder: RECORD, INSTALLER, direct_url.json and others.
    """
    folder_and_name = "/".join(path.rsplit("/", 2)[-2:])
    return bool(_INSTALLER_NOTES.fullmatch(folder_and_name))


def _is_written_by_installer(path: str) -> bool:
    """Return whether an installer writes this file of site-packages, so that no wheel has it."""
    is_bytecode = "/__pycache__/" in f"/{path}" and path.endswith(".pyc")
    return bool(_INSTALLER_NOTES.fullmatch(path)) or is_bytecode
