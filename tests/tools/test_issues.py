"""Issues for breakages, with a `gh` that keeps issues in a file."""

import json
import os
from pathlib import Path

import pytest

from images.errors import UserError
from tools import issues


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which a `gh` of ours keeps issues.

    It has one that was written by hand, with the same title as a breakage.
    """
    file = tmp_path / "issues.json"
    by_hand = {"number": 1, "title": "a breaks b", "body": None, "state": "OPEN"}
    file.write_text(json.dumps([by_hand]))
    monkeypatch.setenv("GH_ISSUES", str(file))
    monkeypatch.setenv("PATH", str(Path(__file__).parent), prepend=os.pathsep)
    return file


def test_a_breakage_has_one_issue_opened_updated_and_reopened(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()

    def issues_after_report(text: str) -> list[dict[str, object]]:
        (reports / "k.md").write_text(f"# a breaks b\n\n{text}\n")
        issues.main(reports)
        content: list[dict[str, object]] = json.loads(stored.read_text())
        return content

    # The first report opens an issue beside the one that somebody wrote by hand.
    assert len(issues_after_report("first")) == 2
    assert capsys.readouterr().out == "opened: a breaks b\n"
    # The same text changes nothing.
    assert "edits" not in issues_after_report("first")[1]
    assert capsys.readouterr().out == "#2: a breaks b\n"
    # Another text is written into the issue.
    changed = issues_after_report("second")[1]
    assert changed["edits"] == ["edit"]
    assert str(changed["body"]).startswith("second")
    # A closed issue is opened again. GitHub's own line ends are no change of its text.
    closed = json.loads(stored.read_text())
    closed[1] |= {"state": "CLOSED", "body": str(closed[1]["body"]).replace("\n", "\r\n")}
    stored.write_text(json.dumps(closed))
    assert issues_after_report("second")[1]["edits"] == ["edit", "reopen"]


def test_a_report_calls_nobody_and_fits_an_issue(tmp_path: Path) -> None:
    file = tmp_path / "torchao-0.15.0-3f2a.md"
    file.write_text("# torchao breaks it\n\nThanks @somebody" + "x" * 100_000)

    report = issues.read(file)

    assert report.title == "torchao breaks it"
    assert "@somebody" not in report.body
    assert report.mark in report.body
    assert len(report.body) < 65_536


def test_a_report_without_a_title_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "k.md"
    file.write_text("\n\ntext")

    with pytest.raises(UserError, match="no title"):
        issues.read(file)


def test_gh_is_not_called_without_a_report(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_REFUSES", "yes")

    issues.main(tmp_path)


def test_the_error_of_gh_is_reported(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_REFUSES", "yes")
    (tmp_path / "k.md").write_text("# t\n")

    with pytest.raises(UserError, match="gh issue list: HTTP 403"):
        issues.main(tmp_path)
