"""What the host measures of an image's layers."""

from types import SimpleNamespace
from typing import Any

from images.engine.layers import LayerReading
from images.host.hashing import oci_digest
from images.validation import origin
from tests.support.engine_contents import image_info
from validate.claims import ORIGIN_PROBE, Claim, ClaimSet, Tier

LAYER = {"layer": "torch", "written_as": ["sha256:old"], "diff_id": "sha256:new"}
CLAIM = Claim(
    check="origin",
    subject="layers",
    tier=Tier.STATIC,
    probe=ORIGIN_PROBE,
    statement="x",
    expect={"layers": [LAYER]},
)
CLAIMS = ClaimSet(image="x", claims=(CLAIM,))


def test_layers_of_a_base_count_as_one() -> None:
    assert origin.with_one_base({"base": "1", "torch": "2"}) == {"base": "1", "torch": "2"}
    joined = origin.with_one_base({"base": "1", "base-2": "2", "torch": "3"})
    assert joined == {"base": oci_digest(b"1 2"), "torch": "3"}


def test_forms_that_are_recorded_need_not_be_read() -> None:
    assert origin.known_forms(CLAIMS) == {"sha256:old": "sha256:new"}


def test_the_record_has_the_layers_and_the_recipe_that_the_label_names() -> None:
    read = LayerReading(
        payload={"base": "1", "suite": "2", "settings": "3"},
        as_stored={},
        canonical=True,
        beside_suite=("/x",),
    )
    engine: Any = SimpleNamespace()
    image = image_info(labels={"dev.truetag.recipe": "r"})
    (record,) = origin.measure_origin(engine, image, CLAIMS, read, steps_above=())
    measured = record.measurements[0].evidence
    assert (
        measured["recipe"] == "r" and measured["beside_suite"] == ["/x"] and measured["canonical"]
    )
    assert [row["layer"] for row in measured["layers"]] == ["base", "suite", "settings"]
    assert origin.measure_origin(engine, image, ClaimSet(image="x", claims=()), read, ()) == ()
