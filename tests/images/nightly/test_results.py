"""Lines of nightly runs: they are read back as they were written, and bad ones are named."""

import json
from datetime import UTC, datetime
from pathlib import Path

import jsonschema_rs
import pytest

from images.errors import UserError
from images.nightly import results
from images.nightly.results import Job, JobLine, Outcome
from tests.support import site_samples
from tests.support.checkout import ROOT
from tests.support.site_samples import FAILED, MOVE, breakage

SCHEMA = json.loads((ROOT / "docs" / "schema" / "nightly.schema.json").read_text())


def job_line(*, month: int = 11, day: int = 21, job: Job = Job.CONTROL, **more: object) -> JobLine:
    """The line of a job that passed on a day of 2026."""
    date = datetime(2026, month, day, 5, tzinfo=UTC)
    return site_samples.job("cu126-torch27", job, Outcome.PASS, **{"date": date, **more})


def test_lines_are_in_the_files_of_their_months_and_read_back_by_date(tmp_path: Path) -> None:
    lines = [
        job_line(month=12, day=2),
        breakage(),
        job_line(),
        job_line(job=Job.CANARY, changes=[MOVE], failing=[FAILED]),
    ]

    for line in lines:
        results.append(line, tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["2026-11.jsonl", "2026-12.jsonl"]
    assert results.read(tmp_path) == tuple(sorted(lines, key=lambda line: line.date))


def test_every_bad_line_is_named_with_its_place(tmp_path: Path) -> None:
    path = results.append(job_line(), tmp_path)
    good = path.read_text()
    without_fields = '{"kind": "job"}\n'
    no_json = "nonsense\n"
    of_an_older_schema = good.replace('"schema_version":4', '"schema_version":3')
    path.write_text(good + without_fields + no_json + of_an_older_schema)

    with pytest.raises(UserError, match="schema_version") as error:
        results.read(tmp_path)

    places = [problem.where for problem in error.value.problems]
    assert places == ["2026-11.jsonl:2", "2026-11.jsonl:3", "2026-11.jsonl:4"]


@pytest.mark.parametrize("line", [job_line(), breakage()], ids=["job", "breakage"])
def test_a_line_fits_its_published_schema(line: JobLine | results.BreakageLine) -> None:
    jsonschema_rs.validate(SCHEMA, line.model_dump(mode="json"))


def test_the_schema_allows_no_further_field() -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(SCHEMA, {**job_line().model_dump(mode="json"), "more": 1})
