"""Locks between the processes of a user on one machine. They end with the process that holds them."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from images.errors import Problem, UserError

_PAUSE = 0.2
"""Seconds between two looks at a lock that somebody holds."""


def nothing() -> None:
    """Takes the news of waiting that nobody wants."""


@contextmanager
def alone(
    file: Path, *, waiting: Callable[[], None] = nothing, pause: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Hold the lock of a file; threads of one process wait for each other, too.

    `waiting` is called once if somebody holds it. `pause` waits the seconds between two looks: what it raises ends
    the waiting. Raises UserError where the file can't be written, or its file system has no locks.
    """
    with _opened(file) as lock:
        if not _taken(lock, file):
            waiting()
            while not _taken(lock, file):
                pause(_PAUSE)
        yield


def _opened(file: Path) -> IO[str]:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a")
    except OSError as error:
        raise _no_lock(file, error) from None


def _taken(lock: IO[str], file: Path) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _no_lock(file, error) from None
    return True


def _no_lock(file: Path, error: OSError) -> UserError:
    then = "name a folder of a local disk that you may write to: XDG_CACHE_HOME=/var/tmp/cache, then the same command"
    return UserError(Problem(where=str(file), cause=f"can't be locked: {error.strerror}", then=then), code=1)
