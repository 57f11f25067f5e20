"""What is linked into a library: code of others counts, a text that names them does not."""

from pathlib import Path

import pytest

from images.publish import read_packages


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\x7fELF _ZN4llvm5ValueE LLVM version 21.0.0git\0", [("LLVM", "21.0.0git")]),
        (b"\x7fELF takes NVVM IR, which is LLVM 7.0.1\0", []),
        (b"\x7fELF _ZN7cutlass4gemmE", [("CUTLASS", "")]),
        (b"\x7fELF see cutlass for the layout", []),
        (b"\x7fELF OpenSSL 3.6.5 1 Jan\0 inflate 1.3.2 Copyright", [("OpenSSL", "3.6.5"), ("zlib", "1.3.2")]),
        (b"\x7fELF nothing", []),
    ],
)
def test_code_is_told_from_words(tmp_path: Path, content: bytes, found: list[tuple[str, str]]) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(content)
    assert list(read_packages.linked(library)) == found


def test_only_elf_files_are_libraries(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("a linker script")
    assert not read_packages.is_library(tmp_path / "x.so")
    assert not read_packages.is_library(tmp_path / "none.so")
