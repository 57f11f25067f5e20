"""Wording that several modules share."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 5


def listed(items: Sequence[str]) -> str:
    """The first five, and how many more there are."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more
