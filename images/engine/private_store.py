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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from images.errors import Problem, UserError

_STORE = "data"
_DISCARDED = "discarded-"
_OF_CONTAINERS = ("overlay", "tmpfs", "nsfs")
"""Kinds of file systems that an engine mounts below its store: a container's root, its /dev/shm, its network."""
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks in a path, proc(5)


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo (proc(5))."""

    device: str
    root: Path
    """What of the device is mounted."""
    point: Path
    kind: str


def lost_layers(home: Path) -> list[str]:
    """Folders of layers that the engine's records name and the disk lacks (layerdb: moby `layer/filestore.go`)."""
    store = home / _STORE
    recorded = (file.read_text().strip() for file in store.glob("image/overlay2/layerdb/sha256/*/cache-id"))
    # A record that a crash left empty names none.
    return sorted(name for name in recorded if not (name and (store / "overlay2" / name).is_dir()))


def discard(home: Path) -> None:
    """Take the store of an engine that doesn't run away. Cut off at any moment, it leaves a whole store or none.

    The store is renamed before anything in it is deleted; what an earlier call left half deleted goes too. Raises
    UserError: somebody else mounted something in there, or it can't be deleted.
    """
    store = home / _STORE
    _unmount(store)
    if store.exists():
        store.rename(Path(tempfile.mkdtemp(prefix=_DISCARDED, dir=home)) / _STORE)
    if left := sweep(home):
        cause = f"could not be deleted: {left[0]}"
        raise UserError(Problem(where=str(home), cause=cause, then=f"`rm -rf {home}/{_DISCARDED}*`"), code=1)


def sweep(home: Path) -> list[str]:
    """Delete what `discard` set aside and could not finish. What can't be deleted."""
    failed: list[str] = []
    for folder in home.glob(f"{_DISCARDED}*"):
        shutil.rmtree(folder, onerror=lambda _call, path, error: failed.append(f"{path}: {error[1]}"))
    return failed


def mounts(mountinfo: str) -> list[Mount]:
    """The mounts that a text of /proc/self/mountinfo names, in its order: each below those before it."""
    lines = [line.split() for line in mountinfo.splitlines() if line.strip()]
    return [
        Mount(words[2], _path(words[3]), _path(words[4]), words[words.index("-", 6) + 1])  # optional fields before it
        for words in lines
    ]


def foreign(every: Iterable[Mount], store: Path) -> Iterator[Mount]:
    """Mounts at or below the store that no engine made: a disk of a person's."""
    every = list(every)
    for mount in every:
        if not mount.point.is_relative_to(store) or mount.kind in _OF_CONTAINERS:
            continue
        around = [other for other in every if other is not mount and mount.point.is_relative_to(other.point)]
        # dockerd mounts its store onto itself, so as to set how mounts spread from there.
        itself = any(
            mount.device == o.device and mount.root == o.root / mount.point.relative_to(o.point) for o in around
        )
        if not itself:
            yield mount


def _unmount(store: Path) -> None:
    every = mounts(Path("/proc/self/mountinfo").read_text())
    for mount in foreign(every, store.resolve()):
        cause = f"is a file system of its own ({mount.kind}), not this engine's"
        raise UserError(Problem(where=str(mount.point), cause=cause, then=f"`umount {mount.point}`"), code=1)
    for mount in reversed(every):
        if mount.point.is_relative_to(store.resolve()):
            subprocess.run(["umount", "--lazy", mount.point], capture_output=True, check=False)


def _path(text: str) -> Path:
    return Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), text))
