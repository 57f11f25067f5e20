"""What an engine can't give a trial is unproven with the reason, and never more than that."""

from dataclasses import replace

import pytest

from images.engine.gpus import NO_GPU
from images.engine.runtime import engine_facts
from images.validation import containers, validation_run
from tests.support.claims import bare_claims
from tests.support.engine_contents import image_info
from validate import checks
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status

DOCKER = {"Version": "20.10.24", "ApiVersion": "1.41"}


def _key(claim: Claim) -> str:
    return claim.key


@pytest.fixture(scope="module")
def claims() -> ClaimSet:
    return bare_claims("cu126-torch27").in_tiers([Tier.STATIC, Tier.CPU])


def test_an_engine_of_the_images_processor_can_measure_everything(claims: ClaimSet) -> None:
    assert (
        validation_run.unsupported_claims(
            engine_facts("unix:///d", DOCKER, {}), image_info(), claims
        )
        == {}
    )


def test_of_an_image_for_another_processor_only_files_are_read(claims: ClaimSet) -> None:
    facts = engine_facts("unix:///d", DOCKER, {"Architecture": "x86_64"})
    assert facts.architecture == "amd64"
    reasons = validation_run.unsupported_claims(
        facts, replace(image_info(), architecture="arm64"), claims
    )
    measured = {
        claim.probe for claim in claims.measurable_inside().claims if claim.key not in reasons
    }
    assert measured and all(checks.settings(probe).reads_files_only for probe in measured)
    assert {claim.tier for claim in claims.claims if claim.key in reasons} == {
        Tier.STATIC,
        Tier.CPU,
    }
    assert set(reasons.values()) == {
        "programs for arm64 do not run on this machine (amd64): validate it on a machine with arm64"
    }


def test_what_is_not_supported_is_unproven_the_rest_is_measured_and_evidence_can_only_lose_by_it(
    claims: ClaimSet,
) -> None:
    facts = engine_facts("unix:///d", DOCKER, {})
    reasons = validation_run.unsupported_claims(
        facts, replace(image_info(), architecture="arm64"), claims
    )
    host = {"unsupported": reasons}
    limited = validation_run.with_host_limits(claims, host)
    assert {_key(one): one.unproven for one in limited.claims if _key(one) in reasons} == reasons
    planned = {
        one
        for plan in containers.plan_containers("", limited, NO_GPU)
        for one in map(_key, plan.claims.claims)
    }
    assert planned == {_key(one) for one in limited.measurable_inside().claims if not one.unproven}
    again = Evidence.loads(Evidence(image=claims.image, digest="", records=(), host=host).dumps())
    assert validation_run.with_host_limits(claims, again.host) == limited
    assert validation_run.with_host_limits(claims, {}) == claims
    worse = {_key(one): "no reason" for one in claims.claims}
    forged = validation_run.with_host_limits(claims, {"unsupported": worse})
    assert {one.status for one in judge(forged, again).claims} == {Status.UNPROVEN}
