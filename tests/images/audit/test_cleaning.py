"""Texts of strangers: nothing in them may steer a terminal, a browser or GitHub's runner."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.audit import cleaning

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode's categories of characters that steer something, or show nothing."""
PIECES_OF_COMMANDS = ("##[", "::", "#", "[", ":", "a", " ")
STEERING_CHARACTERS = ("\n", "\t", "\r", "\x1b", "\x00", "\u202e", "\u2028", "\ud800")
HOSTILE_TEXTS = (
    st.lists(st.sampled_from((*PIECES_OF_COMMANDS, *STEERING_CHARACTERS))).map("".join) | st.text()
)


@given(HOSTILE_TEXTS)
def test_no_hidden_character_and_no_command_of_a_runner_is_left(text: str) -> None:
    clean = cleaning.clean_text(text)

    for character in clean:
        assert character in "\n\t" or unicodedata.category(character) not in HIDDEN
    assert "##[" not in clean
    assert not re.search(r"(?m)^\s*::", clean)
    clean.encode("utf-8")


@given(st.text(alphabet="abcXYZ /._-+=,()'\"%äé漢", max_size=200))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert cleaning.clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("\x1b[2J", "\\x1b[2J", id="terminal"),
        pytest.param("a\u202eb", "a\\u202eb", id="direction of writing"),
        pytest.param("ok\n  ::error::x", "ok\n  \\x3a:error::x", id="command of a runner"),
        pytest.param("cub::CUB", "cub::CUB", id="no command"),
        pytest.param("x##[add-mask]y", "x#\\x23[add-mask]y", id="older command of a runner"),
        pytest.param("\udcff", "\\udcff", id="surrogate"),
    ],
)
def test_a_character_that_steers_something_is_written_out(text: str, shown: str) -> None:
    assert cleaning.clean_text(text) == shown


def test_a_long_text_is_cut() -> None:
    assert len(cleaning.clean_text("x" * 10**6)) < cleaning.LONGEST + 100


def test_a_deep_value_is_cut() -> None:
    deep: list[object] = []
    for _ in range(500):
        deep = [deep]

    assert "nested too deep" in str(cleaning.clean_value(deep))


def test_every_string_of_a_value_is_cleaned_and_all_else_stays() -> None:
    value = {"a\x07": [1, None, True, 0.5, ("\x00",)]}

    assert cleaning.clean_value(value) == {"a\\x07": [1, None, True, 0.5, ["\\x00"]]}
