"""Views of a verdict: a table for terminals, verdict.json, JUnit XML, Markdown, one HTML file that needs nothing else
(no script, no font, no request). Pure; nothing is decided here."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any
from xml.etree import ElementTree

from validate.claims import Tier
from validate.hints import Hint
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

Row = tuple[str, str, str, str, str]
HEADINGS: Row = ("verdict", "claim", "subject", "seconds", "reason")
_LEAST_REASON_WIDTH = 40
_NOT_IN_XML = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)], "�")
"""Characters that XML 1.0 can't hold, not even escaped; the output of a crashed probe may have them."""


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


def junit(verdict: Verdict) -> str:
    """JUnit XML. A required claim that is not PASS is a failure here: CI systems show a skip as green."""
    failures = [one for one in verdict.claims if _is_failure(one)]
    skipped = [one for one in verdict.claims if one.status is not Status.PASS and not _is_failure(one)]
    counts = {
        "tests": str(len(verdict.claims)),
        "failures": str(len(failures)),
        "skipped": str(len(skipped)),
        "time": f"{sum(one.seconds for one in verdict.claims):.3f}",
    }
    suite = ElementTree.Element("testsuite", {"name": verdict.image, **counts})
    for one in verdict.claims:
        _test_case(suite, verdict.image, one)
    if verdict.overall is not Status.PASS and not failures:
        empty = ElementTree.SubElement(suite, "testcase", {"classname": verdict.image, "name": "overall"})
        ElementTree.SubElement(empty, "failure", {"message": summary(verdict)})
        suite.attrib.update({"tests": str(len(verdict.claims) + 1), "failures": "1"})
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


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


def _is_failure(one: ClaimVerdict) -> bool:
    return one.status is Status.FAIL or (one.claim.required and one.status is not Status.PASS)


def _test_case(suite: ElementTree.Element, image: str, one: ClaimVerdict) -> None:
    names = {"classname": f"{image}.{one.claim.tier}.{one.claim.id}", "name": one.claim.subject}
    case = ElementTree.SubElement(suite, "testcase", {**names, "time": f"{one.seconds:.3f}"})
    if one.status is Status.PASS:
        return
    kind = "failure" if _is_failure(one) else "skipped"
    message = f"{one.status}: {one.reason}".translate(_NOT_IN_XML)
    element = ElementTree.SubElement(case, kind, {"message": message})
    lines = [one.claim.statement, *map(advice, one.hints), _log(one.evidence)]
    element.text = "\n".join(lines).translate(_NOT_IN_XML)


def _log(evidence: Mapping[str, Any]) -> str:
    probe = evidence.get("probe")
    return str(probe.get("log", "")) if isinstance(probe, Mapping) else ""


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells) + " |"


_EVIDENCE_CHARACTERS = 4000
"""A claim's evidence in the page; evidence.json has all of it."""
_TIERS = {
    Tier.STATIC: "its files, read",
    Tier.CPU: "its code, run without a GPU",
    Tier.GPU: "its kernels, run on a GPU",
    Tier.MULTIGPU: "several GPUs together",
}
_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2128; --soft: #59636e; --line: #d8dee4; --panel: #f6f8fa;
  --pass: #1a7f37; --fail: #cf222e; --unproven: #9a6700; --other: #59636e; --hint: #ddf4ff; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --soft: #9198a1; --line: #30363d;
  --panel: #161b22; --pass: #3fb950; --fail: #f85149; --unproven: #d29922; --other: #9198a1; --hint: #0c2d4a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; overflow-wrap: anywhere; }
h2 { margin: 2rem 0 .4rem; font-size: 1.05rem; } h2 small { color: var(--soft); font-weight: 400; font-size: .9em; }
a { color: inherit; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; }
code, pre, .id, .seconds { font-family: ui-monospace, monospace; font-size: .86em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.verdict { display: inline-block; min-width: 6.2em; padding: .05em .6em; border: 1px solid currentColor;
  border-radius: 1em; font-size: .78rem; font-weight: 600; text-align: center; white-space: nowrap;
  color: var(--other); }
.PASS { color: var(--pass); } .FAIL { color: var(--back); background: var(--fail); border-color: var(--fail); }
.UNPROVEN { color: var(--unproven); }
header .verdict { font-size: 1rem; }
details { border-top: 1px solid var(--line); } details:last-of-type { border-bottom: 1px solid var(--line); }
summary { display: grid; grid-template-columns: .8rem 7.6rem 3rem 11rem 1fr 4.2rem; gap: .2rem .8rem;
  padding: .45rem .3rem; align-items: baseline; cursor: pointer; list-style: none; }
summary::-webkit-details-marker { display: none; }
summary::before { content: "▸"; color: var(--soft); } [open] > summary::before { content: "▾"; }
summary:hover, summary:focus-visible { background: var(--panel); }
.subject, .reason { overflow-wrap: anywhere; } .subject { font-weight: 600; }
.optional { color: var(--soft); font-weight: 400; }
.seconds { text-align: right; color: var(--soft); white-space: nowrap; }
.hint { grid-column: 5 / -1; background: var(--hint); border-radius: 6px; padding: .35rem .6rem; font-size: .92em;
  overflow-wrap: anywhere; }
.hint a, .hint small { color: var(--soft); }
.inside { padding: .2rem .3rem 1rem; }
.inside p { margin: .2rem 0 .6rem; color: var(--soft); }
pre { margin: 0; padding: .7rem .9rem; background: var(--panel); border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .9em; }
@media (max-width: 46rem) {
  summary { grid-template-columns: .8rem auto auto 1fr auto; }
  .reason, .hint { grid-column: 2 / -1; order: 1; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
}
@media print { body { max-width: none; } }
"""


def html(verdict: Verdict, host: Mapping[str, Any]) -> str:
    """The whole page. `host` is the evidence's: engine, cores, driver, GPUs."""
    return "\n".join(_page(verdict, host)) + "\n"


def _page(verdict: Verdict, host: Mapping[str, Any]) -> Iterator[str]:
    name = escape(verdict.image)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{name}: {verdict.overall}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<header><h1>{name}</h1>{_chip(verdict.overall)}</header>"
    yield from _facts(verdict, host)
    for tier in Tier:
        claims = [one for one in verdict.claims if one.claim.tier is tier]
        if claims:
            seconds = _seconds(sum(one.seconds for one in claims))
            yield f"<h2>{tier} <small>{_TIERS[tier]}, {seconds}</small></h2>"
            for one in claims:
                yield from _claim(one)
    yield (
        "<footer>Claims are written from the matrix, evidence is measured inside the container, and a required claim "
        "that is not PASS is never green.</footer>\n</body>\n</html>"
    )


def _facts(verdict: Verdict, host: Mapping[str, Any]) -> Iterator[str]:
    yield "<dl>"
    for term, shown in _terms(verdict, host):
        yield f"<dt>{escape(term)}</dt><dd>{shown}</dd>"
    yield "</dl>"


def _terms(verdict: Verdict, host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Terms and what stands beside them, as HTML."""
    yield "verdict", escape(summary(verdict))
    if failed := verdict.of(Status.FAIL):
        yield "failed", ", ".join(f'<a href="#{_anchor(one)}">{_name(one)}</a>' for one in failed)
    yield "digest", f"<code>{escape(verdict.digest)}</code>" if verdict.digest else "not known from inside"
    gpus = [_gpu(gpu) for gpu in host.get("gpus") or ()]
    yield "GPU", escape("; ".join(gpus) or "none")
    if driver := host.get("driver"):
        yield "driver", escape(str(driver))
    if engine := host.get("engine"):
        yield "engine", escape(f"Docker {engine}, {host.get('cpus', '?')} cores")
    yield "measuring", f"{_seconds(sum(one.seconds for one in verdict.claims))}, all claims together"


def _gpu(gpu: Mapping[str, Any]) -> str:
    capability = ".".join(map(str, gpu.get("capability") or ()))
    memory = f", {gpu['memory'] / 1000**3:.0f} GB" if gpu.get("memory") else ""
    return f"{gpu.get('name', 'GPU')}{f' ({capability}{memory})' if capability else memory}"


def _claim(one: ClaimVerdict) -> Iterator[str]:
    optional = "" if one.claim.required else ' <span class="optional">(not required)</span>'
    yield f'<details id="{_anchor(one)}"><summary>'
    yield f'{_chip(one.status)}<span class="id">{escape(one.claim.id)}</span>'
    yield f'<span class="subject">{escape(one.claim.subject)}{optional}</span>'
    yield f'<span class="reason">{escape(one.reason)}</span><span class="seconds">{_seconds(one.seconds)}</span>'
    yield from map(_hint, one.hints)
    yield f'</summary><div class="inside"><p>Claim: {escape(one.claim.statement)}.</p>'
    yield f"<pre>{escape(_evidence(one.evidence), quote=False)}</pre></div></details>"


def _name(one: ClaimVerdict) -> str:
    return escape(f"{one.claim.id} {one.claim.subject}")


def _anchor(one: ClaimVerdict) -> str:
    return escape(f"{one.claim.id}-{one.claim.subject}".replace(" ", "-"))


def _hint(hint: Hint) -> str:
    return (
        f'<span class="hint"><b>Cause:</b> {escape(hint.cause)} <b>Fix:</b> {escape(hint.fix)} '
        f"<small>({escape(hint.source)})</small></span>"
    )


def _chip(status: Status) -> str:
    return f'<span class="verdict {status}">{str(status).replace("_", " ")}</span>'


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"


def _evidence(evidence: Mapping[str, Any]) -> str:
    shown = json.dumps(evidence, indent=1, ensure_ascii=False, default=str)
    if len(shown) <= _EVIDENCE_CHARACTERS:
        return shown
    return f"{shown[:_EVIDENCE_CHARACTERS]}\n... {len(shown) - _EVIDENCE_CHARACTERS} more characters in evidence.json"
