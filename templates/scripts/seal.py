"""seal.py SECONDS: a build step's last command. Whatever the step wrote bears this time (since 1970), so that the same
step gives the same layer, byte for byte, whenever it runs.

Written by the step is what changed since its first process began. Older times, such as Debian gives its files, stay.
Bytecode holds its source's time, so that is put right in the same pass. Standard library, and GNU find for speed.
"""

import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

_HEADER = struct.Struct("<4sIII")
"""Of bytecode (PEP 552): magic, flags, its source's time and size; flags of 0 mean that these two are compared."""
_TAG = re.compile(r"\.[a-z]+-\d+(\.opt-\w+)?\.pyc$")
"""`.cpython-311.pyc` (PEP 3147)."""
_NOTES = ".dist-info/uv_cache.json"
_SLACK = 0.05
"""Seconds before the step that count as it: the kernel counts both times in steps of up to 0.01. More would take in the
files of a base that was unpacked just before."""


def began() -> float:
    """When this build step's first process started, in seconds since 1970."""
    up = float(Path("/proc/uptime").read_text().split()[0])
    ticks = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


def written(since: float, seconds: int, root: str = "/") -> list[str]:
    """Paths below `root` that changed `since` and bear a time after `seconds`. Nothing that is mounted for the step."""
    tests = ["-newerct", f"@{since:.2f}", "-newermt", f"@{seconds}"]
    found = subprocess.run(["find", root, "-xdev", *tests, "-print0"], capture_output=True, check=True).stdout
    mounted = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()} - {root}
    return [path for path in os.fsdecode(found).split("\0") if path and path not in mounted]


def forget_times(paths: list[str]) -> list[str]:
    """Take away what uv notes of a local wheel's time, and its line in RECORD. The paths that are left."""
    notes = [path for path in paths if path.endswith(_NOTES)]
    for note in notes:
        distribution = Path(note).parent
        if (distribution / "RECORD").exists():
            _unlist(distribution, Path(note).name)
        Path(note).unlink()
    return [path for path in paths if path not in notes]


def _unlist(distribution: Path, name: str) -> None:
    record, own = distribution / "RECORD", f"{distribution.name}/{name},".encode()
    lines = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(b"".join(line for line in lines if not line.startswith(own)))


def seal(paths: list[str], seconds: int) -> None:
    """Give these paths one time: links themselves, not what they lead to."""
    ours = frozenset(paths)
    headers = {path: header for path in paths if path.endswith(".pyc") and (header := _renewed(path, seconds, ours))}
    for path, header in headers.items():
        with Path(path).open("r+b") as stream:
            stream.write(header)
    for path in paths:
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def _renewed(path: str, seconds: int, sealed: "frozenset[str]") -> "bytes | None":
    """The header of bytecode that goes by its source's time, as that will be; None where it doesn't, or is stale.

    A source that is not sealed with it, an earlier step's, keeps its time.
    """
    folder, _, name = path.rpartition("/__pycache__/")
    try:
        with Path(path).open("rb") as stream:
            magic, flags, modified, size = _HEADER.unpack(stream.read(_HEADER.size))
        named = f"{folder}/{_TAG.sub('', name)}.py"
        source = Path(named).stat()
    except (OSError, struct.error):
        return None
    if (
        named not in sealed
        or flags
        or (modified, size) != (int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)
    ):
        return None
    return _HEADER.pack(magic, flags, min(modified, seconds), size)


if __name__ == "__main__":
    until = int(sys.argv[1])
    seal(forget_times(written(began() - _SLACK, until)), until)
