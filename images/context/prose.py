"""Turns sentences of ours into HTML or Markdown: commands as code, issues and addresses as links.

Warnings, reasons and facts are plain text, which a terminal shows as it is: `pytorch#196678`, or a
command in backticks. Pure.
"""

import re

from markupsafe import Markup, escape

from images.planning.silent import OWNERS

# Code: `truetag build`. An address: https://pytorch.org/get-started, without a full stop after it.
# An issue: pytorch#196678 or unslothai/unsloth#5876. Markdown's own links, [text](address), are not
# touched.
_PARTS = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|(?<!\]\()(?P<address>https?://[^\s<>()]*[^\s<>().,;:])"
    rf"|(?<![\w/#\[-])(?P<repository>[\w.-]+/[\w.-]+|{'|'.join(OWNERS)})#(?P<number>\d+)"
)

_SECOND_NUMBER = re.compile(r"([\w./-]+)(#\d+, )(?=#\d)")
"""`pytorch#163539, ` before `#166643`, which is of the same repository."""


def to_html(text: str) -> Markup:
    """Return a sentence as HTML: code as <code>, addresses and issues as links, the rest escaped.

    `see pytorch#1` becomes `see <a href="https://github.com/pytorch/pytorch/issues/1">pytorch#1</a>`.
    """
    text = _SECOND_NUMBER.sub(r"\1\2\1", text)
    pieces = []
    # Where the last match ended: the text from there on is still to be written.
    end = 0
    for match in _PARTS.finditer(text):
        pieces.append(escape(text[end : match.start()]))
        end = match.end()
        if match["code"]:
            pieces.append(Markup("<code>{}</code>").format(match["code"]))
        else:
            link = Markup('<a href="{}">{}</a>')
            pieces.append(link.format(_address(match), match[0]))
    pieces.append(escape(text[end:]))
    return Markup("").join(pieces)


def to_markdown(text: str) -> str:
    """Return a sentence as Markdown. Commands are code already, and links stay as they are."""

    def link(match: re.Match[str]) -> str:
        return match[0] if match["code"] else f"[{match[0]}]({_address(match)})"

    return _PARTS.sub(link, _SECOND_NUMBER.sub(r"\1\2\1", text))


def _address(match: re.Match[str]) -> str:
    """Return the address that an issue or an address in a sentence leads to."""
    if match["address"]:
        return match["address"]
    repository = match["repository"]
    if repository in OWNERS:
        repository = f"{OWNERS[repository]}/{repository}"
    # GitHub leads from here to the pull request, if the number is one's.
    return f"https://github.com/{repository}/issues/{match['number']}"
