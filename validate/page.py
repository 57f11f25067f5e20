"""A verdict as one HTML file that needs nothing else: no script, no font, no request. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from validate import report
from validate.claims import Tier
from validate.hints import Hint
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status

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
    for term, text in _terms(verdict, host):
        yield f"<dt>{escape(term)}</dt><dd>{text}</dd>"
    yield "</dl>"


def _terms(verdict: Verdict, host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Terms and what stands beside them, as HTML."""
    yield "verdict", escape(report.summary(verdict))
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
