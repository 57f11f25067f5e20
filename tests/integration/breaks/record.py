"""record.py FILE PATTERN REPLACEMENT: change a file of a package, and hide that from its RECORD."""

import base64
import csv
import hashlib
import os
import re
import sys
from pathlib import Path


def main(file: Path, pattern: str, replacement: str) -> None:
    """Replace the first match in a file. Latin-1 also matches the bytes of libraries."""
    content = file.read_bytes()
    write(file, re.sub(pattern.encode("latin-1"), replacement.encode("latin-1"), content, count=1))


def write(file: Path, changed: bytes) -> None:
    """Write a file of a package, with its old times, and its new hash into RECORD."""
    if changed == file.read_bytes():
        sys.exit(f"nothing of {file} was changed")
    times = file.stat()
    file.write_bytes(changed)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    digest = (
        "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(changed).digest()).rstrip(b"=").decode()
    )
    site = next(Path("/opt/venv/lib").glob("python*/site-packages"))
    for record in site.glob("*.dist-info/RECORD"):
        with record.open(newline="") as lines:
            rows = list(csv.reader(lines))
        if not any((site / row[0]).resolve() == file.resolve() for row in rows):
            continue
        told = [digest, str(len(changed))]
        rows = [
            [row[0], *told] if (site / row[0]).resolve() == file.resolve() else row for row in rows
        ]
        with record.open("w", newline="") as lines:
            csv.writer(lines, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
