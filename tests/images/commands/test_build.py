"""The verb `build`: what it says before it builds."""

from types import SimpleNamespace
from typing import Any

import pytest

from images.commands import build, common
from images.context.hosting import HostSettings
from tests.support.sources import SOURCES, image

NAME = "cu126-torch27"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the verb has said so far."""
    texts: list[str] = []
    monkeypatch.setattr(common, "tell", texts.append)
    monkeypatch.setattr(common, "say", texts.append)
    return texts


@pytest.mark.parametrize("offline", [True, False])
def test_only_a_build_with_a_network_is_said_to_download(said: list[str], *, offline: bool) -> None:
    empty_engine: Any = SimpleNamespace(find=lambda _name: None)

    build._tell_sizes(empty_engine, [image(NAME)], SOURCES, offline=offline)

    (text,) = said
    assert text.startswith(f"{NAME}: ")
    assert " GB in its last recorded build" in text
    assert ("are downloaded" in text) is not offline


def test_no_warning_is_said_to_have_a_way_out_that_it_does_not_name(said: list[str]) -> None:
    of_image = image("cu128-torch28")
    assert any("in the issues" in text for text in of_image.warnings)

    build._print_warnings([of_image], HostSettings())

    assert said[-1] == "Warnings do not stop the build."
