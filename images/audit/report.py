"""An audit in its forms, all from the same list of faults and the same tables: terminal, HTML, JSON, SARIF. Pure.

On a terminal every line begins with a character of ours, never with text of an image. The page has no script, font or
request, and looks unlike a verdict's on purpose.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from images.audit.model import NO_VALIDATION, Audit, Check, Outcome, Severity
from images.context.templates import environment
from images.host.hashing import sha256
from validate.terminal import aligned

INDENT = "|    "
"""Of lines that continue another: GitHub trims spaces before it looks for a workflow command."""
_MARKS = {"machine code": "yes", "PTX": "PTX", "no": "-"}
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class Table:
    """One table of a report. A row's first cell may be a severity."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    grid: bool = False
    """Its cells are short, and read by columns."""


def tables(audit: Audit) -> Iterator[Table]:
    """What terminal and page show; none without rows."""
    size = f"{audit.size / 1e9:.2f} GB"
    whole = f"{audit.digest}, {size}, {audit.system or 'system not known'}"
    facts = [("image", whole) if audit.digest else ("packages", size)]
    for env in audit.environments:
        cuda = f"for CUDA {env.cuda}" if env.cuda else "CPU only"
        torch = f"torch {env.torch} {cuda}" if env.torch else "no torch"
        first = ", first on PATH" if env.first else ""
        told = f"{env.kind}, Python {env.version}, {env.distributions} distributions, {torch}{first}"
        facts.append((env.prefix, told))
    faults = []
    for one in audit.faults():
        advice = [f"hint: {hint.cause} {hint.fix}" for hint in one.hints] or ([f"fix: {one.fix}"] if one.fix else [])
        told = "\n".join([one.text, *advice])
        where = f"{one.environment or 'image'} ({one.source})"
        faults.append((str(one.severity), one.key, where, told))
    not_measured = Counter(one.text for one in audit.of(Outcome.NOT_MEASURED))
    archs = list(audit.runs[0].on) if audit.runs else []
    found = [
        Table("What it is", ("", ""), facts),
        Table("Faults", ("", "check", "where (source)", "what, and what to do"), faults),
        Table("Not measured", ("checks", "why"), [(str(count), why) for why, count in not_measured.items()]),
        Table(
            "GPUs (sm_), library by library (yes: machine code; PTX: compiled by the driver). "
            + ". ".join(audit.drivers),
            ("package", *archs),
            [(one.package, *(_MARKS[one.on[arch]] for arch in archs)) for one in audit.runs],
            grid=True,
        ),
    ]
    yield from (table for table in found if table.rows)


def summary(audit: Audit) -> str:
    """`2 errors, 1 warning, 3 notes; 50 checks found no fault; 27 not measured`."""
    counts = [(len(audit.faults(severity)), str(severity)) for severity in Severity]
    told = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    good, open_ = len(audit.of(Outcome.NONE)), len(audit.of(Outcome.NOT_MEASURED))
    return f"{told}; {good} checks found no fault; {open_} not measured"


def terminal(audit: Audit) -> Iterator[str]:
    """Lines to print, each begun by a character of ours; what follows a line goes behind INDENT."""
    yield f"* AUDIT of {audit.image}: {summary(audit)}"
    yield f"* {NO_VALIDATION}"
    for table in tables(audit):
        yield from ("*", f"* {table.title}")
        if table.grid:
            yield from (f"| {line}" for line in aligned([table.columns, *table.rows]))
        for head, *cells in () if table.grid else table.rows:
            first, *advice = "  ".join([f"{head:<7}", *cells]).splitlines()
            yield from (f"| {first}", *(f"{INDENT}{line}" for line in advice))


def html(audit: Audit) -> str:
    """The whole page: the tables of the terminal, and every check that found no fault."""
    rest = [one for one in audit.checks if one.outcome is not Outcome.FAULT]
    rows = [(str(one.outcome), one.key, one.environment or "image", one.text) for one in rest]
    others = Table("Checks that found no fault, or were not made", ("outcome", "check", "where", "text"), rows)
    page = environment(html=True).get_template("audit.html.j2")
    return page.render(audit=audit, notice=NO_VALIDATION, summary=summary(audit), tables=[*tables(audit), others])


def sarif(audit: Audit, location: str) -> str:
    """SARIF 2.1.0 of all faults. `location`: the file of the repository that they are shown at, a Dockerfile say."""
    faults = audit.faults()
    rules = {
        one.key: {
            "id": one.key,
            "shortDescription": {"text": one.key},
            "help": {"text": _advice(one).strip() or "see docs/audit.md"},
        }
        for one in faults
    }
    run = {
        "tool": {"driver": {"name": "truetag audit", "rules": list(rules.values())}},
        "properties": {"notice": NO_VALIDATION, "image": audit.image, "digest": audit.digest},
        "results": [
            {
                "ruleId": one.key,
                "level": str(one.severity),
                "message": {"text": f"{one.environment}{': ' if one.environment else ''}{one.text}{_advice(one)}"},
                "locations": [
                    {
                        "physicalLocation": {"artifactLocation": {"uri": location}, "region": {"startLine": 1}},
                        "logicalLocations": [{"fullyQualifiedName": one.environment or "image"}],
                    }
                ],
                "partialFingerprints": {"truetagAudit/v1": sha256(f"{one.key} {one.environment} {one.text}".encode())},
            }
            for one in faults
        ],
    }
    return json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _advice(one: Check) -> str:
    known = "".join(f" Cause: {hint.cause} Fix: {hint.fix}" for hint in one.hints[:1])
    return known or (f" Fix: {one.fix}." if one.fix else "")


class AuditFile(BaseModel):
    """audit.json. Keys that are not listed are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["truetag-audit"] = "truetag-audit"
    schema_version: Literal[4] = 4
    notice: str = NO_VALIDATION
    audit: Audit


def dumps(audit: Audit) -> str:
    """The content of audit.json, in ASCII."""
    return json.dumps(AuditFile(audit=audit).model_dump(mode="json"), indent=1) + "\n"


def evidence(entries: Iterable[Mapping[str, Any]]) -> str:
    """The content of audit-evidence.json: what each check was judged from."""
    entire = {"kind": "truetag-audit-evidence", "schema_version": 2, "entries": list(entries)}
    return json.dumps(entire, indent=1) + "\n"
