"""What the private engine keeps on the disk: whether it is whole, and how it is thrown away.

The engine believes its records. When a folder of a layer is gone (a deletion that was interrupted, a disk that was
repaired), it starts all the same, and every later build and question ends in `stat .../overlay2/...: no such file`.
Nothing in there is anybody's only copy, so a store like that is replaced by an empty one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

_STORE = "data"
_DISCARDED = "discarded-"
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks in a path, proc(5)


def lost_layers(home: Path) -> list[str]:
    """Folders of layers that the engine's records name and the disk lacks (layerdb: moby `layer/filestore.go`)."""
    store = home / _STORE
    recorded = (file.read_text().strip() for file in store.glob("image/overlay2/layerdb/sha256/*/cache-id"))
    return sorted(name for name in recorded if not (store / "overlay2" / name).is_dir())


def discard(home: Path) -> None:
    """Take the store of an engine that doesn't run away. Cut off at any moment, it leaves a whole store or none.

    The store is renamed before anything in it is deleted; what an earlier call left half deleted goes too.
    """
    store = home / _STORE
    _unmount_below(home)
    if store.exists():
        store.rename(Path(tempfile.mkdtemp(prefix=_DISCARDED, dir=home)) / _STORE)
    sweep(home)


def sweep(home: Path) -> None:
    """Delete what `discard` set aside and could not finish."""
    for folder in home.glob(f"{_DISCARDED}*"):
        shutil.rmtree(folder, ignore_errors=True)


def mounted_below(mountinfo: str, home: Path) -> list[str]:
    """Mount points in or below a folder, the innermost first, by the text of /proc/self/mountinfo (proc(5))."""
    points = [_ESCAPED.sub(_unescaped, line.split()[4]) for line in mountinfo.splitlines() if line.strip()]
    return [point for point in reversed(points) if Path(point).is_relative_to(home)]


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 8))


def _unmount_below(home: Path) -> None:
    """dockerd leaves its own mount of the store behind, and one that was killed its containers' too."""
    for point in mounted_below(Path("/proc/self/mountinfo").read_text(), home.resolve()):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)
