"""What a wheel brings, in a form that is the same for the wheel's own RECORD and for the one of its installed files.

An installer lists the same files under other paths, adds files of its own (its notes, bytecode, launchers of entry
points) and writes its interpreter into scripts. All of that is left out or undone here, so that a digest of the wheel,
measured outside any image, tells whether an installed RECORD is that wheel's. Paths: `torch/version.py` below
site-packages, `:bin/f2py` below the environment. Standard library.
"""

import base64
import contextlib
import hashlib
import importlib.metadata
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from validate.environment.installed import Distribution, Entry

Rows = Mapping[str, str]
"""Path -> sha256 as RECORD has it, without padding; empty where it has none."""

TAG_BYTES = 3
"""A changed row of 12,000 bears the tag of another one by chance once in 1,400: it is then counted and not named."""
LONG_TAG_BYTES = 15
"""120 bits: what bears such a tag is what it was made of."""
_NOTES = re.compile(
    r"[^/]+\.dist-info/(RECORD(\.jws|\.p7s)?|INSTALLER|REQUESTED|direct_url\.json|uv_cache\.json|uv_build\.json)"
)
_SAID_BY_INSTALLERS = re.compile(
    rb'(uv|pip\n|\{\}|\{"url":"file:///run/wheels/[\w.+%-]+\.whl","archive_info":\{\}\}'
    rb'|\{"timestamp":\{"secs_since_epoch":\d+,"nanos_since_epoch":\d+\}(,"[a-z]+":(null|\{\}))*\})?'
)
"""Who it is, nothing, and of a wheel that no index has (templates/stages/layer.j2) where it lay and when."""
_DATA = re.compile(r"[^/]+\.data/(?P<scheme>[a-z]+)/(?P<rest>.+)")
_HEADERS = re.compile(r":include/site/python\d+\.\d+/")
_PLACEHOLDER = b"#!python"
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


@dataclass(frozen=True)
class Contents:
    """A wheel's files, by their digest; and a short tag of each, which tells what differs where the digest does."""

    digest: str
    tags: str
    """Base64 of sorted tags of TAG_BYTES bytes."""


def contents(rows: Rows) -> Contents:
    """The digest and the tags of rows."""
    lines = sorted(f"{path}\0{digest}\n" for path, digest in rows.items())
    tags = sorted({_tag(path, digest) for path, digest in rows.items()})
    return Contents(
        digest=hashlib.sha256("".join(lines).encode()).hexdigest(), tags=base64.b64encode(b"".join(tags)).decode()
    )


def strange(rows: Rows, tags: str) -> list[str]:
    """Paths of the rows that none of these tags belongs to."""
    known = _tags(tags)
    return sorted(path for path, digest in rows.items() if _tag(path, digest) not in known)


def lacking(rows: Rows, tags: str) -> int:
    """How many of these tags belong to none of the rows."""
    return len(_tags(tags) - {_tag(path, digest) for path, digest in rows.items()})


def long_tags(rows: Iterable[tuple[str, str]]) -> str:
    """Tags that nobody can forge, of rows that no digest covers since not all of them are installed."""
    return base64.b64encode(b"".join(sorted({_long_tag(path, digest) for path, digest in rows}))).decode()


def joined(tags: Iterable[str]) -> str:
    """Long tags of several in one."""
    return base64.b64encode(b"".join(map(base64.b64decode, tags))).decode()


def knows(tags: str) -> Callable[[str, str], bool]:
    """Whether a path and a hash are among these long tags."""
    known = _tags(tags, LONG_TAG_BYTES)
    return lambda path, digest: _long_tag(path, digest) in known


def of_wheel(record: Iterable[Sequence[str]]) -> dict[str, str]:
    """The rows of a RECORD as a wheel holds it."""
    rows = {}
    for path, digest in ((row[0], row[1] if len(row) > 1 else "") for row in record if row):
        if not _is_noted(path):
            rows[placed(path)] = digest.removeprefix("sha256=").rstrip("=")
    return rows


def placed(path: str) -> str:
    """Where an installer puts a file of a wheel (binary distribution format, "The .data directory")."""
    found = _DATA.fullmatch(path)
    if not found:
        return path
    scheme, rest = found["scheme"], found["rest"]
    if scheme in ("purelib", "platlib"):
        return rest
    if scheme == "headers":
        return f":include/site/{path.split('-')[0]}/{rest}"
    return f":bin/{rest}" if scheme == "scripts" else f":{rest}"


@dataclass(frozen=True)
class Installed:
    """An installed distribution's RECORD as its wheel would have it."""

    rows: Rows
    launchers: tuple[str, ...]
    """Launchers of entry points that are not there, or are not what the installer writes."""


def of_installed(distribution: Distribution, environment: str) -> Installed:
    """Read the RECORD of a distribution in the virtual environment in this folder. Reads its scripts, too."""
    python = f"{environment}/bin/python"
    # Entry point -> RECORD's hashes of the launchers that installers write for it.
    points = _entry_points(distribution.info)
    if distribution.name == "pip" and "pip" in points:  # uv adds those that pip's own installation makes
        version = distribution.info.parent.parent.name.removeprefix("python")
        points.update(dict.fromkeys(("pip3", f"pip{version}"), points["pip"]))
    wanted = {name: [record_hash(one) for one in _forms(target, python)] for name, target in points.items()}
    rows, made = {}, set()
    for entry in distribution.entries or ():
        path = os.path.relpath(entry.path, distribution.location)
        if path.startswith("../"):
            path = _HEADERS.sub(":include/site/", f":{os.path.relpath(entry.path, environment)}")
        name = path[len(":bin/") :] if path.startswith(":bin/") else ""
        if _is_noted(path):
            continue
        if entry.sha256 in wanted.get(name, ()):
            made.add(name)
            continue
        rows[path] = _as_in_wheel(entry.path, python) or entry.sha256 if name else entry.sha256
    return Installed(rows=rows, launchers=tuple(f"{environment}/bin/{name}" for name in sorted(wanted.keys() - made)))


def _entry_points(info: Path) -> dict[str, str]:
    """Name -> `module:function` of what becomes a command; none of a file that can't be read, whatever is wrong."""
    with contextlib.suppress(Exception):
        points = importlib.metadata.PathDistribution(info).entry_points
        commands = [one for one in points if one.group in ("console_scripts", "gui_scripts")]
        return {one.name: one.value.partition("[")[0].strip() for one in commands}
    return {}


def _forms(target: str, python: str) -> Iterator[bytes]:
    module, _, function = (part.strip() for part in target.partition(":"))
    first = function.partition(".")[0]
    for form in _LAUNCHERS:
        yield form.format(python=python, module=module, first=first, function=function).encode()


def _as_in_wheel(script: str, python: str) -> str:
    """RECORD's hash of a script as its wheel has it; empty where the installer wrote no interpreter into it."""
    try:
        content = Path(script).read_bytes()
    except OSError:
        return ""
    own = f"#!{python}".encode()
    if not content.startswith(own) or content[len(own) : len(own) + 1] not in (b"\n", b"\r", b" "):
        return ""
    return record_hash(_PLACEHOLDER + content[len(own) :])


def record_hash(content: bytes) -> str:
    """RECORD's form of a hash, without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def explains(entry: Entry) -> bool:
    """Whether a row of an installed RECORD says what a file is: by a hash, or as a note of who installed it and how."""
    if os.path.islink(entry.path):  # noqa: PTH114  40,000 times; no installer makes one
        return False
    if not is_note(entry.path) or entry.path.endswith("/RECORD"):
        return bool(entry.sha256) or is_note(entry.path) or _is_noted(entry.path)
    try:
        return bool(_SAID_BY_INSTALLERS.fullmatch(Path(entry.path).read_bytes()))
    except OSError:
        return False


def is_note(path: str) -> bool:
    """Whether it is where an installer says of a distribution what it likes."""
    return bool(_NOTES.fullmatch("/".join(path.rsplit("/", 2)[-2:])))


def _is_noted(path: str) -> bool:
    """What an installer writes itself."""
    return bool(_NOTES.fullmatch(path)) or ("/__pycache__/" in f"/{path}" and path.endswith(".pyc"))


def _tag(path: str, digest: str) -> bytes:
    return _long_tag(path, digest)[:TAG_BYTES]


def _long_tag(path: str, digest: str) -> bytes:
    return hashlib.sha256(f"{path}\0{digest}".encode()).digest()[:LONG_TAG_BYTES]


def _tags(tags: str, size: int = TAG_BYTES) -> set[bytes]:
    content = base64.b64decode(tags)
    return {content[start : start + size] for start in range(0, len(content), size)}
