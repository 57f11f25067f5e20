"""When labels and SBOM are not what was measured."""

import json
from dataclasses import replace

import pytest

from images.errors import UserError
from images.publish import attachments, checks
from images.publish.attachments import ATTESTATION, NAMES, PROVENANCE, SBOM, Attachment, PublishedImage
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, OCI_MANIFEST, Descriptor, Manifest, artifact, image_manifest
from images.registry.reference import Repository
from tests.support.attested import NAME, PIP, judged
from tests.support.http_server import registry_answers, serving
from tests.support.published import attested_files, days_ago
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
    assert checks.label_faults(labels(**more), [PASS]) == words


def test_labels_of_versions_are_compared_with_what_was_validated() -> None:
    torch = replace(PIP, subject="torch", expect={**PIP.expect, "cuda": "12.6"})
    row = replace(judged(PIP).claims[0], claim=torch)
    verdict = replace(PASS, claims=(*PASS.claims, row))
    good = {"torch": "26.3", "wheel_cuda": "12.6", "python": "3.11"}
    assert checks.label_faults(labels(**good), [verdict]) == ()
    assert checks.label_faults(labels(**{**good, "wheel_cuda": "12.8"}), [verdict]) == (
        "wheel-cuda 12.8 is labelled, 12.6 was validated",
    )


def test_the_sbom_is_compared_with_the_label() -> None:
    assert checks.sbom_faults(labels(), {"pip": "26.3", "more": "1"}) == ()
    assert checks.sbom_faults(labels(), {}) == ("pip 26.3 is labelled, the SBOM has none",)


# --- what anybody may attach ----------------------------------------------------------------------------------------


def with_attached(artifact_type: str, files: dict[str, bytes]) -> PublishedImage:
    """An image with a trial, and a file that says nothing for what else there must be."""
    config = json.dumps({"config": {"Labels": labels()}}).encode()
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), [])
    verdict_file, evidence_file = attested_files(manifest.config.digest, days_ago(1), [PIP])
    trial = {"verdict.json": verdict_file, "evidence.json": evidence_file}
    every = {ATTESTATION: trial, SBOM: {"x": b"{}"}, PROVENANCE: {"x": b"{}"}, artifact_type: files}
    attached = (Attachment(artifact_type=kind, digest=kind, files=found) for kind, found in every.items())
    return PublishedImage(
        repository=Repository("x.org", "y"), manifest=manifest, config=json.loads(config), attachments=tuple(attached)
    )


@pytest.mark.parametrize(
    "content",
    [
        *(b"[]", b'"x"', b"5", b"no JSON", b'{"components": 5}', b'{"components": ["x"]}'),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
@pytest.mark.parametrize("artifact_type", [SBOM, PROVENANCE])
def test_what_others_attached_is_a_fault_whatever_its_form(artifact_type: str, content: bytes) -> None:
    found = with_attached(artifact_type, {"x": content})
    told = {check.subject: check for check in checks.checks(found)}[NAMES[artifact_type]]
    assert told.status is Status.FAIL and "can't be read" in told.reason
    with pytest.raises(UserError, match=r"oras manifest delete.*or publish with --key"):
        checks.require_sound(found)


@pytest.mark.parametrize("files", [{}, {"a": b"{}", "b": b"{}"}])
@pytest.mark.parametrize("artifact_type", [SBOM, PROVENANCE])
def test_an_attachment_has_one_file(artifact_type: str, files: dict[str, bytes]) -> None:
    """Who signs statements takes the first file of the first attachment."""
    told = {check.subject: check for check in checks.checks(with_attached(artifact_type, files))}[NAMES[artifact_type]]
    assert told.status is Status.FAIL and f"has {len(files)} files, not one" in told.reason


def test_an_attachment_that_cannot_be_read_is_told() -> None:
    with serving() as server, Registry(Repository(server.host, "x"), credentials=lambda _: None) as target:
        server.answer = registry_answers()
        found = with_attached(SBOM, {})
        target.put_blob(json.dumps(found.config).encode())
        target.put(found.manifest)
        data = json.loads(artifact(found.manifest.descriptor, SBOM, [], {}).content)
        broken = json.dumps({**data, "layers": 5}, separators=(",", ":"))
        target.put(Manifest(media_type=OCI_MANIFEST, content=broken.encode()))
        with pytest.raises(UserError, match="is attached, and can't be read"):
            attachments.load(target, found.manifest)
