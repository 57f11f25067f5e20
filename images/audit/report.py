"""An audit in its forms, all from the same list of faults and the same tables: terminal, HTML, JSON, SARIF, and
workflow commands that annotate a pull request. Pure.

On a terminal every line begins with a character of ours, never with text of an image. The page has no script, font or
request, and looks unlike a verdict's on purpose.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter
from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from images.audit import insight
from images.audit.model import NO_VALIDATION, Audit, Check, Outcome, Severity

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
_MARKS = {"machine code": "yes", "PTX": "PTX", "no": "-"}
_LARGEST = 8
_CHANGES = 8
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of {image}</title>
<style>
:root {{ color-scheme: light dark; --back: #fff; --text: #1c2128; --line: #d0d7de; --panel: #fff8e6; --error: #a40e26;
  --warning: #7a4b00; --note: #0a5394; }}
@media (prefers-color-scheme: dark) {{ :root {{ --back: #0d1117; --text: #e6edf3; --line: #3d444d; --panel: #2a2313;
  --error: #ff8b92; --warning: #e3b341; --note: #79c0ff; }} }}
body {{ margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }}
.notice {{ padding: .7rem 1rem; border: 2px dashed var(--warning); background: var(--panel); }}
table {{ border-collapse: collapse; width: 100%; }}
caption {{ text-align: left; font-weight: 600; padding: 1.6rem 0 .4rem; }}
th, td {{ border: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; white-space: pre-line; }}
.error {{ color: var(--error); font-weight: 600; }}
.warning {{ color: var(--warning); }}
.note {{ color: var(--note); }}
</style>
</head>
<body>
<h1>Audit of {image}</h1>
<p class="notice"><strong>{notice}</strong></p>
<p>{summary}. {date}</p>
{tables}
</body>
</html>
"""


@dataclass(frozen=True)
class Table:
    """One table of a report. A row's first cell may be a severity, which has a colour."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(audit: Audit) -> Iterator[Table]:
    """What every form shows; none without rows."""
    found = [
        Table("What it is", ("", ""), list(_facts(audit))),
        Table("Faults", ("", "check", "where", "what, and what to do", "source"), list(_faults(audit))),
        Table("Not measured", ("why", "checks"), _not_measured(audit)),
        *_device_code(audit),
        Table("Licences of NVIDIA's parts, as their metadata says", ("licence", "parts"), _licences(audit)),
    ]
    if near := audit.nearest:
        changes = _some(near.changes, _CHANGES, "; ") or "nothing"
        rows = [(near.name, f"{len(near.same)} packages at the same version"), ("would change", changes)]
        found.append(Table("The nearest image of the matrix", ("", ""), rows))
    yield from (table for table in found if table.rows)


def summary(audit: Audit) -> str:
    """`2 errors, 1 warning, 3 notes; 50 checks found nothing; 27 not measured`."""
    counts = [(len(audit.faults(severity)), str(severity)) for severity in Severity]
    told = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    good, open_ = len(audit.of(Outcome.NONE)), len(audit.of(Outcome.NOT_MEASURED))
    return f"{told}; {good} checks found no fault; {open_} not measured"


def _facts(audit: Audit) -> Iterator[tuple[str, str]]:
    yield "image", f"{audit.digest}, {audit.size / 1e9:.2f} GB, {audit.system or 'system not known'}"
    for one in audit.environments:
        cuda = f"for CUDA {one.cuda}" if one.cuda else "CPU only"
        torch = f"torch {one.torch} {cuda}" if one.torch else "no torch"
        first = ", first on PATH" if one.first else ""
        yield one.prefix, f"{one.kind}, Python {one.version}, {one.distributions} distributions, {torch}{first}"


def _faults(audit: Audit) -> Iterator[tuple[str, ...]]:
    """With known causes and fixes; with what generally helps where none is known."""
    for one in audit.faults():
        advice = [f"hint: {hint.cause} {hint.fix}" for hint in one.hints] or ([f"fix: {one.fix}"] if one.fix else [])
        place = one.environment or "image"
        yield str(one.severity), f"{one.id} {one.subject}", place, "\n".join([one.text, *advice]), str(one.source)


def _not_measured(audit: Audit) -> list[tuple[str, str]]:
    grouped: dict[str, list[str]] = {}
    for one in audit.of(Outcome.NOT_MEASURED):
        grouped.setdefault(one.text, []).append(f"{one.id} {one.subject}" if one.id != "A0" else one.environment)
    return [(why, _some(names, 4, ", ")) for why, names in grouped.items()]


def _device_code(audit: Audit) -> Iterator[Table]:
    if not audit.runs:
        return
    drivers = " ".join(
        f"CUDA {one.cuda}: driver {one.minimum or 'not known'} or newer"
        + (f" ({one.native} for PTX)." if one.native else ".")
        for one in audit.drivers
    )
    archs = list(audit.runs[0].on)
    runs = [(one.package, *(_MARKS[one.on[arch]] for arch in archs)) for one in audit.runs]
    title = f"GPUs, library by library (yes: machine code; PTX: compiled by the driver). {drivers}"
    yield Table(title, ("package", *(f"sm_{arch}" for arch in archs)), runs)
    by_arch = insight.bytes_by_arch(audit.device_code)
    alone = {
        one.arch: f"at least {(audit.size - one.removable + one.removable_nvidia) / 1e9:.2f} GB; "
        f"{(audit.size - one.removable) / 1e9:.2f} GB with NVIDIA's libraries pruned"
        for one in audit.weights
    }
    shown = dict.fromkeys([*list(by_arch)[:_LARGEST], *alone])
    sizes = [(arch, f"{by_arch.get(arch, 0) / 1e6:.0f}", alone.get(arch, "")) for arch in shown]
    title = f"Device code: {sum(by_arch.values()) / 1e9:.2f} GB of {audit.size / 1e9:.2f} GB"
    yield Table(title, ("GPUs", "MB", "an image for it alone, on disk"), sizes)


def _licences(audit: Audit) -> list[tuple[str, str]]:
    grouped: dict[str, list[str]] = {}
    for one in audit.licences:
        grouped.setdefault(one.licence, []).append(f"{one.name} {one.version}")
    files = [(path, "licence text in the image") for path in audit.licence_files]
    return [(licence, ", ".join(names)) for licence, names in grouped.items()] + (files if grouped else [])


def _some(names: Sequence[str], most: int, between: str) -> str:
    return between.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def terminal(audit: Audit) -> Iterator[RenderableType]:
    """What to print, one after another."""
    yield Text(f"* AUDIT of {audit.image}: {summary(audit)}", style="bold")
    yield Text(f"* {NO_VALIDATION}")
    styles = {str(severity): style for severity, style in _STYLES.items()}
    for table in tables(audit):
        shown = RichTable(title=table.title, title_justify="left", box=box.ASCII2)
        for column in table.columns:
            shown.add_column(column, overflow="fold")
        for first, *others in table.rows:
            shown.add_row(Text(first, style=styles.get(first, "")), *map(escape, others))
        yield shown


def html(audit: Audit) -> str:
    """The whole page: the tables of the terminal, and every check that found no fault."""
    rest = [one for one in audit.checks if one.outcome is not Outcome.FAULT]
    rows = [(str(one.outcome), f"{one.id} {one.subject}", one.environment or "image", one.text) for one in rest]
    others = Table("Checks that found no fault, or were not made", ("outcome", "check", "where", "text"), rows)
    return _PAGE.format(
        image=escape_html(audit.image),
        notice=escape_html(NO_VALIDATION),
        summary=escape_html(summary(audit)),
        date=escape_html(audit.date),
        tables="\n".join(line for table in (*tables(audit), others) if table.rows for line in _html_table(table)),
    )


def _html_table(table: Table) -> Iterator[str]:
    yield f"<table><caption>{escape_html(table.title)}</caption>"
    if any(table.columns):
        yield f"<tr>{''.join(f'<th>{escape_html(cell)}</th>' for cell in table.columns)}</tr>"
    for first, *others in table.rows:
        style = f' class="{first}"' if first in list(Severity) else ""
        cells = "".join(f"<td>{escape_html(cell)}</td>" for cell in others)
        yield f"<tr><td{style}>{escape_html(first)}</td>{cells}</tr>"
    yield "</table>"


# ---- for GitHub


def sarif(audit: Audit, location: str) -> str:
    """SARIF 2.1.0 of all faults. `location`: the file of the repository that they are shown at, a Dockerfile say."""
    faults = audit.faults()
    rules = {
        _rule(one): {
            "id": _rule(one),
            "shortDescription": {"text": _rule(one)},
            "help": {"text": _advice(one).strip() or "see docs/audit.md"},
        }
        for one in faults
    }
    run = {
        "tool": {"driver": {"name": "truetag audit", "rules": list(rules.values())}},
        "properties": {"notice": NO_VALIDATION, "image": audit.image, "digest": audit.digest},
        "results": [_result(one, location) for one in faults],
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(one: Check, location: str) -> dict[str, object]:
    fingerprint = hashlib.sha256(f"{one.id} {one.subject} {one.environment} {one.text}".encode()).hexdigest()
    return {
        "ruleId": _rule(one),
        "level": str(one.severity),
        "message": {"text": _told(one)},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": location}, "region": {"startLine": 1}},
                "logicalLocations": [{"fullyQualifiedName": one.environment or "image"}],
            }
        ],
        "partialFingerprints": {"truetagAudit/v1": fingerprint},
    }


def workflow_commands(audit: Audit, location: str) -> Iterator[str]:
    """One workflow command a fault (GitHub, "Workflow commands": `::error file=...,title=...::text`)."""

    def data(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    def named(text: str) -> str:
        return data(text).replace(":", "%3A").replace(",", "%2C")

    for one in audit.faults():
        where = f"file={named(location)},line=1,title={named(f'audit: {_rule(one)}')}"
        yield f"::{_COMMANDS[one.severity]} {where}::{data(_told(one))}"


def _rule(one: Check) -> str:
    """`S3-libraries`."""
    return f"{one.id}-{one.subject}".replace(" ", "-")


def _told(one: Check) -> str:
    """A fault in one paragraph: where, what, and what to do."""
    return f"{f'{one.environment}: ' if one.environment else ''}{one.text}{_advice(one)}"


def _advice(one: Check) -> str:
    known = "".join(f" Cause: {hint.cause} Fix: {hint.fix}" for hint in one.hints[:1])
    return known or (f" Fix: {one.fix}." if one.fix else "")


# ---- audit.json, with a schema of its own, so that nobody takes it for a verdict


class AuditFile(BaseModel):
    """audit.json. Keys that are not listed are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["truetag-audit"] = "truetag-audit"
    schema_version: Literal[1] = 1
    notice: str = NO_VALIDATION
    audit: Audit


def dumps(audit: Audit) -> str:
    """The content of audit.json, in ASCII."""
    plain: Any = TypeAdapter(AuditFile).dump_python(AuditFile(audit=audit), mode="json")
    return json.dumps(plain, indent=1) + "\n"


def evidence(entries: Iterable[Mapping[str, Any]]) -> str:
    """The content of audit-evidence.json: what each check was judged from."""
    entire = {"kind": "truetag-audit-evidence", "schema_version": 1, "entries": list(entries)}
    return json.dumps(entire, indent=1) + "\n"
