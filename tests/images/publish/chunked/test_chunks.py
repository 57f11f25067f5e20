"""Cuts that follow the content."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.publish.chunked import chunks
from images.publish.chunked.chunks import AVERAGE, cuts

NOISE = random.Random(3).randbytes(24 << 20)
LEAST, MOST = AVERAGE >> 2, AVERAGE << 2


def parts(content: bytes) -> list[bytes]:
    return [content[start:end] for start, end in pairwise([0, *cuts(content)])]


def test_a_cut_is_where_the_gear_hash_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same hash, byte by byte; more bits are let pass here, so that there are thousands of cuts."""
    monkeypatch.setattr(chunks, "_CUT", np.uint32(0xFC000000))
    monkeypatch.setattr(chunks, "_STRIDE", 1000)
    content, hashed, expected = NOISE[: 300 << 10], 0, []
    for place, byte in enumerate(content, 1):
        hashed = ((hashed << 1) + int(chunks._GEAR[byte])) & 0xFFFFFFFF
        if not hashed & 0xFC000000:
            expected.append(place)
    assert len(expected) > 4000 and list(chunks._places(content)) == expected


def test_chunks_have_sizes_between_the_bounds_and_about_the_average() -> None:
    sizes = [len(part) for part in parts(NOISE)]
    assert sum(sizes) == len(NOISE) and all(LEAST <= size <= MOST for size in sizes[:-1])
    assert AVERAGE / 2 < len(NOISE) / len(sizes) < AVERAGE * 2


def test_bytes_that_are_put_in_change_the_chunks_around_them_alone() -> None:
    changed = NOISE[: 9 << 20] + b"more" + NOISE[9 << 20 :]
    assert len(set(parts(changed)) - set(parts(NOISE))) <= 2


def test_zeros_are_cut_at_the_most() -> None:
    sizes = [len(part) for part in parts(bytes(2 * MOST + 5))]
    assert sizes == [MOST, MOST, 5]


@given(st.integers(0, 3 * MOST))
def test_nothing_is_lost_and_nothing_is_empty(size: int) -> None:
    found = parts(NOISE[:size])
    assert b"".join(found) == NOISE[:size] and all(found)


def test_a_chunk_is_a_frame_of_its_own_and_says_whether_it_is_zeros() -> None:
    found = list(chunks.chunks(NOISE[:100] + bytes(MOST)))
    assert sum(one.size for one in found) == MOST + 100
    assert [one.is_zeros for one in chunks.chunks(bytes(10))] == [True]
    assert [one.is_zeros for one in chunks.chunks(bytes(10) + b"1")] == [False]
