"""The folder of what can be made again, outside the project: clones share it. Locks between processes; whole files."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from images.errors import failed, wrong

_PAUSE = 0.2
"""Seconds between two looks at a lock that somebody holds."""


def folder() -> Path:
    """Raises UserError for a user without a home."""
    found = platformdirs.user_cache_path("truetag")
    if not found.is_absolute():  # an unknown uid without HOME
        then = "set HOME or XDG_CACHE_HOME to a folder that can be written"
        raise wrong("HOME", "this user has no home folder", then)
    return found


def write_whole(file: Path, content: bytes) -> None:
    """Write a file and its folder, with the umask's modes. Whole and on the disk or not at all, whoever is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partly = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with partly.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partly.replace(file)
    finally:
        partly.unlink(missing_ok=True)


@contextmanager
def alone(
    file: Path,
    *,
    waiting: Callable[[], None] = lambda: None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Hold the lock of a file; it ends with the process. Threads of one process wait for each other, too.

    `waiting` is called once if somebody holds it. `pause` waits the seconds between two looks: what it raises ends
    the waiting. Raises UserError where the file can't be written, or its file system has no locks.
    """
    lock = FileLock(file, timeout=0)
    said = False
    while not lock.is_locked:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            if not said:
                waiting()
            said = True
            pause(_PAUSE)
        except (OSError, NotImplementedError) as error:
            then = "name a folder of a local disk that you may write to (XDG_CACHE_HOME=/var/tmp/cache), then try again"
            raise failed(
                str(file), f"can't be locked: {getattr(error, 'strerror', None) or error}", then
            ) from None
    try:
        yield
    finally:
        lock.release()
