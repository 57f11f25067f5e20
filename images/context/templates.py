"""The Jinja environment of all templates, of Dockerfiles and of pages."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from images.config.paths import TEMPLATES
from images.planning import expectations

EPOCH = 1704067200
"""2024-01-01, in seconds since 1970. No file of an image bears a later time: the same packages give the same bytes."""


@cache
def environment(folder: Path = TEMPLATES, *, html: bool = False) -> Environment:
    """The environment of a folder of templates. `html` escapes values."""
    made = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=html,
    )
    made.filters["quoted"] = quoted
    made.globals["debian"] = expectations
    return made


def step_macros(*, offline: bool = False, pruning: bool = False) -> dict[str, Any]:
    """The macros of a build step (templates/macros.j2) by name, as variables for a template."""
    variables = {"offline": offline, "pruning": pruning, "epoch": EPOCH}
    made = environment().get_template("macros.j2").make_module(variables)
    return {name: value for name, value in vars(made).items() if not name.startswith("_")}


def quoted(value: str) -> str:
    """A value for ENV or LABEL: in double quotes, with what the Dockerfile would expand made literal."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("\n", " ")
    return f'"{escaped}"'
