"""Jinja environments for the templates of Dockerfiles and pages."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from images.config.paths import TEMPLATES
from images.context import prose
from images.planning import expectations

EPOCH = 1704067200
"""2024-01-01, in seconds since 1970.

No file of an image has a later time, so that the same packages give the same bytes."""


@cache
def environment(folder: Path = TEMPLATES, *, html: bool = False) -> Environment:
    """Return the Jinja environment of a folder of templates. `html`: values are escaped.

    A variable that a template uses and does not get is an error. Each template can use the filter
    `quoted`, each page `prose` (links to issues), and the tables of expectations.yaml:
    `debian.RDMA`.
    """
    jinja = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=html,
    )
    jinja.filters["quoted"] = quoted
    jinja.filters["prose"] = prose.to_html
    jinja.globals["debian"] = expectations
    return jinja


def step_macros(*, offline: bool = False, pruning: bool = False) -> dict[str, Any]:
    """Return the macros of templates/macros.j2 by name, to be passed to a template as variables.

    offline: steps reach no network. pruning: the image is for one GPU architecture.
    """
    variables = {"offline": offline, "pruning": pruning, "epoch": EPOCH}
    module = environment().get_template("macros.j2").make_module(variables)
    return {name: macro for name, macro in vars(module).items() if not name.startswith("_")}


def quoted(value: str) -> str:
    """Return a value for ENV or LABEL, quoted and escaped so that nothing in it is expanded."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("\n", " ")
    return f'"{escaped}"'
