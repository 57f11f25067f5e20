"""Known error texts, their cause and their fix. Rows stand in hints.yaml; containers read the hints.json made of it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROWS = Path(__file__).resolve().with_name("hints.json")
_AT_MOST = 3
"""Hints a claim. More than that explain nothing."""


@dataclass(frozen=True, kw_only=True)
class Hint:
    """One row: what an error text means, and what to do."""

    id: str
    pattern: str
    """A regular expression, found anywhere in a line, upper and lower case alike."""
    cause: str
    fix: str
    source: str
    brought_by: Mapping[str, Any] | None = field(default=None, hash=False)
    """`name` of a package or variable that brings the error, `unless` one of these is there."""


@functools.cache
def known() -> tuple[Hint, ...]:
    """Every row, in the order in which they are tried."""
    return tuple(Hint(**row) for row in json.loads(_ROWS.read_text(encoding="utf-8")))


def find(texts: Iterable[str]) -> tuple[Hint, ...]:
    """The first matching row of each line, each row once, the earliest lines first."""
    lines = dict.fromkeys(line for text in texts for line in text.splitlines())
    found = (next((row for row in known() if _compiled(row.pattern).search(line)), None) for line in lines)
    return tuple(dict.fromkeys(row for row in found if row))[:_AT_MOST]


def texts(value: Any) -> Iterator[str]:
    """Every text in a piece of evidence, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
