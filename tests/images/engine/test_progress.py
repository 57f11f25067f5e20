"""What a person sees of a build: events in, lines out."""

import io

import pytest
from rich.console import Console

from images.engine.buildkit import BuildEvent, LogLine, StepFinished
from images.engine.progress import Progress

NAME = "[torch 2/5] RUN --mount=type=cache,target=/c uv pip install"


def finished(name: str = NAME, **more: object) -> StepFinished:
    return StepFinished(**{"step": "s", "name": name, "seconds": 12.34, "cached": False, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (finished(), ["   12.3 s  [torch 2/5] RUN uv pip install"]),
        (finished(cached=True), ["   cached  [torch 2/5] RUN uv pip install"]),
        (
            finished(error="E 1", log=tuple(f"line {number}" for number in range(30))),
            [
                "   FAILED  [torch 2/5] RUN uv pip install",
                *(f"  | line {number}" for number in range(10, 30)),
                "  E 1",
            ],
        ),
        (finished(error="context canceled"), []),
        (finished("[internal] load build context"), []),
        (LogLine(step="", name="", text="the network failed"), ["the network failed"]),
    ],
)
def test_what_is_said_for_good(event: BuildEvent, lines: list[str]) -> None:
    out = io.StringIO()
    Progress(Console(file=out)).job("a")(event)
    assert out.getvalue().splitlines() == [f"a  {line}" for line in lines]


def test_on_a_terminal_lines_are_wrapped_between_words_and_indented() -> None:
    out = io.StringIO()
    console = Console(file=out, width=60, force_terminal=True, color_system=None)
    text = "lacks flash-attn: its official wheel could not be fetched: give --wheelhouse FOLDER"

    Progress(console).say("cu126-torch25", text, "yellow")

    first, second = out.getvalue().splitlines()
    assert first == "cu126-torch25  lacks flash-attn: its official wheel could"
    assert second == "    not be fetched: give --wheelhouse FOLDER"


def test_without_a_terminal_lines_are_plain() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=40)) as progress:
        progress.say("image-a", "[not markup] " + "x" * 60)
        progress.finish("image-a", "built")
    assert out.getvalue().splitlines() == ["image-a  [not markup] " + "x" * 60, "image-a  built"]
