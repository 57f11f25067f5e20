"""Locks between the processes of a user on one machine. They end with the process that holds them."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_PAUSE = 0.2
"""Seconds between two looks at a lock that somebody holds."""


def cache_folder() -> Path:
    """Where truetag keeps what can be made again (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "truetag"


def nothing() -> None:
    """Takes the news of waiting that nobody wants."""


@contextmanager
def alone(
    file: Path, *, waiting: Callable[[], None] = nothing, pause: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Hold the lock of a file; threads of one process wait for each other, too.

    `waiting` is called once if somebody holds it. `pause` waits the seconds between two looks: what it raises ends
    the waiting. Raises OSError where the file can't be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        if not _taken(lock):
            waiting()
            while not _taken(lock):
                pause(_PAUSE)
        yield


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
