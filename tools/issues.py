"""Issues on GitHub, one a breakage, by `gh`: opened once, updated when the text changes, reopened when it comes back.

`python -m tools.issues FOLDER`, in a workflow with GH_TOKEN. FOLDER has a KEY.md for each breakage, as
`nightly` writes it into OUT/reports; a mark in the issue's text finds it again.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import typer

from images.errors import Problem, UserError
from tools import run

LABEL = "breakage"
_LARGEST = 65_000
"""Characters of an issue's text; GitHub refuses more than 65,536."""


def read(file: Path) -> tuple[str, str, str]:
    """Title, text and mark of a report: `KEY.md`, whose first line is the title. Raises UserError where there is none.

    It quotes other people's programs: names in it call nobody.
    """
    title, _, rest = file.read_text(encoding="utf-8", errors="replace").partition("\n")
    title, text = title.lstrip("# ").strip()[:256], re.sub(r"@(?=\w)", "@\u200b", rest.strip())
    if not title:
        then = "`nox -s nightly` writes them into out/nightly/reports"
        raise UserError(Problem(where=str(file), cause="has no title in its first line", then=then))
    mark = f"<!-- truetag breakage {file.stem} -->"
    cut = text if len(text) <= _LARGEST else text[:_LARGEST] + "\n\n(cut)"
    return title, f"{cut}\n\n{mark}\n", mark


def main(folder: Path) -> None:
    """An issue for each breakage that a nightly run reported in FOLDER."""
    reports = [read(file) for file in sorted(folder.glob("*.md"))]
    fields = (
        "--state",
        "all",
        "--label",
        LABEL,
        "--limit",
        "1000",
        "--json",
        "number,title,body,state",
    )
    issues: list[dict[str, Any]] = json.loads(_gh("issue", "list", *fields)) if reports else []
    for title, body, mark in reports:
        found = next((one for one in issues if mark in str(one["body"])), None)
        if found is None:
            _gh(
                "issue", "create", "--title", title, "--label", LABEL, "--body-file", "-", text=body
            )
            typer.echo(f"opened: {title}")
            continue
        number = str(found["number"])
        if found["state"] != "OPEN":
            _gh("issue", "reopen", number)
        # GitHub keeps texts with other line ends.
        if (found["title"], str(found["body"]).replace("\r\n", "\n").strip()) != (
            title,
            body.strip(),
        ):
            _gh("issue", "edit", number, "--title", title, "--body-file", "-", text=body)
        typer.echo(f"#{number}: {title}")


def _gh(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        ["gh", *arguments], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode:
        then = "the job needs `permissions: issues: write` and GH_TOKEN"
        raise UserError(
            Problem(where=f"gh {' '.join(arguments[:2])}", cause=done.stderr.strip(), then=then),
            code=1,
        )
    return done.stdout


if __name__ == "__main__":
    run(main)
