"""Unpacked images: a folder each, gone with the process that made it, or at the next sweep if that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "truetag-apptainer-"
_LOCK = "lock"


def home() -> Path:
    """Where sandboxes lie: Apptainer's own folder for that, else the machine's. An image takes its unpacked size."""
    return Path(os.environ.get("APPTAINER_TMPDIR") or tempfile.gettempdir())


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, locked for as long as it is used. What can't be removed is left for the next sweep."""
    new = Path(tempfile.mkdtemp(prefix="truetag-new-", dir=home()))
    path = new.with_name(new.name.replace("truetag-new-", _PREFIX))
    with (new / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(path)  # a sweep sees it locked, or not at all
        try:
            yield path
        finally:
            with suppress(OSError):  # a verdict is not lost for it
                remove(path)


def sweep() -> tuple[str, ...]:
    """Remove this user's folders whose process has ended. Returns their names. What can't be removed is left."""
    gone = []
    for path in sorted(home().glob(f"{_PREFIX}*")):
        with suppress(OSError):  # in use, or another job has just removed it
            if path.lstat().st_uid == os.geteuid():
                _remove_left(path)
                gone.append(path.name)
    return tuple(gone)


def _remove_left(path: Path) -> None:
    """Raises OSError where the folder is in use."""
    with (path / _LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)


def remove(path: Path) -> None:
    """With all it holds: images have folders that their owner can't read or write. Raises OSError.

    The lock goes last, so that a sweep finds what a killed process had not removed yet.
    """
    _open_up(path)
    for inner in path.iterdir():
        if inner.is_dir() and not inner.is_symlink():
            shutil.rmtree(inner)
        elif inner.name != _LOCK:
            inner.unlink()
    shutil.rmtree(path)


def _open_up(path: Path) -> None:
    """Folders alone, each before it is looked into: an image's links lead to files of this machine."""
    path.chmod(0o700)
    for folder, names, _ in os.walk(path):
        for inner in (Path(folder, name) for name in names):
            if not inner.is_symlink():
                inner.chmod(0o700)
