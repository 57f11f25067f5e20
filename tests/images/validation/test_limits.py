"""Claims that an engine can't measure are unproven with the reason, and no verdict gets better."""

from dataclasses import replace

import pytest

from images.engine.gpus import NO_GPU
from images.engine.runtime import EngineFacts, engine_facts
from images.validation import containers, validation_run
from tests.support.claims import bare_claims
from tests.support.engine_contents import image_info
from validate import checks
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status

VERSION = {"Version": "20.10.24", "ApiVersion": "1.41"}
AMD64_IMAGE = image_info()
ARM64_IMAGE = replace(AMD64_IMAGE, architecture="arm64")


@pytest.fixture(scope="module")
def claims() -> ClaimSet:
    return bare_claims("cu126-torch27").in_tiers([Tier.STATIC, Tier.CPU])


@pytest.fixture(scope="module")
def amd64_engine() -> EngineFacts:
    facts = engine_facts("unix:///d", VERSION, {"Architecture": "x86_64"})
    assert facts.architecture == "amd64"
    return facts


def test_an_engine_of_the_images_processor_can_measure_everything(
    claims: ClaimSet, amd64_engine: EngineFacts
) -> None:
    assert validation_run.unsupported_claims(amd64_engine, AMD64_IMAGE, claims) == {}


def test_of_an_image_for_another_processor_only_files_are_read(
    claims: ClaimSet, amd64_engine: EngineFacts
) -> None:
    reasons = validation_run.unsupported_claims(amd64_engine, ARM64_IMAGE, claims)

    measurable = [claim for claim in claims.of_container().claims if claim.key not in reasons]
    assert measurable
    assert all(checks.settings(claim.probe).reads_files_only for claim in measurable)
    tiers = {claim.tier for claim in claims.claims if claim.key in reasons}
    assert tiers == {Tier.STATIC, Tier.CPU}
    assert set(reasons.values()) == {
        "programs for arm64 do not run on this machine (amd64): validate it on a machine with arm64"
    }


def test_an_unsupported_claim_is_unproven_and_in_no_container(
    claims: ClaimSet, amd64_engine: EngineFacts
) -> None:
    reasons = validation_run.unsupported_claims(amd64_engine, ARM64_IMAGE, claims)

    limited = validation_run.with_host_limits(claims, {"unsupported": reasons})

    assert {
        claim.key: claim.unproven for claim in limited.claims if claim.key in reasons
    } == reasons
    planned = set()
    for plan in containers.plan_containers("", limited, NO_GPU):
        planned |= {claim.key for claim in plan.claims.claims}
    assert planned == {claim.key for claim in limited.of_container().claims if not claim.unproven}


def test_the_limits_of_a_host_are_read_from_its_stored_evidence(
    claims: ClaimSet, amd64_engine: EngineFacts
) -> None:
    reasons = validation_run.unsupported_claims(amd64_engine, ARM64_IMAGE, claims)
    host = {"unsupported": reasons}
    stored = Evidence(image=claims.image, digest="", records=(), host=host).dumps()

    read = Evidence.loads(stored)

    limited = validation_run.with_host_limits(claims, host)
    assert validation_run.with_host_limits(claims, read.host) == limited
    assert validation_run.with_host_limits(claims, {}) == claims


def test_evidence_can_only_lose_by_limits_that_somebody_wrote_into_it(claims: ClaimSet) -> None:
    forged = {claim.key: "no reason" for claim in claims.claims}
    evidence = Evidence(image=claims.image, digest="", records=())

    limited = validation_run.with_host_limits(claims, {"unsupported": forged})

    assert {judged.status for judged in judge(limited, evidence).claims} == {Status.UNPROVEN}
