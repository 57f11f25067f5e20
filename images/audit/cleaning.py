"""Text of strangers, made safe to show: no control or invisible character, no endless string or nesting. Pure."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

LONGEST = 4000
DEEPEST = 40
_COMMAND = re.compile(r"(?m)^(\s*):(?=:)")
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
"""Unicode's categories of characters that steer terminals and browsers, or show nothing."""


def text(value: str) -> str:
    """The same with each such character written out (`\\x1b`), lines and tabs kept, cut after LONGEST characters.

    So is what GitHub's runner takes for a command in a log: `##[` anywhere, `::` where a line begins.
    """
    cut = (
        value
        if len(value) <= LONGEST
        else f"{value[:LONGEST]}... ({len(value) - LONGEST} more characters)"
    )
    if not (cut.isascii() and cut.isprintable()):
        cut = "".join(_shown(one) for one in cut)
    return _COMMAND.sub(r"\1\\x3a", cut.replace("##[", "#\\x23["))


def _shown(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def cleaned(value: Any, depth: int = 0) -> Any:
    """The same for every string of a JSON value. What lies too deep is replaced by a note."""
    if depth > DEEPEST:
        return "(nested too deep)"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return {text(str(key)): cleaned(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item, depth + 1) for item in value]
    return value
