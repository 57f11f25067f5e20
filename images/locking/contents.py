"""What the files of locks bring: `locks/wheels/NAME-VERSION.json`, measured from the index and never from an image.

Claim `origin` holds installed files to it. A row belongs to the sha256 of one file of the lock, so it never gets old.
"""

import csv
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from images.config import paths
from images.errors import command, wrong
from images.locking.inputs import Package
from validate.environment import wheel_contents
from validate.environment.wheel_contents import Contents, Rows

FOLDER = "wheels"


@dataclass(frozen=True, kw_only=True)
class FileContents:
    """What one file of a lock brings."""

    wheel: Contents | None = None
    """None: it is a source archive."""
    files: str = ""
    """Long tags (`wheel_contents.py` of the suite) of the files of a source archive, and of a toolkit's wheel."""
    paths: str = ""
    """What a toolkit with compilers has of its wheel, divided by blanks."""
    native: bool = False
    """A wheel has libraries: the pruner reads them in an image for one GPU architecture."""
    bytecode: tuple[str, ...] = ()
    """Digests of the bytecode of its sources (validate/checks/cpu/bytecode.py), one a Python that compiled them."""
    pruned: Mapping[str, Contents] = field(default_factory=dict)
    """The wheel as the pruner leaves it, by the pruner's key (`images/wheels/pruned_contents.py`)."""


Known = Mapping[str, FileContents]
"""sha256 of a file -> what it brings."""


def read(packages: Iterable[Package], folder: Path) -> Known:
    """What is known of the files of these packages. `folder` is that of the locks. Raises UserError: a damaged file."""
    known: dict[str, FileContents] = {}
    for package in packages:
        rows = every(folder / place(package))
        known.update({digest: rows[digest] for digest in package.hashes if digest in rows})
    return known


def place(package: Package) -> str:
    """Where the contents of a package's files lie below the folder of locks."""
    return f"{FOLDER}/{package.name}-{package.version}.json"


def every(file: Path) -> Known:
    """What is known of all files of one package's release; nothing where there is no such file. Raises UserError."""
    if not file.is_file():
        return {}
    try:
        known = {}
        for digest, row in json.loads(file.read_bytes()).items():
            wheel = Contents(row.pop("digest"), row.pop("tags")) if "digest" in row else None
            pruned = {key: Contents(**one) for key, one in row.pop("pruned", {}).items()}
            bytecode = tuple(row.pop("bytecode", ()))
            known[digest] = FileContents(wheel=wheel, pruned=pruned, bytecode=bytecode, **row)
        return known
    except (ValueError, KeyError, TypeError, AttributeError):
        then = f"`rm {paths.shown(file)}`, then `{command('lock', 'NAME')}` of an image that has it"
        raise wrong(paths.shown(file), "is damaged", then) from None


def rows_of(wheel: zipfile.ZipFile) -> Rows:
    """The rows of a wheel's RECORD. Raises KeyError: it has no RECORD, or several."""
    records = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    if len(records) != 1:
        raise KeyError(f"{len(records)} RECORD files")
    return wheel_contents.of_wheel(csv.reader(io.StringIO(wheel.read(records[0]).decode(), newline="")))


def shown(url: str) -> str:
    """A URL's file, for messages."""
    return url.partition("#")[0].rpartition("/")[2]


def written(known: Known) -> bytes:
    """The content of a package's file."""
    rows = {}
    for digest, one in known.items():
        row = {**asdict(one), "bytecode": sorted(one.bytecode)}
        rows[digest] = {**(row.pop("wheel") or {}), **{name: value for name, value in row.items() if value}}
    return f"{json.dumps(rows, indent=1, sort_keys=True)}\n".encode()
