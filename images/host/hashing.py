"""SHA-256 of bytes and of files, as bare hexadecimal and as an OCI digest."""

import hashlib
from pathlib import Path


def sha256(content: bytes) -> str:
    """Hash bytes: 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hash a file by chunks: it may be larger than memory. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def oci_digest(content: bytes) -> str:
    """Hash bytes as registries and engines name content: `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{sha256(content)}"
