"""The first pattern that a path matches is found as fnmatch would find it."""

import pytest

from validate.environment.patterns import first_of

PATTERNS = ["*/b?.so", "/a/[bc]*", "/[!b]/*", "*"]


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("/a/b1.so", "*/b?.so"),
        ("/a/cc", "/a/[bc]*"),
        ("/a/d", "/[!b]/*"),
        ("/b/[bc]", "*"),
    ],
)
def test_the_first_matching_pattern_is_returned(path: str, pattern: str) -> None:
    assert first_of(PATTERNS)(path) == pattern


def test_a_path_that_matches_no_pattern_has_none() -> None:
    assert first_of(["*.so"])("/a.py") is None


def test_a_set_of_characters_may_hold_a_line_break() -> None:
    assert first_of(["[\nb]c"])("bc") == "[\nb]c"
