"""Views of a verdict: lines for terminals and pipes, verdict.json, Markdown. Pure; nothing is decided here."""

from collections.abc import Sequence
from typing import Any

from validate.claims import Tier
from validate.hints import SHOWN, Hint, find
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status
from validate.terminal import wrapped

_OPEN = (Status.FAIL, Status.KNOWN, Status.UNPROVEN)


def summary(verdict: Verdict) -> str:
    """`cu126-torch27: PASS (28 PASS, 1 UNPROVEN)`."""
    counts = [
        f"{len(verdict.claims_with(status))} {status}"
        for status in Status
        if verdict.claims_with(status)
    ]
    return f"{verdict.image}: {verdict.overall} ({', '.join(counts) or 'no claim was judged'})"


def lines(
    verdict: Verdict, *, reference: str = "", everything: bool = False, not_run: str = ""
) -> list[str]:
    """What a person reads, a paragraph each: what is open first and last, and what holds as a count a tier.

    Claims of the same verdict and reason are one paragraph. `reference`: the image, where it was held to another's
    claims; `everything`: what holds, too; `not_run`: why some tiers were not run, and what to do.
    """
    held = (
        f"{reference}, by the claims of {verdict.image}"
        if reference not in ("", verdict.image)
        else verdict.image
    )
    said = [f"{held}  {verdict.digest[:19]}  {verdict.overall}".replace("    ", "  ")]
    for fault in verdict.faults:
        said += [f"HOST  {fault}", *(f"    {advice(hint)}" for hint in find([fault]))]
    for status in (*_OPEN, Status.NOT_APPLICABLE, Status.PASS):
        counts = {
            tier: sum(one.claim.tier is tier for one in verdict.claims_with(status))
            for tier in Tier
        }
        if status in _OPEN or everything:
            said += _paragraphs(verdict.claims_with(status))
        elif told := ", ".join(f"{count} {tier}" for tier, count in counts.items() if count):
            said.append(f"{status}  {told} (--all shows them)")
    said += ["", summary(verdict)]
    if absent := [
        tier for tier in Tier if not any(one.claim.tier is tier for one in verdict.claims)
    ]:
        said.append(f"not run: {', '.join(absent)}" + (f" ({not_run})" if not_run else ""))
    for status, word in (
        (Status.UNPROVEN, "unproven"),
        (Status.KNOWN, "known"),
        (Status.FAIL, "failed"),
    ):
        if verdict.claims_with(status):
            said.append(
                f"{word}: {', '.join(one.claim.key for one in verdict.claims_with(status))}"
            )
    return said


def _paragraphs(claims: Sequence[ClaimVerdict]) -> list[str]:
    """`FAIL  device-code/bitsandbytes, device-code/torch (static): REASON`, and each hint of it."""
    alike: dict[tuple[str, str], list[ClaimVerdict]] = {}
    for one in claims:
        alike.setdefault((one.status, _reason(one)), []).append(one)
    said = []
    for (status, reason), group in alike.items():
        first, *hints = reason.splitlines() or [""]
        tiers = ", ".join(dict.fromkeys(one.claim.tier for one in group))
        keys = ", ".join(one.claim.key for one in group)
        said += [f"{status}  {keys} ({tiers}): {first}", *(f"    {line}" for line in hints)]
    return said


def text(
    verdict: Verdict, *, width: int | None = None, everything: bool = False, not_run: str = ""
) -> str:
    """The lines, wrapped to `width` characters."""
    return "\n".join(
        wrapped(line, width) for line in lines(verdict, everything=everything, not_run=not_run)
    )


def json_data(verdict: Verdict) -> dict[str, Any]:
    """The content of verdict.json: it names the evidence by its sha256 and repeats none of it.

    A claim has `hints` only where there are some.
    """
    return {
        "schema_version": 3,
        "image": verdict.image,
        "digest": verdict.digest,
        "evidence_sha256": verdict.evidence_sha256,
        "overall": str(verdict.overall),
        "claims": [
            {
                "check": one.claim.check,
                "tier": str(one.claim.tier),
                "subject": one.claim.subject,
                "required": one.claim.required,
                "verdict": str(one.status),
                "reason": one.reason,
                "seconds": one.seconds,
                **(
                    {"hints": [{key: getattr(hint, key) for key in SHOWN} for hint in one.hints]}
                    if one.hints
                    else {}
                ),
            }
            for one in verdict.claims
        ],
    }


def advice(hint: Hint) -> str:
    """A hint in one line."""
    return f"hint: {hint.cause} {hint.fix}"


def markdown(verdict: Verdict) -> str:
    """A page with the overall verdict first and one table row a claim."""
    lines = [
        f"# {verdict.image}: {verdict.overall}",
        "",
        f"Image `{verdict.digest}`. {summary(verdict)}.",
        "",
    ]
    lines += ["| verdict | claim | seconds | reason |", "| --- | --- | --- | --- |"]
    for one in verdict.claims:
        cells = (str(one.status), one.claim.key, f"{one.seconds:.1f}", _reason(one))
        escaped = (
            cell.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") for cell in cells
        )
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join([*lines, ""])


def _reason(one: ClaimVerdict) -> str:
    """The reason, and each hint in a line of its own."""
    reason = one.reason if one.claim.required else f"{one.reason} (not required)"
    return "\n".join([reason, *map(advice, one.hints)])
