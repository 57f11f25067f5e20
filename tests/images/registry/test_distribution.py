"""Descriptors, manifests and artifacts as the OCI specifications have them."""

import json

import pytest

from images.errors import UserError
from images.host.hashing import oci_digest
from images.registry.distribution import (
    DOCKER_INDEX,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    File,
    Manifest,
    artifact,
    index,
    referrer,
    require_one_image,
)


def test_an_artifact_names_its_subject_by_digest_alone() -> None:
    subject = Descriptor.of(OCI_MANIFEST, b"x", annotations={"not": "this"})
    data = artifact(subject, "application/x.one", [], {}).data
    assert data["subject"] == {"mediaType": OCI_MANIFEST, "digest": oci_digest(b"x"), "size": 1}
    assert data["config"]["digest"] == oci_digest(b"{}")


def test_an_artifact_names_its_files_and_is_listed_by_its_type() -> None:
    file = File(name="a.json", media_type="application/json", content=b"[]")
    made = artifact(Descriptor.of(OCI_MANIFEST, b"x"), "application/x.one", [file], {"b": "2", "a": "1"})
    (layer,) = made.layers
    assert layer.annotations == {"org.opencontainers.image.title": "a.json"} and layer.size == 2
    entry = referrer(made)
    assert (entry.artifact_type, entry.digest) == ("application/x.one", made.digest)
    assert index([entry]).manifests == (entry,) and made.subject == oci_digest(b"x")


@pytest.mark.parametrize("platform", [{"os": "linux"}, {"architecture": "arm64"}, {"os": None}, {}, None, "linux"])
def test_a_platform_that_lacks_a_part_is_none(platform: object) -> None:
    entry = {**Descriptor.of(OCI_MANIFEST, b"x").as_json(), "platform": platform}
    content = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    assert [one.platform for one in Manifest(media_type=OCI_INDEX, content=content).manifests] == [""]


def test_an_artifact_without_a_type_is_listed_by_its_configuration() -> None:
    config = Descriptor.of("application/x.config", b"{}").as_json()
    old = Manifest(media_type=OCI_MANIFEST, content=json.dumps({"config": config}).encode())
    assert referrer(old).artifact_type == "application/x.config" and old.subject == ""


@pytest.mark.parametrize("media_type", [OCI_INDEX, DOCKER_INDEX])
def test_a_list_of_images_is_refused(media_type: str) -> None:
    with pytest.raises(UserError, match="list of images"):
        require_one_image(Manifest(media_type=media_type, content=b"{}"), "here")
    require_one_image(Manifest(media_type=OCI_MANIFEST, content=b"{}"), "here")
