"""When labels and SBOM are not what was measured."""

import json
from dataclasses import replace
from typing import Any

import pytest

from images.errors import UserError
from images.publish import statements, verify
from images.publish.attachments import PublishedImage
from images.publish.statements import CYCLONEDX, PROVENANCE, TEST_RESULT, Statement
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.reference import Repository
from tests.support.attested import NAME, PIP, judged
from tests.support.published import days_ago, validated
from validate.judging import Status

PASS = judged(PIP)


def labels(**more: str) -> dict[str, str]:
    own = {"image": NAME, "pins": '{"pip":"26.3"}', **more}
    return {f"dev.truetag.{key.replace('_', '-')}": value for key, value in own.items()}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ()),
        ({"pins": '{"pip":"26.4"}'}, ("pip 26.4 is labelled, 26.3 was found",)),
        ({"pins": '{"pip":"26.3","torch":"2.7.1"}'}, ("torch 2.7.1 is labelled, nothing was found",)),
        ({"pins": "{"}, ("the label of pins can't be read",)),
        ({"image": "cu128-torch28"}, (f"the image is called {NAME}",)),
    ],
)
def test_labels_are_compared_with_what_was_measured(more: dict[str, str], words: tuple[str, ...]) -> None:
    assert verify.label_faults(labels(**more), [PASS]) == words


def test_labels_of_versions_are_compared_with_what_was_validated() -> None:
    torch = replace(PIP, subject="torch", expect={**PIP.expect, "cuda": "12.6"})
    row = replace(judged(PIP).claims[0], claim=torch)
    verdict = replace(PASS, claims=(*PASS.claims, row))
    good = {"torch": "26.3", "wheel_cuda": "12.6", "python": "3.11"}
    assert verify.label_faults(labels(**good), [verdict]) == ()
    assert verify.label_faults(labels(**{**good, "wheel_cuda": "12.8"}), [verdict]) == (
        "wheel-cuda 12.8 is labelled, 12.6 was validated",
    )


# --- what anybody may attach ----------------------------------------------------------------------------------------


def with_attached(predicate_type: str, predicate: Any, digest: str = "") -> PublishedImage:
    """An image with a validation run, what is said of it, and a statement that says nothing for the others."""
    config = json.dumps({"config": {"Labels": labels()}}).encode()
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), [])
    run = statements.test_result([validated(manifest.config.digest, days_ago(1), [PIP])])
    every = {TEST_RESULT: run, CYCLONEDX: {}, PROVENANCE: {}, predicate_type: predicate}
    attached = (
        Statement.of(kind, said, repository="x.org/y", digest=digest or manifest.digest) for kind, said in every.items()
    )
    return PublishedImage(
        repository=Repository("x.org", "y"), manifest=manifest, config=json.loads(config), statements=tuple(attached)
    )


def told(image: PublishedImage, subject: str) -> str:
    """Why a check fails."""
    found = {check.subject: check for check in verify.checks(image)}[subject]
    assert found.status is Status.FAIL
    return found.reason


def test_the_sbom_is_compared_with_the_label() -> None:
    good = {"components": [{"purl": "pkg:pypi/pip@26.3"}, {"purl": "pkg:pypi/more@1"}]}
    found = {check.subject: check for check in verify.checks(with_attached(CYCLONEDX, good))}["SBOM"]
    assert found.status is Status.PASS
    assert told(with_attached(CYCLONEDX, {}), "SBOM") == "pip 26.3 is labelled, the SBOM has none"


@pytest.mark.parametrize(
    "predicate", ["x", 5, {"components": 5, "buildDefinition": 5}, {"components": ["x"], "buildDefinition": []}]
)
@pytest.mark.parametrize("predicate_type", [CYCLONEDX, PROVENANCE])
def test_what_others_attached_is_a_fault_whatever_its_form(predicate_type: str, predicate: Any) -> None:
    found = with_attached(predicate_type, predicate)
    assert "can't be read" in told(found, statements.NAMES[predicate_type])
    with pytest.raises(UserError, match=r"cosign clean.*or publish with --key"):
        verify.require_sound(found)


def test_a_statement_about_another_image_is_a_fault() -> None:
    other = "sha256:" + "0" * 64
    assert told(with_attached(CYCLONEDX, {}, other), "attestation") == f"its test result is of {other}"
    faults = verify._statement_faults(with_attached(CYCLONEDX, {}, other), CYCLONEDX)
    assert faults[0].startswith(f"is of {other}")


def test_a_test_result_that_says_more_than_its_evidence_is_a_fault() -> None:
    said = with_attached(CYCLONEDX, {}).of(TEST_RESULT)[0].predicate
    lie = {**said, "passedTests": [*said["passedTests"], "gpu/G1 matmul"]}
    why = "its test result is not what the evidence says: passedTests differ in gpu/G1 matmul"
    assert told(with_attached(TEST_RESULT, lie), "attestation") == why


@pytest.mark.parametrize("predicate", [{}, {"configuration": 5}, {"configuration": [{"content": "?"}]}])
def test_a_test_result_that_cannot_be_read_is_told(predicate: Any) -> None:
    assert "can't be read" in told(with_attached(TEST_RESULT, predicate), "attestation")
