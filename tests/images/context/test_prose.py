"""Sentences of ours on pages: commands as code, issues and addresses as links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from images.context.prose import to_html, to_markdown
from images.planning import silent

PYTORCH = "https://github.com/pytorch/pytorch/issues"


@pytest.mark.parametrize(
    ("text", "html", "markdown"),
    [
        (
            "wrong (pytorch#196678)",
            f'wrong (<a href="{PYTORCH}/196678">pytorch#196678</a>)',
            f"wrong ([pytorch#196678]({PYTORCH}/196678))",
        ),
        (
            "pytorch/pytorch#1.",
            f'<a href="{PYTORCH}/1">pytorch/pytorch#1</a>.',
            f"[pytorch/pytorch#1]({PYTORCH}/1).",
        ),
        (
            "pytorch#1, #2",
            f'<a href="{PYTORCH}/1">pytorch#1</a>, <a href="{PYTORCH}/2">pytorch#2</a>',
            f"[pytorch#1]({PYTORCH}/1), [pytorch#2]({PYTORCH}/2)",
        ),
        ("`nox -s lock` & <b>", "<code>nox -s lock</code> &amp; &lt;b&gt;", "`nox -s lock` & <b>"),
        ("`pytorch#1`", "<code>pytorch#1</code>", "`pytorch#1`"),
        (
            "see https://example.test/a#b.",
            'see <a href="https://example.test/a#b">https://example.test/a#b</a>.',
            "see [https://example.test/a#b](https://example.test/a#b).",
        ),
        (
            "[pytorch#1](https://a.test/1)",
            "[pytorch#1](https://a.test/1)",
            "[pytorch#1](https://a.test/1)",
        ),
        # An issue of a repository whose owner is not known stays as it is.
        ("unknown#5", "unknown#5", "unknown#5"),
    ],
)
def test_commands_are_code_and_issues_are_links(text: str, html: str, markdown: str) -> None:
    assert to_html(text) == html
    assert to_markdown(text) == markdown


@given(st.text())
def test_what_a_reader_sees_is_the_text(text: str) -> None:
    visible = Markup(to_html(text)).striptags()

    assert visible.split() == text.replace("`", "").split() or "`" in text or "<" in text


def test_every_silent_fault_has_an_issue_that_becomes_a_link() -> None:
    for fault in silent.faults().values():
        assert to_markdown(fault.issue).startswith("[")
