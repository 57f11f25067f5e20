"""The verb `hint`: explain the known errors in a text or a log, and say what to do."""

import re
from typing import Annotated

import typer

from images.commands.options import Json
from images.errors import command
from validate import hints


def hint(
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT|FILE...", help="An error text, or a log; default: a pipe's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain the known errors in a text or a log: cause, fix and source of each.

    Exits with 1 if none is known. In an image: docker run --rm -i IMAGE doctor hint < FILE
    """
    # Fixes name commands of a checkout (`nox -s build`): spell them as this installation is called.
    options = ["--json"] if as_json else []
    arguments = [*options, "--", *(texts or [])]
    raise typer.Exit(hints.main(arguments, command("hint"), _spell_commands))


def _spell_commands(fix: str) -> str:
    """Replace each `nox -s VERB -- ARGUMENTS` in a text by the command of this installation.

    An installed package is called as `truetag VERB ARGUMENTS`.
    """

    def spell(match: re.Match[str]) -> str:
        verb, arguments = match[1], match[2]
        return command(verb, arguments) if arguments else command(verb)

    return re.sub(r"nox -s (\w+)(?: -- ([^`]+))?", spell, fix)
