"""Where an image's recipe is known from: a build, or its labels; and why it is not."""

from pathlib import Path
from typing import Any

import pytest

from images.config.paths import CHECKOUT
from images.context import origin
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


def of_labels(**labels: str) -> origin.Origin:
    written = {f"dev.truetag.{name.replace('_', '-')}": value for name, value in labels.items()}
    return origin.of_labels(IMAGE, LOCK, written, CHECKOUT.locks, wheels={}, missing=MISSING)


def of_build(**base: Any) -> origin.Origin:
    context = BaseContext(**base)
    return origin.of_build(IMAGE, LOCK, context, CHECKOUT.locks, wheels={}, missing=MISSING)


def claim(found: origin.Origin) -> Claim:
    context = ClaimContext.from_lock(IMAGE, LOCK, SOURCES.facts, missing=MISSING, origin=found)
    (made,) = image_claims(context).measured_by([ORIGIN_PROBE]).claims
    return made


def test_the_labels_of_an_image_and_its_build_give_one_recipe_and_that_is_recorded() -> None:
    packages = debian.require(IMAGE.base, CHECKOUT.locks)
    made = {
        "origin": "bootstrapped",
        "packages": packages.serialize_only(packages.layer),
        "digest": "sha256:1",
    }
    built = of_build(reference="truetag-base:bookworm", **made)
    labelled = of_labels(
        base="truetag-base:bookworm", base_origin="bootstrapped", base_digest="sha256:1"
    )
    assert built.recipe == labelled.recipe and built.recipe is not None and not built.unknown
    expect = claim(built).expect
    assert [row["layer"] for row in expect["layers"]][:3] == ["base", "debian", "cuda"]
    assert all(len(row["builds"]) >= 2 for row in expect["layers"]), "README's image is recorded"
    assert expect["arguments"] == NAME and claim(built).required and not claim(built).unproven


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"base": "debian:x", "base_origin": "tag"}, "its base was taken by the tag debian:x"),
        (
            {"base": "mine", "base_origin": "custom"},
            f"`nox -s build -- {NAME} --base mine` reads it",
        ),
        ({}, f"`nox -s build -- {NAME}` builds one that does"),
    ],
)
def test_why_a_recipe_is_not_known_is_said_with_the_next_step(
    labels: dict[str, str], why: str
) -> None:
    found = of_labels(**labels)
    assert found.recipe is None and why in found.unknown
    assert claim(found).unproven == found.unknown and claim(found).required


@pytest.mark.parametrize("base_origin", ["tag", "custom", ""])
def test_a_recorded_recipe_in_a_label_proves_nothing_on_an_unknown_base(base_origin: str) -> None:
    record = layer_record.read(CHECKOUT.locks)
    recorded_recipe = next(
        recipe
        for recipe, layer in record.items()
        if layer.layer == "settings" and layer.builds[0].image == NAME
    )
    found = of_labels(base="debian:x", base_origin=base_origin, recipe=recorded_recipe)
    assert found.recipe is None and found.unknown


def test_a_build_on_a_custom_base_has_a_recipe_of_its_own_and_the_command_names_the_base() -> None:
    one, other = (
        of_build(reference="mine", origin="custom", digest=digest)
        for digest in ("sha256:1", "sha256:2")
    )
    assert one.recipe and other.recipe and one.recipe.digest != other.recipe.digest
    expect = claim(one).expect
    assert expect["arguments"] == f"{NAME} --base mine" and not any(
        row["builds"] for row in expect["layers"]
    )


def test_the_images_own_copy_of_its_claims_has_none_about_its_origin() -> None:
    context = ClaimContext.from_lock(IMAGE, LOCK, SOURCES.facts, missing=MISSING)
    assert not image_claims(context).measured_by([ORIGIN_PROBE]).claims


# --- an image that was built before a template was edited ----------------------------------------------------


BUILT_ON = {
    "base": "truetag-base:bookworm",
    "base_origin": "bootstrapped",
    "base_digest": "sha256:1",
}
OLD = "of the recipe before the edit: "


def recorded_before(locks: Path, image: str = NAME, builds: int = 2) -> dict[str, RecordedLayer]:
    """Record an image's layers by recipes that no checkout of today has, as an edited template leaves them."""
    (locks / "debian").symlink_to(CHECKOUT.locks / "debian")
    today = layer_record.read(CHECKOUT.locks)
    record = {}
    for row in claim(of_labels(**BUILT_ON)).expect["layers"]:
        known = today[row["recipe"]]
        made_twice = tuple(
            layer_record.Build(
                id=f"{image} {number}", image=image, on="an engine", date="2026-11-28"
            )
            for number in range(builds)
        )
        record[OLD + row["layer"]] = known.model_copy(update={"builds": made_twice})
    # Two other images of other recipes: one shares the lowest layer.
    other = layer_record.Build(id="other", image="cu126-torch27", on="an engine", date="2026-11-28")
    base = record[f"{OLD}base"]
    record[f"{OLD}base"] = base.model_copy(update={"builds": (*base.builds, other)})
    record["of another image"] = base.model_copy(update={"layer": "torch", "builds": (other,)})
    layer_record.write(record, locks)
    return record


def claim_of_old_image(locks: Path) -> Claim:
    """Return the claim about an image that names the old recipe in its label."""
    labels = {f"dev.truetag.{name.replace('_', '-')}": value for name, value in BUILT_ON.items()}
    labels["dev.truetag.recipe"] = f"{OLD}settings"
    return claim(origin.of_labels(IMAGE, LOCK, labels, locks, wheels={}, missing=MISSING))


def verdict(expected: Claim, record: dict[str, RecordedLayer], **other: str) -> Status:
    """Judge an image with the recorded layers, and with some others."""
    layers = {
        row.layer: row.diff_id for recipe, row in record.items() if recipe.startswith(OLD)
    } | other
    evidence = OriginEvidence(
        recipe=f"{OLD}settings",
        layers=[MeasuredLayer(layer=layer, diff_id=diff_id) for layer, diff_id in layers.items()],
        canonical=True,
        beside_suite=[],
        changes=[],
    )
    return host_origin.judge(
        "layers", host_origin.OriginExpectation(**expected.expect), evidence
    ).status  # type: ignore[typeddict-item]


def test_an_image_is_judged_by_its_own_recipe_after_a_template_was_edited(tmp_path: Path) -> None:
    record = recorded_before(tmp_path)
    expected = claim_of_old_image(tmp_path)
    assert verdict(expected, record) is Status.PASS
    assert verdict(expected, record, torch="sha256:" + "0" * 64) is Status.FAIL, (
        "its own recipe gave other bytes"
    )
    assert verdict(expected, record, more="sha256:" + "0" * 64) is Status.FAIL, (
        "no step of its recipe makes that"
    )
    assert expected.expect["layers"][-1]["layer"] == "settings"


def test_an_old_recipe_of_one_build_or_of_another_image_proves_nothing(tmp_path: Path) -> None:
    for number, case in enumerate(({"builds": 1}, {"image": "cu126-torch27"})):
        locks = tmp_path / str(number)
        locks.mkdir()
        record = recorded_before(locks, **case)  # type: ignore[arg-type]
        assert verdict(claim_of_old_image(locks), record) is Status.UNPROVEN
