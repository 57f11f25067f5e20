"""normalise_timestamps.py SECONDS: a build step's last command. Sets one timestamp (seconds since 1970) on every file
that the step wrote, so that the same step gives the same layer, byte for byte, whenever it runs.

A file was written by the step if its change time differs from the one that record_change_times.sh, the step's first
command, recorded. No clock is read: what an earlier step wrote a millisecond before stays, and a clock that is set back
hides nothing. Older timestamps, such as those of Debian's files, stay. Bytecode holds the timestamp of its source, so
that is corrected in the same pass.
"""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

_HEADER = struct.Struct("<4sIII")
"""Of bytecode (PEP 552): magic, flags, its source's time and size; flags of 0 mean that these two are compared."""
_TAG = re.compile(r"\.[a-z]+-\d+(\.opt-\w+)?\.pyc$")
"""`.cpython-311.pyc` (PEP 3147)."""
_NOTES = ".dist-info/uv_cache.json"
_BEFORE = Path("/run/before")
"""What record_change_times.sh noted: a time of change and a path each, as GNU find prints them, ended by a NUL."""


def changed(root: str, *tests: str, before: Path = _BEFORE) -> list[str]:
    """Paths below `root` that are not as record_change_times.sh noted them in `before`, and meet find's `tests`.

    Raises FileNotFoundError in a step that did not begin with it.
    """
    stood = frozenset(before.read_bytes().split(b"\0"))
    command = ["find", root, "-xdev", *tests, "-printf", "%C@ %p\\0"]
    found = subprocess.run(command, capture_output=True, check=True).stdout.split(b"\0")[:-1]
    return [os.fsdecode(line.partition(b" ")[2]) for line in found if line not in stood]


def written(seconds: int, root: str = "/", before: Path = _BEFORE) -> list[str]:
    """Paths below `root` that the step wrote and that bear a time after `seconds`. Nothing that is mounted for it.

    The folders above a mount point count as written: the engine makes mount points before the step's first command.
    """
    mounted = _mounted() - {root}
    found = changed(root, "-newermt", f"@{seconds}", before=before)
    above = {str(folder) for path in mounted for folder in Path(path).parents if folder.is_relative_to(root)}
    found += [path for path in sorted(above.difference(found)) if _is_later(path, root, seconds)]
    return [path for path in found if path not in mounted]


def _is_later(folder: str, root: str, seconds: int) -> bool:
    """Whether a folder of the file system of `root` bears a time after `seconds`."""
    state = Path(folder).stat()
    return state.st_dev == Path(root).stat().st_dev and state.st_mtime_ns > seconds * 10**9


def _mounted() -> "set[str]":
    """Where something is mounted for the step."""
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


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


def normalise(paths: list[str], seconds: int) -> None:
    """Give these paths one time: links themselves, not what they lead to."""
    ours = frozenset(paths)
    headers = {path: header for path in paths if path.endswith(".pyc") and (header := _renewed(path, seconds, ours))}
    for path, header in headers.items():
        with Path(path).open("r+b") as stream:
            stream.write(header)
    for path in paths:
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def _renewed(path: str, seconds: int, normalised: "frozenset[str]") -> "bytes | None":
    """The header of bytecode that goes by its source's time, as that will be; None where it doesn't, or is stale.

    A source that is not normalised with it, an earlier step's, keeps its time.
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
        named not in normalised
        or flags
        or (modified, size) != (int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)
    ):
        return None
    return _HEADER.pack(magic, flags, min(modified, seconds), size)


if __name__ == "__main__":
    until = int(sys.argv[1])
    normalise(forget_times(written(until)), until)
