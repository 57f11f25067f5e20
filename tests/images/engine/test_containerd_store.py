"""What an image of the containerd image store is, and its parts: by its store, or by an export."""

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from images.engine import EngineError, containerd_store, exported, layers
from images.engine.identity import ImageIdentity
from images.engine.runtime import EngineFacts, ImageInfo
from images.host.hashing import oci_digest
from images.registry.distribution import OCI_CONFIG, Descriptor, Manifest, image_manifest, index
from tests.support.engine_contents import image_info
from tests.support.stored_layers import files, tar_of

TARS = [tar_of(files("a/", "a/x=1")), tar_of(files("b=2"))]
BLOBS = [gzip.compress(TARS[0], mtime=0), TARS[1]]
CONFIG = json.dumps(
    {
        "os": "linux",
        "architecture": "amd64",
        "config": {"User": "1001"},
        "rootfs": {"diff_ids": [oci_digest(tar) for tar in TARS]},
    }
).encode()
MANIFEST = image_manifest(
    Descriptor.of(OCI_CONFIG, CONFIG),
    [Descriptor.of("application/vnd.oci.image.layer.v1.tar+gzip", blob) for blob in BLOBS],
)
INSPECTED = {"Id": MANIFEST.digest, "Os": "linux", "Architecture": "amd64"}
IDENTITY = ImageIdentity(
    configuration=oci_digest(CONFIG), manifest=MANIFEST.digest, platform="linux/amd64"
)
INFO: ImageInfo = replace(
    image_info(layers=tuple(oci_digest(tar) for tar in TARS)),
    handle=MANIFEST.digest,
    identity=IDENTITY,
)


class FakeEngine:
    """An engine with one image, whose store lies in a folder that can be read or not."""

    def __init__(self, data_root: Path, *, local: bool, manifests: tuple[Manifest, ...]) -> None:
        self.facts = EngineFacts(
            url="unix:///d",
            version="28.5.2",
            data_root=str(data_root),
            local=local,
            cpus=1,
            memory=1,
            runtimes=(),
            containerd_images=True,
        )
        contents = [*BLOBS, CONFIG, *(manifest.content for manifest in manifests)]
        self.blobs = {oci_digest(content): content for content in contents}
        self.exports = 0
        folder = data_root / "containerd/daemon/io.containerd.content.v1.content/blobs/sha256"
        folder.mkdir(parents=True)
        for digest, content in self.blobs.items():
            (folder / digest.removeprefix("sha256:")).write_bytes(content)
        self.folder = folder

    def exported(self, _ref: str) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
        self.exports += 1
        for digest in sorted(self.blobs):
            info = tarfile.TarInfo(f"blobs/{digest.replace(':', '/')}")
            info.size = len(self.blobs[digest])
            yield info, io.BytesIO(self.blobs[digest])

    def history(self, _ref: str) -> list[tuple[str, int]]:
        return [("CMD x", 0), ("COPY b /", 2), ("COPY a /", 1)]

    def inspect_raw(self, _ref: str) -> dict[str, Any]:
        return INSPECTED


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def engine(folder: Path, *, local: bool = True, more: tuple[Manifest, ...] = ()) -> Any:
    return FakeEngine(folder / "data", local=local, manifests=(MANIFEST, *more))


def test_an_image_is_identified_by_its_manifest_in_the_store(tmp_path: Path) -> None:
    store = engine(tmp_path)
    assert containerd_store.identify(store, INSPECTED) == IDENTITY
    assert store.exports == 0


def test_an_image_of_an_index_is_that_of_its_platform(tmp_path: Path) -> None:
    entry = Descriptor(
        media_type=MANIFEST.media_type, digest=MANIFEST.digest, size=1, platform="linux/amd64"
    )
    listing = index([entry])
    store = engine(tmp_path, more=(listing,))
    assert containerd_store.identify(store, {**INSPECTED, "Id": listing.digest}) == IDENTITY


def test_a_store_that_cannot_be_read_is_exported_once(tmp_path: Path) -> None:
    remote = engine(tmp_path, local=False)
    assert containerd_store.identify(remote, INSPECTED) == IDENTITY
    assert containerd_store.identify(remote, INSPECTED) == IDENTITY
    assert remote.exports == 1


def test_what_buildkit_says_of_its_image_saves_the_export(tmp_path: Path) -> None:
    remote = engine(tmp_path, local=False)
    descriptor = {
        "mediaType": MANIFEST.media_type,
        "digest": MANIFEST.digest,
        "annotations": {"config.digest": IDENTITY.configuration},
    }
    assert containerd_store.identify(remote, {**INSPECTED, "Descriptor": descriptor}) == IDENTITY
    assert remote.exports == 0


def test_an_image_without_a_manifest_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    remote = engine(tmp_path, local=False)
    with pytest.raises(EngineError, match="without its manifest") as error:
        containerd_store.identify(remote, {**INSPECTED, "Id": "sha256:other"})
    assert error.value.problems[0].then


def test_what_the_engine_leaves_out_is_read_from_the_configuration(tmp_path: Path) -> None:
    store = engine(tmp_path)
    missing = {"Id": MANIFEST.digest, "Architecture": "", "RootFS": {}, "Config": {"Env": None}}
    completed = containerd_store.add_missing_configuration(store.facts, missing)
    assert (completed["Os"], completed["Architecture"]) == ("linux", "amd64")
    assert tuple(completed["RootFS"]["Layers"]) == INFO.layers
    assert completed["Config"] == {"User": "1001"}
    assert containerd_store.add_missing_configuration(store.facts, completed) is completed


def test_an_image_of_which_nothing_can_be_read_is_an_error_with_a_next_step(
    tmp_path: Path,
) -> None:
    remote = engine(tmp_path, local=False)
    missing = {"Id": MANIFEST.digest, "RepoTags": ["a/b:1"], "Architecture": ""}
    with pytest.raises(EngineError, match="a/b:1: the engine did not fetch all layers") as error:
        containerd_store.add_missing_configuration(remote.facts, missing)
    assert "docker builder prune --all" in error.value.problems[0].then


def test_a_manifest_that_was_changed_in_the_store_is_an_error(tmp_path: Path) -> None:
    store = engine(tmp_path)
    (store.folder / MANIFEST.digest.removeprefix("sha256:")).write_bytes(b"{}")
    with pytest.raises(EngineError, match=f"the blob {MANIFEST.digest} is damaged"):
        containerd_store.identify(store, INSPECTED)


@pytest.mark.parametrize("local", [True, False], ids=["from the store", "from an export"])
def test_the_parts_of_an_image_are_its_configuration_and_its_tars(
    tmp_path: Path, local: bool
) -> None:
    store = engine(tmp_path, local=local)
    parts = {}
    for part in exported.parts(store, INFO, INFO.layers):
        parts[part.digest] = b"".join(part.chunks)
    assert parts == {
        IDENTITY.configuration: CONFIG,
        INFO.layers[0]: TARS[0],
        INFO.layers[1]: TARS[1],
    }
    only_one = [part.digest for part in exported.parts(store, INFO, INFO.layers[:1])]
    assert sorted(only_one) == sorted([IDENTITY.configuration, INFO.layers[0]])


def test_an_export_without_a_layer_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    remote = engine(tmp_path, local=False)
    del remote.blobs[oci_digest(BLOBS[1])]
    with pytest.raises(EngineError, match="did not fetch all layers"):
        for part in exported.parts(remote, INFO, INFO.layers):
            b"".join(part.chunks)


def test_layers_are_found_only_if_all_can_be_read(tmp_path: Path) -> None:
    store = engine(tmp_path)
    assert list(layers.find_layers(store, INFO)) == list(INFO.layers)
    assert layers.why_unreadable(store, INFO) == ""
    blob = store.folder / oci_digest(BLOBS[1]).removeprefix("sha256:")
    blob.write_bytes(b"\x28\xb5\x2f\xfd")
    assert layers.find_layers(store, INFO) == {}
    assert "compressed with zstd" in layers.why_unreadable(store, INFO)
    blob.unlink()
    assert layers.find_layers(store, INFO) == {}
    assert "did not fetch all layers" in layers.why_unreadable(store, INFO)


def test_why_layers_are_not_read_names_the_engine_that_gives_them(tmp_path: Path) -> None:
    remote = engine(tmp_path / "remote", local=False)
    assert "another machine" in layers.why_unreadable(remote, INFO)

    store = engine(tmp_path)
    (store.folder / INFO.handle.removeprefix("sha256:")).unlink()
    assert "as root" in layers.why_unreadable(store, INFO)

    store.facts = replace(store.facts, containerd_images=False, storage_driver="vfs")
    assert "storage driver vfs" in layers.why_unreadable(store, INFO)
    store.facts = replace(store.facts, storage_driver="overlay2")
    assert f"layers in {store.facts.data_root}" in layers.why_unreadable(store, INFO)
