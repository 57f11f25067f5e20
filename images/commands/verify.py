"""The verb `verify`: check a published image, its signatures and its statements."""

from pathlib import Path
from typing import Annotated

import typer

from images.commands import common, releases
from images.commands.options import GateTiers, MatrixFile, PublicKey, RemoteRef
from images.config import paths
from images.publish import verify as verification
from images.registry.reference import Reference
from validate.judging import Status
from validate.terminal import aligned


def verify(
    reference: RemoteRef,
    key: PublicKey = "",
    unsigned: Annotated[
        bool, typer.Option("--unsigned", help="Accept an image that nobody signed.")
    ] = False,
    gate: GateTiers = "",
    matrix: MatrixFile = None,
) -> None:
    """Check a published image: its signatures, what is attached, and the gate."""
    # With a matrix, today's claims are judged. An installed package comes without one: then the
    # claims in the image's own evidence are.
    has_matrix = paths.find(matrix, Path.cwd()).matrix.exists()
    sources = common.sources(matrix) if has_matrix else None
    policy = releases.policy_of_published(gate, sources)

    digest, checks = verification.verify(
        Reference.parse(reference), policy, key=key, unsigned=unsigned
    )
    rows = [(str(check.status), check.subject, check.reason) for check in checks]
    common.show([digest, *aligned(rows)])

    all_passed = all(check.status is Status.PASS for check in checks)
    raise typer.Exit(0 if all_passed else 1)
