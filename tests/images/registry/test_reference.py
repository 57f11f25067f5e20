"""Names of repositories and images, and what is none; descriptors as the OCI specifications have them."""

import json

import pytest

from images.errors import UserError
from images.registry.distribution import OCI_INDEX, OCI_MANIFEST, Descriptor, Manifest
from images.registry.reference import Reference, Repository, is_loopback


@pytest.mark.parametrize(
    ("text", "host", "name"),
    [
        ("ghcr.io/me/images", "ghcr.io", "me/images"),
        ("127.0.0.1:5000/staging", "127.0.0.1:5000", "staging"),
        ("localhost/a", "localhost", "a"),
        ("[::1]:5000/a__b/c.d", "[::1]:5000", "a__b/c.d"),
    ],
)
def test_repositories(text: str, host: str, name: str) -> None:
    assert Repository.parse(text) == Repository(host, name) and str(Repository(host, name)) == text
    assert Reference.parse(f"{text}:v1") == Reference(Repository(host, name), "v1")
    digest = "sha256:" + "0" * 64
    assert str(Reference.parse(f"{text}:v1@{digest}")) == f"{text}@{digest}"


@pytest.mark.parametrize(
    "text", ["images", "me/images", "ghcr.io/Me", "ghcr.io/", "https://ghcr.io/a", "ghcr.io/a b"]
)
def test_what_is_no_repository(text: str) -> None:
    with pytest.raises(UserError, match="is no repository"):
        Repository.parse(text)


@pytest.mark.parametrize(
    "text", ["ghcr.io/a", "ghcr.io/a:", "127.0.0.1:5000/a", "ghcr.io/a@sha256:12"]
)
def test_what_names_no_image(text: str) -> None:
    with pytest.raises(UserError, match="names no image"):
        Reference.parse(text)


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "localhost:1", "127.1.2.3:5000", "[::1]:5000")))
    assert not any(
        map(is_loopback, ("ghcr.io", "localhost.example.org", "10.0.0.1:5000", "127.example.org"))
    )


@pytest.mark.parametrize(
    "platform", [{"os": "linux"}, {"architecture": "arm64"}, {"os": None}, {}, None, "linux"]
)
def test_a_platform_that_lacks_a_part_is_none(platform: object) -> None:
    entry = {**Descriptor.of(OCI_MANIFEST, b"x").as_json(), "platform": platform}
    content = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    assert [one.platform for one in Manifest(media_type=OCI_INDEX, content=content).manifests] == [
        ""
    ]
