"""Keep an issue on GitHub for each breakage, with the command `gh`.

An issue is opened once, updated when the text changes, and reopened when the breakage comes back.
`python -m tools.issues FOLDER` runs in a workflow with GH_TOKEN. FOLDER has a KEY.md for each
breakage, as `nightly` writes it into OUT/reports.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from images.errors import failed, wrong
from tools import run

LABEL = "breakage"
_MOST_CHARACTERS = 65_000
"""Of an issue's text; GitHub refuses more than 65,536."""


class Report(NamedTuple):
    """A breakage, as its issue describes it."""

    title: str
    body: str
    mark: str
    """A comment in the body, by which the issue is found again."""


def read(file: Path) -> Report:
    """Read a report, KEY.md, whose first line is the title. Raises UserError if it has none."""
    title, _, text = file.read_text(encoding="utf-8", errors="replace").partition("\n")
    title = title.lstrip("# ").strip()[:256]
    if not title:
        then = "name a report as `nox -s nightly` writes it into out/nightly/reports"
        raise wrong(str(file), "the first line of this report is no title", then)

    # A report quotes other people's programs. An `@` before a name would notify somebody: a space
    # of no width goes between them.
    text = re.sub(r"@(?=\w)", "@\u200b", text.strip())
    if len(text) > _MOST_CHARACTERS:
        text = text[:_MOST_CHARACTERS] + "\n\n(cut)"
    mark = f"<!-- truetag breakage {file.stem} -->"
    return Report(title, f"{text}\n\n{mark}\n", mark)


def main(folder: Path) -> None:
    """Open or update an issue for each breakage that a nightly run reported in FOLDER."""
    reports = [read(file) for file in sorted(folder.glob("*.md"))]
    if not reports:
        return
    filters = ("--state", "all", "--label", LABEL, "--limit", "1000")
    listing = _gh("issue", "list", *filters, "--json", "number,title,body,state")
    issues: list[dict[str, Any]] = json.loads(listing)
    for report in reports:
        known = [issue for issue in issues if report.mark in str(issue["body"])]
        if known:
            _update(known[0], report)
        else:
            options = ("--title", report.title, "--label", LABEL, "--body-file", "-")
            _gh("issue", "create", *options, text=report.body)
            typer.echo(f"opened: {report.title}")


def _update(issue: Mapping[str, Any], report: Report) -> None:
    """Reopen an issue if it is closed, and give it the report's text if that is another one."""
    number = str(issue["number"])
    if issue["state"] != "OPEN":
        _gh("issue", "reopen", number)
    # GitHub stores texts with other line ends.
    body = str(issue["body"]).replace("\r\n", "\n").strip()
    if (issue["title"], body) != (report.title, report.body.strip()):
        options = ("--title", report.title, "--body-file", "-")
        _gh("issue", "edit", number, *options, text=report.body)
    typer.echo(f"#{number}: {report.title}")


def _gh(*arguments: str, text: str = "") -> str:
    """Run `gh` with `text` on its standard input, and return what it prints. Raises UserError."""
    process = subprocess.run(
        ["gh", *arguments], input=text, capture_output=True, text=True, check=False
    )
    if process.returncode:
        then = "give the workflow's job `permissions: issues: write`, and GH_TOKEN in `env`"
        raise failed(f"gh {' '.join(arguments[:2])}", process.stderr.strip(), then)
    return process.stdout


if __name__ == "__main__":
    run(main)
