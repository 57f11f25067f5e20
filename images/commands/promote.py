"""The verb `promote`: copy a published image to another repository of its registry."""

from typing import Annotated

import typer

from images.commands import common, releases
from images.commands.options import GateTiers, MatrixFile, PublicKey, RemoteRef, ToRepository
from images.publish import release
from images.registry.reference import Reference, Repository


def promote(
    reference: RemoteRef,
    to: ToRepository,
    gate: GateTiers = "",
    key: PublicKey = "",
    drop_platforms: Annotated[
        bool,
        typer.Option(
            "--drop-platforms", help="Let an index replace one there that has more platforms."
        ),
    ] = False,
    matrix: MatrixFile = None,
) -> None:
    """Copy a published image to another repository of its registry, and move the tags there."""
    # The image must have passed the tiers of --gate, or else those of the matrix.
    policy = releases.policy_of_published(gate, common.sources(matrix))
    source, target = Reference.parse(reference), Repository.parse(to)
    releases.print_result(
        release.promote(source, target, policy, key=key, drop_platforms=drop_platforms)
    )
