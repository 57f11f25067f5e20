"""Programs that this repository needs, and no user of the package does: `python -m tools.NAME`.

People run them by hand, or workflows do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from images import cli


def run(function: Callable[..., Any]) -> NoReturn:
    """Run a tool with the arguments of the command line as a verb is run, and end the process."""
    name = Path(sys.argv[0]).stem
    program = cli.app_of(function, name)
    cli.run_and_exit(program, lambda: f"`python -m tools.{name} --help`")
