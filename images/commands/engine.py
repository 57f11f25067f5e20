"""The verb `engine`: show, start, stop or wipe the private Docker Engine of this user."""

from typing import Annotated

import typer

from images.commands.common import say
from images.engine import connect, private_engine
from images.errors import command, wrong


def engine(
    action: Annotated[str, typer.Argument(metavar="status|start|stop|wipe")] = "status",
) -> None:
    """Show, start, stop or wipe the private Docker Engine.

    `wipe` stops it and deletes all that it keeps: images, layers and build cache.
    """
    match action:
        case "start":
            with private_engine.open_engine(None, on_progress=say) as opened:
                typer.echo(f"{opened.facts.url} (engine {opened.facts.version})")
        case "stop":
            typer.echo("stopped" if private_engine.stop() else "was not running")
        case "wipe":
            was = "stopped" if private_engine.stop(wipe=True) else "was not running"
            typer.echo(f"{was}; its images, layers and build cache are deleted")
        case "status":
            with connect(None) as opened:
                facts = opened.facts
                details = f"engine {facts.version}, {facts.cpus} cores, data in {facts.data_root}"
                typer.echo(f"{facts.url} ({details})")
        case _:
            then = f"write `{command('engine', 'status')}`, or start, stop or wipe instead"
            raise wrong(action, "is no action of the private engine", then)
