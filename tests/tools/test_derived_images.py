"""tools/derived_images: the forty images, and how their verdicts are compared."""

import pytest

from tools import derived_images
from tools.derived_images import Judged, Row
from validate.derived import parse_declaration


def test_there_are_twenty_healthy_images_and_twenty_with_a_fault() -> None:
    rows = derived_images.read_rows()

    assert len({row.name for row in rows}) == 40
    assert len([row for row in rows if row.fault]) == 20
    assert all(row.source and row.steps for row in rows)


def test_what_they_declare_can_be_read() -> None:
    for row in derived_images.read_rows():
        parse_declaration(row.declared)


HEALTHY = Judged({}, ["added/imports", "modes/users"])
BROKEN = Judged({"added/imports": "numpy 1 is needed"}, ["modes/users"])


@pytest.mark.parametrize(
    ("fault", "on_host", "inside", "problem"),
    [
        pytest.param("", HEALTHY, HEALTHY, "", id="healthy, and judged so"),
        pytest.param("", BROKEN, BROKEN, "it is healthy, but: added/imp", id="false alarm"),
        pytest.param("", HEALTHY, BROKEN, "it is healthy, but: added/imp", id="only inside"),
        pytest.param("numpy", BROKEN, BROKEN, "", id="named"),
        pytest.param("numpy", HEALTHY, HEALTHY, "no failed claim names numpy", id="not seen"),
        pytest.param("torch", BROKEN, BROKEN, "no failed claim names torch", id="not named"),
        pytest.param("numpy", BROKEN, HEALTHY, "host and container contr", id="two verdicts"),
        pytest.param("numpy", BROKEN, Judged({}, []), "", id="not measured inside"),
        pytest.param(
            "numpy", BROKEN, Judged({"state/x": "y"}, []), "", id="not measured on the host"
        ),
    ],
)
def test_a_verdict_is_compared_with_the_one_that_was_written_down(
    fault: str, on_host: Judged, inside: Judged, problem: str
) -> None:
    row = Row(name="x", source="y", steps="RUN z", fault=fault)

    difference = derived_images.compare(row, on_host, inside)

    assert difference.startswith(problem) if problem else difference == ""


def test_only_required_claims_decide() -> None:
    rows = [
        {"check": "image", "subject": "size", "required": False, "verdict": "FAIL", "reason": "a"},
        {"check": "pins", "subject": "torch", "required": True, "verdict": "FAIL", "reason": "b"},
        {"check": "modes", "subject": "users", "required": True, "verdict": "PASS", "reason": "c"},
    ]

    judged = derived_images.read_verdict({"claims": rows, "overall": "FAIL"})

    assert judged == Judged({"pins/torch": "b"}, ["modes/users"], "FAIL")
    assert judged.describe() == "FAIL (pins/torch)"
