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
    """Yield the claim that each layer of an image has the bytes that two recorded builds gave.

    Yields nothing if `context.origin` is None. If it is not known what the image was made of,
    `origin.unknown` has the reason, and the claim is unproven.
    """
    origin = context.origin
    if origin is None:
        return

    recipe_digest = ""
    if origin.recipe:
        recipe_digest = origin.recipe.digest
    # The judge's advice names the command that builds this image again. It needs these arguments.
    arguments = str(context.image.name)
    if origin.base:
        arguments += f" --base {origin.base}"
    # The folder itself is nobody's business: claims are published with the evidence.
    if origin.has_wheelhouse:
        arguments += " --wheelhouse FOLDER"

    expect = OriginExpectation(
        recipe=recipe_digest,
        layers=expected_layers(origin),
        arguments=arguments,
        is_derived=False,
    )
    statement = "its layers are, bit for bit, those that two builds of its recipe gave"
    yield claim("origin", "layers", ORIGIN_PROBE, statement, {**expect}, unproven=origin.unknown)


def expected_layers(origin: Origin) -> list[ExpectedLayer]:
    """Return the layers that an image must have, each with the digests that recorded builds gave.

    `diff_id` is the digest of the layer's files. `written_as` has other digests of the same files,
    because engines write them in different ways. `builds` says on which engines they were built, or
    which recorded run measured them. All are empty if no build of the layer is recorded in
    locks/layers.json. There are no layers if it is not known what the image was made of
    (`origin.recipe` is None).
    """
    if origin.recipe is None:
        return []
    layers = []
    for step in origin.recipe.layers:
        expected = ExpectedLayer(
            layer=step.layer, recipe=step.digest, diff_id="", written_as=[], builds=[]
        )
        record = origin.record.get(step.digest)
        if record:
            expected["diff_id"] = record.diff_id
            expected["written_as"] = list(record.written_as)
            expected["builds"] = [build.on for build in record.builds]
        layers.append(expected)
    return layers
