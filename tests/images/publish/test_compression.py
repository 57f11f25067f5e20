"""Compressed layers: the same bytes from any reader on any number of cores, and the same tar in all of them."""

import gzip
import hashlib
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from images.host.hashing import oci_digest
from images.publish import compression
from images.publish.compression import BLOCK, RECIPE, SpooledBlob, compress

TAR = b"".join(random.Random(1).randbytes(1 << 10) + bytes(1 << 10) for _ in range(5 << 10))
"""10 MiB, half of it noise: three blocks."""


def pieces(size: int) -> Iterator[bytes]:
    for start in range(0, len(TAR), size):
        yield TAR[start : start + size]


def content(tmp_path: Path, chunks: Iterable[bytes], threads: int) -> bytes:
    diff_id, blob = compress(chunks, tmp_path, threads=threads)
    assert diff_id == oci_digest(TAR)
    found = blob.read(0, blob.size)
    assert blob.digest == oci_digest(found)
    blob.close()
    return found


def test_the_same_tar_is_the_same_blob_for_any_reader_and_any_number_of_threads(
    tmp_path: Path,
) -> None:
    first = content(tmp_path, [TAR], threads=1)
    assert gzip.decompress(first) == TAR
    assert content(tmp_path, pieces(1000), threads=2) == first
    assert content(tmp_path, pieces(3 << 20), threads=4) == first


def test_the_bytes_are_those_of_their_recipe(tmp_path: Path) -> None:
    """Other bytes for old layers, from a new release of a library say, are sent anew, and pulled anew by everybody."""
    found = hashlib.sha256(content(tmp_path, [TAR], threads=2)).hexdigest()[:16]
    known = {"gzip-6-4194304-2.3.3": "b566acd98ee90c60"}
    assert RECIPE in known, (
        f"{RECIPE} is new. If {found} is also what the release before gives, add it to `known`. Otherwise every layer "
        f"of every image is sent and pulled anew: hold the library to the older release in pyproject.toml, or add it "
        f"and say so in CHANGELOG.md."
    )
    assert found == known[RECIPE], (
        f"{RECIPE} gives other bytes than before: tags would be pulled anew"
    )


def test_a_reader_waits_for_slow_compression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    _, blob = compress(chunks(), tmp_path, threads=threads)
    assert blob.size == count and max(waiting) <= threads
    blob.close()


def test_a_reader_that_breaks_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        compress(broken(), tmp_path, threads=2)
    assert [one._file.closed for one in made] == [True]
