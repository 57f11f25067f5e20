"""Digests that base images are pinned to."""

from dataclasses import replace
from pathlib import Path

import pytest

from images.context.base_images import PINS_FILE, by_digest, pinned
from images.errors import UserError
from tests.support.custom_bases import BASE


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
