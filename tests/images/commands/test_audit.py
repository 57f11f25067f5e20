"""What a person may ask of an audit, and how wrong input is told."""

from __future__ import annotations

import pytest

from images.audit.model import Severity
from images.commands import audit
from images.errors import UserError


@pytest.mark.parametrize(
    ("word", "severities"),
    [("error", {Severity.ERROR}), ("warning", {Severity.ERROR, Severity.WARNING}), ("never", set())],
)
def test_the_exit_status_follows_the_gravest_fault(word: str, severities: set[Severity]) -> None:
    assert set(audit.failing(word)) == severities


def test_another_word_is_refused() -> None:
    with pytest.raises(UserError, match="is none of error, warning, never"):
        audit.failing("always")
