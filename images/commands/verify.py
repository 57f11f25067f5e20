"""`verify`: a published image against what is attached to it."""

from __future__ import annotations

from typing import Annotated

import typer

from images.commands import common, releases, tables
from images.commands.options import GateTiers, MatrixFile, PublicKey, RemoteRef
from images.publish import verify as verification
from images.registry.reference import Reference


def verify(
    reference: RemoteRef,
    key: PublicKey = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Accept an image that nobody signed.")] = False,
    gate: GateTiers = "",
    matrix: MatrixFile = None,
) -> None:
    """Check a published image: its signatures, what is attached, and its labels against what was measured."""
    policy = releases.policy_of_published(gate, common.sources_if_any(matrix))
    found = verification.verify(Reference.parse(reference), policy, key=key, unsigned=unsigned)
    common.show(tables.checks(found.reference, found.checks))
    raise typer.Exit(0 if found.passed else 1)
