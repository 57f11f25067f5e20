"""Programs that this repository needs, and no user of the package does: `python -m tools.NAME`.

People run them by hand, or workflows do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from images.errors import UserError


def run(function: Callable[..., Any]) -> None:
    """Call a tool with the arguments of the command line.

    Problems are printed, and the process then ends with their exit status.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(function)
    try:
        app()
    except UserError as error:
        typer.echo(f"error {error}", err=True)
        sys.exit(error.code)
