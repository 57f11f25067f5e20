"""Issues for breakages, with a `gh` that keeps issues in a file."""

import json
import os
from pathlib import Path

import pytest

from images.errors import UserError
from tools import issues


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with all issues; one is by hand, of the same title as a breakage."""
    file = tmp_path / "issues.json"
    file.write_text(
        json.dumps([{"number": 1, "title": "a breaks b", "body": None, "state": "OPEN"}])
    )
    monkeypatch.setenv("GH_ISSUES", str(file))
    monkeypatch.setenv("PATH", str(Path(__file__).parent), prepend=os.pathsep)
    return file


def test_a_breakage_has_one_issue_opened_updated_and_reopened(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()

    def reported(text: str) -> list[dict[str, object]]:
        (reports / "k.md").write_text(f"# a breaks b\n\n{text}\n")
        issues.main(reports)
        found: list[dict[str, object]] = json.loads(kept.read_text())
        return found

    assert len(reported("first")) == 2 and capsys.readouterr().out == "opened: a breaks b\n"
    assert "edits" not in reported("first")[1] and capsys.readouterr().out == "#2: a breaks b\n"
    changed = reported("second")[1]
    assert changed["edits"] == ["edit"] and str(changed["body"]).startswith("second")
    closed = json.loads(kept.read_text())
    closed[1] |= {"state": "CLOSED", "body": str(closed[1]["body"]).replace("\n", "\r\n")}
    kept.write_text(json.dumps(closed))
    assert reported("second")[1]["edits"] == ["edit", "reopen"]


def test_a_report_calls_nobody_and_fits_an_issue(tmp_path: Path) -> None:
    file = tmp_path / "torchao-0.15.0-3f2a.md"
    file.write_text("# torchao breaks it\n\nThanks @somebody" + "x" * 100_000)
    title, body, mark = issues.read(file)
    assert (
        title == "torchao breaks it"
        and "@somebody" not in body
        and mark in body
        and len(body) < 65_536
    )
    file.write_text("\n\ntext")
    with pytest.raises(UserError, match="no title"):
        issues.read(file)


def test_a_refusal_is_told_and_no_report_asks_nothing(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_REFUSES", "yes")
    issues.main(tmp_path)
    (tmp_path / "k.md").write_text("# t\n")
    with pytest.raises(UserError, match="gh issue list: HTTP 403"):
        issues.main(tmp_path)
