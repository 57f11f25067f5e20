"""Whether two builds of one image give the same layers."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from images.building import contexts, reproduce
from images.building.options import BuildOptions
from images.building.reproduce import Layer, Reproduction
from images.commands import common, trials
from images.commands.options import EngineUrl, ImageInputArguments, OneName, Out, grouped
from images.context import base_images
from images.context.hosting import host_settings
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.locking import lock_file
from images.wheels import cache as wheel_cache


@grouped
def reproduce_verb(
    name: OneName,
    inputs: ImageInputArguments,
    engine: EngineUrl = None,
    out: Out = Path("out"),
) -> None:
    """Build an image twice, the second time without any cache, and compare the digests of its layers."""
    sources = common.sources()
    (image,) = common.accepted([name], sources, exactly_one=True)
    host = host_settings()
    options = BuildOptions(
        sources=sources,
        host=host,
        out=out,
        compiled=wheel_cache.wheel_finder(sources.matrix, wheel_cache.default()),
        wheelhouse=inputs.wheelhouse,
        wheel_mirror=inputs.wheel_mirror,
    )
    with trials.open_engine(engine) as docker_engine, Progress() as progress:
        found = base_images.acquire_for(
            docker_engine, image, inputs.base, pinned=trials.pinned_bases(), host=host, say=common.say
        )
        locked = lock_file.read(image, sources.workspace.locks)
        context = contexts.prepare(image, locked, base_images.base_context(found), options).files
        network = host.network(local=docker_engine.facts.local)
        result = reproduce.reproduce(docker_engine, str(image.name), context, progress, network)
    file = out / str(image.name) / "reproduce.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(result.dumps() + "\n")
    common.results().print(_table(result))
    if not result.equal:
        differing = sum(layer.first != layer.second for layer in result.layers)
        cause = f"{differing} of {len(result.layers)} layers differ between two builds"
        raise UserError(Problem(where=name, cause=cause, then=f"{file} has the first differing file of each"), code=1)


def _table(result: Reproduction) -> Table:
    table = Table("layer", "first", "second", "", title=f"{result.image}: built twice, {_times(result)}")
    for layer in result.layers:
        table.add_row(layer.step, layer.first[7:19], layer.second[7:19], _outcome(layer))
    return table


def _times(result: Reproduction) -> str:
    return f"first {result.first_created}, uncached {result.second_created} ({result.seconds[1]:.0f} s)"


def _outcome(layer: Layer) -> str:
    return "[green]equal[/]" if layer.first == layer.second else f"[red]differs[/]: {layer.difference}"
