"""`publish`: the images of a row, whose claims hold for which, and what can't go together."""

from dataclasses import replace
from typing import Literal

import pytest

from images.commands import releases
from images.config.matrix import Sources
from images.context import labels as image_labels
from images.context import origin
from images.context.labels import BaseContext
from images.context.recipe import ImageRecipe, LayerRecipe
from images.engine.gpus import Attachment
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.locking import layer_record, lock_file
from images.planning import plan
from images.publish import gate
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support import attested
from tests.support.commands import call
from tests.support.sources import SOURCES, image
from validate.claims import ORIGIN_PROBE
from validate.evidence import Evidence

AMD64, ARM64 = "cu130-torch211", "cu130-torch211-arm64"
RUN = attested.evidence()


def test_the_images_of_a_row() -> None:
    rows = {AMD64: (AMD64, ARM64), ARM64: (AMD64, ARM64)}
    rows |= {name: (name,) for name in ("cu126-torch27", "cu130-torch211-py314")}
    assert {name: releases.row_of(name, SOURCES) for name in rows} == rows


def changed(**keys: object) -> Sources:
    """The matrix with other values of some keys: all its images are of another revision."""
    return replace(SOURCES, matrix=SOURCES.matrix.model_copy(update=keys))


@pytest.mark.parametrize(("revision", "held_to"), [("", ARM64), ("of another matrix", "")])
def test_another_image_of_the_row_that_was_published_before_is_held_to_its_own_row(
    revision: str, held_to: str
) -> None:
    labels = {
        "dev.truetag.image": ARM64,
        "dev.truetag.matrix-revision": revision or image(ARM64).revision,
    }
    found = releases.claims_of_published(labels, RUN, SOURCES)
    assert (found.image if found else "") == held_to


def built(name: str, **missing: str) -> dict[str, str]:
    """The labels of an image as a build by today's matrix writes them."""
    return image_labels.labels(
        image(name), BaseContext(reference="debian:bookworm-slim", origin="tag"), missing
    )


def test_a_published_image_is_held_to_todays_claims_while_its_own_row_is_the_same() -> None:
    other_alias = changed(aliases={})
    flash_attn = {"flash-attn": "its official wheel could not be fetched"}
    for labels in (built("cu126-torch27"), built("cu126-torch27", **flash_attn), built(ARM64)):
        found = releases.claims_of_published(labels, RUN, other_alias)
        assert labels["dev.truetag.matrix-revision"] != other_alias.revision
        assert found is not None and found.claims == _claims_today(labels, other_alias)


def _claims_today(labels: dict[str, str], sources: Sources = SOURCES) -> tuple[object, ...]:
    return releases.claims_of(
        image(labels["dev.truetag.image"], sources=sources), labels, RUN, sources
    ).claims


@pytest.mark.parametrize("name", ["cu126-torch27", "cu128-torch28-axolotl", ARM64])
@pytest.mark.parametrize("base_origin", ["tag", "custom"])
@pytest.mark.parametrize("wheels", ["known where it is built alone", "missing"])
def test_what_a_build_measures_answers_all_claims_that_a_publication_writes(
    name: str, base_origin: Literal["tag", "custom"], wheels: str
) -> None:
    """By another way, on another machine, and of GPUs that the evidence names: else each image had to be done again."""
    found, h100 = image(name), Gpu(name="NVIDIA H100 80GB HBM3", capability=(9, 0), memory=80 << 30)
    there = Attachment(
        mode=GpuMode.NVIDIA,
        reason="x",
        inventory=Inventory(driver="580.95", gpus=(h100,), source="NVML"),
    )
    optional = (
        {pin.name: "not to be had" for pin in found.pins if pin.optional}
        if wheels == "missing"
        else {}
    )
    outside = {pin.name: "x" for pin in found.pins if not pin.locked} if not optional else {}
    measured_for = ClaimContext.from_lock(
        found,
        lock_file.read(found, SOURCES.workspace.locks),
        SOURCES.facts,
        missing=optional,
        custom_base=base_origin == "custom",
        outside=outside,
    )
    host = {**(there.inventory.as_json() if there.inventory else {}), "attached": there.as_json()}
    claims = image_claims(measured_for.on_host(there, ())).claims
    run = Evidence.loads(
        Evidence(image=name, digest="x", records=(), host=host, claims=claims).dumps()
    )
    labels = image_labels.labels(
        found, BaseContext(reference="debian:bookworm-slim", origin=base_origin), optional
    )
    today = releases.claims_of_published(labels, run, SOURCES)
    assert today
    reasons = {
        one.reason
        for one in gate.judge_by_claims(run, today).claims
        if not one.claim.unproven.startswith("its wheel")
    }
    assert not [one for one in reasons if "other expectations" in one or "no such claim" in one]


def test_a_published_image_is_judged_by_its_own_recipe_after_a_template_was_edited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = layer_record.read(SOURCES.workspace.locks)
    own_recipe = next(
        recipe
        for recipe, row in record.items()
        if row.layer == "settings" and row.builds[0].image == "cu126-torch25"
    )
    edited = ImageRecipe(layers=(LayerRecipe(layer="settings", digest="of the edited template"),))
    monkeypatch.setattr(origin, "image_recipe", lambda *_, **__: edited)

    labels = {**built("cu126-torch25"), "dev.truetag.base-origin": "bootstrapped"}
    by_label = {
        recipe: releases.claims_of_published({**labels, "dev.truetag.recipe": recipe}, RUN, SOURCES)
        for recipe in (own_recipe, "unknown")
    }
    expected = {}
    for recipe, claims in by_label.items():
        assert claims
        expected[recipe] = claims.measured_by([ORIGIN_PROBE]).claims[0].expect
    assert expected[own_recipe]["recipe"] == own_recipe
    assert all(len(row["builds"]) >= 2 for row in expected[own_recipe]["layers"])
    assert expected["unknown"]["recipe"] == "of the edited template"


EDITED = {
    "pins": "{}",
    "archs": "sm_90",
    "min-driver": "1.0",
    "pruned": "sm_90",
    "image": "cu126-torch99",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [*EDITED.items(), ("missing", '{"torch": "nobody may lack it"}'), ("missing", "5")],
)
def test_an_image_of_another_row_has_no_claims_today(key: str, value: str) -> None:
    labels = {**built("cu126-torch27"), f"dev.truetag.{key}": value}
    assert releases.claims_of_published(labels, RUN, changed(aliases={})) is None


def test_an_image_whose_row_has_changed_has_no_claims_today() -> None:
    stacks = {**SOURCES.matrix.stacks, "2.7": {**SOURCES.matrix.stacks["2.7"], "datasets": "4.4.2"}}
    other = changed(stacks=stacks)
    assert plan.select(["cu126-torch27"], other)[0].image
    assert releases.claims_of_published(built("cu126-torch27"), RUN, other) is None


def test_two_names_take_no_option_about_one_image() -> None:
    for option in ("--image", "--attestation"):
        done = call(
            "publish", "cu126-torch25", "cu126-torch27", option, "x", "--to", "registry.test/x"
        )
        assert done.returncode == 2
        assert "--image and --attestation mean one image" in done.stderr
        assert "next: publish each image by a command of its own" in done.stderr
