"""What the input of buildx says of images."""

from images.building import bake
from tests.support.sources import image


def test_each_target_is_of_its_images_platform_and_context() -> None:
    names = ["cu130-torch211", "cu130-torch211-arm64"]
    targets = bake.bake([image(name) for name in names])["target"]
    assert {name: targets[name]["platforms"] for name in targets} == {
        "cu130-torch211": ["linux/amd64"],
        "cu130-torch211-arm64": ["linux/arm64"],
    }
    assert targets[names[0]]["context"] == "cu130-torch211/context"


def test_candidates_are_loaded_or_pushed_without_an_attestation() -> None:
    (target,) = bake.bake([image("cu126-torch27")], "r.test/x")["target"].values()
    assert (target["tags"], target["output"]) == (["r.test/x:cu126-torch27-candidate"], ["type=registry"])
    assert target["attest"] == ["type=provenance,disabled=true"]
    (target,) = bake.bake([image("cu126-torch27")])["target"].values()
    assert (target["tags"], target["output"]) == (["cu126-torch27-candidate"], ["type=docker"])


def test_groups_are_by_profile() -> None:
    images = [image(name) for name in ("cu128-torch28", "cu128-torch28-axolotl", "cu126-torch27")]
    assert {name: group["targets"] for name, group in bake.bake(images)["group"].items()} == {
        "default": ["cu128-torch28", "cu128-torch28-axolotl", "cu126-torch27"],
        "profile-none": ["cu128-torch28", "cu126-torch27"],
        "profile-axolotl": ["cu128-torch28-axolotl"],
    }
