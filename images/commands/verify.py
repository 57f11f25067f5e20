"""`verify`: a published image against what is attached to it."""

from pathlib import Path
from typing import Annotated

import typer

from images.commands import common, releases
from images.commands.options import EngineUrl, GateTiers, MatrixFile, PublicKey, RemoteRef
from images.config import paths
from images.context.labels import LABELS
from images.engine import layers, private_engine
from images.errors import wrong
from images.locking import layer_record
from images.publish import verify as verification
from images.registry.reference import Reference
from images.site import records
from validate.judging import Status
from validate.terminal import aligned


def verify(
    reference: RemoteRef,
    key: PublicKey = "",
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Accept an image that nobody signed.")] = False,
    gate: GateTiers = "",
    local: Annotated[
        bool, typer.Option("--local", help="REF is an image of the engine: say whether a recorded GPU run is about it.")
    ] = False,
    engine: EngineUrl = None,
    matrix: MatrixFile = None,
) -> None:
    """Check a published image: its signatures, what is attached, and its labels against what was measured."""
    if local:
        if key or unsigned or gate:
            then = "leave --key, --unsigned and --gate out, or --local"
            raise wrong("--local", "an image of an engine has no signature and no gate", then)
        workspace = common.sources(matrix).workspace
        with private_engine.open_engine(engine, on_progress=common.say) as docker_engine:
            info = docker_engine.inspect(reference)
            known = layer_record.other_forms(layer_record.read(workspace.locks))
            payload = layers.read_layers(docker_engine, info, known).compared
        name = info.labels.get(f"{LABELS}.image", "")
        runs = records.gpu_runs(records.read(workspace.results), name)
        said, recorded = records.of_this_build(runs, info.id, payload)
        common.show([f"{reference} ({info.id[:19]}): {said if name else 'is no image of a matrix'}"])
        raise typer.Exit(0 if recorded else 1)
    if engine:
        then = "leave --engine out, or add --local: then REF is an image of that engine"
        raise wrong("--engine", "a published image is read from its registry", then)
    has_matrix = paths.find(matrix, Path.cwd()).matrix.exists()  # an installed package comes without one
    policy = releases.policy_of_published(gate, common.sources(matrix) if has_matrix else None)
    digest, checks = verification.verify(Reference.parse(reference), policy, key=key, unsigned=unsigned)
    common.show([digest, *aligned([(str(row.status), row.subject, row.reason) for row in checks])])
    raise typer.Exit(0 if all(row.status is Status.PASS for row in checks) else 1)
