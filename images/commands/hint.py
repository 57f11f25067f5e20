"""`hint`: what an error text means, and what to do."""

import re
from functools import partial
from typing import Annotated

import typer

from images.commands.options import Json
from images.errors import command
from validate import hints


def hint(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT|FILE...", help="An error text, or a log; default: a pipe's.")
    ] = None,
    lock: Annotated[
        str | None, typer.Option(metavar="FILE", help="A lock, or what `pip freeze` says: which release is there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What an error text means, and what to do: cause, fix and source of each known error in it.

    Exits with 1 if none is known. In an image: docker run --rm -i IMAGE doctor hint < FILE
    """
    given = [*(["--lock", lock] if lock else []), *(["--json"] if as_json else []), "--", *(texts or [])]
    ours = re.compile(r"nox -s (\w+)(?: -- ([^`]+))?")
    spell = partial(ours.sub, lambda one: command(one[1], *filter(None, [one[2]])))  # as this installation does it
    raise typer.Exit(hints.main(given, spell=spell))
