"""The plan, verdicts and checks as rich tables for people. Pure views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from images.commands.common import counted
from images.locking import lock_file
from images.locking.lock_file import Status as LockStatus
from images.planning.plan import Planned
from validate.judging import Status

if TYPE_CHECKING:
    from images.publish.checks import Check
    from validate.judge import Verdict

_COLOURS = {Status.PASS: "green", Status.FAIL: "bold red", Status.UNPROVEN: "yellow", Status.NOT_APPLICABLE: "dim"}


def plan(planned: Sequence[Planned], locks: Mapping[str, LockStatus]) -> Table:
    """One row an image, refused ones included, with the reason a person can act on."""
    table = Table(title=counted(len(planned), "image"), title_justify="left", row_styles=["", ""])
    for heading in ("image", "", "torch", "py", "toolkit", "wheel", "GPU archs", "driver", "lock"):
        table.add_column(heading, no_wrap=heading != "GPU archs")
    table.add_column("reasons and warnings", ratio=1)
    for image in planned:
        why = blocked(image, locks)
        reasons = [f"[red]{escape(text)}[/]" for text in (*image.reasons, why) if text]
        table.add_row(
            f"[bold]{image.name}[/]",
            "[red]refused[/]" if not image.accepted else "[yellow]no lock[/]" if why else "[green]ok[/]",
            image.torch or "-",
            str(image.python or "-"),
            str(image.image_name.cuda),
            str(image.wheel_cuda or "-"),
            " ".join(arch.capability for arch in image.archs) or "-",
            f">={image.min_driver}" if image.min_driver else "-",
            locks.get(image.name) or "-",
            "\n".join([*reasons, *(f"[yellow]{escape(text)}[/]" for text in image.warnings)]),
        )
    return table


def blocked(planned: Planned, locks: Mapping[str, LockStatus]) -> str:
    """Why an accepted image can't be built here; of a refused one, the reasons say it."""
    return lock_file.blocked(planned.image, locks.get(planned.name, LockStatus.MISSING)) if planned.image else ""


def verdict(judged: Verdict, reference: str = "") -> Table:
    """One row a claim; the overall verdict above, with the image's own name where it was held to another's claims."""
    from validate import report  # `plan` needs none of it

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
            "\n".join([escape(row.reason), *(f"[cyan]{escape(report.advice(hint))}[/]" for hint in row.hints)]),
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
