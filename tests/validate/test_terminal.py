"""Text for terminals: wrapped, aligned, and without what a terminal would obey."""

import pytest

from validate import terminal


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("bell\x07 and \x9b2J", r"bell\x07 and \x9b2J"),
        ("no\u202egnp.exe", r"no\u202egnp.exe"),
        ("a name that is no UTF-8: \udcff", r"a name that is no UTF-8: \udcff"),
        ("Größe 漢字 -> ok", "Größe 漢字 -> ok"),
    ],
)
@pytest.mark.parametrize("width", [None, 80])
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str, width: int | None) -> None:
    assert terminal.wrapped(text, width) == shown
