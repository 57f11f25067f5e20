"""From where an image's recipe is known: from a build, or from its labels; and why it is not."""

from pathlib import Path
from typing import Any

import pytest

from images.config.paths import CHECKOUT
from images.context import labels, origin
from images.context.labels import BaseContext
from images.locking import debian, layer_record, lock_file
from images.locking.layer_record import RecordedLayer
from images.planning import plan
from images.planning.image import Image
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.sources import SOURCES
from validate.checks.static import host_origin
from validate.checks.static.host_origin import MeasuredLayer, OriginEvidence
from validate.claims import ORIGIN_PROBE, Claim
from validate.judging import Status

NAME = "cu126-torch25"
(PLANNED,) = plan.select([NAME], SOURCES)
assert PLANNED.image is not None
IMAGE: Image = PLANNED.image
LOCK = lock_file.read(IMAGE, CHECKOUT.locks)
MISSING = {"flash-attn": "not fetched"}
BASE_LABELS = {
    "base": "truetag-base:bookworm",
    "base_origin": "bootstrapped",
    "base_digest": "sha256:1",
}
"""The labels of an image on a base that was made of Debian packages."""


def origin_of_labels(locks: Path = CHECKOUT.locks, **labels: str) -> origin.Origin:
    """Return the origin of an image with these labels, of which underscores stand for dashes."""
    full_labels = {f"dev.truetag.{name.replace('_', '-')}": text for name, text in labels.items()}
    return origin.of_labels(IMAGE, LOCK, full_labels, locks, wheels={}, missing=MISSING)


def origin_of_build(**base: Any) -> origin.Origin:
    """Return the origin of an image that is built on this base."""
    context = BaseContext(**base)
    return origin.of_build(IMAGE, LOCK, context, CHECKOUT.locks, wheels={}, missing=MISSING)


def claim_of(image_origin: origin.Origin) -> Claim:
    """Return the claim about an image of this origin."""
    context = ClaimContext.from_lock(
        IMAGE, LOCK, SOURCES.facts, missing=MISSING, origin=image_origin
    )
    (claim,) = image_claims(context).measured_by([ORIGIN_PROBE]).claims
    return claim


# --- today's recipe -------------------------------------------------------------------------------


def test_a_build_and_the_labels_of_its_image_give_the_same_recipe() -> None:
    packages = debian.require(IMAGE.base, CHECKOUT.locks)
    of_build = origin_of_build(
        reference="truetag-base:bookworm",
        origin="bootstrapped",
        packages=packages.serialize_only(packages.layer),
        digest="sha256:1",
    )

    assert of_build.recipe is not None
    assert not of_build.unknown
    assert of_build.recipe == origin_of_labels(**BASE_LABELS).recipe


def test_the_layers_of_todays_recipe_are_recorded_and_required() -> None:
    """This image is the one that the README builds."""
    claim = claim_of(origin_of_labels(**BASE_LABELS))

    layers = claim.expect["layers"]
    assert [row["layer"] for row in layers][:3] == ["base", "debian", "cuda"]
    assert all(len(row["builds"]) >= 2 for row in layers)
    assert claim.expect["arguments"] == NAME
    assert claim.required
    assert not claim.unproven


def test_an_images_own_copy_of_its_claims_has_none_about_its_origin() -> None:
    """A record of layers may change while the image stays."""
    context = ClaimContext.from_lock(IMAGE, LOCK, SOURCES.facts, missing=MISSING)

    assert not image_claims(context).measured_by([ORIGIN_PROBE]).claims


# --- bases of which too little is known -----------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"base": "debian:x", "base_origin": "tag"}, "its base was taken by the tag debian:x"),
        ({}, f"`nox -s build -- {NAME}` builds one that does"),
    ],
    ids=["a base by its tag", "no label about the base"],
)
def test_an_unknown_recipe_leaves_the_claim_unproven_with_the_next_step(
    labels: dict[str, str], reason: str
) -> None:
    image_origin = origin_of_labels(**labels)
    claim = claim_of(image_origin)

    assert image_origin.recipe is None
    assert reason in image_origin.unknown
    assert claim.unproven == image_origin.unknown
    assert claim.required


@pytest.mark.parametrize("base_origin", ["tag", ""])
def test_a_recorded_recipe_in_a_label_proves_nothing_on_an_unknown_base(base_origin: str) -> None:
    record = layer_record.read(CHECKOUT.locks)
    recorded_recipe = next(
        recipe
        for recipe, layer in record.items()
        if layer.layer == "settings" and layer.builds[0].image == NAME
    )

    image_origin = origin_of_labels(
        base="debian:x", base_origin=base_origin, recipe=recorded_recipe
    )

    assert image_origin.recipe is None
    assert image_origin.unknown


def test_the_labels_of_an_image_on_a_custom_base_name_the_recipe_of_its_build() -> None:
    python = "/opt/python/bin/python3.11"
    of_build = origin_of_build(reference="mine", origin="custom", digest="sha256:1", python=python)

    of_labels = origin_of_labels(
        base="mine", base_origin="custom", base_digest="sha256:1", base_python=python
    )

    assert of_build.recipe
    assert of_build.recipe == of_labels.recipe
    without_python = origin_of_labels(base="mine", base_origin="custom", base_digest="sha256:1")
    assert of_build.recipe != without_python.recipe


def test_the_labels_of_an_image_on_a_base_without_apt_name_the_recipe_of_its_build() -> None:
    base = BaseContext(
        reference="mine", origin="custom", digest="sha256:1", python="/opt/python", has_apt=False
    )
    image_labels = labels.labels(IMAGE, base, missing={})

    assert BaseContext.from_labels(image_labels) == base


def test_a_build_on_a_custom_base_has_the_recipe_of_that_base() -> None:
    on_one = origin_of_build(reference="mine", origin="custom", digest="sha256:1")
    on_another = origin_of_build(reference="mine", origin="custom", digest="sha256:2")

    assert on_one.recipe
    assert on_another.recipe
    assert on_one.recipe.digest != on_another.recipe.digest
    expect = claim_of(on_one).expect
    assert expect["arguments"] == f"{NAME} --base mine"
    assert not any(row["builds"] for row in expect["layers"]), "nobody recorded such a build"


# --- an image that was built before a template was edited -----------------------------------------


OLD = "of the recipe before the edit: "
OTHER_IMAGE = "cu126-torch27"
OTHER_BYTES = "sha256:" + "0" * 64


def write_old_record(locks: Path, image: str = NAME, builds: int = 2) -> dict[str, RecordedLayer]:
    """Record an image's layers by recipes that no checkout of today has; return the record.

    `image` is the image that was built, `builds` how often. The record also has a layer of another
    image, with which this one shares its lowest layer.
    """
    (locks / "debian").symlink_to(CHECKOUT.locks / "debian")
    record_of_today = layer_record.read(CHECKOUT.locks)
    builds_of_image = []
    for number in range(builds):
        build = layer_record.Build(
            id=f"{image} {number}", image=image, on="an engine", date="2026-11-28"
        )
        builds_of_image.append(build)
    record = {}
    for row in claim_of(origin_of_labels(**BASE_LABELS)).expect["layers"]:
        layer = record_of_today[row["recipe"]]
        changes = {"builds": tuple(builds_of_image)}
        record[OLD + row["layer"]] = layer.model_copy(update=changes)

    build_of_other = layer_record.Build(
        id="other", image=OTHER_IMAGE, on="an engine", date="2026-11-28"
    )
    base = record[f"{OLD}base"]
    shared = {"builds": (*base.builds, build_of_other)}
    record[f"{OLD}base"] = base.model_copy(update=shared)
    only_of_other = {"layer": "torch", "builds": (build_of_other,)}
    record["of another image"] = base.model_copy(update=only_of_other)
    layer_record.write(record, locks)
    return record


def claim_of_old_image(locks: Path) -> Claim:
    """Return the claim about an image that names the old recipe in its label."""
    return claim_of(origin_of_labels(locks, **BASE_LABELS, recipe=f"{OLD}settings"))


def judge(claim: Claim, record: dict[str, RecordedLayer], **other_layers: str) -> Status:
    """Judge an image with the recorded layers, of which some are others (name -> diff ID)."""
    layers = {}
    for recipe, row in record.items():
        if recipe.startswith(OLD):
            layers[row.layer] = row.diff_id
    layers |= other_layers
    evidence = OriginEvidence(
        recipe=f"{OLD}settings",
        layers=[MeasuredLayer(layer=layer, diff_id=diff_id) for layer, diff_id in layers.items()],
        canonical=True,
        beside_suite=[],
        changes=[],
    )
    expectation = host_origin.OriginExpectation(**claim.expect)  # type: ignore[typeddict-item]
    return host_origin.judge("layers", expectation, evidence).status


def test_an_image_with_the_layers_of_its_own_older_recipe_passes(tmp_path: Path) -> None:
    record = write_old_record(tmp_path)

    claim = claim_of_old_image(tmp_path)

    assert claim.expect["layers"][-1]["layer"] == "settings"
    assert judge(claim, record) is Status.PASS


@pytest.mark.parametrize(
    "other_layer",
    [{"torch": OTHER_BYTES}, {"more": OTHER_BYTES}],
    ids=["a layer of other bytes", "a layer that no step of the recipe makes"],
)
def test_an_image_with_another_layer_than_its_older_recipe_gave_fails(
    tmp_path: Path, other_layer: dict[str, str]
) -> None:
    record = write_old_record(tmp_path)

    assert judge(claim_of_old_image(tmp_path), record, **other_layer) is Status.FAIL


@pytest.mark.parametrize(
    "recorded",
    [{"builds": 1}, {"image": OTHER_IMAGE}],
    ids=["built only once", "of another image"],
)
def test_an_older_recipe_that_proves_nothing_leaves_the_claim_unproven(
    tmp_path: Path, recorded: dict[str, Any]
) -> None:
    record = write_old_record(tmp_path, **recorded)

    assert judge(claim_of_old_image(tmp_path), record) is Status.UNPROVEN
