"""Digests that base images are pinned to, and how bases are named."""

from dataclasses import replace
from pathlib import Path

import pytest

from images.config.platforms import Platform
from images.context import bootstrap
from images.context.base_images import PINS_FILE, by_digest, name_of_made, other_base, pinned
from images.context.hosting import HostSettings
from images.errors import UserError
from images.planning.image import Base
from tests.support import sources
from tests.support.custom_bases import BASE

IMAGE = sources.image("cu126-torch27")


def write_pins(folder: Path, text: str) -> None:
    (folder / PINS_FILE).parent.mkdir(exist_ok=True)
    (folder / PINS_FILE).write_text(text)


def test_without_the_file_or_with_an_empty_one_nothing_is_pinned(tmp_path: Path) -> None:
    assert pinned(tmp_path) == {}
    write_pins(tmp_path, "")
    assert pinned(tmp_path) == {}


def test_pins_are_digests_by_reference(tmp_path: Path) -> None:
    write_pins(tmp_path, "debian:bookworm-slim: sha256:abc\n")

    assert pinned(tmp_path) == {"debian:bookworm-slim": "sha256:abc"}


@pytest.mark.parametrize(
    "text", ["- a\n", "a: b\n", "a: [\n"], ids=["no mapping", "no digest", "no YAML"]
)
def test_a_broken_file_of_pins_is_an_error_with_the_next_command(tmp_path: Path, text: str) -> None:
    write_pins(tmp_path, text)

    with pytest.raises(UserError, match=r"python -m tools\.pin"):
        pinned(tmp_path)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("debian:bookworm-slim", "debian@sha256:1"),
        ("localhost:5000/org/base:7", "localhost:5000/org/base@sha256:1"),
        ("localhost:5000/base", "localhost:5000/base@sha256:1"),
    ],
)
def test_a_digest_takes_the_place_of_the_tag(reference: str, expected: str) -> None:
    assert by_digest(replace(BASE, reference=reference), "sha256:1") == expected


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ("debian:bookworm-slim", "debian@sha256:1"),
        ("localhost:5000/corp/base", "localhost:5000/corp/base@sha256:1"),
        ("corp/base:1.0@sha256:0", "corp/base@sha256:1"),
    ],
)
def test_a_base_is_named_by_its_digest_alone(reference: str, named: str) -> None:
    base = replace(BASE, reference=reference)

    assert by_digest(base, "sha256:1") == named


# --- bases that are made here ---------------------------------------------------------------------


def test_bases_of_other_packages_have_other_names() -> None:
    """Two workspaces on one engine do not take the name from each other."""
    labels = {"dev.truetag.base": "bookworm 1", "dev.truetag.base-packages": "2"}
    name = name_of_made(IMAGE.base, labels)

    assert name.startswith("truetag-base:bookworm-")
    assert name == name_of_made(IMAGE.base, dict(reversed(labels.items())))
    assert name != name_of_made(IMAGE.base, {**labels, "dev.truetag.base-packages": "3"})
    assert name != name_of_made(IMAGE.base, {**labels, "dev.truetag.base": "bookworm 2"})


def test_a_base_of_another_platform_has_another_name() -> None:
    arm64 = replace(IMAGE.base, platform=Platform.ARM64)

    assert name_of_made(arm64, {}) == f"{name_of_made(IMAGE.base, {})}-arm64"


# --- the base beside the image's name -------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "origin", "reference", "other"),
    [
        (IMAGE.base, "digest", "debian@sha256:1", ""),
        (IMAGE.base, "bootstrapped", "truetag-base:bookworm-1", ""),
        (IMAGE.base, "custom", "org/base:7", "org/base:7"),
        (BASE, "custom", BASE.reference, ""),
        (BASE, "custom", "registry.example/mine@sha256:1", ""),
        (BASE, "custom", "registry.example/mine:2", "registry.example/mine:2"),
        (BASE, "custom", "org/base@sha256:1", "org/base@sha256:1"),
    ],
)
def test_a_base_that_the_matrix_does_not_name_is_said(
    base: Base, origin: str, reference: str, other: str
) -> None:
    labels = {"dev.truetag.base": reference, "dev.truetag.base-origin": origin}

    assert other_base(replace(IMAGE, base=base), labels) == other


def test_an_error_of_mmdebstrap_does_not_list_all_packages() -> None:
    line = "E: setup failed: dpkg --install " + "/var/cache/apt/archives/libc6.deb " * 100
    line += "failed: No space left on device"
    program = ["sh", "-c", f"echo '{line}' >&2; exit 1"]

    with pytest.raises(UserError) as error:
        list(bootstrap._run_mmdebstrap(program, "bookworm", HostSettings()))

    (problem,) = error.value.problems
    assert problem.cause.startswith("failed: E: setup failed: dpkg --install")
    assert problem.cause.endswith("failed: No space left on device")
    assert len(problem.cause) < 400
