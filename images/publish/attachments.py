"""What is attached to a published image: attestations, SBOM, provenance. Read with every digest checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from images.errors import Problem, UserError
from images.publish import attestation, provenance, sbom, signing
from images.publish.attestation import EVIDENCE_FILE, VERDICT_FILE, Attestation
from images.registry.client import Registry
from images.registry.distribution import TITLE, Descriptor, File, Manifest
from images.registry.reference import Repository

ATTESTATION = "application/vnd.truetag.attestation.v2"
SBOM = sbom.MEDIA_TYPE
PROVENANCE = provenance.MEDIA_TYPE
NAMES: Mapping[str, str] = {ATTESTATION: "attestation", SBOM: "SBOM", PROVENANCE: "provenance"}
"""Artifact type -> what people call it. An image that is published has one of each at least."""
_JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """One artifact that refers to an image. `files` is name -> content."""

    artifact_type: str
    digest: str
    files: Mapping[str, bytes]


@dataclass(frozen=True, kw_only=True)
class PublishedImage:
    """A published image, as far as it can be read without its layers."""

    repository: Repository
    manifest: Manifest
    config: Mapping[str, Any]
    """The image's configuration (OCI image specification)."""
    attachments: tuple[Attachment, ...]

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.manifest.digest}"

    @property
    def image_id(self) -> str:
        """The digest that verdicts name: of the configuration."""
        return self.manifest.config.digest

    @property
    def labels(self) -> Mapping[str, str]:
        return dict((self.config.get("config") or {}).get("Labels") or {})

    @property
    def created(self) -> str:
        """When it was built, as the configuration has it."""
        return str(self.config.get("created") or "")

    @property
    def platform(self) -> str:
        """`linux/arm64`, as the configuration has it; empty where it has none."""
        names = [str(self.config.get(key) or "") for key in ("os", "architecture")]
        return "/".join(names) if all(names) else ""

    @property
    def compressed_size(self) -> int:
        """Bytes of all layers, as the registry holds them."""
        return sum(layer.size for layer in self.manifest.layers)

    def of(self, artifact_type: str) -> tuple[Attachment, ...]:
        return tuple(one for one in self.attachments if one.artifact_type == artifact_type)

    @property
    def attestations(self) -> tuple[Attestation, ...]:
        """Every attestation, judged again. Raises UserError for one that is of another image."""
        return tuple(map(self._attestation, self.of(ATTESTATION)))

    def _attestation(self, attached: Attachment) -> Attestation:
        where = f"{self.repository}@{attached.digest}"
        verdict_file, evidence_file = (attached.files.get(name, b"") for name in (VERDICT_FILE, EVIDENCE_FILE))
        found = attestation.read(verdict_file, evidence_file, where)
        if found.verdict.digest != self.image_id:
            cause = f"the attestation is of {found.verdict.digest[:19]}, the image is {self.image_id[:19]}"
            raise UserError(Problem(where=where, cause=cause, then="don't use it"), code=1)
        return found


def load(source: Registry, manifest: Manifest, *, attachments: bool = True) -> PublishedImage:
    """Read an image's configuration and its attachments. Raises UserError."""
    if manifest.is_index:
        raise _is_index(source, manifest)
    config = json.loads(source.blob(manifest.config))
    found = tuple(_attachments(source, manifest.digest)) if attachments else ()
    return PublishedImage(repository=source.repository, manifest=manifest, config=config, attachments=found)


def _is_index(source: Registry, manifest: Manifest) -> UserError:
    listed = [f"{source.repository}@{one.digest} ({one.platform})" for one in manifest.manifests]
    cause = "is an index of images for several platforms"
    then = f"name one of them: {', '.join(listed)}"
    return UserError(Problem(where=f"{source.repository}@{manifest.digest}", cause=cause, then=then))


def _attachments(source: Registry, digest: str) -> Iterator[Attachment]:
    for entry in source.referrers(digest):
        if entry.artifact_type not in NAMES:
            continue
        where, manifest = f"{source.repository}@{entry.digest}", source.get(entry.digest)
        try:
            subject, layers = manifest.subject, manifest.layers
        except (ValueError, LookupError, TypeError, AttributeError):  # not every registry reads what is put into it
            then = f"remove it: `oras manifest delete {where}`"
            raise UserError(Problem(where=where, cause="is attached, and can't be read", then=then), code=1) from None
        if subject != digest:
            raise UserError(Problem(where=where, cause="is listed, but refers to another image", then="don't use it"))
        files = {layer.annotations.get(TITLE, layer.digest): source.blob(layer) for layer in layers}
        yield Attachment(artifact_type=entry.artifact_type, digest=entry.digest, files=files)


def signed_only(image: PublishedImage, key: str) -> PublishedImage:
    """The image with only those attachments that a signature covers. Raises UserError where there is no signature."""
    signed = signing.signed_attachments(image.reference, key)
    return replace(image, attachments=tuple(one for one in image.attachments if one.digest in signed))


def counted(image: PublishedImage, key: str) -> PublishedImage:
    """The image with the attachments that count: with a public key those that it signed, without one all.

    Of an image that nobody signed with the key none count. Raises CosignError where cosign could not tell.
    """
    if not key or not image.attachments:
        return image
    try:
        return signed_only(image, key)
    except signing.CosignError:
        raise
    except UserError:
        return replace(image, attachments=())


def counted_by_signer(image: PublishedImage, signing_key: str) -> PublishedImage:
    """The same by the private key that is to sign: who may push may attach, and no signature must cover that."""
    if not signing_key or not image.attachments:
        return image
    with signing.public_file(signing_key) as public:
        return counted(image, public)


def attach_attestation(target: Registry, manifest: Manifest, found: Attestation) -> Descriptor:
    """Attach a trial's two files. Each trial is an artifact of its own: a GPU machine adds its own to a builder's."""
    files = [
        File(name=VERDICT_FILE, media_type=_JSON, content=found.verdict_file),
        File(name=EVIDENCE_FILE, media_type=_JSON, content=found.evidence_file),
    ]
    return target.attach(manifest.descriptor, ATTESTATION, files)


def attach_sbom(target: Registry, manifest: Manifest, content: bytes) -> Descriptor:
    file = File(name="sbom.cdx.json", media_type=SBOM, content=content)
    return target.attach(manifest.descriptor, SBOM, [file])


def attach_provenance(target: Registry, manifest: Manifest, content: bytes) -> Descriptor:
    file = File(name="provenance.json", media_type=PROVENANCE, content=content)
    return target.attach(manifest.descriptor, PROVENANCE, [file])
