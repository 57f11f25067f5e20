"""Claims of the trl-vllm profile: healthy evidence passes, and each thing that is off fails by its name."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from images.validation.claims.profile import BEHAVIOURS, example_rows
from tests.support.judging import fails
from validate.checks._behaviour import judge
from validate.judging import Status

ROWS: Mapping[str, Mapping[str, Any]] = {
    subject: row["expect"] for subject, row in (*BEHAVIOURS.items(), *example_rows()) if "trl-vllm" in row["profiles"]
}


def off(expect: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each thing that is asked for, and a value that a broken image yields."""
    yield from ((key, None) for key in expect.get("equal", {}))
    yield from ((key, 1.5 * bound + 1) for key, bound in expect.get("at_most", {}).items())
    yield from ((key, 0.0) for key in expect.get("at_least", {}))


@pytest.mark.parametrize("subject", ROWS)
def test_what_is_off_is_named(subject: str) -> None:
    expect = ROWS[subject]
    healthy = {**expect.get("equal", {}), **expect.get("at_most", {}), **expect.get("at_least", {})}
    assert judge(subject, expect, healthy).status is Status.PASS
    for key, value in off(expect):
        fails(judge(subject, expect, {**healthy, key: value}), key)
