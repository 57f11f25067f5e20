"""Publish a small image to a registry, with all attachments, without an engine.

Its layer is some bytes.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from images.config.names import ImageName
from images.publish import attachments, gate, provenance, sbom, signing, statements
from images.publish.attachments import PublishedImage
from images.publish.statements import CYCLONEDX, PROVENANCE, TEST_RESULT, Attestation, Statement
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from tests.support import attested
from tests.support.attested import NAME, PIP
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import MeasuredOn

GPU_PIP = replace(PIP, subject="pip-on-gpu", tier=Tier.GPU)
CLAIMS = ClaimSet(image=NAME, claims=(PIP, GPU_PIP))
PACKAGES: dict[str, Any] = {
    "python": [{"name": "pip", "version": "26.3", "licence": "MIT"}],
    "toolkit": [],
    "debian": [
        {"name": "libc6", "version": "2.36-9+deb12u13", "architecture": "amd64", "source": "glibc"}
    ],
    "os": {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"},
}
LABELS = {
    "image": NAME,
    "pins": '{"pip":"26.3"}',
    "torch": "2.7.1",
    "matrix-revision": "0123456789ab",
}


def days_ago(days: float) -> str:
    """Return the moment so many days ago, as evidence has it."""
    return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")


def validated(
    digest: str, date: str, claims: Sequence[Claim] = CLAIMS.claims, name: str = NAME, **more: Any
) -> Attestation:
    """Return a validation run of an image. `more`: see attested.evidence."""
    host: MeasuredOn = {"date": date, "driver": "580.95", "gpus": [{"name": "NVIDIA H100"}]}
    evidence = replace(attested.evidence(*claims, **more), image=name, digest=digest, host=host)
    return statements.read_attestation(evidence.dumps().encode(), "a run")


def result_of(runs: Sequence[Attestation], claims: ClaimSet = CLAIMS) -> dict[str, Any]:
    """Return the test result of validation runs, judged by these claims."""
    judged_runs = []
    for run in runs:
        claims_of_image = replace(claims, image=run.evidence.image)
        verdict = gate.judge_by_claims(run.evidence, claims_of_image)
        judged_runs.append(replace(run, verdict=verdict))
    return statements.make_test_result(judged_runs)


def statement_about(
    image: PublishedImage, predicate_type: str, predicate: Mapping[str, Any]
) -> Statement:
    """Return a statement about an image."""
    digest = image.manifest.digest
    return Statement.of(predicate_type, predicate, repository=str(image.repository), digest=digest)


def attach(
    target: Registry, content: str, predicate_type: str, predicate: Mapping[str, Any], key: str = ""
) -> None:
    """Attach one more statement to the image with a tag, as everybody may who may push."""
    image = replace(attachments.load(target, target.get(content)), statements=())
    attachments.attach(target, image, [statement_about(image, predicate_type, predicate)], key)


def published(
    target: Registry,
    content: str,
    *,
    date: str,
    claims: Sequence[Claim] = CLAIMS.claims,
    revision: str = LABELS["matrix-revision"],
    name: str = NAME,
    created: str = "2026-11-21T02:20:00Z",
    key: str = "",
) -> PublishedImage:
    """Store an image under the tag `content`, judged on a day, and signed if there is a key.

    `content` is also what its layer holds, so that each tag has an image of its own.
    """
    own_labels = {**LABELS, "image": name, "matrix-revision": revision}
    labels = {f"dev.truetag.{label}": value for label, value in own_labels.items()}
    architecture = ImageName.parse(name).platform.architecture
    configuration = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {"Labels": labels},
        "x": content,
    }
    config, layer = json.dumps(configuration).encode(), content.encode()
    for blob in (config, layer):
        target.put_blob(blob)
    tar = Descriptor.of("application/vnd.oci.image.layer.v1.tar", layer)
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), [tar])
    target.put(manifest, content)
    image = attachments.load(target, manifest)
    bom = sbom.make_sbom(
        PACKAGES, name=name, digest=image.image_id, created=datetime.fromisoformat(created)
    )
    build = {
        "digest": image.image_id,
        "base": {"reference": "x", "origin": "made"},
        "engine": {"version": "28"},
    }
    own_name = ImageName.parse(name)
    origin = provenance.make_predicate(build, name=own_name, revision=revision, created=created)
    run = validated(image.image_id, date, claims, name)
    own_claims = ClaimSet(image=name, claims=tuple(claims))
    own_statements = [
        statement_about(image, TEST_RESULT, result_of([run], own_claims)),
        statement_about(image, CYCLONEDX, bom),
        statement_about(image, PROVENANCE, origin),
    ]
    attachments.attach(target, image, own_statements, key)
    return attachments.load(target, manifest)


def pretend_cosign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign without cosign: the signature of a key is its name, whatever the bytes."""
    stand_ins = {
        "require_key": lambda _key: None,
        "public_file": nullcontext,
        "sign_bytes": lambda _content, key: base64.b64encode(key.encode()).decode(),
        "is_signature": lambda signature, _content, key: (
            base64.b64decode(signature) == key.encode()
        ),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(signing, name, stand_in)


def judge_again(
    target: Registry, content: str, *, date: str, key: str = "", **more: Any
) -> PublishedImage:
    """Add a validation run to the test result that is attached to an image with a tag."""
    image = attachments.load(target, target.get(content))
    runs = [*image.attestations, validated(image.image_id, date, **more)]
    attachments.attach(target, image, [statement_about(image, TEST_RESULT, result_of(runs))], key)
    return attachments.load(target, image.manifest)
