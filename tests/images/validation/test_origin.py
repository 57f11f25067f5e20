"""The layers of an image, as the host measures them for the claim about the origin."""

from types import SimpleNamespace
from typing import Any

from images.engine.layers import LayerReading
from images.host.hashing import oci_digest
from images.validation import origin
from tests.support.engine_contents import image_info
from validate.claims import ORIGIN_PROBE, Claim, ClaimSet, Tier

RECORDED_LAYER = {"layer": "torch", "written_as": ["sha256:old"], "diff_id": "sha256:new"}
ORIGIN_CLAIM = Claim(
    check="origin",
    subject="layers",
    tier=Tier.STATIC,
    probe=ORIGIN_PROBE,
    statement="x",
    expect={"layers": [RECORDED_LAYER]},
)
CLAIMS = ClaimSet(image="x", claims=(ORIGIN_CLAIM,))
NO_CLAIMS = ClaimSet(image="x", claims=())
ENGINE: Any = SimpleNamespace()


def test_a_base_of_one_layer_stays_as_it_is() -> None:
    layers = {"base": "1", "torch": "2"}

    assert origin.with_one_base(layers) == layers


def test_the_layers_of_a_base_become_one_with_the_digest_of_their_ids() -> None:
    layers = {"base": "1", "base-2": "2", "torch": "3"}

    assert origin.with_one_base(layers) == {"base": oci_digest(b"1 2"), "torch": "3"}


def test_recorded_layers_are_known_by_each_of_their_digests() -> None:
    assert origin.known_forms(CLAIMS) == {"sha256:new": "sha256:new", "sha256:old": "sha256:new"}


def test_the_record_has_the_layers_and_the_recipe_that_the_label_names() -> None:
    layer_reading = LayerReading(
        payload={"base": "1", "suite": "2", "settings": "3"},
        canonical=True,
        beside_suite=("/x",),
    )
    image = image_info(labels={"dev.truetag.recipe": "r"})

    (record,) = origin.measure_origin(ENGINE, image, CLAIMS, layer_reading, steps_above=())

    measured = record.measurements[0].evidence
    assert measured["recipe"] == "r"
    assert measured["beside_suite"] == ["/x"]
    assert measured["canonical"]
    assert [row["layer"] for row in measured["layers"]] == ["base", "suite", "settings"]


def test_without_a_claim_about_the_origin_there_is_no_record() -> None:
    layer_reading = LayerReading(payload={"base": "1"}, canonical=True)

    assert origin.measure_origin(ENGINE, image_info(), NO_CLAIMS, layer_reading, ()) == ()
