"""Reads and writes `locks/records.json`: a digest of the RECORD file in each locked wheel.

The digests are measured from the index, never from an image, and the check `records` compares
installed RECORDs with them. A row belongs to the sha256 of one wheel, so it never becomes stale.
"""

import csv
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from images.config import paths
from images.errors import command, wrong
from images.locking.inputs import Package
from validate.environment import wheel_contents
from validate.environment.wheel_contents import Rows

FILE = "records.json"
UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    csv.Error,
    KeyError,
    ValueError,
)
"""What reading the RECORD of a damaged wheel may raise. zipfile's own error is only one of them: it
raises RuntimeError for a file that is encrypted or compressed in an unknown way."""


class WheelRecord(NamedTuple):
    """What is known of the RECORD of one wheel."""

    record: str
    """Its digest (validate/environment/wheel_contents.py)."""
    native: bool = False
    """Whether the wheel has libraries, which the pruner reads in an image for one architecture."""


Known = Mapping[str, WheelRecord]
"""sha256 of a wheel -> its RECORD."""
Table = dict[str, dict[str, WheelRecord]]
"""`NAME VERSION` -> what is known of the wheels of that release."""


def release(package: Package) -> str:
    """Return the key of a package in the table: `torch 2.7.1`."""
    return f"{package.name} {package.version}"


def read_for(packages: Iterable[Package], folder: Path) -> Known:
    """Return what is recorded of the RECORD files of these packages' wheels, by the wheel's sha256.

    A wheel's RECORD lists its files with their hashes; the table has a digest of each RECORD.
    `folder` is the folder of locks, which has the table. Wheels that it lacks are left out.

    Raises UserError if the table is damaged.
    """
    table = read(folder)
    known: dict[str, WheelRecord] = {}
    for package in packages:
        rows = table.get(release(package), {})
        for digest in package.hashes:
            if digest in rows:
                known[digest] = rows[digest]
    return known


def read(folder: Path) -> Table:
    """Return the table of wheels' RECORDs in a folder of locks: package -> wheel -> its digests.

    A RECORD lists a wheel's files with their hashes. The keys are `NAME VERSION`, and the sha256 of
    a wheel. The table is empty if there is no file. Raises UserError if the file is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        return {}
    try:
        table: Table = {}
        for name, rows in json.loads(file.read_bytes()).items():
            table[name] = {}
            for digest, row in rows.items():
                # Tables of earlier versions have further keys.
                table[name][digest] = WheelRecord(row["record"], row.get("native", False))
        return table
    # These errors mean that the file is not JSON, or has another form.
    except (ValueError, LookupError, TypeError, AttributeError):
        then = (
            f"bring the committed table back (`git checkout {paths.shown(file)}`), or remove the "
            f"file and give `{command('lock')}`, which reads every wheel's RECORD again"
        )
        raise wrong(paths.shown(file), "this table of wheels is damaged", then) from None


def serialize(table: Table) -> bytes:
    """Return the table as JSON with a line for each wheel, so that changes are easy to review."""
    releases = []
    for name, rows in sorted(table.items()):
        lines = []
        for digest, row in sorted(rows.items()):
            lines.append(f"  {json.dumps(digest)}: {json.dumps(_as_json(row))}")
        releases.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return ("{\n" + ",\n".join(releases) + "\n}\n").encode()


def _as_json(row: WheelRecord) -> dict[str, Any]:
    """Return the fields of a row that are not empty or false."""
    return {name: value for name, value in row._asdict().items() if value}


def rows_of(wheel: zipfile.ZipFile) -> Rows:
    """Return the rows of a wheel's RECORD. Raises KeyError if it has none, or several."""
    records = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    if len(records) != 1:
        raise KeyError(f"{len(records)} RECORD files")
    text = wheel.read(records[0]).decode()
    return wheel_contents.rows_of_wheel(csv.reader(io.StringIO(text, newline="")))


def file_of(url: str) -> str:
    """Return the file name in a URL, which may have a token behind it."""
    return unquote(urlsplit(url).path.rpartition("/")[2])
