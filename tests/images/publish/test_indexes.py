"""Indexes of images for several platforms: what they list, what contradicts them, and how tags compare them."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from images.publish import attachments, verify
from images.publish.attachments import PublishedImage
from images.publish.tags import ImageVersion, step_back
from images.registry import distribution
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.reference import Repository
from validate.judging import Status

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)
AMD64, ARM64 = "linux/amd64", "linux/arm64"
NAMES = {AMD64: "cu130-torch211", ARM64: "cu130-torch211-arm64"}


def image(platform: str, name: str = "") -> PublishedImage:
    labels = {"dev.truetag.image": name or NAMES[platform]}
    system, _, architecture = platform.partition("/")
    config = {"os": system, "architecture": architecture, "config": {"Labels": labels}}
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, json.dumps(config).encode()), [])
    return PublishedImage(repository=Repository("x.org", "y"), manifest=manifest, config=config, statements=())


PAIR = (image(AMD64), image(ARM64))


def test_an_index_has_an_entry_for_each_platform_and_the_same_bytes_in_any_order() -> None:
    made = attachments.index_of(PAIR)
    assert made.digest == attachments.index_of(PAIR[::-1]).digest
    assert made.data["manifests"] == [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": one.manifest.digest,
            "size": len(one.manifest.content),
            "platform": {"architecture": platform.removeprefix("linux/"), "os": "linux"},
        }
        for platform, one in zip((AMD64, ARM64), PAIR, strict=True)
    ]
    assert [entry.platform for entry in made.manifests] == [AMD64, ARM64]
    assert verify.check_index(made, PAIR).status is Status.PASS


@pytest.mark.parametrize(
    ("images", "listed", "fault"),
    [
        (PAIR, (ARM64, AMD64), "is listed for linux/arm64, and is for linux/amd64"),
        ((PAIR[0], PAIR[0]), (AMD64, AMD64), "two images are for linux/amd64"),
        ((PAIR[1],), (ARM64,), "it has no image for linux/amd64"),
        ((PAIR[0], image(ARM64, "cu130-torch212-arm64")), (AMD64, ARM64), "not one row of the matrix"),
        ((PAIR[0], image(ARM64, "cu130-torch211")), (AMD64, ARM64), "not one row of the matrix"),
        ((PAIR[0], image(ARM64, "x")), (AMD64, ARM64), "they are called cu130-torch211, x"),
    ],
)
def test_what_contradicts_an_index(images: tuple[PublishedImage, ...], listed: tuple[str, ...], fault: str) -> None:
    entries = [
        replace(one.manifest.descriptor, platform=platform) for one, platform in zip(images, listed, strict=True)
    ]
    found = verify.check_index(distribution.index(entries), images)
    assert found.status is Status.FAIL and fault in found.reason


# --- how tags compare them ------------------------------------------------------------------------------------------


def version(platform: str, hours: int = 0, torch: str = "2.11.0") -> ImageVersion:
    created = NOW + timedelta(hours=hours)
    return ImageVersion(name="", torch=torch, created=created, platform=platform)


def both(amd64: int, arm64: int, torch: str = "2.11.0") -> list[ImageVersion]:
    return [version(AMD64, amd64, torch), version(ARM64, arm64, torch)]


@pytest.mark.parametrize(
    ("old", "new", "follows"),
    [
        (both(1, 1), both(2, 1), True),
        (both(1, 5), both(2, 5), True),
        (both(2, 1), both(1, 9), False),
        (both(1, 2), both(9, 1), False),
        (both(1, 1, "2.12.0"), both(9, 9), False),
        ([version(AMD64, 1)], both(1, 0), True),
        ([version(AMD64, 2)], both(1, 9), False),
        (both(1, 9), [version(AMD64, 2)], True),
        ([version(ARM64, 2)], [version(AMD64, 1)], False),
    ],
)
def test_no_image_of_an_index_goes_back(old: list[ImageVersion], new: list[ImageVersion], follows: bool) -> None:
    assert (step_back(old, new) is None) is follows
