"""An image is the same on containerd's image store as on this machine's engine.

Engine 28.5 of Debian sid has that store.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from images.engine import ContainerSpec, Engine, ImageInfo, connect, exported, layers
from images.host.hashing import oci_digest
from tests.support.other_engine import Kind, other_engine

pytestmark = pytest.mark.engine
TAG = "truetag-test-containerd:1"
FILES = {
    "Dockerfile": b"FROM scratch\nCOPY first /\nCOPY second /\nENV A=b\nLABEL c=d\n",
    "first/etc/hidden": b"password",
    "first/etc/kept": b"kept",
    "first/program": b"#!/bin/sh\n",
    "second/etc/hidden": b"other",
}


@pytest.fixture(scope="module")
def containerd() -> Iterator[Engine]:
    with other_engine("sid", Kind.CONTAINERD) as other, connect(other.url) as found:
        assert found.facts.containerd_images and found.facts.local
        yield found


@pytest.fixture(scope="module")
def image(containerd: Engine) -> Iterator[ImageInfo]:
    built = containerd.build(FILES, TAG, network="none")
    yield containerd.fix_id(built.image_id, TAG)


@pytest.fixture(scope="module")
def same_image(engine: Engine) -> Iterator[ImageInfo]:
    """Built of the same files on this machine's engine."""
    built = engine.build(FILES, TAG, network="none")
    yield engine.fix_id(built.image_id, TAG)
    engine.remove(TAG, force=True)


def test_the_identity_does_not_depend_on_the_store(
    containerd: Engine, image: ImageInfo, engine: Engine, same_image: ImageInfo
) -> None:
    assert image.handle != image.digest, "the handle is the digest of a manifest"
    assert image.identity.manifest == image.handle
    # The handle, the name and the identity all lead to the image.
    for reference in (image.handle, TAG, image.digest):
        assert containerd.inspect(reference) == image
    if image.layers == same_image.layers:
        assert image.digest == same_image.digest
    else:
        # Docker 20.10 writes other tars; and what differs is no file.
        assert changes(containerd, image) == changes(engine, same_image)


def test_hidden_files_are_read_from_the_store(containerd: Engine, image: ImageInfo) -> None:
    hidden = exported.read_hidden_files(containerd, image)
    assert hidden is not None
    assert hidden.files == [(0, "etc/hidden", b"password")]


def test_an_export_gives_the_same_parts_as_the_store(containerd: Engine, image: ImageInfo) -> None:
    from_store = parts(containerd, image)
    with connect(containerd.facts.url) as remote:
        # As if it ran on another machine.
        remote.facts = replace(remote.facts, local=False)
        assert remote.inspect(TAG).identity == image.identity
        assert parts(remote, image) == from_store
    assert set(from_store) == {image.digest, *image.layers}
    for digest, content in from_store.items():
        assert oci_digest(content) == digest


def test_a_container_is_made_of_the_handle(containerd: Engine, image: ImageInfo) -> None:
    with containerd.container(ContainerSpec(image.handle, ["/program"])) as container:
        assert container.get_file("/etc/hidden") == b"other"


def changes(engine: Engine, image: ImageInfo) -> list[str]:
    """The change digest of each layer."""
    return [*layers.change_digests(layers.find_layers(engine, image), "image").values()]


def parts(engine: Engine, image: ImageInfo) -> dict[str, bytes]:
    """The configuration and all layers, by their digests."""
    found = {}
    for part in exported.parts(engine, image, image.layers):
        found[part.digest] = b"".join(part.chunks)
    return found
