"""The claim about an image's origin: its layers are those that builds of its recipe gave.

Nothing here reads a file or asks an engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from images.validation.claims.context import ClaimContext, claim
from validate.checks.static.host_origin import ExpectedLayer, OriginExpectation
from validate.claims import ORIGIN_PROBE, Claim

if TYPE_CHECKING:
    from images.context.origin import Origin


def origin_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claim that the layers of an image have the bytes that recorded builds gave.

    There is no claim if the context has no origin. It is unproven if nobody can know what the image
    was made of: `origin.unknown` then says why.
    """
    origin = context.origin
    if origin is None:
        return
    # What the judge's advice gives to tools/reproduce.py, so that it builds this image.
    base_option = f" --base {origin.base}" if origin.base else ""
    expect = OriginExpectation(
        recipe=origin.recipe.digest if origin.recipe else "",
        layers=expected_layers(origin),
        arguments=f"{context.image.name}{base_option}",
        is_derived=False,
    )
    statement = "its layers are, bit for bit, those that two builds of its recipe gave"
    yield claim("origin", "layers", ORIGIN_PROBE, statement, {**expect}, unproven=origin.unknown)


def expected_layers(origin: Origin) -> list[ExpectedLayer]:
    """Return the layers of the recipe, each with what recorded builds of it gave.

    A layer that no build was recorded of has an empty `diff_id`. `written_as`: the other diff IDs
    that engines gave the same files. Without a recipe there are no layers.
    """
    if origin.recipe is None:
        return []
    layers = []
    for layer in origin.recipe.layers:
        record = origin.record.get(layer.digest)
        layers.append(
            ExpectedLayer(
                layer=layer.layer,
                recipe=layer.digest,
                diff_id=record.diff_id if record else "",
                written_as=list(record.written_as) if record else [],
                builds=[build.on for build in record.builds] if record else [],
            )
        )
    return layers
