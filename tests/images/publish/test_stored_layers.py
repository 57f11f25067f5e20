"""What a stored layer unpacks to, as an engine that pulls it reads it: all members, all frames."""

import gzip
from collections.abc import Iterator

import pytest
import zstandard

from images.host.hashing import oci_digest
from images.publish import stored_layers
from images.publish.compression import Compression
from images.publish.stored_layers import LayerDigests

TAR = bytes(range(256)) * 300


def pieces(content: bytes, size: int) -> Iterator[bytes]:
    """As a connection brings it; some bring nothing."""
    for start in range(0, len(content), size):
        yield content[start : start + size]
        yield b""


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("compression", "content"),
    [
        (Compression.GZIP, gzip.compress(TAR[:999]) + gzip.compress(TAR[999:])),
        (Compression.ZSTD, zstandard.compress(TAR[:999]) + zstandard.compress(TAR[999:])),
    ],
)
def test_all_of_it_is_hashed(compression: Compression, content: bytes, size: int) -> None:
    found = stored_layers.digests(pieces(content, size), compression)
    assert found == LayerDigests(blob=oci_digest(content), diff_id=oci_digest(TAR))


@pytest.mark.parametrize(
    ("compression", "content"),
    [
        (Compression.GZIP, b"no gzip"),
        (Compression.GZIP, gzip.compress(TAR)[:-9]),
        (Compression.GZIP, gzip.compress(TAR) + b"more" * (1 << 19)),
        (Compression.ZSTD, b"no zstd"),
        (Compression.ZSTD, zstandard.compress(TAR)[:-9]),
        (Compression.ZSTD, zstandard.compress(TAR) + b"more"),
    ],
)
def test_what_is_no_whole_layer_unpacks_to_nothing(compression: Compression, content: bytes) -> None:
    found = stored_layers.digests(pieces(content, 1 << 12), compression)
    assert found.blob == oci_digest(content) and found.diff_id != oci_digest(TAR)
