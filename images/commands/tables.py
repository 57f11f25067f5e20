"""Verdicts and checks as rich tables for people. Pure views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from validate import report
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

if TYPE_CHECKING:
    from images.publish.checks import Check

_COLOURS = {Status.PASS: "green", Status.FAIL: "bold red", Status.UNPROVEN: "yellow", Status.NOT_APPLICABLE: "dim"}


def verdict(judged: Verdict, reference: str = "") -> Table:
    """One row a claim; the overall verdict above, with the image's own name where it was held to another's claims."""
    held = f"{escape(reference)}, by the claims of {judged.image}"
    name = held if reference not in ("", judged.image) else judged.image
    title = f"{name}  {judged.digest[:19]}  [{_COLOURS[judged.overall]}]{judged.overall}[/]"
    table = Table(title=title, title_justify="left")
    for heading in ("claim", "subject", "tier", "verdict"):
        table.add_column(heading, no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("reason", ratio=1)
    for row in judged.claims:
        colour = _COLOURS[row.status]
        optional = "" if row.claim.required else " (optional)"
        table.add_row(
            row.claim.id,
            row.claim.subject + optional,
            str(row.claim.tier),
            f"[{colour}]{row.status}[/]",
            f"{row.seconds:.1f}",
            _reason(row),
        )
    return table


def checks(reference: str, found: Sequence[Check]) -> Table:
    """One row a check of a published image."""
    table = Table(title=reference, title_justify="left")
    for heading in ("check", "verdict"):
        table.add_column(heading, no_wrap=True)
    table.add_column("reason", ratio=1)
    for row in found:
        table.add_row(row.subject, f"[{_COLOURS[row.status]}]{row.status}[/]", escape(row.reason))
    return table


def _reason(row: ClaimVerdict) -> str:
    hints = [f"[cyan]{escape(report.advice(hint))}[/]" for hint in row.hints]
    return "\n".join([escape(row.reason), *hints])
