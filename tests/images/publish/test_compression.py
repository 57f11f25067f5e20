"""Compressed layers: the same tar gives the same bytes, however it is read and compressed."""

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
KNOWN_RECIPES = {"gzip-6-4194304-2.3.3": "b566acd98ee90c60"}
"""Recipe -> the first digits of the sha256 over the compressed TAR."""


def tar_in_chunks(size: int) -> Iterator[bytes]:
    for start in range(0, len(TAR), size):
        yield TAR[start : start + size]


def compress_tar(folder: Path, chunks: Iterable[bytes], threads: int) -> bytes:
    """Compress TAR, which comes in these chunks, and check the two digests. Return the bytes."""
    diff_id, blob = compress(chunks, folder, threads=threads)
    assert diff_id == oci_digest(TAR)
    compressed = blob.read(0, blob.size)
    assert blob.digest == oci_digest(compressed)
    blob.close()
    return compressed


def test_compressed_layers_are_gzip(tmp_path: Path) -> None:
    assert gzip.decompress(compress_tar(tmp_path, [TAR], threads=1)) == TAR


@pytest.mark.parametrize(
    ("chunk_size", "threads"),
    [
        pytest.param(1000, 2, id="small chunks"),
        pytest.param(3 << 20, 4, id="chunks of another size than the blocks"),
    ],
)
def test_the_same_tar_gives_the_same_bytes_for_any_chunks_and_threads(
    tmp_path: Path, chunk_size: int, threads: int
) -> None:
    in_one_chunk = compress_tar(tmp_path, [TAR], threads=1)

    assert compress_tar(tmp_path, tar_in_chunks(chunk_size), threads) == in_one_chunk


def test_a_recipe_always_gives_the_same_bytes(tmp_path: Path) -> None:
    """If a new release of a library gave others, everybody would pull all layers anew."""
    compressed = compress_tar(tmp_path, [TAR], threads=2)
    digest = hashlib.sha256(compressed).hexdigest()[:16]

    assert RECIPE in KNOWN_RECIPES, (
        f"{RECIPE} is new. If {digest} is also what the release before gives, add it to "
        "KNOWN_RECIPES. Otherwise every layer of every image is sent and pulled anew: hold the "
        "library to the older release in pyproject.toml, or add it and say so in CHANGELOG.md."
    )
    assert digest == KNOWN_RECIPES[RECIPE], (
        f"{RECIPE} gives other bytes than before: tags would be pulled anew"
    )


def test_reading_waits_for_slow_compression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by the threads, not by the layer."""
    threads, blocks = 2, 8
    lock = threading.Lock()
    all_read = threading.Event()
    compressed_blocks = 0
    blocks_in_memory = []

    def gzip_slowly(block: bytes) -> bytes:
        nonlocal compressed_blocks
        # If all is right, not all blocks can have been read: then this waits in vain, once.
        all_read.wait(2)
        all_read.set()
        with lock:
            compressed_blocks += 1
        return block[:1]

    def read_tar() -> Iterator[bytes]:
        for read_blocks in range(blocks):
            blocks_in_memory.append(read_blocks - compressed_blocks)
            yield bytes(BLOCK)
        blocks_in_memory.append(blocks - compressed_blocks)
        all_read.set()

    monkeypatch.setattr(compression, "_gzip", gzip_slowly)

    _diff_id, blob = compress(read_tar(), tmp_path, threads=threads)

    assert blob.size == blocks
    assert max(blocks_in_memory) <= threads
    blob.close()


def test_an_error_while_a_tar_is_read_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such files have no name: an open one holds its space until the process ends."""
    blobs: list[SpooledBlob] = []

    class RecordedBlob(SpooledBlob):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            blobs.append(self)

    def read_unreadable_tar() -> Iterator[bytes]:
        yield TAR[: BLOCK + 1]
        raise OSError("unreadable")

    monkeypatch.setattr(compression, "SpooledBlob", RecordedBlob)

    with pytest.raises(OSError, match="unreadable"):
        compress(read_unreadable_tar(), tmp_path, threads=2)

    (blob,) = blobs
    assert blob._file.closed
