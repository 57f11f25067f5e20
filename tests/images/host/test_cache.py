"""Files that are written whole or not at all."""

import errno
import os
from pathlib import Path

import pytest

from images.host import cache


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "folder" / "verdict.json"
    cache.write_whole(file, b"old")

    def raise_no_space(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_no_space)

    with pytest.raises(OSError, match="No space left"):
        cache.write_whole(file, b"new")

    contents = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    assert contents == {"verdict.json": b"old"}
