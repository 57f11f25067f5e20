"""An audit as tables for a terminal. Every line begins with a character of ours, never with text of an image. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from images.audit import insight
from images.audit.model import NO_VALIDATION, Audit, Check, Outcome, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_MARKS = {"machine code": "yes", "PTX": "PTX", "no": "-"}
_LARGEST = 8
_CHANGES = 8


def render(audit: Audit) -> Iterator[RenderableType]:
    """What to print, one after another."""
    yield Text(f"* AUDIT of {audit.image}: {summary(audit)}", style="bold")
    yield Text(f"* {NO_VALIDATION}")
    yield _facts(audit)
    if audit.faults():
        yield _faults(audit)
    if audit.of(Outcome.NOT_MEASURED):
        yield _not_measured(audit)
    if audit.runs:
        yield _gpus(audit)
        yield _weights(audit)
    if audit.licences:
        yield _licences(audit)
    if audit.nearest:
        yield _nearest(audit)


def summary(audit: Audit) -> str:
    """`2 errors, 1 warning, 3 notes; 50 checks found nothing; 27 not measured`."""
    counts = [(len(audit.faults(severity)), str(severity)) for severity in Severity]
    told = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    good, open_ = len(audit.of(Outcome.NONE)), len(audit.of(Outcome.NOT_MEASURED))
    return f"{told}; {good} checks found no fault; {open_} not measured"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.ASCII2, show_lines=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*map(escape, cells))


def _facts(audit: Audit) -> Table:
    table = _table("What it is", "", "")
    _row(table, "image", f"{audit.digest}, {audit.size / 1e9:.2f} GB, {audit.system or 'system not known'}")
    for one in audit.environments:
        torch = (
            f"torch {one.torch}" + (f" for CUDA {one.cuda}" if one.cuda else ", CPU only") if one.torch else "no torch"
        )
        first = ", first on PATH" if one.first else ""
        text = f"{one.kind}, Python {one.version}, {one.distributions} distributions, {torch}{first}"
        _row(table, one.prefix, text)
    return table


def _faults(audit: Audit) -> Table:
    table = _table("Faults", "", "check", "where", "what, and what to do")
    for one in audit.faults():
        table.add_row(
            Text(str(one.severity), style=_STYLES[one.severity]),
            escape(f"{one.id} {one.subject}"),
            escape(one.environment or "image"),
            escape("\n".join([one.text, *advice(one)])),
        )
    return table


def advice(one: Check) -> list[str]:
    """Known causes and fixes; what generally helps where none is known."""
    known = [f"hint: {hint.cause} {hint.fix}" for hint in one.hints]
    return known or ([f"fix: {one.fix}"] if one.fix else [])


def _not_measured(audit: Audit) -> Table:
    grouped: dict[str, list[str]] = {}
    for one in audit.of(Outcome.NOT_MEASURED):
        grouped.setdefault(one.text, []).append(f"{one.id} {one.subject}" if one.id != "A0" else one.environment)
    table = _table("Not measured", "why", "checks")
    for why, names in grouped.items():
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        _row(table, why, f"{', '.join(names[:4])}{more}")
    return table


def _gpus(audit: Audit) -> Table:
    archs = list(audit.runs[0].on)
    table = _table(
        f"GPUs, library by library (yes: machine code; PTX: compiled by the driver). {drivers(audit)}", "package"
    )
    for arch in archs:
        table.add_column(f"sm_{arch}", justify="center")
    for one in audit.runs:
        _row(table, one.package, *(_MARKS[one.on[arch]] for arch in archs))
    return table


def drivers(audit: Audit) -> str:
    """The sentence on drivers."""
    return " ".join(
        f"CUDA {one.cuda}: driver {one.minimum or 'not known'} or newer"
        + (f" ({one.native} for PTX)." if one.native else ".")
        for one in audit.drivers
    )


def _weights(audit: Audit) -> Table:
    by_arch = insight.bytes_by_arch(audit.device_code)
    total = sum(by_arch.values())
    table = _table(
        f"Device code: {total / 1e9:.2f} GB of {audit.size / 1e9:.2f} GB",
        "GPUs",
        "MB",
        "an image for it alone, on disk",
    )
    alone = {one.arch: one for one in audit.weights}
    shown: Sequence[str] = [
        *list(by_arch)[:_LARGEST],
        *(arch for arch in alone if arch not in list(by_arch)[:_LARGEST]),
    ]
    for arch in shown:
        weight = alone.get(arch)
        told = ""
        if weight:
            ours = (audit.size - weight.removable + weight.removable_nvidia) / 1e9
            told = (
                f"at least {ours:.2f} GB; {(audit.size - weight.removable) / 1e9:.2f} GB with NVIDIA's libraries pruned"
            )
        _row(table, arch, f"{by_arch.get(arch, 0) / 1e6:.0f}", told)
    return table


def _licences(audit: Audit) -> Table:
    grouped: dict[str, list[str]] = {}
    for one in audit.licences:
        grouped.setdefault(one.licence, []).append(f"{one.name} {one.version}")
    table = _table("Licences of NVIDIA's parts, as their metadata says", "licence", "parts")
    for licence, names in grouped.items():
        _row(table, licence, ", ".join(names))
    for path in audit.licence_files:
        _row(table, path, "licence text in the image")
    return table


def _nearest(audit: Audit) -> Table:
    found = audit.nearest
    table = _table("The nearest image of the matrix", "", "")
    if found:
        more = f" and {len(found.changes) - _CHANGES} more" if len(found.changes) > _CHANGES else ""
        _row(table, found.name, f"{len(found.same)} packages at the same version")
        _row(table, "would change", f"{'; '.join(found.changes[:_CHANGES]) or 'nothing'}{more}")
    return table
