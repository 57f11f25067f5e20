"""A layer as zstd:chunked: plain zstd for everybody, and frames from which podman makes the tar again."""

from __future__ import annotations

import random
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from images.host.hashing import oci_digest
from images.publish import stored_layers
from images.publish.chunked import writer
from images.publish.compression import Compression, compress
from images.publish.stored_layers import LayerDigests
from tests.support.chunked_reader import ChunkedLayer
from tests.support.tars import LONG, tar

NOISE = random.Random(4).randbytes(9 << 20)
WORDS = " ".join(random.Random(5).choices([f"{number:x}" * 3 for number in range(999)], k=500_000)).encode()
FILES = {
    "d/big": NOISE,
    "d/none": b"",
    "d/hole": bytes(6 << 20) + b"end",
    LONG: b"text " * 1000,
    "words": WORDS,
    "z": b"z",
}
TAR = tar(
    ("d", {"type": tarfile.DIRTYPE}),
    *((name, {"content": content, "mtime": 1700000000}) for name, content in FILES.items()),
    ("l", {"type": tarfile.SYMTYPE, "linkname": "z"}),
)


def layer(tmp_path: Path, chunks: Sequence[bytes], threads: int = 2) -> ChunkedLayer:
    with compress(chunks, [Compression.ZSTD_CHUNKED], tmp_path, threads=threads).blobs[
        Compression.ZSTD_CHUNKED
    ] as blob:
        return ChunkedLayer(blob.read(0, blob.size), blob.annotations)


def test_podman_makes_the_tar_again(tmp_path: Path) -> None:
    made = layer(tmp_path, [TAR])
    assert made.tar() == TAR
    assert dict(made.files()) == {name: content for name, content in FILES.items() if content}
    big = made.entries["d/big"]
    assert (big["type"], big["mode"], big["modtime"]) == ("reg", 0o644, "2023-11-14T22:13:20Z")
    assert (made.entries["d/"]["type"], made.entries["l"]["linkName"]) == ("dir", "z")
    assert {"digest", "offset"}.isdisjoint(made.entries["d/none"])


def test_zeros_are_told_so_that_podman_leaves_holes(tmp_path: Path) -> None:
    made = layer(tmp_path, [TAR])
    assert [one.get("chunkType") for one in made.toc["entries"] if one["name"] == "d/hole"] == ["zeros", None]


def test_everybody_else_reads_zstd(tmp_path: Path) -> None:
    made = layer(tmp_path, [TAR])
    with zstandard.ZstdDecompressor().stream_reader(made.blob, read_across_frames=True) as stream:
        assert stream.read() == TAR
    found = stored_layers.digests([made.blob], Compression.ZSTD_CHUNKED)
    assert found == LayerDigests(blob=oci_digest(made.blob), diff_id=oci_digest(TAR))


def test_the_end_says_where_the_table_is(tmp_path: Path) -> None:
    """For readers without annotations."""
    made = layer(tmp_path, [TAR])
    *numbers, magic = struct.unpack("<7Q8s", made.blob[-64:])
    assert (numbers[:4], numbers[4:], magic) == (
        made._position("manifest-position"),
        made._position("tarsplit-position"),
        b"GNUlInUx",
    )
    assert made.blob[-72:-64] == struct.pack("<II", 0x184D2A50, 64)


def test_the_same_tar_is_the_same_blob(tmp_path: Path) -> None:
    first = layer(tmp_path, [TAR], threads=1)
    assert layer(tmp_path, [TAR[start : start + 10007] for start in range(0, len(TAR), 10007)], threads=3) == first


def test_a_changed_file_shares_chunks_with_its_older_self(tmp_path: Path) -> None:
    old = layer(tmp_path, [TAR])
    new = layer(tmp_path, [tar(("d/big", {"content": NOISE[: 4 << 20] + b"new" + NOISE[4 << 20 :]}))])
    shared = set(new.chunk_digests) & set(old.chunk_digests)
    assert 0 < len(set(new.chunk_digests) - shared) <= 2 < len(shared)


def test_a_long_file_is_compressed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PIECE", 1 << 20)
    made = layer(tmp_path, [TAR])
    assert made.tar() == TAR and len(made.chunk_digests) > 9


@given(st.lists(st.binary(max_size=2000), max_size=5), st.binary(max_size=600))
def test_any_files_come_back(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], more: bytes) -> None:
    content = tar(*((f"f{number}", {"content": one}) for number, one in enumerate(contents))) + bytes(512) + more
    assert layer(tmp_path_factory.getbasetemp(), [content]).tar() == content


def test_an_empty_layer_is_one(tmp_path: Path) -> None:
    assert layer(tmp_path, [bytes(1024)]).tar() == bytes(1024)
