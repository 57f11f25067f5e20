"""What a README shows of an image: an SVG, and JSON for shields.io's endpoint. Pure.

A picture can't grow old by itself: it carries the date of its proof.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, timedelta

from images.site.index import ImageRow, Index, Standing
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
    """Green only for what is wholly proven and not stale on the day the site was made."""
    message, colour = _said(image, index.date - timedelta(days=index.stale_after_days))
    return Badge(label=image.name, message=message, colour=colour)


def _said(image: ImageRow, oldest: date) -> tuple[str, str]:
    if image.standing is Standing.PROVEN:
        if image.proven_on is None:
            return "proven, undated", "lightgrey"
        stale = image.proven_on < oldest
        return f"{'stale: ' if stale else ''}proven {image.proven_on}", "lightgrey" if stale else "brightgreen"
    current = [one for one in image.proofs if one.current]
    if image.standing is Standing.FAILS:
        failed = next(one for one in current if one.verdict is Status.FAIL)
        return f"{failed.tier} fails {failed.date or ''}".strip(), "red"
    if image.standing is Standing.PARTLY:
        passed = [one for one in current if one.verdict is Status.PASS]
        tiers = ", ".join(dict.fromkeys(str(one.tier) for one in passed))
        days = [one.date for one in passed if one.date]
        return f"{tiers} only {min(days) if len(days) == len(passed) else 'undated'}", "yellow"
    return "never proven", "lightgrey"


def _width(text: str) -> int:
    wide = sum(_WIDE if char in "mwMW—" else _NARROW if char in "il.,:-1 " else _PLAIN for char in text)
    return round(wide) + 12
