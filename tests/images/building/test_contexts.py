"""Build contexts: offline no official wheel is fetched, and a custom base has the claims of one."""

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
from images.planning.image import Image
from images.validation.claims import image_claims
from images.wheels import prebuilt
from images.wheels.prebuilt import Gathered, NotFetched
from tests.support import sources
from tests.support.sources import SOURCES
from validate.claims import ORIGIN_PROBE

NO_WHEELS = Gathered(files={}, missing={}, details={})


class StopBuild(Exception):  # noqa: N818  # no error: the build need not go on
    """The test has seen enough."""


def options(folder: Path, **further: Any) -> BuildOptions:
    return BuildOptions(sources=SOURCES, host=HostSettings(), out=folder, cache=folder, **further)


def prepare(image: Image, base: BaseContext, build_options: BuildOptions) -> contexts.Prepared:
    lock = lock_file.read(image, CHECKOUT.locks)
    return contexts.prepare(image, lock, base, build_options)


def test_a_custom_base_without_python_has_the_claims_of_a_custom_base(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They expected the label `pruned` of an arch image, which is not given on a custom base."""
    monkeypatch.setattr(prebuilt, "gather", lambda _image, **_sources: NO_WHEELS)
    arch_image = sources.image("cu126-torch27-sm90")
    base = BaseContext(reference="registry.example/own:1", origin="custom", python="")

    prepared = prepare(arch_image, base, options(tmp_path))

    (about_labels,) = image_claims(prepared.claim_context).named_by(["image/labels"]).claims
    labels_of_build = image_labels.labels(arch_image, base, missing={})
    assert about_labels.expect["labels"].items() <= labels_of_build.items()


@pytest.mark.parametrize("has_wheelhouse", [True, False])
def test_the_command_that_records_an_image_keeps_the_wheelhouse_of_its_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_wheelhouse: bool
) -> None:
    monkeypatch.setattr(prebuilt, "gather", lambda _image, **_sources: NO_WHEELS)
    base = BaseContext(reference="mine", origin="custom", digest="sha256:1")
    wheelhouse = tmp_path if has_wheelhouse else None

    prepared = prepare(
        sources.image("cu126-torch27"), base, options(tmp_path, wheelhouse=wheelhouse)
    )

    (about_origin,) = image_claims(prepared.claim_context).measured_by([ORIGIN_PROBE]).claims
    further = " --wheelhouse FOLDER" if has_wheelhouse else ""
    assert about_origin.expect["arguments"] == f"cu126-torch27 --base mine{further}"
    # Claims are published: the folder's path is nobody's business.
    assert str(tmp_path) not in str(about_origin.expect)


def test_an_offline_build_fetches_no_official_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = sources.image("cu126-torch27")
    base = BaseContext(reference="debian:bookworm-slim", origin="tag")
    obtain_functions: list[Any] = []

    def gather(_image: object, *, official: object, **_sources: object) -> None:
        obtain_functions.append(official)
        raise StopBuild

    monkeypatch.setattr(prebuilt, "gather", gather)
    with pytest.raises(StopBuild):
        prepare(image, base, options(tmp_path, offline=True))
    (obtain,) = obtain_functions

    with pytest.raises(NotFetched, match="--offline reaches no network"):
        obtain(image.prebuilt[0])
