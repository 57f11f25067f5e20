"""The data of the OCI distribution and image specifications 1.1: media types, descriptors, manifests. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from images.host.hashing import oci_digest

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST_TYPES = (OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_INDEX)
CREATED = "org.opencontainers.image.created"
"""The annotation with a published image's date: its configuration says nothing of when it was built."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A pointer at content. `size` in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""
    """`linux/arm64`: of an image in an index."""

    @classmethod
    def of(
        cls, media_type: str, content: bytes, *, annotations: Mapping[str, str] | None = None
    ) -> Self:
        """Describe content that is at hand."""
        digest = oci_digest(content)
        return cls(
            media_type=media_type, digest=digest, size=len(content), annotations=annotations or {}
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a descriptor. Raises LookupError, ValueError, TypeError."""
        return cls(
            media_type=str(data["mediaType"]),
            digest=str(data["digest"]),
            size=int(data["size"]),
            annotations=dict(data.get("annotations") or {}),
            platform=platform_of(data.get("platform")),
        )

    def as_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.annotations:
            data["annotations"] = dict(self.annotations)
        if self.platform:
            system, _, architecture = self.platform.partition("/")
            data["platform"] = {"architecture": architecture, "os": system}
        return data


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest as the registry has it: its bytes are its identity."""

    media_type: str
    content: bytes

    @property
    def digest(self) -> str:
        return oci_digest(self.content)

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor.of(self.media_type, self.content)

    @property
    def data(self) -> dict[str, Any]:
        """Raises ValueError."""
        found: Any = json.loads(self.content)
        if not isinstance(found, dict):
            raise ValueError("a manifest is a JSON object")
        return found

    @property
    def config(self) -> Descriptor:
        return Descriptor.from_json(self.data["config"])

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        return tuple(map(Descriptor.from_json, self.data.get("layers", ())))

    @property
    def manifests(self) -> tuple[Descriptor, ...]:
        """The entries of an index."""
        return tuple(map(Descriptor.from_json, self.data.get("manifests", ())))

    @property
    def is_index(self) -> bool:
        return self.media_type in (OCI_INDEX, DOCKER_INDEX)


def platform_of(data: object) -> str:
    """`linux/arm64`, of an index's entry or a configuration; empty where a part is missing: others may write any."""
    if not isinstance(data, Mapping):
        return ""
    names = [str(data.get(key) or "") for key in ("os", "architecture")]
    return "/".join(names) if all(names) else ""


def image_manifest(config: Descriptor, layers: Sequence[Descriptor], created: str = "") -> Manifest:
    """The manifest of an image, bottom layer first. The same blobs and date give the same bytes."""
    said = {"annotations": {CREATED: created}} if created else {}
    return _manifest(
        OCI_MANIFEST, config=config.as_json(), layers=[layer.as_json() for layer in layers], **said
    )


def index(entries: Sequence[Descriptor]) -> Manifest:
    """A list of manifests: the images of several platforms."""
    return _manifest(OCI_INDEX, manifests=[entry.as_json() for entry in entries])


def _manifest(media_type: str, **more: Any) -> Manifest:
    data = {"schemaVersion": 2, "mediaType": media_type, **more}
    return Manifest(media_type=media_type, content=json.dumps(data, separators=(",", ":")).encode())
