"""Recognises compressed files, such as logs and kept evidence, and names what decompresses them."""

import shlex
from pathlib import Path

_PROGRAMS = {b"\xfd7zXZ\x00": "xz", b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd", b"BZh": "bzip2"}
"""The first bytes of a file -> the program that wrote it."""


def decompressing(path: Path, content: bytes) -> str:
    """Return the command that prints a file's content decompressed; empty: it is not compressed."""
    for first_bytes, program in _PROGRAMS.items():
        if content.startswith(first_bytes):
            return f"{program} --decompress --stdout {shlex.quote(str(path))}"
    return ""
