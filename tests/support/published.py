"""A small image in a registry with all that is attached to a published one. No engine: its layer is some bytes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from images.config.names import ImageName
from images.publish import attachments, attestation, provenance, sbom
from images.publish.attachments import PublishedImage
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from tests.support import attested
from tests.support.attested import NAME, PIP
from validate.claims import Claim, ClaimSet, Tier

GPU_PIP = replace(PIP, subject="pip-on-gpu", tier=Tier.GPU)
CLAIMS = ClaimSet(image=NAME, claims=(PIP, GPU_PIP))
FOUND: dict[str, Any] = {
    "python": [{"name": "pip", "version": "26.3", "licence": "MIT"}],
    "toolkit": [],
    "debian": [{"name": "libc6", "version": "2.36-9+deb12u13", "architecture": "amd64", "source": "glibc"}],
    "os": {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"},
}
LABELS = {"image": NAME, "pins": '{"pip":"26.3"}', "torch": "2.7.1", "matrix-revision": "0123456789ab"}


def days_ago(days: float) -> str:
    """As evidence has it."""
    return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")


def attested_files(
    digest: str, date: str, claims: Sequence[Claim] = CLAIMS.claims, name: str = NAME, **more: Any
) -> tuple[bytes, bytes]:
    """Verdict and evidence of a trial of an image."""
    host = {"date": date, "driver": "580.95", "gpus": [{"name": "NVIDIA H100"}]}
    return attested.files(replace(attested.evidence(*claims, **more), image=name, digest=digest, host=host))


def published(
    target: Registry,
    content: str,
    *,
    date: str,
    claims: Sequence[Claim] = CLAIMS.claims,
    revision: str = LABELS["matrix-revision"],
    name: str = NAME,
    created: str = "2026-11-21T02:20:00Z",
) -> PublishedImage:
    """Store an image of its own for each `content`, judged on a day."""
    own = {**LABELS, "image": name, "matrix-revision": revision}
    labels = {f"dev.truetag.{key}": value for key, value in own.items()}
    architecture = ImageName.parse(name).platform.architecture
    data = {"architecture": architecture, "os": "linux", "created": created, "config": {"Labels": labels}, "x": content}
    config, layer = json.dumps(data).encode(), content.encode()
    for blob in (config, layer):
        target.put_blob(blob)
    tar = Descriptor.of("application/vnd.oci.image.layer.v1.tar", layer)
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), [tar])
    target.put(manifest, content)
    image_id = manifest.config.digest
    judge_again(target, content, date=date, claims=claims, name=name)
    bom = sbom.cyclonedx(sbom.packages_of(FOUND), name=name, digest=image_id, created=datetime.fromisoformat(created))
    attachments.attach_sbom(target, manifest, bom)
    given = provenance.ProvenanceInput(
        name=ImageName.parse(name),
        repository=str(target.repository),
        digest=manifest.digest,
        image_id=image_id,
        revision=revision,
        source="",
        locks={},
        build=provenance.BuildRecord.model_validate(
            {"digest": image_id, "base": {"reference": "x", "origin": "made"}, "engine": {"version": "28"}}
        ),
        created=created,
    )
    attachments.attach_provenance(target, manifest, provenance.statement(given))
    return attachments.load(target, manifest)


def judge_again(target: Registry, content: str, *, date: str, **more: Any) -> PublishedImage:
    """Attach one more attestation to it."""
    manifest = target.get(content)
    files = attested_files(manifest.config.digest, date, **more)
    attachments.attach_attestation(target, manifest, attestation.read(*files, "a trial"))
    return attachments.load(target, manifest)
