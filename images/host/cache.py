"""Finds the user's cache folder, writes files whole, and holds locks between processes.

The cache has what can be made again. It lies outside the project, so that clones share it.
"""

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
"""Seconds between two attempts to take a lock that another process holds."""


def folder() -> Path:
    """Return the user's cache folder. Raises UserError for a user without a home."""
    cache_folder = platformdirs.user_cache_path("truetag")
    # An unknown user ID without HOME gets a relative path.
    if not cache_folder.is_absolute():
        then = "set HOME or XDG_CACHE_HOME to a folder that this user may write to"
        raise wrong("HOME", "this user has no home folder", then)
    return cache_folder


def write_whole(file: Path, content: bytes) -> None:
    """Write a file so that it is on the disk with all its content, or not at all.

    That holds even if the process is killed. An older file of that name is replaced. Its folder is
    made if it is missing. Raises OSError if it can't be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Written under another name in the same folder, then renamed, which happens at once.
    unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with unfinished.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(file)
    finally:
        # If all went well, the file was renamed, and has this name no longer.
        unfinished.unlink(missing_ok=True)


@contextmanager
def hold_lock(
    file: Path,
    *,
    on_wait: Callable[[], None] = lambda: None,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Hold a lock file while the block runs; wait for it if another process or thread holds it.

    The operating system frees it when the process ends, however that is. `on_wait` is called once
    if somebody else holds it. `pause` gets the seconds to wait between two attempts; an exception
    that it raises ends the waiting. Raises UserError if the file can't be written, or if its file
    system has no locks.
    """
    # With timeout 0, `acquire` tries once and raises Timeout if somebody else holds the lock. The
    # waiting is done here, so that `pause` can end it.
    lock = FileLock(file, timeout=0)
    has_waited = False
    while not lock.is_locked:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            if not has_waited:
                on_wait()
            has_waited = True
            pause(_PAUSE)
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or error
            then = (
                "name a folder of a local disk that you may write to"
                " (XDG_CACHE_HOME=/var/tmp/cache), then try again"
            )
            raise failed(str(file), f"can't be locked: {reason}", then) from None
    try:
        yield
    finally:
        lock.release()
