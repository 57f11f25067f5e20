"""The claim about an image's origin: its layers are those that builds of its recipe gave. Pure."""

from collections.abc import Iterator

from images.validation.claims.context import ClaimContext, claim
from validate.checks.static.host_origin import ExpectedLayer, OriginExpectation
from validate.claims import ORIGIN_PROBE, Claim


def origin_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claim `origin` of an image whose recipe was asked for. It is UNPROVEN where that can't be known."""
    origin = context.origin
    if origin is None:
        return
    layers = []
    for row in origin.recipe.layers if origin.recipe else ():
        known = origin.record.get(row.digest)
        layers.append(
            ExpectedLayer(
                layer=row.layer,
                recipe=row.digest,
                diff_id=known.diff_id if known else "",
                written_as=list(known.written_as) if known else [],
                builds=[build.on for build in known.builds] if known else [],
            )
        )
    expect = OriginExpectation(
        recipe=origin.recipe.digest if origin.recipe else "",
        layers=layers,
        arguments=f"{context.image.name}{f' --base {origin.base}' if origin.base else ''}",
        is_derived=False,
    )
    statement = "its layers are, bit for bit, those that two builds of its recipe gave"
    yield claim("origin", "layers", ORIGIN_PROBE, statement, {**expect}, unproven=origin.unknown)
