"""Build contexts: offline no official wheel is fetched; a custom base has the claims of one."""

from pathlib import Path
from typing import Any

import pytest

from images.building import contexts
from images.building.contexts import BuildOptions
from images.config.paths import CHECKOUT
from images.context import labels as image_labels
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.locking import lock_file
from images.validation.claims import image_claims
from images.wheels import prebuilt
from images.wheels.prebuilt import NotFetched
from tests.support import sources
from tests.support.sources import SOURCES


class Enough(Exception):  # noqa: N818  # said as an outcome
    """The build need not go on."""


def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **options: Any) -> Any:
    """What a build with these options asks for official wheels."""
    asked: list[Any] = []

    def gather(_image: object, *, official: object, **_more: object) -> None:
        asked.append(official)
        raise Enough

    monkeypatch.setattr(prebuilt, "gather", gather)
    image = sources.image("cu126-torch27")
    known = BuildOptions(
        sources=SOURCES, host=HostSettings(), out=tmp_path, cache=tmp_path, **options
    )
    base = BaseContext(reference="debian:bookworm-slim", origin="tag")
    with pytest.raises(Enough):
        contexts.prepare(image, lock_file.read(image, CHECKOUT.locks), base, known)
    return asked[0]


def test_a_custom_base_without_python_has_the_claims_of_a_custom_base(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They expected the label `pruned` of an arch image, which is not given on a custom base."""
    no_wheels = prebuilt.Gathered(files={}, missing={}, details={})
    monkeypatch.setattr(prebuilt, "gather", lambda _image, **_sources: no_wheels)
    arch_image = sources.image("cu126-torch27-sm90")
    base = BaseContext(reference="registry.example/own:1", origin="custom", python="")
    options = BuildOptions(sources=SOURCES, host=HostSettings(), out=tmp_path, cache=tmp_path)

    lock = lock_file.read(arch_image, CHECKOUT.locks)
    prepared = contexts.prepare(arch_image, lock, base, options)

    (about_labels,) = image_claims(prepared.claim_context).named_by(["image/labels"]).claims
    labels_of_build = image_labels.labels(arch_image, base, missing={})
    assert about_labels.expect["labels"].items() <= labels_of_build.items()


def test_offline_fetches_no_official_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(NotFetched, match="--offline reaches no network"):
        source(monkeypatch, tmp_path, offline=True)(sources.image("cu126-torch27").prebuilt[0])
