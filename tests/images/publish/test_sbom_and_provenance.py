"""SBOM and provenance: valid by their own schemas, and complete."""

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

NAME = "cu126-torch27"

# --- SBOM -----------------------------------------------------------------------------------------

DIGEST = "sha256:" + "ab" * 32
CUTLASS_IN_TORCH = {"name": "CUTLASS", "version": "", "files": ["torch/lib/libtorch_cuda.so"]}
ZLIB_IN_TORCH = {
    "name": "zlib",
    "version": "1.3.2",
    "files": ["torch/lib/libtorch_cpu.so", "torch/lib/libx.so"],
}
PACKAGES = {
    "python": [
        {
            "name": "torch",
            "version": "2.7.1+cu126",
            "licence": "BSD-3-Clause",
            "bundled": [CUTLASS_IN_TORCH, ZLIB_IN_TORCH],
        },
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


@pytest.fixture
def bom() -> dict[str, Any]:
    """The SBOM of an image with these packages."""
    created = datetime(2026, 11, 21, 2, 20, tzinfo=UTC)
    return sbom.make_sbom(PACKAGES, name=NAME, digest=DIGEST, created=created)


def test_the_sbom_fits_the_schema_of_cyclonedx(bom: dict[str, Any]) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)

    assert validator.validate_str(json.dumps(bom)) is None


def test_the_sbom_has_every_package_with_its_address(bom: dict[str, Any]) -> None:
    assert {component["purl"] for component in bom["components"]} == {
        "pkg:pypi/torch@2.7.1%2Bcu126",
        "pkg:pypi/flash-attn@2.8.3",
        "pkg:pypi/odd@1",
        "pkg:pypi/nvidia-cuda-nvcc-cu12@12.6.85?toolkit=true",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12&upstream=glibc",
        "pkg:deb/debian/adduser@3.134?arch=all&distro=debian-12",
    }


def test_the_sbom_is_of_the_image_id(bom: dict[str, Any]) -> None:
    assert bom["metadata"]["component"]["version"] == DIGEST


def test_versions_are_read_back_without_local_parts_and_without_the_toolkit(
    bom: dict[str, Any],
) -> None:
    assert sbom.read_versions(bom) == {"torch": "2.7.1", "flash-attn": "2.8.3", "odd": "1"}


def test_libraries_in_a_wheel_are_listed_inside_of_it_with_their_files(
    bom: dict[str, Any],
) -> None:
    (torch,) = [component for component in bom["components"] if "components" in component]

    assert torch["name"] == "torch"
    cutlass, zlib = sorted(torch["components"], key=lambda component: str(component["name"]))
    assert zlib["purl"] == "pkg:generic/zlib@1.3.2"
    assert [row["value"] for row in zlib["properties"]] == ZLIB_IN_TORCH["files"]
    # Without a version it has no address, so that no scanner mistakes it for some version.
    assert cutlass["name"] == "CUTLASS"
    assert "version" not in cutlass
    assert "purl" not in cutlass


# --- provenance -----------------------------------------------------------------------------------

BASE_DIGEST = "11" * 32
BUILD_RECORD: dict[str, Any] = {
    "digest": "sha256:" + "ef" * 32,
    "base": {
        "reference": "debian:bookworm-slim",
        "origin": "digest",
        "digest": f"sha256:{BASE_DIGEST}",
    },
    "engine": {"version": "20.10.24"},
    "wheels": {"flash_attn-2.8.3.whl": "22" * 32},
    "missing": {},
    "commit": "c0ffee",
    "locks": {"torch.txt": "33" * 32},
}


def provenance_of(**changes: Any) -> dict[str, Any]:
    """The provenance by BUILD_RECORD with some changes."""
    return provenance.make_predicate(
        {**BUILD_RECORD, **changes},
        name=ImageName.parse(NAME),
        revision="0123456789ab",
        created="2026-11-21T02:20:36Z",
    )


def dependencies_of(predicate: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Name -> digest of what the image was built from."""
    dependencies = predicate["buildDefinition"]["resolvedDependencies"]
    return {row["name"]: row["digest"] for row in dependencies}


def test_provenance_says_what_the_image_was_built_from() -> None:
    predicate = provenance_of()

    assert predicate["buildDefinition"]["externalParameters"] == {
        "name": NAME,
        "matrixRevision": "0123456789ab",
    }
    assert dependencies_of(predicate) == {
        "checkout": {"gitCommit": "c0ffee"},
        "torch.txt": {"sha256": "33" * 32},
        "base:debian:bookworm-slim": {"sha256": BASE_DIGEST},
        "flash_attn-2.8.3.whl": {"sha256": "22" * 32},
    }
    assert set(predicate["runDetails"]) == {"builder", "metadata", "byproducts"}


def test_provenance_by_an_older_record_has_neither_checkout_nor_locks() -> None:
    dependencies = dependencies_of(provenance_of(commit="", locks={}))

    assert set(dependencies) == {"base:debian:bookworm-slim", "flash_attn-2.8.3.whl"}


def test_labels_are_read_back_from_a_provenance() -> None:
    assert provenance.read_labels(provenance_of()) == {
        "matrix-revision": "0123456789ab",
        "base-digest": f"sha256:{BASE_DIGEST}",
    }


def test_the_digest_of_a_base_that_was_built_locally_is_empty() -> None:
    local_base = {**BUILD_RECORD["base"], "digest": ""}

    assert provenance.read_labels(provenance_of(base=local_base))["base-digest"] == ""


def test_the_record_of_a_build_is_read(tmp_path: Path) -> None:
    (tmp_path / "build.json").write_text(json.dumps(BUILD_RECORD))

    record = provenance.read_build_record(tmp_path, NAME, BUILD_RECORD["digest"])

    assert record == BUILD_RECORD


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        pytest.param(None, "can't be read", id="no file"),
        pytest.param("{", "can't be read", id="no JSON"),
        pytest.param("{}", "can't be read", id="no fields"),
        pytest.param(
            json.dumps({**BUILD_RECORD, "digest": "sha256:2"}), "another build", id="another image"
        ),
    ],
)
def test_a_folder_without_the_record_of_this_build_is_refused(
    tmp_path: Path, content: str | None, cause: str
) -> None:
    if content is not None:
        (tmp_path / "build.json").write_text(content)

    with pytest.raises(UserError, match=cause):
        provenance.read_build_record(tmp_path, NAME, BUILD_RECORD["digest"])


# --- libraries inside of other libraries ----------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "libraries"),
    [
        pytest.param(
            b"\x7fELF _ZN4llvm5ValueE LLVM version 21.0.0git\0",
            [("LLVM", "21.0.0git")],
            id="a symbol and a version",
        ),
        pytest.param(
            b"\x7fELF takes NVVM IR, which is LLVM 7.0.1\0", [], id="a sentence with a version"
        ),
        pytest.param(b"\x7fELF _ZN7cutlass4gemmE", [("CUTLASS", "")], id="only a symbol"),
        pytest.param(b"\x7fELF see cutlass for the layout", [], id="only a sentence"),
        pytest.param(
            b"\x7fELF OpenSSL 3.6.5 1 Jan\0 inflate 1.3.2 Copyright",
            [("OpenSSL", "3.6.5"), ("zlib", "1.3.2")],
            id="two that name themselves",
        ),
        pytest.param(b"\x7fELF nothing", [], id="nothing"),
    ],
)
def test_a_library_is_found_by_its_code_and_not_by_words(
    tmp_path: Path, content: bytes, libraries: list[tuple[str, str]]
) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(content)

    assert list(packages.linked_libraries(file)) == libraries


def test_only_elf_files_are_libraries(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("a linker script")

    assert not environments.is_elf(f"{tmp_path}/x.so")
    assert not environments.is_elf(f"{tmp_path}/none.so")
