"""What a worker measured is judged by the claims of this checkout, and written to a folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.building import validating
from images.fleet import results
from images.fleet.results import Outcome
from images.fleet.worker import Lost, Measured, Task
from tests.support.fleet_records import DIGEST, NAME, claim, claims, evidence_of, installed
from tests.support.sources import SOURCES, image
from validate.claims import ClaimSet, Tier
from validate.judging import Status

OUR_CLAIMS = claims(claim("pip", version="25.0"))
PULL_TASK = Task(image=NAME, tiers=(Tier.STATIC,), reference=f"a.test/b@{DIGEST}")
BUILD_TASK = Task(image=NAME, tiers=(Tier.STATIC,))
BUILD_JSON = '{"digest": "x"}'


@pytest.fixture(autouse=True)
def claims_of_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """This checkout claims pip 25.0 of every image."""
    monkeypatch.setattr(validating, "claims_of", lambda *_, **__: OUR_CLAIMS)


def measured(pip: str = "25.0", image_claims: ClaimSet = OUR_CLAIMS, **fields: Any) -> Measured:
    """Return what a worker brings of an image that has this pip.

    `image_claims`: those that the worker measured it for. `fields`: other fields of the result.
    """
    result = Measured(
        machine="n1",
        reference=PULL_TASK.reference,
        labels={},
        steps=(),
        evidence=evidence_of(image_claims, pip=installed(pip)).dumps(),
        build="",
    )
    return replace(result, **fields)


def finish(folder: Path, task: Task, result: Measured | Lost) -> Outcome:
    return results.finish(task, result, SOURCES, folder)


def read_json(file: Path) -> Any:
    return json.loads(file.read_text())


def test_a_measured_image_gets_a_verdict_and_its_files(tmp_path: Path) -> None:
    outcome = finish(tmp_path, PULL_TASK, measured())

    assert outcome.verdict
    assert outcome.verdict_word == "PASS"
    assert not outcome.cause
    assert read_json(tmp_path / "verdict.json")["digest"] == DIGEST
    worker = {"machine": "n1", "reference": PULL_TASK.reference}
    assert read_json(tmp_path / "worker.json") == worker
    assert {"evidence.json", "report.md"} < {file.name for file in tmp_path.iterdir()}


def test_a_failed_claim_is_the_cause(tmp_path: Path) -> None:
    outcome = finish(tmp_path, PULL_TASK, measured(pip="24.0"))

    assert outcome.verdict_word == "FAIL"
    assert outcome.cause == "1 claim failed (pins/pip)"


def test_a_worker_that_measured_for_other_claims_proves_nothing(tmp_path: Path) -> None:
    """Its checkout claims another version, which the image has."""
    claims_of_worker = claims(claim("pip", version="24.0"))

    outcome = finish(tmp_path, PULL_TASK, measured(pip="24.0", image_claims=claims_of_worker))

    assert outcome.verdict
    assert outcome.verdict.overall is Status.UNPROVEN
    assert outcome.cause.startswith("UNPROVEN: pins/pip: ")


def test_an_image_that_was_built_by_this_matrix_gets_its_build_json(tmp_path: Path) -> None:
    labels = {"dev.truetag.matrix-revision": image(NAME).revision}

    outcome = finish(tmp_path, BUILD_TASK, measured(build=BUILD_JSON, labels=labels))

    assert not outcome.cause
    assert read_json(tmp_path / "build.json") == {"digest": "x"}


def test_an_image_that_was_built_by_another_matrix_is_no_result(tmp_path: Path) -> None:
    """Somebody edited the checkout while the task waited in the queue."""
    outcome = finish(tmp_path, BUILD_TASK, measured(build=BUILD_JSON, labels={}))

    assert outcome.verdict is None
    assert "another matrix" in outcome.cause
    assert "do not edit matrix.yaml" in outcome.cause
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("evidence", ['{"schema_version": 2}', "{", '{"schema_version": 3}'])
def test_evidence_of_another_release_gives_an_outcome_without_a_verdict(
    tmp_path: Path, evidence: str
) -> None:
    outcome = finish(tmp_path, PULL_TASK, measured(evidence=evidence))

    assert outcome.verdict is None
    assert outcome.cause.startswith("on n1: its evidence can't be read: ")


def test_a_lost_task_leaves_no_file_of_an_earlier_run(tmp_path: Path) -> None:
    finish(tmp_path, PULL_TASK, measured())

    results.clear(tmp_path)
    outcome = finish(
        tmp_path,
        PULL_TASK,
        Lost(cause="on node-3: the task was killed by signal 9 (Killed); it wrote nothing"),
    )

    assert outcome.verdict_word == "no verdict"
    assert outcome.cause == "on node-3: the task was killed by signal 9 (Killed); it wrote nothing"
    assert not list(tmp_path.iterdir())
