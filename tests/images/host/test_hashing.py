"""SHA-256 of bytes and files, against the published test vectors (FIPS 180-2, appendix B)."""

from pathlib import Path

import pytest

from images.host.hashing import oci_digest, sha256, sha256_of_file

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize(("content", "expected"), [(b"abc", ABC), (b"", EMPTY)])
def test_bytes_and_files_have_the_same_hash(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    assert sha256(content) == sha256_of_file(tmp_path / "file") == expected
    assert oci_digest(content) == f"sha256:{expected}"
