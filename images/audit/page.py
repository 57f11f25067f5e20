"""An audit as one HTML file without script, font or request. It looks unlike a verdict's page on purpose. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from images.audit import insight, terminal
from images.audit.model import NO_VALIDATION, Audit, Outcome

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2128; --line: #d0d7de; --panel: #fff8e6; --error: #a40e26;
  --warning: #7a4b00; --note: #0a5394; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --line: #3d444d; --panel: #2a2313;
  --error: #ff8b92; --warning: #e3b341; --note: #79c0ff; } }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
.notice { padding: .7rem 1rem; border: 2px dashed var(--warning); background: var(--panel); }
table { border-collapse: collapse; width: 100%; }
caption { text-align: left; font-weight: 600; padding: 1.6rem 0 .4rem; }
th, td { border: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
.error { color: var(--error); font-weight: 600; } .warning { color: var(--warning); } .note { color: var(--note); }
"""
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
)


def html(audit: Audit) -> str:
    """The whole page."""
    return "\n".join(_page(audit)) + "\n"


def _page(audit: Audit) -> Iterator[str]:
    yield f"{_HEAD}\n<title>Audit of {escape(audit.image)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>Audit of {escape(audit.image)}</h1>"
    yield f'<p class="notice"><strong>{escape(NO_VALIDATION)}</strong></p>'
    yield f"<p>{escape(terminal.summary(audit))}. {escape(audit.date)}</p>"
    yield from _table("What it is", ("", ""), _facts(audit))
    yield from _table("Faults", ("severity", "check", "where", "what, and what to do", "source"), _faults(audit))
    rest = [one for one in audit.checks if one.outcome is not Outcome.FAULT]
    rows = [(str(one.outcome), f"{one.id} {one.subject}", one.environment or "image", one.text) for one in rest]
    archs = list(audit.runs[0].on) if audit.runs else []
    runs = [(one.package, *(one.on[arch] for arch in archs)) for one in audit.runs]
    yield from _table(
        f"GPUs, library by library. {terminal.drivers(audit)}", ("package", *(f"sm_{arch}" for arch in archs)), runs
    )
    sizes = insight.bytes_by_arch(audit.device_code).items()
    yield from _table("Device code", ("GPUs", "MB"), [(arch, f"{size / 1e6:.1f}") for arch, size in sizes])
    yield from _table(
        "An image for one architecture alone, on disk", ("GPUs", "at least", "NVIDIA's pruned too"), _weights(audit)
    )
    licences = [(one.name, one.version, one.licence) for one in audit.licences]
    yield from _table("Licences of NVIDIA's parts", ("part", "version", "licence, as its metadata says"), licences)
    if audit.nearest:
        changes = [("same", one) for one in audit.nearest.same] + [("change", one) for one in audit.nearest.changes]
        yield from _table(f"The nearest image of the matrix: {audit.nearest.name}", ("", ""), changes)
    yield from _table("Checks that found no fault, or were not made", ("outcome", "check", "where", "text"), rows)
    yield "</body>\n</html>"


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    body = list(rows)
    if not body:
        return
    yield f"<table><caption>{escape(caption)}</caption>"
    if any(head):
        yield f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>"
    for row in body:
        first, *others = row
        style = f' class="{first}"' if first in ("error", "warning", "note") else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        yield f"<tr><td{style}>{escape(first)}</td>{cells}</tr>"
    yield "</table>"


def _facts(audit: Audit) -> Iterator[tuple[str, str]]:
    yield "digest", audit.digest
    yield "size", f"{audit.size / 1e9:.2f} GB"
    yield "system", audit.system or "not known"
    for one in audit.environments:
        torch = f"torch {one.torch}, CUDA {one.cuda or 'none'}" if one.torch else "no torch"
        yield one.prefix, f"{one.kind}, Python {one.version}, {one.distributions} distributions, {torch}"


def _faults(audit: Audit) -> Iterator[tuple[str, ...]]:
    for one in audit.faults():
        text = " ".join([one.text, *terminal.advice(one)])
        yield str(one.severity), f"{one.id} {one.subject}", one.environment or "image", text, str(one.source)


def _weights(audit: Audit) -> Iterator[tuple[str, str, str]]:
    for one in audit.weights:
        kept = (audit.size - one.removable + one.removable_nvidia) / 1e9
        yield one.arch, f"{kept:.2f} GB", f"{(audit.size - one.removable) / 1e9:.2f} GB"
