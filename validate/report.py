"""Views of a verdict: a table for terminals, verdict.json, Markdown. Pure; nothing is decided here."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from validate.hints import Hint
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

Row = tuple[str, str, str, str, str]
HEADINGS: Row = ("verdict", "claim", "subject", "seconds", "reason")
_LEAST_REASON_WIDTH = 40


def rows(verdict: Verdict) -> list[Row]:
    """One row a claim, as text, under HEADINGS."""
    return [
        (str(one.status), one.claim.id, one.claim.subject, f"{one.seconds:.1f}", _reason(one)) for one in verdict.claims
    ]


def summary(verdict: Verdict) -> str:
    """`cu126-torch27: PASS (28 PASS, 1 UNPROVEN)`; what passed emulated is counted apart, too."""
    counts = [f"{len(verdict.of(status))} {status}" for status in Status if verdict.of(status)]
    if emulated := [one for one in verdict.of(Status.PASS) if one.emulated]:
        counts.append(f"{len(emulated)} of the PASS emulated")
    return f"{verdict.image}: {verdict.overall} ({', '.join(counts) or 'no claim was judged'})"


def text(verdict: Verdict, *, width: int | None = None) -> str:
    """A table in plain text, with reasons wrapped to `width` characters (default: the terminal's)."""
    body = rows(verdict)
    columns = list(zip(HEADINGS, *body, strict=True))[:-1]
    widths = [max(map(len, column)) for column in columns]
    indent = sum(widths) + 2 * len(widths)
    room = max(_LEAST_REASON_WIDTH, (width or shutil.get_terminal_size((160, 24)).columns) - indent)
    lines = [_line(HEADINGS, widths, room, indent), "  ".join("-" * width for width in [*widths, len(HEADINGS[-1])])]
    lines += [_line(row, widths, room, indent) for row in body]
    return "\n".join([*lines, "", summary(verdict)])


def json_data(verdict: Verdict) -> dict[str, Any]:
    """The content of verdict.json: it names the evidence by its sha256 and repeats none of it."""
    return {
        "schema_version": 2,
        "image": verdict.image,
        "digest": verdict.digest,
        "evidence_sha256": verdict.evidence_sha256,
        "overall": str(verdict.overall),
        "claims": [_claim_data(one) for one in verdict.claims],
    }


def _claim_data(one: ClaimVerdict) -> dict[str, Any]:
    """`hints` is there only where there are some."""
    explained = [{"id": hint.id, "cause": hint.cause, "fix": hint.fix, "source": hint.source} for hint in one.hints]
    return {
        "id": one.claim.id,
        "tier": str(one.claim.tier),
        "subject": one.claim.subject,
        "required": one.claim.required,
        "verdict": str(one.status),
        "reason": one.reason,
        "seconds": one.seconds,
        **({"emulated": one.emulated} if one.emulated else {}),
        **({"hints": explained} if explained else {}),
    }


def advice(hint: Hint) -> str:
    """A hint in one line."""
    return f"hint: {hint.cause} {hint.fix}"


def markdown(verdict: Verdict) -> str:
    """A page with the overall verdict first and one table row a claim."""
    lines = [f"# {verdict.image}: {verdict.overall}", "", f"Image `{verdict.digest}`. {summary(verdict)}.", ""]
    lines += [_markdown_row(HEADINGS), _markdown_row(["---"] * len(HEADINGS))]
    lines += [_markdown_row(row) for row in rows(verdict)]
    return "\n".join([*lines, ""])


def _reason(one: ClaimVerdict) -> str:
    """The reason, and each hint in a line of its own."""
    reason = one.reason if one.claim.required else f"{one.reason} (not required)"
    return "\n".join([reason, *map(advice, one.hints)])


def _line(row: Sequence[str], widths: Sequence[int], room: int, indent: int) -> str:
    cells = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
    reason = [part for line in row[-1].splitlines() for part in textwrap.wrap(line, room)] or [""]
    return f"{cells}  " + f"\n{' ' * indent}".join(reason)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells) + " |"
