"""What is kept on this machine's disk."""

import errno
import os
from pathlib import Path

import pytest

from images.host import cache


def test_a_file_that_can_not_be_written_whole_leaves_the_old_one_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "folder" / "verdict.json"
    cache.write_whole(file, b"old")

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        cache.write_whole(file, b"new")
    assert [(one.name, one.read_bytes()) for one in file.parent.iterdir()] == [
        ("verdict.json", b"old")
    ]
