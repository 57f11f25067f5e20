"""The options of verbs: all are there, spelled alike, and not too many."""

from typing import Any

import pytest
import typer

from images import cli
from images.commands import VERBS

GROUP: Any = typer.main.get_command(cli.app)


def options(verb: str) -> dict[str, Any]:
    """Option -> its parameter."""
    parameters = GROUP.get_command(None, verb).params
    return {name: one for one in parameters for name in one.opts if name.startswith("--") and name != "--help"}


@pytest.mark.parametrize(
    ("verb", "wanted"),
    [
        ("plan", "--tracked --json --names --allow-empty --matrix"),
        ("lock", "--check --upgrade --matrix"),
        ("render", "--bake --to --base --wheelhouse --out --matrix"),
        (
            "build",
            "--base --wheelhouse --wheel-mirror --offline --jobs --strict --no-cache --compile --tier --gpus --all "
            "--engine --out --matrix",
        ),
        ("wheels", "--base --wheelhouse --offline --jobs --recompile --sdists --engine --out --matrix"),
        (
            "validate",
            "--image --tag --evidence --tier --claim --run-anyway --gpus --all --json --engine --out --matrix",
        ),
        ("engine", ""),
    ],
)
def test_a_verb_has_these_options_and_no_others(verb: str, wanted: str) -> None:
    assert set(options(verb)) == set(wanted.split())


def test_an_option_says_the_same_of_every_verb() -> None:
    told: dict[str, set[bool]] = {}
    for verb in VERBS:
        for name, parameter in options(verb).items():
            told.setdefault(name, set()).add(bool(getattr(parameter, "is_flag", False)))
    assert {name for name, flags in told.items() if len(flags) > 1} == set()
