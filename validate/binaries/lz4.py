"""Decoder of LZ4 blocks in plain Python, for machines without liblz4. Format: lz4/doc/lz4_Block_format.md."""

from __future__ import annotations

LARGEST_RATIO = 255
"""No block of n bytes decodes to more than about this many times n."""

_MIN_MATCH = 4
_LONG = 15


class Lz4Error(ValueError):
    """This is no LZ4 block of the expected size."""


def decompress(block: bytes, size: int) -> bytes:
    """Decode a block into exactly `size` bytes. Raises Lz4Error; never takes more memory than that."""
    output = bytearray()
    position = 0
    try:
        while True:
            token = block[position]
            literals, position = _length(block, position + 1, token >> 4)
            if position + literals > len(block) or len(output) + literals > size:
                raise Lz4Error(f"{literals} literals at {position} do not fit")
            output += block[position : position + literals]
            position += literals
            if position == len(block):
                break
            distance = block[position] | block[position + 1] << 8
            count, position = _length(block, position + 2, token & _LONG)
            _repeat(output, distance, count + _MIN_MATCH, size)
    except IndexError:
        raise Lz4Error("it ends in the middle of a sequence") from None
    if len(output) != size:
        raise Lz4Error(f"it decodes to {len(output)} bytes instead of {size}")
    return bytes(output)


def _length(block: bytes, position: int, length: int) -> tuple[int, int]:
    """A length and the position behind it: 15 in the token means that more bytes follow, until one is not 255."""
    if length == _LONG:
        while True:
            more = block[position]
            position += 1
            length += more
            if more != 255:
                break
    return length, position


def _repeat(output: bytearray, distance: int, count: int, size: int) -> None:
    """Append `count` bytes from `distance` back; they may overlap what is being written."""
    if not 0 < distance <= len(output) or len(output) + count > size:
        raise Lz4Error(f"a match of {count} bytes from {distance} back does not fit")
    start = len(output) - distance
    if distance >= count:
        output += output[start : start + count]
        return
    pattern = bytes(output[start:])
    output += (pattern * (count // distance + 1))[:count]
