"""An image has one identity on every store.

This is about which manifest stands for it, and how it is written anew.
"""

import json
from typing import Any

import pytest

from images.engine import configuration
from images.engine.identity import choose_manifest
from images.host.hashing import oci_digest
from images.registry.distribution import (
    DOCKER_MANIFEST,
    OCI_CONFIG,
    Descriptor,
    Manifest,
    image_manifest,
    index,
)

AMD64, ARM64 = (
    image_manifest(Descriptor.of(OCI_CONFIG, platform), []) for platform in (b"amd64", b"arm64")
)


def entry(manifest: Manifest, platform: str) -> Descriptor:
    return Descriptor(
        media_type=manifest.media_type,
        digest=manifest.digest,
        size=len(manifest.content),
        platform=platform,
    )


INDEX = index(
    [
        # BuildKit writes an attestation as an image of no platform.
        entry(image_manifest(Descriptor.of(OCI_CONFIG, b"attestation"), []), "unknown/unknown"),
        entry(ARM64, "linux/arm64"),
        entry(AMD64, "linux/amd64"),
    ]
)
BLOBS = {manifest.digest: manifest.content for manifest in (AMD64, ARM64, INDEX)}


@pytest.mark.parametrize(
    ("digest", "platform", "expected"),
    [
        (INDEX.digest, "linux/amd64", AMD64),
        (INDEX.digest, "linux/arm64", ARM64),
        (AMD64.digest, "linux/amd64", AMD64),
        (INDEX.digest, "linux/s390x", None),
        ("sha256:unknown", "linux/amd64", None),
    ],
    ids=["index", "other platform", "manifest", "platform that is not there", "unknown digest"],
)
def test_the_manifest_of_the_images_platform_is_chosen(
    digest: str, platform: str, expected: Manifest | None
) -> None:
    assert choose_manifest(BLOBS.get, digest, platform) == expected


def test_a_manifest_without_a_media_type_is_one_of_oci() -> None:
    content = json.dumps({"schemaVersion": 2, "layers": []}).encode()
    chosen = choose_manifest({"x": content}.get, "x", "linux/amd64")
    assert chosen == Manifest(media_type=AMD64.media_type, content=content)


@pytest.mark.parametrize(
    ("repository", "full_name"),
    [
        ("cu126-torch25", "docker.io/library/cu126-torch25"),
        ("team/cu126-torch25", "docker.io/team/cu126-torch25"),
        ("localhost/cu126-torch25", "localhost/cu126-torch25"),
        ("registry.example:5000/a/b", "registry.example:5000/a/b"),
    ],
)
def test_containerd_gets_full_names(repository: str, full_name: str) -> None:
    assert configuration.docker_reference(repository) == full_name


def test_a_configuration_is_written_over_the_layers_that_the_store_has() -> None:
    docker_layer = {
        "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "digest": "sha256:layer",
        "size": 7,
    }
    built = Manifest(
        media_type=DOCKER_MANIFEST,
        content=json.dumps({"config": {}, "layers": [docker_layer]}).encode(),
    )

    files = configuration.oci_layout(b"{}", built, "team/image:1")

    (listed,) = json.loads(files["index.json"])["manifests"]
    assert listed["annotations"]["io.containerd.image.name"] == "docker.io/team/image:1"
    manifest: Any = json.loads(files[f"blobs/{listed['digest'].replace(':', '/')}"])
    assert manifest["config"]["digest"] == oci_digest(b"{}")
    assert files[f"blobs/sha256/{oci_digest(b'{}')[7:]}"] == b"{}"
    unchanged = configuration.oci_layout(None, built, "team/image:1")
    assert unchanged[f"blobs/{built.digest.replace(':', '/')}"] == built.content
    (layer,) = manifest["layers"]
    assert layer == {**docker_layer, "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"}
