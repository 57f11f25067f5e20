"""Find the first of many file name patterns that a path matches, quickly."""

import fnmatch
import re
from collections.abc import Callable, Iterable


def first_of(patterns: Iterable[str]) -> Callable[[str], str | None]:
    """Return a function that returns the first pattern (fnmatch) that a path matches, or None.

    Of 50,000 paths nearly all lack the plain text of a pattern, so that is looked for first: it
    takes far less time. The order of the patterns counts: put the most specific one first.
    """
    # The longest part of each pattern without wildcards: whatever matches it has this text.
    texts_and_patterns = [(_longest_plain_text(pattern), pattern) for pattern in patterns]

    def find_pattern(path: str) -> str | None:
        for text, pattern in texts_and_patterns:
            if text in path and fnmatch.fnmatchcase(path, pattern):
                return pattern
        return None

    return find_pattern


def _longest_plain_text(pattern: str) -> str:
    """Return the longest part of a pattern without wildcards: `.so` for `*/lib?.so`.

    Whatever follows a `[` is left out.
    """
    return max(re.split(r"(?s:[*?]|\[.*)", pattern), key=len)
