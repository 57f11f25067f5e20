"""An audit of an image, without an engine: what is measured, and what the survey decides."""

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

IMAGE = image_info(env={"LD_PRELOAD": "/x\x1b[0m.so"}, user="")
ENVIRONMENT = {**environment(distribution("a", "1", "b>=2")), "start": {}}
SURVEY: dict[str, Any] = {
    "environments": [ENVIRONMENT],
    "toolkits": [],
    "device_code": [],
    "driver_files": [],
}
"""What the survey prints of the image."""


@pytest.fixture(autouse=True)
def measured_claims(monkeypatch: pytest.MonkeyPatch) -> list[ClaimSet]:
    """The claims that are given to containers. Nothing is measured of them."""
    claim_sets: list[ClaimSet] = []

    def validate(
        _engine: object, digest: str, claims: ClaimSet, tiers: Sequence[Tier], **_options: object
    ) -> Evidence:
        claim_sets.append(claims)
        claims_of_tiers = claims.in_tiers(tiers).claims
        return Evidence(
            image=claims.image,
            digest=digest,
            records=(),
            host={"seed": 7},
            claims=claims_of_tiers,
        )

    monkeypatch.setattr(measure.validation_run, "validate", validate)
    monkeypatch.setattr(measure.own_python, "read_file", lambda *_, **__: "/evil.so\n")
    monkeypatch.setattr(measure.own_python, "query_files", lambda *_, **__: dict(SURVEY))
    return claim_sets


def set_environments(monkeypatch: pytest.MonkeyPatch, *environments: dict[str, Any]) -> None:
    """Make the survey find these environments."""
    survey = {**SURVEY, "environments": list(environments)}
    monkeypatch.setattr(measure.own_python, "query_files", lambda *_, **__: survey)


def audit(**options: Any) -> Evidence:
    engine: Any = SimpleNamespace(inspect=lambda _reference: IMAGE)
    say = logging.getLogger("truetag.tests").debug
    return measure.audit_image(
        engine, "some/image:1", Options(facts=SOURCES.facts, say=say, **options)
    )


def test_what_the_survey_saw_is_judged() -> None:
    evidence = audit()

    verdict = judge(evidence.claim_set, evidence, judges=AUDIT_JUDGES)

    reasons = {}
    for judged in verdict.claims_with(Status.FAIL):
        if judged.evidence:
            reasons[judged.claim.subject] = judged.reason
    assert "/evil.so" in reasons["preload"]
    assert "it runs as root" in reasons["user"]
    assert "a 1 requires b, which is not installed" in reasons["requirements"]
    passed = {judged.claim.subject for judged in verdict.claims_with(Status.PASS)}
    assert "conflicts" in passed


def test_containers_get_only_the_claims_that_the_survey_does_not_decide(
    measured_claims: list[ClaimSet],
) -> None:
    audit()

    (claims,) = measured_claims
    subjects = {claim.subject for claim in claims.claims}
    assert subjects >= {"strays", "secrets", "history"}
    assert not {"preload", "user", "requirements"} & subjects


def test_without_running_programs_only_files_are_read() -> None:
    assert {claim.tier for claim in audit(run=False).claims} == {Tier.STATIC}
    assert Tier.CPU in {claim.tier for claim in audit().claims}


def test_the_evidence_of_an_audit_has_no_name_of_an_image_of_ours() -> None:
    assert audit().image == "audit of some/image:1"


def test_other_environments_are_unproven_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environments(monkeypatch, ENVIRONMENT, {**ENVIRONMENT, "prefix": "/opt/conda"})

    (claim,) = (claim for claim in audit().claims if claim.subject == "of-/opt/conda")

    assert "PATH finds first" in claim.unproven


def test_an_image_without_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_environments(monkeypatch)

    with pytest.raises(UserError, match="has no Python with installed packages"):
        audit()
