"""What `publish`, `promote` and `verify` share: the release policy of the matrix, and how a result is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import typer

from images.commands import common, trials
from images.config.matrix import Sources
from images.config.schema import GATE
from images.publish.gate import ReleasePolicy, parse_tiers
from images.publish.publication import PublishResult
from validate.claims import ClaimSet


def policy(gate: str, sources: Sources, claims_of: Callable[[Mapping[str, str]], ClaimSet | None]) -> ReleasePolicy:
    """What the matrix asks of an image, with another gate where one is given."""
    return ReleasePolicy(
        gate=parse_tiers(gate) if gate else sources.matrix.gate,
        alias_gate=sources.matrix.gate,
        aliases_of=lambda name: common.aliases_of(name, sources),
        claims_of=claims_of,
        row_of=lambda name: common.row_of(name, sources),
    )


def policy_of_published(gate: str, sources: Sources | None) -> ReleasePolicy:
    """The same for published images. Without a matrix they are held to their own claims, and no tag is known."""
    if sources:
        return policy(gate, sources, lambda labels: trials.claims_of_published(labels, sources))
    asked = parse_tiers(gate) if gate else GATE
    return ReleasePolicy(
        gate=asked,
        alias_gate=asked,
        aliases_of=lambda _name: (),
        claims_of=lambda _labels: None,
        no_claims="no matrix.yaml is here",
    )


def tell(result: PublishResult) -> None:
    """References and tags on stdout; what stayed or was left out on stderr."""
    for compression, reference in result.references.items():
        typer.echo(f"{reference} ({result.bytes[compression] / 1e6:.0f} MB in {compression} layers)")
    for tag, reference in result.indexes.items():
        typer.echo(f"{reference} (index for several platforms: {tag})")
    typer.echo(f"tags: {' '.join(result.tags)}")
    for reason in (*result.left_out, *result.unmoved_aliases):
        common.say(reason)
    if not result.signed:
        common.say("not signed: give --key cosign.key (publish) or cosign.pub (promote)")
