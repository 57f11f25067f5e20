"""An image is the same in containerd's image store, or on a rootless engine, as on this machine's.

Engine 28.5 of Debian sid is started as either.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from packaging.version import Version

from images.engine import (
    ContainerSpec,
    Engine,
    EngineError,
    ImageInfo,
    client,
    connect,
    exported,
    layers,
)
from images.fleet import worker
from images.host.hashing import oci_digest
from images.registry.reference import Repository
from tests.support.other_engine import Kind, Other

pytestmark = pytest.mark.engine
both = pytest.mark.parametrize("sid", [Kind.CONTAINERD, Kind.ROOTLESS], indirect=True)
containerd_only = pytest.mark.parametrize("sid", [Kind.CONTAINERD], indirect=True)
TAG = "truetag-test-containerd:1"
FILES = {
    "Dockerfile": b"FROM scratch\nCOPY first /\nCOPY second /\nENV A=b\nLABEL c=d\n",
    "first/etc/hidden": b"password",
    "first/etc/kept": b"kept",
    "first/program": b"#!/bin/sh\n",
    "second/etc/hidden": b"other",
}


@pytest.fixture(scope="module")
def other(sid: Other) -> Iterator[Engine]:
    with connect(sid.url) as connected:
        assert connected.facts.local
        yield connected


@pytest.fixture(scope="module")
def image(other: Engine) -> ImageInfo:
    built = other.build(FILES, TAG, network="none")
    return other.fix_id(built.image_id, TAG)


@pytest.fixture(scope="module")
def same_image(engine: Engine) -> Iterator[ImageInfo]:
    """Built of the same files on this machine's engine."""
    built = engine.build(FILES, TAG, network="none")
    yield engine.fix_id(built.image_id, TAG)
    engine.remove(TAG, force=True)


@both
def test_the_identity_does_not_depend_on_the_store(
    other: Engine, image: ImageInfo, engine: Engine, same_image: ImageInfo
) -> None:
    if other.facts.containerd_images:
        assert image.handle != image.digest, "the handle is the digest of a manifest"
        assert image.identity.manifest == image.handle
    # The handle, the name and the identity all lead to the image.
    for reference in (image.handle, TAG, image.digest):
        assert other.inspect(reference) == image
    if image.layers == same_image.layers:
        assert image.digest == same_image.digest
    else:
        # Docker 20.10 writes other tars; and what differs is no file.
        assert changes(other, image) == changes(engine, same_image)


@both
def test_hidden_files_are_read_from_the_store(other: Engine, image: ImageInfo) -> None:
    hidden = exported.read_hidden_files(other, image)
    assert hidden is not None
    assert hidden.files == [(0, "etc/hidden", b"password")]


@both
def test_an_export_gives_the_same_parts_as_the_store(other: Engine, image: ImageInfo) -> None:
    from_store = parts(other, image)
    with connect(other.facts.url) as remote:
        # As if it ran on another machine.
        remote.facts = replace(remote.facts, local=False)
        assert remote.inspect(TAG).identity == image.identity
        assert parts(remote, image) == from_store
    assert set(from_store) == {image.digest, *image.layers}
    for digest, content in from_store.items():
        assert oci_digest(content) == digest


@both
def test_a_container_is_made_of_the_handle(other: Engine, image: ImageInfo) -> None:
    with other.container(ContainerSpec(image.handle, ["/program"])) as container:
        assert container.get_file("/etc/hidden") == b"other"


@containerd_only
def test_a_layer_that_the_engine_did_not_fetch_comes_with_a_next_step(
    sid: Other, other: Engine, image: ImageInfo, staging: str
) -> None:
    """The image has the same layers as one that is here, and the registry's are other blobs."""
    reference = worker.push_by_digest(other, image, staging)
    port = Repository.parse(staging).host.rpartition(":")[2]
    other.tag(TAG, f"{TAG}-kept")
    other.remove(TAG)
    with sid.lend(int(port)):
        pulled = other.pull(reference)

    assert pulled.digest == image.digest
    if Version(other.facts.version) >= Version("29.9"):
        assert layers.why_unreadable(other, pulled) == ""
        return
    assert "did not fetch all layers" in layers.why_unreadable(other, pulled)
    with pytest.raises(EngineError, match=r"update the engine to Docker 29\.9"):
        parts(other, pulled)


@containerd_only
def test_a_layer_in_zstd_comes_with_a_next_step(
    other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = {"compression": "zstd", "force-compression": "true"}
    exporter = json.loads(client.WITHOUT_UNPACKING)
    exporter[0]["Attrs"].update(attributes)
    monkeypatch.setattr(client, "WITHOUT_UNPACKING", json.dumps(exporter))
    tag = "truetag-test-zstd:1"
    built = other.build(FILES, tag, network="none", unpack=False)
    compressed = other.inspect(built.image_id)

    assert "classic store" in layers.why_unreadable(other, compressed)
    with pytest.raises(EngineError, match="compressed with zstd"):
        parts(other, compressed)


def changes(engine: Engine, image: ImageInfo) -> list[str]:
    """The change digest of each layer."""
    return [*layers.change_digests(layers.find_layers(engine, image), "image").values()]


def parts(engine: Engine, image: ImageInfo) -> dict[str, bytes]:
    """The configuration and all layers, by their digests."""
    found = {}
    for part in exported.parts(engine, image, image.layers):
        found[part.digest] = b"".join(part.chunks)
    return found
