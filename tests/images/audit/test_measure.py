"""An audit of an image, without an engine: which claims are measured, and what the survey adds."""

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from images.audit import measure
from images.audit.expected import AUDIT_JUDGES
from images.audit.measure import Options
from images.errors import UserError
from tests.support.audit_samples import distribution, environment
from tests.support.engine_contents import image_info
from tests.support.sources import SOURCES
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status

INFO = image_info(env={"LD_PRELOAD": "/x\x1b[0m.so"}, user="")
FILES: dict[str, Any] = {
    "environments": [{**environment(distribution("a", "1", "b>=2")), "start": {}}],
    "toolkits": [],
    "device_code": [],
    "driver_files": [],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ClaimSet]:
    """What is measured in containers; nothing comes of it."""
    sets: list[ClaimSet] = []

    def validate(
        _engine: object, digest: str, claims: ClaimSet, tiers: Sequence[Tier], **_: object
    ) -> Evidence:
        sets.append(claims)
        asked = claims.in_tiers(tiers).claims
        return Evidence(
            image=claims.image, digest=digest, records=(), host={"seed": 7}, claims=asked
        )

    monkeypatch.setattr(measure.validation_run, "validate", validate)
    monkeypatch.setattr(measure.own_python, "read_file", lambda *_, **__: "/evil.so\n")
    monkeypatch.setattr(measure.own_python, "query_files", lambda *_, **__: dict(FILES))
    return sets


def audited(**more: Any) -> Evidence:
    engine: Any = SimpleNamespace(inspect=lambda _reference: INFO)
    say = logging.getLogger("truetag.tests").debug
    return measure.audit_image(
        engine, "some/image:1", Options(facts=SOURCES.facts, say=say, **more)
    )


def test_what_the_survey_saw_is_judged_beside_what_was_measured(asked: list[ClaimSet]) -> None:
    evidence = audited()
    verdict = judge(evidence.claim_set, evidence, judges=AUDIT_JUDGES)
    failed = {
        row.claim.subject: row.reason for row in verdict.claims_with(Status.FAIL) if row.evidence
    }
    assert "/evil.so" in failed["preload"] and "it runs as root" in failed["user"]
    assert "a 1 requires b, which is not installed" in failed["requirements"]
    assert "conflicts" in {row.claim.subject for row in verdict.claims_with(Status.PASS)}
    assert {claim.subject for claim in asked[0].claims} >= {"strays", "secrets", "history"}
    assert not {"preload", "user", "requirements"} & {claim.subject for claim in asked[0].claims}


def test_without_a_run_only_files_are_read(asked: list[ClaimSet]) -> None:
    assert {claim.tier for claim in audited(run=False).claims} == {Tier.STATIC}
    assert Tier.CPU in {claim.tier for claim in audited().claims}


def test_it_bears_no_name_of_an_image(asked: list[ClaimSet]) -> None:
    assert audited().image == "audit of some/image:1"


def test_other_environments_are_named(
    asked: list[ClaimSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = {**FILES["environments"][0], "prefix": "/opt/conda"}
    files = {**FILES, "environments": [FILES["environments"][0], second]}
    monkeypatch.setattr(measure.own_python, "query_files", lambda *_, **__: files)
    (claim,) = [claim for claim in audited().claims if claim.subject == "of-/opt/conda"]
    assert "PATH finds first" in claim.unproven


def test_an_image_without_python_is_refused(
    asked: list[ClaimSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        measure.own_python, "query_files", lambda *_, **__: {**FILES, "environments": []}
    )
    with pytest.raises(UserError, match="has no Python with packages"):
        audited()
