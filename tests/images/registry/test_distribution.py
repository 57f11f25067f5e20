"""Descriptors and manifests as the OCI specifications have them."""

import json

import pytest

from images.errors import UserError
from images.registry.distribution import (
    DOCKER_INDEX,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    Manifest,
    require_one_image,
)


@pytest.mark.parametrize("platform", [{"os": "linux"}, {"architecture": "arm64"}, {"os": None}, {}, None, "linux"])
def test_a_platform_that_lacks_a_part_is_none(platform: object) -> None:
    entry = {**Descriptor.of(OCI_MANIFEST, b"x").as_json(), "platform": platform}
    content = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    assert [one.platform for one in Manifest(media_type=OCI_INDEX, content=content).manifests] == [""]


@pytest.mark.parametrize("media_type", [OCI_INDEX, DOCKER_INDEX])
def test_a_list_of_images_is_refused(media_type: str) -> None:
    with pytest.raises(UserError, match="list of images"):
        require_one_image(Manifest(media_type=media_type, content=b"{}"), "here")
    require_one_image(Manifest(media_type=OCI_MANIFEST, content=b"{}"), "here")
