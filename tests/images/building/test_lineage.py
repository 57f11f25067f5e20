"""What an image is beside a known one, told by its layers."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.building import lineage, records

IDS = st.lists(st.text("0123456789abcdef", min_size=8, max_size=8), min_size=1, max_size=6, unique=True)


@pytest.mark.parametrize(
    ("known", "found", "told"),
    [
        ("ab", "ab", "its 2 layers are those of NAME"),
        ("ab", "abc", "this image is NAME plus one unknown layer (c)"),
        ("ab", "abcd", "this image is NAME plus 2 unknown layers (c, d)"),
        ("abc", "ab", "it has the first 2 of 3 layers of NAME"),
        ("abc", "abd", "it shares the first 2 of 3 layers with NAME, and has one unknown layer (d) above them"),
        ("ab", "cd", "it shares no layer with NAME"),
        ("", "cd", "the layers of NAME are not known here"),
    ],
)
def test_each_relation_is_told(known: str, found: str, told: str) -> None:
    assert lineage.relation("NAME", [f"sha256:{one}" for one in known], [f"sha256:{one}" for one in found]) == told


@given(IDS, IDS)
def test_only_the_same_layers_are_those_of_the_known_image(known: list[str], found: list[str]) -> None:
    assert ("are those of" in lineage.relation("NAME", known, found)) == (known == found)


def test_layers_are_read_from_the_builds_record(tmp_path: Path) -> None:
    assert records.recorded_layers(tmp_path) == ()
    (tmp_path / "build.json").write_text("{")
    assert records.recorded_layers(tmp_path) == ()
    (tmp_path / "build.json").write_text(json.dumps({"layers": ["sha256:a", "sha256:b"]}))
    assert records.recorded_layers(tmp_path) == ("sha256:a", "sha256:b")
