"""Unpacked images: a folder each, gone with the process that made it, or at the next sweep if that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PREFIX = "truetag-apptainer-"
_LOCK = "lock"


def home() -> Path:
    """Where sandboxes lie: Apptainer's own folder for that, else the machine's. An image takes its unpacked size."""
    return Path(os.environ.get("APPTAINER_TMPDIR") or tempfile.gettempdir())


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, locked for as long as it is used."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=home()))
    with (path / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            remove(path)


def sweep() -> tuple[str, ...]:
    """Remove this user's folders whose process has ended. Returns their names."""
    gone = []
    for path in sorted(home().glob(f"{_PREFIX}*")):
        if path.stat().st_uid == os.getuid() and _is_left(path):
            remove(path)
            gone.append(path.name)
    return tuple(gone)


def _is_left(path: Path) -> bool:
    try:
        with (path / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # in use, or not locked yet
        return False
    return True


def remove(path: Path) -> None:
    """With all it holds: images have folders that their owner can't write."""

    def open_up(remove_it: Callable[[str], Any], name: str, _error: object) -> None:
        Path(name).parent.chmod(0o700)
        Path(name).chmod(0o700)
        remove_it(name)

    shutil.rmtree(path, onerror=open_up)
