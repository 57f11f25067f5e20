"""SBOM and provenance: valid by their own schemas, complete, and the same bytes for the same image."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from images.config.names import ImageName
from images.errors import UserError
from images.publish import provenance, sbom
from validate.survey import environments, packages

DIGEST = "sha256:" + "ab" * 32
CARRIED = [
    {"name": "CUTLASS", "version": "", "files": ["torch/lib/libtorch_cuda.so"]},
    {
        "name": "zlib",
        "version": "1.3.2",
        "files": ["torch/lib/libtorch_cpu.so", "torch/lib/libx.so"],
    },
]
FOUND = {
    "python": [
        {"name": "torch", "version": "2.7.1+cu126", "licence": "BSD-3-Clause", "bundled": CARRIED},
        {"name": "Flash_Attn", "version": "2.8.3", "licence": ""},
        {"name": "odd", "version": "1", "licence": "whatever I like"},
    ],
    "toolkit": [{"name": "nvidia_cuda_nvcc_cu12", "version": "12.6.85", "licence": ""}],
    "debian": [
        {"name": "libc6", "version": "2.36-9+deb12u13", "architecture": "amd64", "source": "glibc"},
        {"name": "adduser", "version": "3.134", "architecture": "all", "source": ""},
    ],
    "os": {"ID": "debian", "VERSION_ID": "12", "VERSION_CODENAME": "bookworm"},
}
CREATED = datetime(2026, 11, 21, 2, 20, tzinfo=UTC)


def written(digest: str = DIGEST) -> dict[str, Any]:
    return sbom.make_sbom(FOUND, name="cu126-torch27", digest=digest, created=CREATED)


def test_the_sbom_keeps_to_cyclonedx_own_schema() -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(written())) is None


def test_every_package_is_in_it_by_its_purl() -> None:
    data = written()
    assert {row["purl"] for row in data["components"]} == {
        "pkg:pypi/torch@2.7.1%2Bcu126",
        "pkg:pypi/flash-attn@2.8.3",
        "pkg:pypi/odd@1",
        "pkg:pypi/nvidia-cuda-nvcc-cu12@12.6.85?toolkit=true",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12&upstream=glibc",
        "pkg:deb/debian/adduser@3.134?arch=all&distro=debian-12",
    }
    assert data["metadata"]["component"]["version"] == DIGEST
    assert sbom.read_versions(data) == {"torch": "2.7.1", "flash-attn": "2.8.3", "odd": "1"}, (
        "no local parts, no toolkit"
    )


def test_what_a_wheel_carries_is_listed_inside_of_it_with_its_files() -> None:
    (torch,) = (row for row in written()["components"] if row["name"] == "torch")
    cutlass, zlib = sorted(torch["components"], key=lambda row: str(row["name"]))
    assert (cutlass["name"], "version" in cutlass, "purl" in cutlass) == ("CUTLASS", False, False)
    assert (zlib["purl"], [one["value"] for one in zlib["properties"]]) == (
        "pkg:generic/zlib@1.3.2",
        CARRIED[1]["files"],
    )
    assert [row["name"] for row in written()["components"] if "components" in row] == ["torch"]


BUILD: dict[str, Any] = {
    "digest": "sha256:" + "ef" * 32,
    "base": {
        "reference": "debian:bookworm-slim",
        "origin": "digest",
        "digest": "sha256:" + "11" * 32,
    },
    "engine": {"version": "20.10.24"},
    "wheels": {"flash_attn-2.8.3.whl": "22" * 32},
    "missing": {},
    "commit": "c0ffee",
    "locks": {"torch.txt": "33" * 32},
}


def predicate(**build: Any) -> dict[str, Any]:
    return provenance.make_predicate(
        {**BUILD, **build},
        name=ImageName.parse("cu126-torch27"),
        revision="0123456789ab",
        created="2026-11-21T02:20:36Z",
    )


def test_provenance_says_what_the_image_was_built_from() -> None:
    found = predicate()
    definition = found["buildDefinition"]
    assert definition["externalParameters"] == {
        "name": "cu126-torch27",
        "matrixRevision": "0123456789ab",
    }
    names = {row["name"]: row["digest"] for row in definition["resolvedDependencies"]}
    assert names["checkout"] == {"gitCommit": "c0ffee"}
    assert names["base:debian:bookworm-slim"] == {"sha256": "11" * 32}
    assert names["flash_attn-2.8.3.whl"] == {"sha256": "22" * 32}
    assert names["torch.txt"] == {"sha256": "33" * 32}
    assert set(found["runDetails"]) == {"builder", "metadata", "byproducts"}
    others = {
        row["name"]
        for row in predicate(commit="", locks={})["buildDefinition"]["resolvedDependencies"]
    }
    assert others == names.keys() - {"checkout", "torch.txt"}


def test_provenance_is_read_back() -> None:
    digest = "sha256:" + "11" * 32
    assert provenance.read_labels(predicate()) == {
        "matrix-revision": "0123456789ab",
        "base-digest": digest,
    }
    assert (
        provenance.read_labels(predicate(base={**BUILD["base"], "digest": ""}))["base-digest"] == ""
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "can't be read"),
        ("{", "can't be read"),
        ("{}", "can't be read"),
        (json.dumps({**BUILD, "digest": "sha256:2"}), "another build"),
    ],
)
def test_a_record_of_another_build_is_refused(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "build.json").write_text(content)
    with pytest.raises(UserError, match=words):
        provenance.read_build_record(tmp_path, "cu126-torch27", BUILD["digest"])
    (tmp_path / "build.json").write_text(json.dumps(BUILD))
    assert provenance.read_build_record(tmp_path, "cu126-torch27", BUILD["digest"]) == BUILD


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\x7fELF _ZN4llvm5ValueE LLVM version 21.0.0git\0", [("LLVM", "21.0.0git")]),
        (b"\x7fELF takes NVVM IR, which is LLVM 7.0.1\0", []),
        (b"\x7fELF _ZN7cutlass4gemmE", [("CUTLASS", "")]),
        (b"\x7fELF see cutlass for the layout", []),
        (
            b"\x7fELF OpenSSL 3.6.5 1 Jan\0 inflate 1.3.2 Copyright",
            [("OpenSSL", "3.6.5"), ("zlib", "1.3.2")],
        ),
        (b"\x7fELF nothing", []),
    ],
)
def test_code_is_told_from_words(
    tmp_path: Path, content: bytes, found: list[tuple[str, str]]
) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(content)
    assert list(packages.linked_libraries(library)) == found


def test_only_elf_files_are_libraries(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("a linker script")
    assert not environments.is_elf(f"{tmp_path}/x.so")
    assert not environments.is_elf(f"{tmp_path}/none.so")
