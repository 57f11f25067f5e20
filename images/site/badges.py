"""What a README shows of an image: an SVG, and JSON for shields.io's endpoint. Pure.

A picture can't grow old by itself: it has the date of its oldest run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta

from images.site.index import ImageRow, Index, Validation
from validate.judging import Status

_FILLS = {"brightgreen": "#1a7f37", "yellow": "#8a6100", "red": "#b42318", "lightgrey": "#5f6872"}
"""shields.io's names of colours, each with one that white text can be read on."""
_WIDE, _PLAIN, _NARROW = 8.0, 6.6, 4.0
"""Widths in pixels of characters of Verdana at 11 px, rounded up."""


@dataclass(frozen=True, kw_only=True)
class Badge:
    """Two texts and a colour."""

    label: str
    message: str
    colour: str
    """As shields.io calls it."""

    def as_json(self) -> bytes:
        """https://shields.io/badges/endpoint-badge."""
        data = {"schemaVersion": 1, "label": self.label, "message": self.message, "color": self.colour}
        return (json.dumps(data) + "\n").encode()

    @property
    def fill(self) -> str:
        return _FILLS[self.colour]

    @property
    def left(self) -> int:
        return _width(self.label)

    @property
    def right(self) -> int:
        return _width(self.message)


def of(image: ImageRow, index: Index) -> Badge:
    """Green only for an image that is validated and not stale on the day the site was made."""
    message, colour = _message(image, index.date - timedelta(days=index.stale_after_days))
    return Badge(label=image.name, message=message, colour=colour)


def _message(image: ImageRow, oldest: date) -> tuple[str, str]:
    if image.validation is Validation.VALIDATED:
        if image.validated_on is None:
            return "validated, undated", "lightgrey"
        stale = image.validated_on < oldest
        return f"{'stale: ' if stale else ''}validated {image.validated_on}", "lightgrey" if stale else "brightgreen"
    current = [one for one in image.runs if one.current]
    if image.validation is Validation.FAILED:
        failed = next(one for one in current if one.verdict is Status.FAIL)
        return f"{failed.tier} fails {failed.date or ''}".strip(), "red"
    if image.validation is Validation.PARTLY:
        passed = [one for one in current if one.verdict is Status.PASS]
        tiers = ", ".join(dict.fromkeys(str(one.tier) for one in passed))
        days = [one.date for one in passed if one.date]
        return f"{tiers} only {min(days) if len(days) == len(passed) else 'undated'}", "yellow"
    return "not validated", "lightgrey"


def _width(text: str) -> int:
    wide = sum(_WIDE if char in "mwMW—" else _NARROW if char in "il.,:-1 " else _PLAIN for char in text)
    return round(wide) + 12
