"""Platforms: part of a name, a key of a row, and no change for images of linux/amd64."""

import dataclasses

import pytest

from images.config.facts import Arm64Facts
from images.config.platforms import Platform, of_machine
from images.config.schema import ImageRow
from tests.support.sources import SOURCES


def test_a_row_has_one_image_for_each_of_its_platforms() -> None:
    platforms = [Platform.AMD64, Platform.ARM64, Platform.ARM64]

    row = ImageRow(name="cu130-torch211", platforms=platforms)

    assert [str(name) for name in row.names()] == ["cu130-torch211", "cu130-torch211-arm64"]


def test_the_name_of_a_row_has_no_platform() -> None:
    with pytest.raises(ValueError, match="list linux/arm64 under `platforms`"):
        ImageRow(name="cu130-torch211-arm64")


@pytest.mark.parametrize(
    ("machine", "platform"),
    [
        ("x86_64", Platform.AMD64),
        ("amd64", Platform.AMD64),
        ("aarch64", Platform.ARM64),
        ("arm64", Platform.ARM64),
        ("riscv64", None),
    ],
)
def test_a_machine_is_known_by_each_of_its_names(machine: str, platform: Platform | None) -> None:
    assert of_machine(machine) is platform


# --- what arm64 changes ---------------------------------------------------------------------------


AMD64_ROWS = [
    row.model_copy(update={"platforms": [Platform.AMD64]}) for row in SOURCES.matrix.images
]
WITHOUT_ARM64 = dataclasses.replace(
    SOURCES,
    matrix=SOURCES.matrix.model_copy(update={"images": AMD64_ROWS}),
    facts=SOURCES.facts.model_copy(update={"arm64": Arm64Facts()}),
)


def test_images_and_facts_of_arm64_do_not_change_the_revision_of_amd64() -> None:
    assert WITHOUT_ARM64.revision == SOURCES.revision
    assert SOURCES.revision == SOURCES.revision_on(Platform.AMD64)


def test_facts_of_arm64_change_the_revision_of_arm64() -> None:
    revision = SOURCES.revision_on(Platform.ARM64)

    assert revision != WITHOUT_ARM64.revision_on(Platform.ARM64)
    assert revision != SOURCES.revision


def test_facts_for_arm64_are_what_was_measured_there() -> None:
    facts = SOURCES.facts.on(Platform.ARM64)

    assert set(facts.torch) == set(SOURCES.facts.arm64.torch)
    assert set(facts.torch) < set(SOURCES.facts.torch)
    assert facts.torch["2.11.0"].variants["13.0"].archs == ["8.0", "9.0", "10.0", "11.0", "12.0"]
    assert "12.1" in facts.bitsandbytes["0.50.2"].libraries["13.0"].archs
    assert facts.xformers == {}, "nothing was measured"
    assert facts.prebuilt == [], "nothing was measured"


def test_facts_for_a_platform_are_the_same_if_they_are_asked_for_twice() -> None:
    facts = SOURCES.facts.on(Platform.ARM64)

    assert facts.on(Platform.ARM64) == facts
    assert SOURCES.facts.on(Platform.AMD64) is SOURCES.facts
