"""Issues on GitHub, one a breakage: a mark in its text finds it again, so that no run opens a second one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import requests

from images.errors import Problem, UserError

LABEL = "breakage"
_LARGEST = 65_000
"""Characters of an issue's text; GitHub refuses more than 65,536."""
_PAGE = 100
_SECONDS = 30


class Act(StrEnum):
    """What an issue needs."""

    OPEN = "open"
    UPDATE = "update"
    REOPEN = "reopen"
    NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class Report:
    """One breakage, as `nox -s nightly` reports it: `key` is equal for the same culprits at the same versions."""

    key: str
    title: str
    text: str

    @classmethod
    def of(cls, key: str, markdown: str) -> Report:
        """Read `KEY.md`: its first line is the title. Raises ValueError where there is none."""
        title, _, rest = markdown.partition("\n")
        title = title.lstrip("# ").strip()
        if not title:
            raise ValueError("has no title in its first line")
        return cls(key=key, title=title[:256], text=rest.strip())

    @property
    def mark(self) -> str:
        return f"<!-- truetag breakage {self.key} -->"

    @property
    def body(self) -> str:
        """The text with its mark. It quotes other people's programs: names in it call nobody."""
        quiet = re.sub(r"@(?=\w)", "@\u200b", self.text)
        cut = quiet if len(quiet) <= _LARGEST else quiet[:_LARGEST] + "\n\n(cut)"
        return f"{cut}\n\n{self.mark}\n"


@dataclass(frozen=True, kw_only=True)
class Issue:
    """An issue that is there."""

    number: int
    title: str
    body: str
    is_open: bool


@dataclass(frozen=True, kw_only=True)
class Step:
    """What to do for one report."""

    act: Act
    report: Report
    number: int = 0
    """Of the issue that is there; 0: there is none yet."""


def steps(reports: Sequence[Report], issues: Sequence[Issue]) -> tuple[Step, ...]:
    """An issue for each report: opened once, updated when its text changes, reopened when it comes back. Pure."""
    return tuple(_step(report, issues) for report in reports)


def _step(report: Report, issues: Sequence[Issue]) -> Step:
    found = next((issue for issue in issues if report.mark in issue.body), None)
    if found is None:
        return Step(act=Act.OPEN, report=report)
    if not found.is_open:
        return Step(act=Act.REOPEN, report=report, number=found.number)
    same = (found.title, _plain(found.body)) == (report.title, _plain(report.body))
    return Step(act=Act.NOTHING if same else Act.UPDATE, report=report, number=found.number)


def _plain(body: str) -> str:
    """GitHub keeps texts with other line ends."""
    return body.replace("\r\n", "\n").strip()


@dataclass(frozen=True, kw_only=True)
class Repository:
    """The repository whose workflow runs, as its environment says."""

    api: str
    name: str
    token: str

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Repository:
        """From GITHUB_API_URL, GITHUB_REPOSITORY and GITHUB_TOKEN. Raises UserError for one that is missing."""
        wanted = ("GITHUB_API_URL", "GITHUB_REPOSITORY", "GITHUB_TOKEN")
        if missing := [name for name in wanted if not env.get(name)]:
            then = "run it in a workflow with `GITHUB_TOKEN: ${{ github.token }}`, or give --dry-run"
            raise UserError(Problem(where=", ".join(missing), cause="is not set", then=then))
        return cls(api=env[wanted[0]].rstrip("/"), name=env[wanted[1]], token=env[wanted[2]])

    def issues(self) -> list[Issue]:
        """All issues with our label, closed ones too. Raises UserError."""
        found: list[Issue] = []
        for page in self._pages(f"issues?state=all&labels={LABEL}&per_page={_PAGE}"):
            found += [
                Issue(
                    number=int(one["number"]),
                    title=str(one["title"]),
                    body=str(one.get("body") or ""),
                    is_open=one["state"] == "open",
                )
                for one in page
                if "pull_request" not in one
            ]
        return found

    def do(self, step: Step) -> int:
        """Carry a step out; the issue's number. Raises UserError."""
        content: dict[str, Any] = {"title": step.report.title, "body": step.report.body}
        if step.act is Act.NOTHING:
            return step.number
        if step.act is Act.OPEN:
            return int(self._ask("POST", "issues", {**content, "labels": [LABEL]}).json()["number"])
        if step.act is Act.REOPEN:
            content["state"] = "open"
        return int(self._ask("PATCH", f"issues/{step.number}", content).json()["number"])

    def _pages(self, path: str) -> Iterator[list[dict[str, Any]]]:
        number = 1
        while page := self._ask("GET", f"{path}&page={number}").json():
            yield page
            if len(page) < _PAGE:
                return
            number += 1

    def _ask(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json"}
        where = f"{method} {self.name}/{path.partition('?')[0]}"
        address = f"{self.api}/repos/{self.name}/{path}"
        try:
            answer = requests.request(method, address, headers=headers, json=content, timeout=_SECONDS)
        except requests.RequestException as error:
            cause = f"GitHub can't be reached: {type(error).__name__}"
            raise UserError(Problem(where=where, cause=cause, then="run the job again"), code=1) from None
        if not answer.ok:
            cause = f"GitHub answers {answer.status_code}: {answer.text[:200]}"
            raise UserError(
                Problem(where=where, cause=cause, then="the job needs `permissions: issues: write`"), code=1
            )
        return answer
