"""tools/derived_images: the forty images, and how their verdicts are compared."""

import pytest

from tools import derived_images
from tools.derived_images import Row
from validate.derived import parse_declaration


def test_there_are_twenty_healthy_images_and_twenty_with_a_fault() -> None:
    rows = derived_images.read_rows()

    assert len({row.name for row in rows}) == 40
    assert len([row for row in rows if row.fault]) == 20
    assert all(row.source and row.steps for row in rows)


def test_what_they_declare_can_be_read() -> None:
    for row in derived_images.read_rows():
        parse_declaration(row.declared)


@pytest.mark.parametrize(
    ("fault", "on_host", "inside", "problem"),
    [
        pytest.param("", [], [], "", id="healthy, and judged so"),
        pytest.param("", ["files/recorded: x"], [], "it is healthy, but", id="false alarm"),
        pytest.param("numpy", ["added/imports: numpy"], ["added/imports: numpy"], "", id="named"),
        pytest.param("numpy", [], [], "no failed claim names numpy", id="not seen"),
        pytest.param("numpy", ["pins/torch: x"], [], "no failed claim names", id="not named"),
        pytest.param("", [], ["added/imports: x"], "its own `validate` contr", id="two verdicts"),
        pytest.param("a", ["pins/a: a"], ["toolkit/ptxas: x"], "", id="not measured on the host"),
    ],
)
def test_a_verdict_is_compared_with_the_one_that_was_written_down(
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    on_host: list[str],
    inside: list[str],
    problem: str,
) -> None:
    holding = {"added/imports"} - {failure.partition(": ")[0] for failure in on_host}
    monkeypatch.setattr(derived_images, "judge_on_host", lambda *_: (on_host, holding))
    monkeypatch.setattr(derived_images, "judge_inside", lambda *_: inside)
    row = Row(name="x", source="y", steps="RUN z", fault=fault)

    found = derived_images.compare(None, None, None, row, "tag", [])  # type: ignore[arg-type]

    assert found.startswith(problem) if problem else found == ""
