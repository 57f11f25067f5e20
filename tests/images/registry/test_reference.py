"""Names of repositories and images, and platforms in the entries of an index."""

import json

import pytest

from images.errors import UserError
from images.registry.distribution import OCI_INDEX, OCI_MANIFEST, Descriptor, Manifest
from images.registry.reference import Reference, Repository, is_loopback

DIGEST = "sha256:" + "0" * 64

REPOSITORIES = pytest.mark.parametrize(
    ("text", "repository"),
    [
        ("ghcr.io/me/images", Repository("ghcr.io", "me/images")),
        ("127.0.0.1:5000/staging", Repository("127.0.0.1:5000", "staging")),
        ("localhost/a", Repository("localhost", "a")),
        ("[::1]:5000/a__b/c.d", Repository("[::1]:5000", "a__b/c.d")),
    ],
)


@REPOSITORIES
def test_a_repository_is_read_and_written(text: str, repository: Repository) -> None:
    assert Repository.parse(text) == repository
    assert str(repository) == text


@REPOSITORIES
def test_an_image_is_named_by_a_tag(text: str, repository: Repository) -> None:
    assert Reference.parse(f"{text}:v1") == Reference(repository, "v1")


@REPOSITORIES
def test_a_tag_before_a_digest_is_ignored(text: str, repository: Repository) -> None:
    reference = Reference.parse(f"{text}:v1@{DIGEST}")

    assert reference == Reference(repository, DIGEST)
    assert str(reference) == f"{text}@{DIGEST}"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("images", id="no host"),
        pytest.param("me/images", id="a user of Docker Hub, without its host"),
        pytest.param("ghcr.io/Me", id="a capital letter"),
        pytest.param("ghcr.io/", id="no name"),
        pytest.param("https://ghcr.io/a", id="a URL"),
        pytest.param("ghcr.io/a b", id="a space"),
    ],
)
def test_what_is_no_repository_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no repository"):
        Repository.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("ghcr.io/a", id="neither tag nor digest"),
        pytest.param("ghcr.io/a:", id="an empty tag"),
        pytest.param("127.0.0.1:5000/a", id="a port and no tag"),
        pytest.param("ghcr.io/a@sha256:12", id="a short digest"),
    ],
)
def test_what_names_no_image_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="so it names no image"):
        Reference.parse(text)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.1.2.3:5000", "[::1]:5000"])
def test_this_machine_is_recognised(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["ghcr.io", "localhost.example.org", "10.0.0.1:5000", "127.example.org"]
)
def test_another_machine_is_not_taken_for_this_one(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "platform", [{"os": "linux"}, {"architecture": "arm64"}, {"os": None}, {}, None, "linux"]
)
def test_a_platform_that_lacks_a_part_counts_as_none(platform: object) -> None:
    """Others may write anything into an index."""
    entry = {**Descriptor.of(OCI_MANIFEST, b"x").as_json(), "platform": platform}
    content = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()

    (read_entry,) = Manifest(media_type=OCI_INDEX, content=content).manifests

    assert read_entry.platform == ""
