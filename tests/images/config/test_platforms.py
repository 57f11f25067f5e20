"""Platforms: part of a name, a key of a row, and nothing that moves images of linux/amd64."""

import dataclasses

import pytest

from images.config.facts import Arm64Facts
from images.config.platforms import Platform, of_machine
from images.config.schema import ImageRow
from tests.support.sources import SOURCES


def test_a_row_has_an_image_for_each_of_its_platforms_once() -> None:
    row = ImageRow(
        name="cu130-torch211", platforms=[Platform.AMD64, Platform.ARM64, Platform.ARM64]
    )
    assert [str(name) for name in row.names()] == ["cu130-torch211", "cu130-torch211-arm64"]
    with pytest.raises(ValueError, match="list it under `platforms`"):
        ImageRow(name="cu130-torch211-arm64")


def test_machines_are_known_by_all_their_names() -> None:
    known = {
        "x86_64": Platform.AMD64,
        "amd64": Platform.AMD64,
        "aarch64": Platform.ARM64,
        "arm64": Platform.ARM64,
    }
    assert {name: of_machine(name) for name in (*known, "riscv64")} == {**known, "riscv64": None}


def test_what_arm64_adds_moves_no_revision_of_amd64_and_its_own() -> None:
    rows = [row.model_copy(update={"platforms": [Platform.AMD64]}) for row in SOURCES.matrix.images]
    without = dataclasses.replace(
        SOURCES,
        matrix=SOURCES.matrix.model_copy(update={"images": rows}),
        facts=SOURCES.facts.model_copy(update={"arm64": Arm64Facts()}),
    )
    assert without.revision == SOURCES.revision == SOURCES.revision_on(Platform.AMD64)
    assert (
        without.revision_on(Platform.ARM64)
        != SOURCES.revision_on(Platform.ARM64)
        != SOURCES.revision
    )


def test_facts_of_a_platform_are_what_was_measured_there_alone() -> None:
    facts = SOURCES.facts.on(Platform.ARM64)
    assert set(facts.torch) == set(SOURCES.facts.arm64.torch) < set(SOURCES.facts.torch)
    assert facts.torch["2.11.0"].variants["13.0"].archs == ["8.0", "9.0", "10.0", "11.0", "12.0"]
    assert "12.1" in facts.bitsandbytes["0.50.2"].libraries["13.0"].archs
    assert (facts.xformers, facts.prebuilt) == ({}, [])
    assert facts.on(Platform.ARM64) == facts
    assert SOURCES.facts.on(Platform.AMD64) is SOURCES.facts
