"""Plans and verdicts as rich tables for people, and plans as JSON for machines. Pure views."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from images.locking import lock_file
from images.locking.lock_file import Status as LockStatus
from images.planning.plan import Planned
from validate import report
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

if TYPE_CHECKING:
    from images.publish.checks import Check

_COLOURS = {Status.PASS: "green", Status.FAIL: "bold red", Status.UNPROVEN: "yellow", Status.NOT_APPLICABLE: "dim"}


def plan(planned: Sequence[Planned], locks: Mapping[str, LockStatus]) -> Table:
    """One row an image, refused ones included, with the reason a person can act on."""
    table = Table(title=f"{len(planned)} images", title_justify="left", row_styles=["", ""])
    for heading in ("image", "", "torch", "py", "toolkit", "wheel", "GPU archs", "driver", "lock"):
        table.add_column(heading, no_wrap=heading != "GPU archs")
    table.add_column("reasons and warnings", ratio=1)
    for image in planned:
        blocked = _blocked(image, locks)
        table.add_row(
            f"[bold]{image.name}[/]",
            "[red]refused[/]" if not image.accepted else "[yellow]no lock[/]" if blocked else "[green]ok[/]",
            image.torch or "-",
            str(image.python or "-"),
            str(image.image_name.cuda),
            str(image.wheel_cuda or "-"),
            " ".join(arch.capability for arch in image.archs) or "-",
            f">={image.min_driver}" if image.min_driver else "-",
            locks.get(image.name) or "-",
            _notes(image, blocked),
        )
    return table


def plan_as_json(planned: Sequence[Planned], locks: Mapping[str, LockStatus]) -> str:
    """`plan --json`: one image a line."""
    rows = ",\n ".join(json.dumps(as_json(image, locks)) for image in planned)
    return f'{{"images": [\n {rows}\n]}}'


def as_json(planned: Planned, locks: Mapping[str, LockStatus]) -> dict[str, Any]:
    """One image of `plan --json`."""
    blocked = _blocked(planned, locks)
    return {
        "name": planned.name,
        "status": "accepted" if planned.accepted else "refused",
        "reasons": list(planned.reasons),
        "warnings": list(planned.warnings),
        "torch": planned.torch,
        "python": str(planned.python) if planned.python else None,
        "toolkit_cuda": str(planned.image_name.cuda),
        "wheel_cuda": str(planned.wheel_cuda) if planned.wheel_cuda else None,
        "archs": [str(arch) for arch in planned.archs],
        "min_driver": planned.min_driver,
        "profile": planned.profile,
        "pins": dict(planned.pins or {}),
        "lock": locks.get(planned.name, LockStatus.MISSING),
        "buildable": planned.accepted and not blocked,
        "blocked": blocked,
    }


def _blocked(planned: Planned, locks: Mapping[str, LockStatus]) -> str:
    """Why an accepted image can't be built here; of a refused one, the reasons say it."""
    return lock_file.blocked(planned.image, locks.get(planned.name, LockStatus.MISSING)) if planned.image else ""


def verdict(judged: Verdict) -> Table:
    """One row a claim; the overall verdict above."""
    title = f"{judged.image}  {judged.digest[:19]}  [{_COLOURS[judged.overall]}]{judged.overall}[/]"
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


def _notes(image: Planned, blocked: str) -> str:
    reasons = [f"[red]{escape(text)}[/]" for text in (*image.reasons, blocked) if text]
    return "\n".join([*reasons, *(f"[yellow]{escape(text)}[/]" for text in image.warnings)])
