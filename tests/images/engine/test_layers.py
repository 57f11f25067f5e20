"""Tars of layers from an engine's store, made anew from what the engine keeps of them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from images.engine import Engine, ImageInfo, layers
from images.host.hashing import oci_digest

FILES = {"bin/program": b"x" * 3000, "bin/empty": b"", b"caf\xe9".decode(errors="surrogateescape"): b"latin"}


def layer_tar() -> tuple[bytes, list[dict[str, Any]]]:
    """A tar, and its tar-split: headers and padding as segments, contents as files."""
    buffer, entries = io.BytesIO(), []
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    whole, done = buffer.getvalue(), 0
    with tarfile.open(fileobj=io.BytesIO(whole), errors="surrogateescape") as tar:
        for member in tar:
            segment = whole[done : member.offset_data]
            entries.append({"type": 2, "payload": base64.b64encode(segment).decode()})
            raw = member.name.encode(errors="surrogateescape")
            try:
                name = {"name": raw.decode()}
            except UnicodeDecodeError:
                name = {"name_raw": base64.b64encode(raw).decode()}
            entries.append({"type": 1, "size": member.size, **name, "payload": ""})
            done = member.offset_data + member.size
    entries.append({"type": 2, "payload": base64.b64encode(whole[done:]).decode()})
    return whole, entries


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, list[str], bytes]:
    """An engine's folder with an image of two layers, alike but for a comment; diff IDs and the upper tar."""
    whole, entries = layer_tar()
    lower = oci_digest(b"lower")
    chain = hashlib.sha256(f"{lower} {oci_digest(whole)}".encode()).hexdigest()
    for number, (digest, split) in enumerate({lower.removeprefix("sha256:"): [], chain: entries}.items()):
        record, files = tmp_path / "image/overlay2/layerdb/sha256" / digest, tmp_path / f"overlay2/cache{number}/diff"
        record.mkdir(parents=True)
        files.mkdir(parents=True)
        (record / "cache-id").write_text(f"cache{number}")
        (record / "size").write_text(str(len(whole)))
        lines = "".join(json.dumps(entry) + "\n" for entry in split)
        (record / "tar-split.json.gz").write_bytes(gzip.compress(lines.encode()))
        for name, content in FILES.items():
            (files / name).parent.mkdir(exist_ok=True)
            (files / name).write_bytes(content)
    return tmp_path, [lower, oci_digest(whole)], whole


def test_a_layers_tar_comes_back_byte_for_byte(store: tuple[Path, list[str], bytes]) -> None:
    root, diff_ids, whole = store
    found = layers.stored(root, diff_ids)
    assert list(found) == diff_ids
    assert b"".join(layers.stored_tar(found[diff_ids[1]])) == whole


def test_what_the_engine_gives_is_said_before(store: tuple[Path, list[str], bytes]) -> None:
    root, diff_ids, whole = store
    config = root / "image/overlay2/imagedb/content/sha256" / oci_digest(b"{}").removeprefix("sha256:")
    config.parent.mkdir(parents=True)
    config.write_bytes(b"{}")
    values: dict[str, Any] = dict.fromkeys(ImageInfo.__dataclass_fields__, "")
    info = ImageInfo(**{**values, "id": oci_digest(b"{}"), "layers": tuple(diff_ids)})
    facts = SimpleNamespace(containerd_images=False, local=True, data_root=str(root))
    engine = cast("Engine", SimpleNamespace(facts=facts))
    for wanted in (diff_ids, diff_ids[1:], []):
        parts = list(layers.parts(engine, info, wanted))
        assert [part.following for part in parts] == [len(whole) * left for left in reversed(range(len(wanted) + 1))]


def test_an_image_of_which_a_layer_cannot_be_read_is_not_read_here_at_all(
    store: tuple[Path, list[str], bytes],
) -> None:
    root, diff_ids, _ = store
    assert layers.stored(root, [*diff_ids, oci_digest(b"another")]) == {}
    (root / "overlay2/cache0/diff").rename(root / "overlay2/elsewhere")
    assert layers.stored(root, diff_ids) == {}


def test_a_file_that_became_shorter_is_told(store: tuple[Path, list[str], bytes]) -> None:
    root, diff_ids, _ = store
    (root / "overlay2/cache1/diff/bin/program").write_bytes(b"short")
    with pytest.raises(ValueError, match="bin/program has fewer bytes"):
        list(layers.stored_tar(layers.stored(root, diff_ids)[diff_ids[1]]))
