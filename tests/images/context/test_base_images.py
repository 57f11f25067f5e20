"""Digests that base images are pinned to."""

import pytest

from images.context.base_images import load_pins
from images.errors import UserError


def test_pins_are_read() -> None:
    assert load_pins("") == {}
    assert load_pins("debian:bookworm-slim: sha256:abc\n") == {"debian:bookworm-slim": "sha256:abc"}


@pytest.mark.parametrize("text", ["- a\n", "a: b\n", "a: [\n"])
def test_a_broken_pin_file_is_said(text: str) -> None:
    with pytest.raises(UserError, match=r"python -m tools\.pin"):
        load_pins(text)
