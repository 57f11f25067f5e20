"""The report of a nightly run: sentences, and issues for a tracker. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from images.nightly.results import BreakageLine, Change, JobLine
from images.validation.rows import ClaimRow
from validate.judging import Status

_REASON = 240


def sentence(culprits: Sequence[Change], claims: Sequence[ClaimRow]) -> str:
    """`torchao 0.11.0 -> 0.14.1 breaks S3: ...`: both versions, all claims, and the first one's reason."""
    moved = " with ".join(map(str, culprits))
    verb = "breaks" if len(culprits) == 1 else "together break"
    names = list(dict.fromkeys(claim.brief for claim in claims))
    told = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{moved} {verb} {told}: {brief(claims[0].reason)}"


def brief(reason: str) -> str:
    """A reason in one line of a bearable length."""
    text = " ".join(reason.split())
    return text if len(text) <= _REASON else text[: _REASON - 4].rstrip() + " ..."


def searched(one: BreakageLine) -> str:
    """What a search cost."""
    together = f" in {one.rounds} rounds of at most {one.at_once}" if one.at_once > 1 else ""
    built = f"{one.builds} images built{together}, {one.unresolved} sets unresolvable"
    return f"{one.candidates} packages that changed, {built}, {one.seconds:.0f} s"


def key(culprits: Sequence[Change]) -> str:
    """Equal for the same culprits at the same versions, whatever image they break."""
    text = "--".join(f"{one.name}-{one.after or 'gone'}" for one in sorted(culprits, key=lambda one: one.name))
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower())


def issues(breakages: Sequence[BreakageLine]) -> dict[str, str]:
    """File name -> Markdown, one for each set of culprits: title in the first line, a marker to find it by last."""
    groups: dict[str, list[BreakageLine]] = {}
    for one in breakages:
        groups.setdefault(one.key, []).append(one)
    return {f"{name}.md": _issue(name, group) for name, group in groups.items()}


def _marker(name: str) -> str:
    return f"<!-- truetag: {name} -->"


def _issue(name: str, group: Sequence[BreakageLine]) -> str:
    first = group[0]
    moved = " with ".join(f"{one.name} {one.after}" for one in first.culprits)
    images = ", ".join(dict.fromkeys(one.image for one in group))
    lines = [f"# {moved} breaks {images}", ""]
    for one in group:
        lines += [f"**{one.image}**, {one.date:%Y-%m-%d %H:%M} UTC: {one.sentence}", ""]
        lines += ["| claim | subject | tier | verdict | reason |", "|---|---|---|---|---|"]
        lines += [f"| {_cells(claim)} |" for claim in one.claims]
        lines += ["", f"Found by bisection over {searched(one)}.", ""]
    lines += ["To expect the failure until upstream has fixed it, add a row to matrix.yaml:", "", "```yaml", "xfail:"]
    claim, culprit = first.claims[0], first.culprits[0]
    row = f'select: {first.image}, claim: "{claim.key}", issue: OWNER/REPOSITORY#NUMBER'
    lines += [f'  - {{{row}, when: "{culprit.name}>={culprit.after}"}}', "```", "", _marker(name), ""]
    return "\n".join(lines)


def _cells(claim: ClaimRow) -> str:
    reason = brief(claim.reason).replace("|", "\\|")
    return " | ".join((claim.id, claim.subject, claim.tier, claim.verdict, reason))


def job(line: JobLine) -> str:
    """One job in a line."""
    counts = sum((Counter(tier.counts) for tier in line.tiers.values()), Counter[Status]())
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    parts = [f"{line.job} {line.outcome}" + (f" ({told})" if told else "")]
    parts += [f"{len(line.changes)} packages changed"] if line.changes else []
    parts += [brief(line.cause)] if line.cause else []
    parts += [f"{one.id} {one.subject} fails as expected ({one.issue})" for one in line.expected]
    parts += [
        f"{one.id} {one.subject} passes unexpectedly: remove {one.issue} from xfail" for one in line.unexpected_passes
    ]
    return "; ".join(parts)
