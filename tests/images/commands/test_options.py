"""Groups of options: what Typer sees of a verb, and what the verb gets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from images.cli import app
from images.commands.options import InputArguments, OfflineInputArguments, grouped


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One option that must be given, one that need not."""

    width: Annotated[int, typer.Option("--width", help="In pixels.")]
    names: Annotated[list[str] | None, typer.Option("--name")] = None


def run(*arguments: str) -> tuple[int, list[object], str]:
    seen: list[object] = []
    small = typer.Typer()

    @small.command()
    @grouped
    def draw(
        place: Annotated[str, typer.Argument(metavar="PLACE")], sizes: Sizes, inputs: InputArguments, deep: bool = False
    ) -> None:
        """Draw it."""
        seen.extend((place, sizes, inputs, deep))

    result = CliRunner().invoke(small, arguments)
    return result.exit_code, seen, result.output


def test_a_verb_gets_each_group_whole() -> None:
    code, seen, output = run("here", "--width", "3", "--name", "a", "--name", "b", "--wheelhouse", "wheels")
    assert code == 0, output
    inputs = InputArguments(base="auto", wheelhouse=Path("wheels"))
    assert seen == ["here", Sizes(width=3, names=["a", "b"]), inputs, False]


def test_a_field_without_a_default_must_be_given() -> None:
    code, seen, output = run("here")
    assert code == 2 and not seen and "--width" in output


def test_the_help_shows_the_fields() -> None:
    code, _, output = run("--help")
    assert code == 0 and "Draw it." in output and "In pixels." in output and "PLACE" in output


def test_two_fields_of_one_name_are_refused() -> None:
    def both(first: InputArguments, second: OfflineInputArguments) -> None:
        """Nothing."""

    with pytest.raises(TypeError, match="both has two parameters of one name: base, wheelhouse"):
        grouped(both)


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        (
            "build",
            "--base --wheelhouse --wheel-mirror --offline --jobs --strict --no-cache --compile --tier --gpus --engine "
            "--out",
        ),
        ("wheels", "--base --wheelhouse --offline --jobs --recompile --sdists --engine --out"),
        ("bake", "--base --wheelhouse --wheel-mirror --to --cache-from --cache-to --provenance --out"),
        ("publish", "--to --image --attestation --key --drop-platforms --gate --engine"),
        ("publish", "--compression gzip|zstd|zstd:chunked|both|all"),
    ],
)
def test_verbs_have_all_their_options(verb: str, options: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output
    assert [one for one in options.split() if one not in shown] == []
