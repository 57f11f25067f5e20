"""Make texts of strangers safe to show: no control characters, no endless strings or nesting. Pure.

Texts from an image that somebody else built end up in terminals, in reports for browsers and in
the logs of GitHub's runners. Each of these acts on some characters.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

LONGEST = 4000
"""How many characters of a string are shown."""
DEEPEST = 40
"""How many levels of lists and mappings are shown."""
_COMMAND_AT_LINE_START = re.compile(r"(?m)^(\s*):(?=:)")
"""`::error::` and the like, which GitHub's runner takes for a command."""
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
"""Unicode's categories of characters that steer terminals and browsers, or show nothing."""


def clean_value(value: Any, depth: int = 0) -> Any:
    """Return a JSON value with every string in it, keys included, made safe to show.

    Tuples become lists. `depth`: how many lists and objects of the whole value it lies in; a text
    stands for what is deeper than DEEPEST.
    """
    if depth > DEEPEST:
        return "(nested too deep)"
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): clean_value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_value(item, depth + 1) for item in value]
    return value


def clean_text(text: str) -> str:
    """Return a text that is safe to show, cut after LONGEST characters.

    Hidden characters are written out (`\\x1b`), apart from line breaks and tabs. GitHub's runner
    takes `##[` anywhere in a log, and `::` at the start of a line, for a command. One character of
    each is written out as well, so that it is none.
    """
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text) - LONGEST} more characters)"
    # Most texts are plain and need no look at each character.
    if not (text.isascii() and text.isprintable()):
        text = "".join(_write_out_hidden(character) for character in text)
    # Commands of GitHub's runner. Of `::error::` at the start of a line, the first colon is written
    # out, and the white space before it stays.
    text = text.replace("##[", "#\\x23[")
    return _COMMAND_AT_LINE_START.sub(r"\1\\x3a", text)


def _write_out_hidden(character: str) -> str:
    """Return a character as it is, or as an escape such as `\\x1b` or `\\u202e` if it is hidden."""
    if character in "\n\t" or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"
