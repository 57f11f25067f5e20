"""What a person may ask of an audit, and how wrong input is told."""

from __future__ import annotations

import pytest

from images.audit.model import Severity
from images.commands.audit import FailOn
from tests.support.commands import call


@pytest.mark.parametrize(
    ("word", "severities"),
    [("error", {Severity.ERROR}), ("warning", {Severity.ERROR, Severity.WARNING}), ("never", set())],
)
def test_the_exit_status_follows_the_gravest_fault(word: str, severities: set[Severity]) -> None:
    assert set(FailOn(word).severities) == severities


def test_another_word_is_refused() -> None:
    done = call("audit", "some/image:1", "--fail-on", "always")
    assert done.returncode == 2 and "'always' is not one of 'error', 'warning', 'never'" in done.stderr
