"""Issues for breakages: what to do, and done against a server that keeps issues as GitHub's API does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from images import cli
from images.errors import UserError
from images.maintenance.github import LABEL, Act, Issue, Report, Repository, steps

REPORT = Report.of(
    "torchao-0.15.0-3f2a", "# torchao 0.15.0 breaks cu126-torch27\n\nIt does not load. Thanks @somebody\n"
)
TOKEN = "secret-of-the-job"


def issue(report: Report, number: int = 7, is_open: bool = True, text: str = "") -> Issue:
    body = report.body.replace("It does not load.", text) if text else report.body
    return Issue(number=number, title=report.title, body=body, is_open=is_open)


@pytest.mark.parametrize(
    ("there", "act"),
    [
        ([], Act.OPEN),
        ([issue(REPORT)], Act.NOTHING),
        ([issue(REPORT, text="It does not import.")], Act.UPDATE),
        ([issue(REPORT, is_open=False)], Act.REOPEN),
        ([Issue(number=1, title=REPORT.title, body="by hand, of the same title", is_open=True)], Act.OPEN),
    ],
)
def test_each_report_has_one_issue(there: list[Issue], act: Act) -> None:
    (step,) = steps([REPORT], there)
    assert (step.act, step.number) == (act, 0 if act is Act.OPEN else 7)


def test_a_report_is_read_and_calls_nobody() -> None:
    assert REPORT.title == "torchao 0.15.0 breaks cu126-torch27"
    assert "@somebody" not in REPORT.body and REPORT.mark in REPORT.body
    assert len(Report.of("k", "t\n" + "x" * 100_000).body) < 65_536
    with pytest.raises(ValueError, match="no title"):
        Report.of("k", "\n\ntext")


@pytest.fixture
def api() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server with the three calls that are made, and its issues."""
    kept: list[dict[str, Any]] = [
        {"number": 1, "title": "by hand", "body": None, "state": "open", "labels": [LABEL]},
        {"number": 2, "title": "a pull request", "body": "", "state": "open", "labels": [LABEL], "pull_request": {}},
        *({"number": n, "title": "t", "body": "b", "state": "closed", "labels": [LABEL]} for n in range(3, 120)),
    ]

    class GitHub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            size, page = int(query["per_page"][0]), int(query["page"][0])
            assert query["state"] == ["all"] and query["labels"] == [LABEL]
            self.answer(200, kept[(page - 1) * size : page * size])

        def do_POST(self) -> None:
            kept.append({"number": len(kept) + 1, "state": "open", **self.content()})
            self.answer(201, kept[-1])

        def do_PATCH(self) -> None:
            found = next(one for one in kept if one["number"] == int(self.path.rpartition("/")[2]))
            found.update(self.content())
            self.answer(200, found)

        def content(self) -> dict[str, Any]:
            return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, status: int, data: object) -> None:
            if self.headers["Authorization"] != f"Bearer {TOKEN}" or not self.path.startswith("/repos/me/it/issues"):
                status, data = 403, {"message": "Resource not accessible by integration"}
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), GitHub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", kept
        server.shutdown()


def test_the_command_opens_updates_and_reopens(
    api: tuple[str, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, kept = api
    for name, value in {"API_URL": address, "REPOSITORY": "me/it", "TOKEN": TOKEN}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    file = tmp_path / f"{REPORT.key}.md"

    def told(text: str) -> str:
        file.write_text(text)
        return CliRunner().invoke(cli.app, ["issues", str(tmp_path)], catch_exceptions=False).output

    assert told("# a breaks b\n\nfirst\n") == "#120 opened: a breaks b\n"
    assert kept[-1]["labels"] == [LABEL] and kept[-1]["body"].startswith("first")
    assert told("# a breaks b\n\nfirst\n") == "#120 unchanged: a breaks b\n"
    assert told("# a breaks b\n\nsecond\n") == "#120 updated: a breaks b\n"
    kept[-1]["state"] = "closed"
    assert told("# a breaks b\n\nthird\n") == "#120 reopened: a breaks b\n"
    assert (kept[-1]["state"], kept[-1]["body"].partition("\n")[0], len(kept)) == ("open", "third", 120)


def test_a_refusal_is_told_without_the_token(api: tuple[str, list[dict[str, Any]]]) -> None:
    with pytest.raises(UserError, match=r"GitHub answers 403: .*not accessible") as told:
        Repository(api=api[0], name="me/it", token="wrong").issues()
    assert "wrong" not in str(told.value)
    with pytest.raises(UserError, match="can't be reached"):
        Repository(api="http://127.0.0.1:1", name="me/it", token=TOKEN).issues()


def test_outside_a_workflow_reports_are_only_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    (tmp_path / "k.md").write_text("# a breaks b\n")
    found = CliRunner().invoke(cli.app, ["issues", str(tmp_path), "--dry-run"])
    assert (found.exit_code, found.output) == (0, "k: a breaks b\n")
    missing = CliRunner().invoke(cli.app, ["issues", str(tmp_path / "none"), "--dry-run"])
    assert isinstance(missing.exception, UserError) and "is no folder" in str(missing.exception)
    with pytest.raises(UserError, match="GITHUB_TOKEN"):
        Repository.of({"GITHUB_API_URL": "x", "GITHUB_REPOSITORY": "y"})
