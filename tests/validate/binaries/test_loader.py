"""Which files count as ELF files."""

from pathlib import Path

import pytest

from validate.binaries import loader


def test_a_file_in_a_folder_that_may_not_be_searched_counts_as_an_elf_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It can't be read, and is then reported."""

    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_fifo", refuse)

    assert loader._should_be_elf("/closed/libx.so")
