"""Where an image's recipe is known from: a build, or its labels; and why it is not."""

from typing import Any

import pytest

from images.config.paths import CHECKOUT
from images.context import origin
from images.context.labels import BaseContext
from images.locking import debian, lock_file
from images.planning import plan
from images.planning.image import Image
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support.sources import SOURCES
from validate.claims import ORIGIN_PROBE, Claim

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
    context = ClaimContext.of(IMAGE, LOCK, SOURCES.facts, missing=MISSING, origin=found)
    (made,) = image_claims(context).only([ORIGIN_PROBE]).claims
    return made


def test_the_labels_of_an_image_and_its_build_give_one_recipe_and_that_is_recorded() -> None:
    packages = debian.require(IMAGE.base, CHECKOUT.locks)
    made = {"origin": "bootstrapped", "packages": packages.part(packages.layer), "digest": "sha256:1"}
    built = of_build(reference="truetag-base:bookworm", **made)
    labelled = of_labels(base="truetag-base:bookworm", base_origin="bootstrapped", base_digest="sha256:1")
    assert built.recipe == labelled.recipe and built.recipe is not None and not built.unknown
    expect = claim(built).expect
    assert [row["layer"] for row in expect["layers"]][:3] == ["base", "debian", "cuda"]
    assert all(len(row["builds"]) >= 2 for row in expect["layers"]), "README's image is recorded"
    assert expect["arguments"] == NAME and claim(built).required and not claim(built).unproven


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({"base": "debian:x", "base_origin": "tag"}, "its base was taken by the tag debian:x"),
        ({"base": "mine", "base_origin": "custom"}, f"`nox -s build -- {NAME} --base mine` reads it"),
        ({}, f"`nox -s build -- {NAME}` builds one that does"),
    ],
)
def test_why_a_recipe_is_not_known_is_said_with_the_next_step(labels: dict[str, str], why: str) -> None:
    found = of_labels(**labels)
    assert found.recipe is None and why in found.unknown
    assert claim(found).unproven == found.unknown and claim(found).required


def test_a_build_on_a_custom_base_has_a_recipe_of_its_own_and_the_command_names_the_base() -> None:
    one, other = (of_build(reference="mine", origin="custom", digest=digest) for digest in ("sha256:1", "sha256:2"))
    assert one.recipe and other.recipe and one.recipe.digest != other.recipe.digest
    expect = claim(one).expect
    assert expect["arguments"] == f"{NAME} --base mine" and not any(row["builds"] for row in expect["layers"])


def test_the_images_own_copy_of_its_claims_has_none_about_its_origin() -> None:
    context = ClaimContext.of(IMAGE, LOCK, SOURCES.facts, missing=MISSING)
    assert not image_claims(context).only([ORIGIN_PROBE]).claims
