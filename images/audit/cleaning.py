"""Make texts of strangers safe to show: no control characters, no endless strings or nesting. Pure.

Texts from an image that somebody else built end up in terminals, in reports for browsers and in
the logs of GitHub's runners. Each of these acts on some characters.
"""

import re
from collections.abc import Mapping
from typing import Any

from validate import terminal

LONGEST = 4000
"""How many characters of a string are shown."""
DEEPEST = 40
"""How many levels of lists and mappings are shown."""
_COMMAND_AT_LINE_START = re.compile(r"(?m)^(\s*):(?=:)")
"""`::error::` and the like, which GitHub's runner takes for a command."""


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
    # Commands of GitHub's runner. Of `::error::` at the start of a line, the first colon is written
    # out, and the white space before it stays.
    text = terminal.printable(text).replace("##[", "#\\x23[")
    return _COMMAND_AT_LINE_START.sub(r"\1\\x3a", text)
