"""Text of strangers: nothing in it may steer a terminal, a browser or GitHub's runner."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.audit import cleaning

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
PIECES = (
    "##[",
    "::",
    "#",
    "[",
    ":",
    "a",
    " ",
    "\n",
    "\t",
    "\r",
    "\x1b",
    "\x00",
    "\u202e",
    "\u2028",
    "\ud800",
)
HOSTILE = st.lists(st.sampled_from(PIECES)).map("".join) | st.text()


@given(HOSTILE)
def test_no_hidden_character_and_no_command_of_a_runner_is_left(text: str) -> None:
    clean = cleaning.clean_text(text)
    assert not [one for one in clean if unicodedata.category(one) in HIDDEN and one not in "\n\t"]
    assert "##[" not in clean
    assert not re.search(r"(?m)^\s*::", clean)
    clean.encode("utf-8")


@given(st.text(alphabet="abcXYZ /._-+=,()'\"%äé漢", max_size=200))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert cleaning.clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("ok\n  ::error::x", "ok\n  \\x3a:error::x"),
        ("cub::CUB", "cub::CUB"),
        ("x##[add-mask]y", "x#\\x23[add-mask]y"),
        ("\udcff", "\\udcff"),
    ],
)
def test_what_is_hidden_is_written_out(text: str, shown: str) -> None:
    assert cleaning.clean_text(text) == shown


def test_long_text_and_deep_values_are_cut() -> None:
    assert len(cleaning.clean_text("x" * 10**6)) < cleaning.LONGEST + 100
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]
    assert "nested too deep" in str(cleaning.clean_value(deep))


def test_every_string_of_a_value_is_cleaned_and_the_rest_stays() -> None:
    assert cleaning.clean_value({"a\x07": [1, None, True, 0.5, ("\x00",)]}) == {
        "a\\x07": [1, None, True, 0.5, ["\\x00"]]
    }
