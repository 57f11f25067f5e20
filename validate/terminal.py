"""Lays out text for terminals and pipes: the width of lines, wrapping, columns without frames."""

import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import TextIO

_LEAST_WIDTH = 40
"""A narrower terminal gets lines of this width: below it, text falls apart into single words."""

_COMMAND = re.compile("`[^`]+`")
_SPACE_OF_COMMAND = "\0"
"""Stands for a space at which a line must not be broken, while it is wrapped."""


def width_of(stream: TextIO) -> int | None:
    """Return how many characters a line may have: COLUMNS if it is set, else the terminal's width.

    None: the stream is no terminal, so lines stay whole and `grep` finds them.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    return shutil.get_terminal_size().columns if stream.isatty() else None


def printable(text: str) -> str:
    r"""Return a text with `\x1b` for the character ESC, and so for all that a terminal would obey.

    A name or a log may have such characters. Ends of lines and tabs stay as they are.
    """
    if text.isprintable():
        return text
    characters = []
    for character in text:
        is_shown = character.isprintable() or character in "\n\t"
        escaped = character.encode("unicode_escape").decode()
        characters.append(character if is_shown else escaped)
    return "".join(characters)


def wrapped(line: str, width: int | None, indent: str = "    ") -> str:
    """Return a paragraph wrapped to a width, with `indent` before all lines but the first.

    No word is broken, and no command in backticks that fits in a line, so that commands and paths
    can be copied. A long word may stand out. What is not printable is escaped.

    width: in characters; None: the paragraph becomes a single line.
    """
    line = printable(line)
    if width is None:
        return " ".join(line.splitlines())
    width = max(width, _LEAST_WIDTH)

    def join_words(match: re.Match[str]) -> str:
        """Return a command with its spaces replaced, as one word, if it fits in a line."""
        command = match[0]
        fits = len(indent) + len(command) < width
        return command.replace(" ", _SPACE_OF_COMMAND) if fits else command

    filled = textwrap.fill(
        _COMMAND.sub(join_words, line),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(_SPACE_OF_COMMAND, " ")


def aligned(rows: Sequence[Sequence[str]], gap: str = "  ", most: int = 200) -> list[str]:
    """Return a line for each row, with the cells of a column below each other.

    All rows have the same number of cells. A column is as wide as its widest cell, but at most
    `most` characters. A longer cell is not cut: the others of its row follow in the next line.
    """
    widths = []
    for column in zip(*rows, strict=True):
        widths.append(min(most, max(map(len, column))))

    lines = []
    for row in rows:
        line = ""
        start = 0
        # `start` is where the cell's column begins.
        for cell, width in zip(row, widths, strict=True):
            # A longer cell has taken this place: go on in a new line.
            if len(line) > start:
                lines.append(line.rstrip())
                line = ""
            line = line.ljust(start) + cell + gap
            start += width + len(gap)
        lines.append(line.rstrip())
    return lines
