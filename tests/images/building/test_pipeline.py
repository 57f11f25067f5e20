"""What a build decides by itself: which torch wheels are asked for, what is said when the system refuses."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.building import pipeline, validating
from images.context import base_images
from images.context.hosting import HostSettings
from images.engine.progress import Progress
from images.errors import problem_of
from images.planning.image import Image, Pin
from tests.support.custom_bases import SOURCES, image, on


class Enough(Exception):  # noqa: N818  # no error: the build need not go on
    """What was to be seen has been seen."""


def test_on_a_base_that_has_torch_wheels_are_asked_for_the_torch_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel that is compiled here is for one torch, whoever brings that."""
    asked: list[tuple[str, str]] = []

    def compiled(wanted: Image, pin: Pin) -> Path | None:
        torch = wanted.pin("torch")
        asked.append((pin.name, torch.version if torch else ""))
        raise Enough

    monkeypatch.setattr(base_images, "acquire", lambda *_args, **_more: on())
    monkeypatch.setattr(validating, "find_gpus", lambda *_args: ("no GPU", ()))
    options = pipeline.BuildOptions(out=tmp_path, cache=tmp_path, facts=SOURCES.facts, compiled=compiled)
    engine: Any = SimpleNamespace(facts=SimpleNamespace(architecture="amd64"), alone=lambda *_args: nullcontext())
    with pytest.raises(Enough):
        pipeline.build(engine, image(), options, HostSettings(), Progress())
    assert asked == [("flash-attn", "2.7.1")]


def test_what_the_system_refuses_names_the_place_and_the_cause() -> None:
    told = problem_of(PermissionError(13, "Permission denied", "/mnt/out"))
    assert (told.where, told.cause) == ("/mnt/out", "Permission denied")
    assert problem_of(OSError("broke off"), "cu126-torch27").where == "cu126-torch27"
