"""Lines of nightly runs: what is written is read back, nothing that lies there changes, and bad lines are told."""

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


def job(*, day: int = 21, month: int = 11, job: Job = Job.CONTROL, **other: object) -> JobLine:
    date = datetime(2026, month, day, 5, tzinfo=UTC)
    return site_samples.job("cu126-torch27", job, Outcome.PASS, **{"date": date, **other})


def test_lines_are_read_back_by_date_from_the_files_of_their_months(tmp_path: Path) -> None:
    lines = [
        job(day=2, month=12),
        breakage(),
        job(),
        job(job=Job.CANARY, changes=[MOVE], failing=[FAILED]),
    ]
    for line in lines:
        results.append(line, tmp_path)
    assert results.read(tmp_path) == tuple(sorted(lines, key=lambda line: line.date))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2026-11.jsonl", "2026-12.jsonl"]


def test_every_bad_line_is_told_with_its_place(tmp_path: Path) -> None:
    """One of another schema version, too."""
    path = results.append(job(), tmp_path)
    older = path.read_text().replace('"schema_version":4', '"schema_version":3')
    path.write_text(f'{path.read_text()}{{"kind": "job"}}\nnonsense\n{older}')
    with pytest.raises(UserError, match="schema_version") as told:
        results.read(tmp_path)
    assert [problem.where for problem in told.value.problems] == [
        f"2026-11.jsonl:{number}" for number in (2, 3, 4)
    ]


def test_lines_are_as_their_published_schema_says() -> None:
    schema = json.loads((ROOT / "docs" / "schema" / "nightly.schema.json").read_text())
    for line in (job(), breakage()):
        jsonschema_rs.validate(schema, line.model_dump(mode="json"))
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {**job().model_dump(mode="json"), "more": 1})
