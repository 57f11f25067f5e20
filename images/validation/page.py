"""A verdict as report.html, which needs nothing else (no script, no font, no request), and as junit.xml. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from images.context.templates import environment
from validate import report
from validate.claims import Tier
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


_NOT_IN_XML = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)], "\ufffd")
"""Characters that XML 1.0 can't hold, not even escaped; the output of a crashed probe may have them."""


def junit(verdict: Verdict) -> str:
    """JUnit XML. A required claim that is not PASS is a failure here: CI systems show a skip as green."""
    bad = [one for one in verdict.claims if one.status is not Status.PASS]
    failed = [one for one in bad if one.claim.required or one.status is Status.FAIL]
    page = environment(html=True).get_template("junit.xml.j2")
    text = page.render(
        verdict=verdict,
        failed=failed,
        skipped=[one for one in bad if one not in failed],
        nothing=verdict.overall is not Status.PASS and not failed,
        summary=report.summary(verdict),
        told=_told,
    )
    return text.translate(_NOT_IN_XML)


def _told(one: ClaimVerdict) -> str:
    probe = one.evidence.get("probe")
    log = str(probe.get("log", "")) if isinstance(probe, Mapping) else ""
    return "\n".join([one.claim.statement, *map(report.advice, one.hints), log])


def html(verdict: Verdict, host: Mapping[str, Any]) -> str:
    """The whole page. `host` is the evidence's: engine, cores, driver, GPUs."""
    gpus = []
    for gpu in host.get("gpus") or ():
        capability = ".".join(map(str, gpu.get("capability") or ()))
        memory = f", {gpu['memory'] / 1000**3:.0f} GB" if gpu.get("memory") else ""
        gpus.append(f"{gpu.get('name', 'GPU')}{f' ({capability}{memory})' if capability else memory}")
    tiers = [(tier, what, [one for one in verdict.claims if one.claim.tier is tier]) for tier, what in _TIERS.items()]
    page = environment(html=True).get_template("report.html.j2")
    return page.render(
        verdict=verdict,
        host=host,
        summary=report.summary(verdict),
        failed=verdict.of(Status.FAIL),
        gpus="; ".join(gpus),
        tiers=[row for row in tiers if row[2]],
        evidence=_evidence,
    )


def _evidence(one: ClaimVerdict) -> str:
    """Escaped; quotes stay, which keeps the page small."""
    shown = json.dumps(one.evidence, indent=1, ensure_ascii=False, default=str)
    if (more := len(shown) - _EVIDENCE_CHARACTERS) > 0:
        shown = f"{shown[:_EVIDENCE_CHARACTERS]}\n... {more} more characters in evidence.json"
    return escape(shown, quote=False)
