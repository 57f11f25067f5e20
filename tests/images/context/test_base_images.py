"""Digests that base images are pinned to."""

from pathlib import Path

import pytest

from images.context.base_images import PINS_FILE, pinned
from images.errors import UserError


def with_pins(folder: Path, text: str) -> Path:
    (folder / PINS_FILE).parent.mkdir(exist_ok=True)
    (folder / PINS_FILE).write_text(text)
    return folder


def test_pins_are_read(tmp_path: Path) -> None:
    assert pinned(tmp_path) == pinned(with_pins(tmp_path, "")) == {}
    one = with_pins(tmp_path, "debian:bookworm-slim: sha256:abc\n")
    assert pinned(one) == {"debian:bookworm-slim": "sha256:abc"}


@pytest.mark.parametrize("text", ["- a\n", "a: b\n", "a: [\n"])
def test_a_broken_pin_file_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"python -m tools\.pin"):
        pinned(with_pins(tmp_path, text))
