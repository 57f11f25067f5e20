"""Lines for terminals and pipes: how wide they are, how they wrap, and columns without frames, which `grep` finds."""

import os
import shutil
import textwrap
from collections.abc import Sequence
from typing import TextIO

_LEAST_WIDTH = 40


def width_of(stream: TextIO) -> int | None:
    """Characters of a line: COLUMNS, else the terminal's. None: it is no terminal, and lines stay whole for `grep`."""
    if (told := os.environ.get("COLUMNS", "")).isdecimal() and int(told):
        return int(told)
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wrapped(line: str, width: int | None, indent: str = "    ") -> str:
    """A paragraph at a width, what follows its first line behind `indent`. No word is broken: it can be copied."""
    if width is None:
        return " ".join(line.splitlines())
    wide = max(width, _LEAST_WIDTH)
    return textwrap.fill(
        line, wide, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def aligned(rows: Sequence[Sequence[str]], gap: str = "  ", most: int = 200) -> list[str]:
    """One line a row. Columns are as wide as their widest cell, at `most`; the last one is as long as its text."""
    widths = [min(most, max(map(len, column))) for column in zip(*rows, strict=True)]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [gap.join(row).rstrip() for row in cells]
