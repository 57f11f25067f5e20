"""The verb `publish`: rows, which claims hold for which image, and options that clash."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from images.commands import releases
from images.config.matrix import Sources
from images.config.paths import Workspace
from images.context import labels as image_labels
from images.context import origin
from images.context.labels import BaseContext
from images.context.recipe import ImageRecipe, LayerRecipe
from images.engine.gpus import Attachment
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.locking import layer_record, lock_file
from images.planning import plan
from images.planning.image import Image
from images.publish import gate
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support import attested
from tests.support.commands import call
from tests.support.sources import SOURCES, image
from validate.claims import ORIGIN_PROBE, Tier
from validate.evidence import Evidence

AMD64, ARM64 = "cu130-torch211", "cu130-torch211-arm64"
RUN = attested.evidence()


def sources_with(**of_matrix: object) -> Sources:
    """Return the matrix with other values of some keys: all its images have another revision."""
    return replace(SOURCES, matrix=SOURCES.matrix.model_copy(update=of_matrix))


OTHER_REVISION = sources_with(aliases={})
"""A matrix of another revision, with the same images."""


def labels_of_build(
    name: str, origin: Literal["tag", "custom"] = "tag", missing: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the labels that a build by today's matrix writes."""
    base = BaseContext(reference="debian:bookworm-slim", origin=origin)
    return image_labels.labels(image(name), base, missing or {})


# --- rows of the matrix ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "row"),
    [
        (AMD64, (AMD64, ARM64)),
        (ARM64, (AMD64, ARM64)),
        ("cu126-torch27", ("cu126-torch27",)),
        ("cu130-torch211-py314", ("cu130-torch211-py314",)),  # no row makes it
    ],
)
def test_a_row_has_an_image_for_each_of_its_platforms(name: str, row: tuple[str, ...]) -> None:
    assert releases.row_of(name, SOURCES) == row


# --- today's claims for a published image ---------------------------------------------------------


def test_an_image_of_todays_revision_is_held_to_its_claims() -> None:
    labels = {
        "dev.truetag.image": ARM64,
        "dev.truetag.matrix-revision": image(ARM64).revision,
    }

    claims = releases.claims_of_published(labels, RUN, SOURCES)

    assert claims
    assert claims.image == ARM64


def test_an_image_of_another_revision_has_no_claims_unless_its_labels_are_todays() -> None:
    labels = {"dev.truetag.image": ARM64, "dev.truetag.matrix-revision": "of another matrix"}

    assert releases.claims_of_published(labels, RUN, SOURCES) is None


@pytest.mark.parametrize(
    "labels",
    [
        labels_of_build("cu126-torch27"),
        labels_of_build(
            "cu126-torch27", missing={"flash-attn": "its official wheel could not be fetched"}
        ),
        labels_of_build(ARM64),
    ],
    ids=["with everything", "without an optional package", "for arm64"],
)
def test_an_image_whose_row_is_unchanged_is_held_to_todays_claims(labels: dict[str, str]) -> None:
    assert labels["dev.truetag.matrix-revision"] != OTHER_REVISION.revision

    claims = releases.claims_of_published(labels, RUN, OTHER_REVISION)

    today = image(labels["dev.truetag.image"], sources=OTHER_REVISION)
    assert claims is not None
    assert claims.claims == releases.claims_of(today, labels, RUN, OTHER_REVISION).claims


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("pins", "{}"),
        ("archs", "sm_90"),
        ("min-driver", "1.0"),
        ("pruned", "sm_90"),
        ("image", "cu126-torch99"),
        ("missing", '{"torch": "nobody may lack it"}'),
        ("missing", "5"),
    ],
)
def test_an_image_with_another_label_than_todays_has_no_claims(label: str, value: str) -> None:
    labels = {**labels_of_build("cu126-torch27"), f"dev.truetag.{label}": value}

    assert releases.claims_of_published(labels, RUN, OTHER_REVISION) is None


def test_an_image_whose_row_has_changed_has_no_claims() -> None:
    stack = {**SOURCES.matrix.stacks["2.7"], "datasets": "4.4.2"}
    with_moved_pin = sources_with(stacks={**SOURCES.matrix.stacks, "2.7": stack})
    assert plan.select(["cu126-torch27"], with_moved_pin)[0].image

    labels = labels_of_build("cu126-torch27")

    assert releases.claims_of_published(labels, RUN, with_moved_pin) is None


@pytest.mark.parametrize(
    ("folder", "cause"),
    [("empty", "has no lock"), ("stale", "this lock was made for something else")],
)
def test_an_image_without_a_current_lock_has_no_claims_and_the_next_step_is_lock(
    tmp_path: Path, folder: str, cause: str
) -> None:
    # given a folder with no lock, or with one that was made for another Python
    name = "cu126-torch25"
    workspace = Workspace(tmp_path / "matrix.yaml")
    locks = workspace.locks
    locks.mkdir()
    if folder == "stale":
        shutil.copytree(SOURCES.workspace.locks / name, locks / name)
        record = locks / name / "lock.json"
        record.write_text(record.read_text().replace('"python": "3.11"', '"python": "3.10"'))
    sources = replace(SOURCES, workspace=workspace)
    policy = releases.policy_of_published("", sources)

    refusals = policy.refusals(labels_of_build(name), [replace(RUN, image=name)], [Tier.STATIC])

    assert len(refusals) == 1
    assert cause in refusals[0]
    assert f"lock -- {name}`" in refusals[0]


# --- claims of the build, and of the publication --------------------------------------------------


H100 = Gpu(name="NVIDIA H100 80GB HBM3", capability=(9, 0), memory=80 << 30)
INVENTORY = Inventory(driver="580.95", gpus=(H100,), source="NVML")
WITH_H100 = Attachment(mode=GpuMode.NVIDIA, reason="x", inventory=INVENTORY)


def run_of_build(image: Image, context: ClaimContext) -> Evidence:
    """Return evidence with the claims that a build writes on a machine with an H100."""
    claims = image_claims(context.on_host(WITH_H100, ())).claims
    host = {**INVENTORY.as_json(), "attached": WITH_H100.as_json()}
    evidence = Evidence(image=str(image.name), digest="x", records=(), host=host, claims=claims)
    return Evidence.loads(evidence.dumps())


@pytest.mark.parametrize("name", ["cu126-torch27", "cu128-torch28-axolotl", ARM64])
@pytest.mark.parametrize("base_origin", ["tag", "custom"])
@pytest.mark.parametrize("has_optional_packages", [True, False], ids=["all wheels", "no optional"])
def test_what_a_build_measures_answers_all_claims_that_a_publication_writes(
    name: str, base_origin: Literal["tag", "custom"], has_optional_packages: bool
) -> None:
    """The publication writes them on another machine, and without the wheels of the build.

    If they differed, each image would have to be validated again.
    """
    built = image(name)
    missing: dict[str, str] = {}
    # Distribution -> digest of the RECORD of a wheel that only the machine of the build has.
    records_of_own_wheels: dict[str, str] = {}
    for pin in built.pins:
        if has_optional_packages and not pin.locked:
            records_of_own_wheels[pin.name] = "x"
        elif not has_optional_packages and pin.optional:
            missing[pin.name] = "not to be had"
    context = ClaimContext.from_lock(
        built,
        lock_file.read(built, SOURCES.workspace.locks),
        SOURCES.facts,
        missing=missing,
        custom_base=base_origin == "custom",
        outside=records_of_own_wheels,
    )
    run = run_of_build(built, context)

    labels = labels_of_build(name, base_origin, missing)
    claims_of_publication = releases.claims_of_published(labels, run, SOURCES)

    assert claims_of_publication
    for judgement in gate.judge_by_claims(run, claims_of_publication).claims:
        # The context above has no origin, as that of a build has: nothing to compare is claimed.
        if judgement.claim.probe == ORIGIN_PROBE:
            continue
        if not judgement.claim.unproven.startswith("its wheel"):
            assert "is expected of the image has changed" not in judgement.reason, (
                judgement.claim.key
            )
            assert "no such claim" not in judgement.reason, judgement.claim.key


# --- the origin of layers, after a template was edited --------------------------------------------


@pytest.fixture
def edited_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every image have another recipe today than the recorded ones."""
    edited = ImageRecipe(layers=(LayerRecipe(layer="settings", digest="of the edited template"),))
    monkeypatch.setattr(origin, "image_recipe", lambda *_, **__: edited)


def recorded_recipe(name: str) -> str:
    """Return the recipe of an image in locks/layers.json."""
    record = layer_record.read(SOURCES.workspace.locks)
    return next(
        recipe
        for recipe, row in record.items()
        if row.layer == "settings" and row.builds[0].image == name
    )


def expected_origin(recipe_in_label: str) -> dict[str, object]:
    """Return what the claim about the origin of an image with this recipe in its label expects."""
    labels = {
        **labels_of_build("cu126-torch25"),
        "dev.truetag.base-origin": "bootstrapped",
        "dev.truetag.recipe": recipe_in_label,
    }
    claims = releases.claims_of_published(labels, RUN, SOURCES)
    assert claims
    (claim,) = claims.measured_by([ORIGIN_PROBE]).claims
    return dict(claim.expect)


@pytest.mark.usefixtures("edited_template")
def test_an_image_with_a_recorded_recipe_is_judged_by_that() -> None:
    recipe = recorded_recipe("cu126-torch25")

    expect = expected_origin(recipe)

    assert expect["recipe"] == recipe
    layers = expect["layers"]
    assert isinstance(layers, list)
    assert all(len(row["builds"]) >= 2 for row in layers)


@pytest.mark.usefixtures("edited_template")
def test_an_image_with_an_unknown_recipe_is_judged_by_todays() -> None:
    assert expected_origin("unknown")["recipe"] == "of the edited template"


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--image", "--attestation"])
def test_an_option_about_one_image_does_not_go_with_two_names(option: str) -> None:
    names = ("cu126-torch25", "cu126-torch27")

    finished = call("publish", *names, option, "x", "--to", "registry.test/x")

    assert finished.returncode == 2
    assert "--image and --attestation are for one image, and 2 are named" in finished.stderr
    assert "next: publish each image by a command of its own" in finished.stderr


def test_without_a_matrix_only_the_option_says_which_tiers_must_have_passed() -> None:
    assert releases.policy_of_published("", None).gate_is_assumed
    assert not releases.policy_of_published("static,cpu", None).gate_is_assumed
    assert not releases.policy_of_published("", SOURCES).gate_is_assumed
