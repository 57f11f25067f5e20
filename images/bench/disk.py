"""Waits until what was deleted slows no new file down: ext4 without a journal.

Such a file system gives out no inode that was deleted less than a minute ago (six, where its block is to be written),
and looks at each of them whenever a file is made: `recently_deleted` in the kernel's fs/ext4/ialloc.c. A build makes
tens of thousands of files, and the benchmark deletes as many before the next. A minute is too short: each new file has
the block of its neighbours written again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from images.engine import Engine

_REST = 361.0
"""Seconds: RECENTCY_MIN and RECENTCY_DIRTY of that file, and one."""


def rest(engine: Engine, say: Callable[[str], object]) -> None:
    """Return when what was deleted before no longer counts; at once where it never does."""
    mounts, journals = Path("/proc/mounts").read_text(), Path("/proc/fs/jbd2")
    names = [one.name for one in journals.iterdir()] if journals.is_dir() else []
    if not engine.facts.local or not remembers(Path(engine.facts.data_root), mounts, names):
        return
    say(f"waiting {_REST:.0f} s: this ext4 has no journal, and would pass over each file that was just deleted")
    os.sync()
    time.sleep(_REST)


def remembers(folder: Path, mounts: str, journals: Sequence[str]) -> bool:
    """Whether a folder is on ext4 without a journal. Pure.

    `mounts`: the text of /proc/mounts; `journals`: names in /proc/fs/jbd2 (`vda-8`).
    """
    rows = [line.split() for line in mounts.splitlines()]
    around = [row for row in rows if folder.is_relative_to(row[1])]
    if not around:
        return False
    device, _, kind, *_ = max(reversed(around), key=lambda row: len(row[1]))  # of equals the last, which hides others
    name = device.rpartition("/")[2]
    return kind == "ext4" and not any(journal.rpartition("-")[0] == name for journal in journals)
