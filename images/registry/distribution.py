"""Read and write descriptors and manifests of images, as the OCI specifications 1.1 define them."""

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
"""The annotation of a manifest with an image's date: its configuration has none."""


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """A pointer to a blob or manifest by its digest."""

    media_type: str
    digest: str
    size: int
    """In bytes."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""
    """`linux/arm64`, say, if it points to an image from an index."""

    @classmethod
    def of(
        cls, media_type: str, content: bytes, *, annotations: Mapping[str, str] | None = None
    ) -> Self:
        """Return the descriptor of some content."""
        return cls(
            media_type=media_type,
            digest=oci_digest(content),
            size=len(content),
            annotations=annotations or {},
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a descriptor from a manifest. Raises LookupError, ValueError or TypeError."""
        return cls(
            media_type=str(data["mediaType"]),
            digest=str(data["digest"]),
            size=int(data["size"]),
            annotations=dict(data.get("annotations") or {}),
            platform=platform_of(data.get("platform")),
        )

    def as_json(self) -> dict[str, Any]:
        """Return this reference to a blob or manifest in the JSON form of a manifest (OCI).

        Annotations and platform are left out where they are empty.
        """
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
    """A manifest of an image or index: the exact bytes in the registry, which give its digest."""

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
        """Return its JSON object. Raises ValueError if it is none."""
        data: Any = json.loads(self.content)
        if not isinstance(data, dict):
            raise ValueError("a manifest is a JSON object")
        return data

    @property
    def config(self) -> Descriptor:
        return Descriptor.from_json(self.data["config"])

    @property
    def layers(self) -> tuple[Descriptor, ...]:
        return tuple(map(Descriptor.from_json, self.data.get("layers", ())))

    @property
    def manifests(self) -> tuple[Descriptor, ...]:
        """Return the entries of an index; empty for an image."""
        return tuple(map(Descriptor.from_json, self.data.get("manifests", ())))

    @property
    def is_index(self) -> bool:
        return self.media_type in (OCI_INDEX, DOCKER_INDEX)


def platform_of(data: object) -> str:
    """Return `linux/arm64`, say, from the entry of an index or the configuration of an image.

    Empty if `data` is something else, or lacks a part: strangers may write anything.
    """
    if not isinstance(data, Mapping):
        return ""
    system, architecture = data.get("os"), data.get("architecture")
    if not system or not architecture:
        return ""
    return f"{system}/{architecture}"


def image_manifest(config: Descriptor, layers: Sequence[Descriptor], created: str = "") -> Manifest:
    """Return the manifest of an image, whose layers come with the bottom one first.

    `config` and `layers` point to the blobs of its configuration and layers. `created` is the date
    to publish it with; empty: none. The same arguments give the same bytes.
    """
    content: dict[str, Any] = {
        "config": config.as_json(),
        "layers": [layer.as_json() for layer in layers],
    }
    if created:
        content["annotations"] = {CREATED: created}
    return _manifest(OCI_MANIFEST, content)


def index(entries: Sequence[Descriptor]) -> Manifest:
    """Return an index: the manifest that lists the images for several platforms."""
    return _manifest(OCI_INDEX, {"manifests": [entry.as_json() for entry in entries]})


def _manifest(media_type: str, content: Mapping[str, Any]) -> Manifest:
    """Return a manifest with this content, after the fields that all manifests have."""
    data = {"schemaVersion": 2, "mediaType": media_type, **content}
    return Manifest(media_type=media_type, content=json.dumps(data, separators=(",", ":")).encode())
