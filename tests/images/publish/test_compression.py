"""Compressed layers: the same bytes from any reader on any number of cores, and the same tar in all of them."""

from __future__ import annotations

import gzip
import hashlib
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import zstandard

from images.host.hashing import oci_digest
from images.publish import compression
from images.publish.compression import BLOCK, Compression, SpooledBlob, compress

TAR = b"".join(random.Random(1).randbytes(1 << 10) + bytes(1 << 10) for _ in range(5 << 10))
"""10 MiB, half of it noise: three blocks."""
BOTH = (Compression.GZIP, Compression.ZSTD)


def pieces(size: int) -> Iterator[bytes]:
    for start in range(0, len(TAR), size):
        yield TAR[start : start + size]


def content(tmp_path: Path, chunks: Iterable[bytes], threads: int) -> dict[Compression, bytes]:
    diff_id, blobs = compress(chunks, BOTH, tmp_path, threads=threads)
    assert diff_id == oci_digest(TAR)
    found = {one: blob.read(0, blob.size) for one, blob in blobs.items()}
    for one, blob in blobs.items():
        assert blob.digest == oci_digest(found[one])
        blob.close()
    return found


def test_both_hold_the_tar(tmp_path: Path) -> None:
    found = content(tmp_path, [TAR], threads=2)
    assert gzip.decompress(found[Compression.GZIP]) == TAR
    assert zstandard.ZstdDecompressor().decompress(found[Compression.ZSTD], max_output_size=len(TAR)) == TAR


def test_the_same_tar_is_the_same_blob_for_any_reader_and_any_number_of_threads(tmp_path: Path) -> None:
    first = content(tmp_path, [TAR], threads=1)
    assert content(tmp_path, pieces(1000), threads=2) == first
    assert content(tmp_path, pieces(3 << 20), threads=4) == first


def test_the_bytes_are_those_of_their_recipe(tmp_path: Path) -> None:
    """Other bytes for old layers, from a new release of a library say, are sent anew, and pulled anew by everybody."""
    contents = content(tmp_path, [TAR], threads=2)
    found = {one: hashlib.sha256(data).hexdigest()[:16] for one, data in contents.items()}
    known = {
        "zstd-9-1.5.7": "60aaf40dff0b0ae9",
        "gzip-6-4194304-2.3.3": "b566acd98ee90c60",
    }
    for one in Compression:
        assert one.recipe in known, (
            f"{one.recipe} is new. If {found[one]} is also what the release before gives, add it to `known`. Otherwise "
            f"every layer of every image is sent and pulled anew: hold the library to the older release in "
            f"pyproject.toml, or add it and say so in CHANGELOG.md."
        )
        assert found[one] == known[one.recipe], f"{one.recipe} gives other bytes than before: tags would be pulled anew"


def test_a_reader_waits_for_slow_compression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by the threads, not by the layer."""
    threads, count, waiting = 2, 8, []
    lock, all_read, done = threading.Lock(), threading.Event(), [0]

    def slow(block: bytes) -> bytes:
        all_read.wait(2)  # which nothing that is right depends on: not all can have been read
        all_read.set()
        with lock:
            done[0] += 1
        return block[:1]

    def chunks() -> Iterator[bytes]:
        for number in range(count):
            waiting.append(number - done[0])
            yield bytes(BLOCK)
        waiting.append(count - done[0])
        all_read.set()

    monkeypatch.setattr(compression, "_gzip", slow)
    _, blobs = compress(chunks(), [Compression.GZIP], tmp_path, threads=threads)
    assert blobs[Compression.GZIP].size == count and max(waiting) <= threads
    blobs[Compression.GZIP].close()


def test_a_reader_that_breaks_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no name: an open one holds its space until the process ends."""
    made: list[SpooledBlob] = []

    class Noted(SpooledBlob):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            made.append(self)

    def broken() -> Iterator[bytes]:
        yield TAR[: BLOCK + 1]
        raise OSError("unreadable")

    monkeypatch.setattr(compression, "SpooledBlob", Noted)
    with pytest.raises(OSError, match="unreadable"):
        compress(broken(), BOTH, tmp_path, threads=2)
    assert [one._file.closed for one in made] == [True] * len(BOTH)
