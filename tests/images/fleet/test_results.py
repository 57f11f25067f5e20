"""What a worker brings is judged by the claims of this checkout, and nothing else is left in its folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from images.building import validating
from images.fleet import results
from images.fleet.worker import Lost, Measured, Task
from tests.support.fleet_records import DIGEST, NAME, claim, claims, evidence_of, installed
from tests.support.sources import SOURCES, image
from validate.claims import ClaimSet, Tier
from validate.judging import Status

PIP = claims(claim("pip"))
TASK = Task(image=NAME, tiers=(Tier.STATIC,), reference=f"a.test/b@{DIGEST}")
BUILD = Task(image=NAME, tiers=(Tier.STATIC,))


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """This checkout claims pip 25.0 of every image."""
    monkeypatch.setattr(validating, "claims_of", lambda *_, **__: PIP)


def brought(version: str = "25.0", held_to: ClaimSet = PIP, **more: Any) -> Measured:
    evidence = evidence_of(held_to, pip=installed(version)).dumps()
    plain = Measured(
        machine="n1", reference=TASK.reference, labels={}, steps=(), evidence=evidence, build=""
    )
    return replace(plain, **more)


def test_a_verdict_and_its_files(tmp_path: Path) -> None:
    outcome = results.finish(TASK, brought(), SOURCES, tmp_path)
    assert outcome.verdict and outcome.verdict_word == "PASS" and not outcome.cause
    assert json.loads((tmp_path / "verdict.json").read_text())["digest"] == DIGEST
    assert json.loads((tmp_path / "worker.json").read_text()) == {
        "machine": "n1",
        "reference": TASK.reference,
    }
    assert {"evidence.json", "report.md"} < {file.name for file in tmp_path.iterdir()}


def test_what_failed_is_the_cause(tmp_path: Path) -> None:
    outcome = results.finish(TASK, brought("24.0"), SOURCES, tmp_path)
    assert outcome.verdict_word == "FAIL" and outcome.cause == "1 claim failed (pins/pip)"


def test_a_worker_with_other_claims_proves_nothing(tmp_path: Path) -> None:
    """Its checkout asks for another version, which the image has."""
    theirs = claims(claim("pip", version="24.0"))
    outcome = results.finish(TASK, brought("24.0", theirs), SOURCES, tmp_path)
    assert outcome.verdict and outcome.verdict.overall is Status.UNPROVEN
    assert outcome.cause.startswith("UNPROVEN: pins/pip: ")


def test_what_another_matrix_built_is_no_result(tmp_path: Path) -> None:
    """Somebody edited the checkout while the task waited in the queue."""
    outcome = results.finish(BUILD, brought(build='{"digest": "x"}'), SOURCES, tmp_path)
    assert (
        outcome.verdict is None
        and "another matrix" in outcome.cause
        and "next: leave the checkout" in outcome.cause
    )
    assert not list(tmp_path.iterdir())
    labels = {"dev.truetag.matrix-revision": image(NAME).revision}
    outcome = results.finish(
        BUILD, brought(build='{"digest": "x"}', labels=labels), SOURCES, tmp_path
    )
    assert not outcome.cause and json.loads((tmp_path / "build.json").read_text()) == {
        "digest": "x"
    }


@pytest.mark.parametrize("evidence", ['{"schema_version": 2}', "{", '{"schema_version": 3}'])
def test_a_worker_of_another_release_does_not_end_the_command(
    tmp_path: Path, evidence: str
) -> None:
    outcome = results.finish(TASK, brought(evidence=evidence), SOURCES, tmp_path)
    assert outcome.verdict is None and outcome.cause.startswith(
        "on n1: its evidence can't be read: "
    )


def test_a_lost_task_leaves_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    results.finish(TASK, brought(), SOURCES, tmp_path)
    results.clear(tmp_path)
    outcome = results.finish(TASK, Lost(cause="it was killed"), SOURCES, tmp_path)
    assert outcome.verdict_word == "no verdict" and outcome.cause == "it was killed"
    assert not list(tmp_path.iterdir())
