"""Waits until what was deleted slows no new file down: ext4 without a journal.

Such a file system gives out no inode that was deleted less than a minute ago (six, where its block is to be written),
and looks at each of them whenever a file is made: `recently_deleted` in the kernel's fs/ext4/ialloc.c. A build makes
tens of thousands of files, and the benchmark deletes as many before the next. A minute is too short: each new file has
the block of its neighbours written again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from images.engine import Engine

_REST = 361.0
"""Seconds: RECENTCY_MIN and RECENTCY_DIRTY of that file, and one."""


def rest(engine: Engine, say: Callable[[str], object]) -> None:
    """Return when what was deleted before no longer counts; at once where it never does."""
    if not engine.facts.local or not remembers(Path(engine.facts.data_root)):
        return
    say(f"waiting {_REST:.0f} s: this ext4 has no journal, and would pass over each file that was just deleted")
    os.sync()
    time.sleep(_REST)


def remembers(folder: Path, proc: Path = Path("/proc"), devices: Path = Path("/sys/dev/block")) -> bool:
    """Whether a folder is on ext4 without a journal.

    A mount is found by its device's number: its name may be another than the kernel's (`/dev/mapper/...` is `dm-0`).
    The kernel has a folder for each journal in use, `dm-0-8`.
    """
    number = folder.stat().st_dev
    told = f"{os.major(number)}:{os.minor(number)}"
    mounts = [line.split() for line in (proc / "self" / "mountinfo").read_text().splitlines()]
    kinds = {row[row.index("-") + 1] for row in mounts if row[2] == told}
    device = devices / told
    if kinds != {"ext4"} or not device.exists():
        return False
    journals = proc / "fs" / "jbd2"
    return not (journals.is_dir() and any(journals.glob(f"{device.resolve().name}-*")))
