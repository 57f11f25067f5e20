"""Shows a verdict to people and programs: as text for terminals, as verdict.json, as Markdown.

Pure: nothing is decided here.
"""

from collections.abc import Sequence
from typing import Any

from validate import hints
from validate.claims import ON_REQUEST, STANDS_ON, Tier
from validate.derived import ADDITIONS_CLAIM
from validate.hints import Hint
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Status, listed
from validate.terminal import wrapped

_OPEN = (Status.FAIL, Status.KNOWN, Status.UNPROVEN)
"""Verdicts that a person has to look at: such claims are listed, all others only counted."""
_HELD = (Status.NOT_APPLICABLE, Status.PASS)
_MOST_NAMES = 5
"""How many claims that are not proven the last lines name: the paragraphs above have all."""
_DIGEST_CHARACTERS = 19
"""How much of a digest a title shows: `sha256:` and twelve digits."""


def summary(verdict: Verdict) -> str:
    """Return `cu126-torch27: PASS (28 PASS, 1 UNPROVEN)`."""
    counts = []
    for status in Status:
        claims = verdict.claims_with(status)
        if claims:
            counts.append(f"{len(claims)} {status}")
    return f"{verdict.image}: {verdict.overall} ({', '.join(counts) or 'no claim was judged'})"


def lines(
    verdict: Verdict,
    *,
    reference: str = "",
    everything: bool = False,
    not_run: str = "",
    left_out: Sequence[str] = (),
) -> list[str]:
    """Return the report about an image that a person reads, one paragraph an element.

    First come the faults of the machine and the claims that do not hold, with their reasons and
    hints; then a count of the claims that hold; at the end the summary and, once more, the names
    of the claims that do not hold: all that failed, and the first of the others.

    reference: the image that was measured, if it was judged by the claims of another image.
    everything: list also the claims that hold, instead of a count.
    not_run: why some tiers were not run, and what to do about it.
    left_out: lines about claims that were not judged.
    """
    report = [_title(verdict, reference)]
    for fault in verdict.faults:
        report.append(f"HOST  {fault}")
        for hint in hints.find([fault]):
            report.append(f"    {advice(hint)}")

    for status in (*_OPEN, *_HELD):
        claims = verdict.claims_with(status)
        if everything or status in _OPEN:
            report.extend(_paragraphs(claims))
        elif claims:
            report.append(f"{status}  {_count_by_tier(claims)} (--all shows them)")

    report += ["", summary(verdict), *_tiers_not_run(verdict, not_run), *left_out]
    report += _not_compared(verdict)

    # The worst comes last: there a reader of a terminal looks first.
    for status, word in (
        (Status.UNPROVEN, "unproven"),
        (Status.KNOWN, "known"),
        (Status.FAIL, "failed"),
    ):
        keys = [judged.claim.key for judged in verdict.claims_with(status)]
        if keys:
            # The paragraphs above name all. Long lists would bury those that failed.
            names = keys if status is Status.FAIL else [listed(keys, limit=_MOST_NAMES)]
            report.append(f"{word}: {', '.join(names)}")
    return report


def _title(verdict: Verdict, reference: str) -> str:
    """Return the first line: the image, the start of its digest if it has one, the verdict.

    An image that was built with --base is followed by that: `cu126-torch25 on org/base:7`.

    A derived image, which a user built on one of ours, is described: `my-training, an image on
    cu126-torch25 with 14 packages more`. Any other image that was judged by the claims of another
    name is shown with both: `my-copy, by the claims of cu126-torch25`.

    reference: the name of the image that was measured; empty: it is the verdict's.
    """
    image = verdict.image
    # The verdict on a derived image has these words in front of its base image's name.
    if image.startswith(STANDS_ON):
        image += _packages_more(verdict)
        if reference:
            image = f"{reference}, {image}"
    elif reference not in ("", image):
        image = f"{reference}, by the claims of {image}"
    image += _on_other_base(verdict)

    # Inside a container, the digest of the image is not known, and empty.
    digest = verdict.digest[:_DIGEST_CHARACTERS]
    parts = [image, digest, str(verdict.overall)]
    return "  ".join(part for part in parts if part)


def _on_other_base(verdict: Verdict) -> str:
    """Return ` on org/base:7` for an image that was built with --base; empty for any other."""
    return f" on {verdict.other_base}" if verdict.other_base else ""


def _packages_more(verdict: Verdict) -> str:
    """Return how many packages a derived image adds to its base: ` with 14 packages more`.

    Empty if the packages of the image were not listed.
    """
    for judged in verdict.claims:
        if judged.claim.key != ADDITIONS_CLAIM:
            continue
        installed = judged.evidence.get("installed")
        # The claim was not measured, for example because files of the image are broken.
        if installed is None:
            continue
        base_packages = judged.claim.expect["pinned"]
        count = len(set(installed).difference(base_packages))
        packages = "packages" if count > 1 else "package"
        return f" with {count or 'no'} {packages} more"
    return ""


def _count_by_tier(claims: Sequence[ClaimVerdict]) -> str:
    """Return how many of these claims each tier has: `12 static, 9 cpu`."""
    counts = []
    for tier in Tier:
        count = sum(judged.claim.tier is tier for judged in claims)
        if count:
            counts.append(f"{count} {tier}")
    return ", ".join(counts)


def _tiers_not_run(verdict: Verdict, reason: str) -> list[str]:
    """Return a line with the tiers of which no claim was judged; no line if there are none."""
    judged_tiers = {judged.claim.tier for judged in verdict.claims}
    # A tier that is measured only if somebody asks for it was not left out.
    absent = [tier for tier in Tier if tier not in (*judged_tiers, *ON_REQUEST)]
    if not absent:
        return []
    line = f"not run: {', '.join(absent)}"
    return [f"{line} ({reason})" if reason else line]


def _not_compared(verdict: Verdict) -> list[str]:
    """Return a line for each reason why no other image ran failed claims on the same machine."""
    keys_by_reason: dict[str, list[str]] = {}
    for key, reason in verdict.not_compared.items():
        keys_by_reason.setdefault(reason, []).append(key)
    lines = []
    for reason, keys in keys_by_reason.items():
        names = listed(keys, limit=_MOST_NAMES)
        lines.append(f"not compared with another image: {names}: {reason}")
    return lines


def _paragraphs(claims: Sequence[ClaimVerdict]) -> list[str]:
    """Return lines about judged claims: verdict and reason, then hints and next steps, indented.

    Claims with the same verdict, reason and hints are a group, which shares these lines:
    `FAIL  device-code/bitsandbytes, device-code/torch (static): REASON`. If groups one after
    another have the same next step, it stands below the last of them only.
    """
    # Verdict and text -> the claims that share both. The text is the reason and then the hints,
    # each on a line of its own.
    by_reason: dict[tuple[str, str], list[ClaimVerdict]] = {}
    for judged in claims:
        by_reason.setdefault((judged.status, _reason_and_hints(judged)), []).append(judged)

    steps_of_groups = [_next_steps_of(group) for group in by_reason.values()]

    paragraphs = []
    for index, ((status, text), group) in enumerate(by_reason.items()):
        # Without a reason and hints the text has no line, and nothing could be unpacked.
        reason, *hint_lines = text.splitlines() or [""]
        keys = ", ".join(judged.claim.key for judged in group)
        tiers = ", ".join(dict.fromkeys(judged.claim.tier for judged in group))
        paragraphs.append(f"{status}  {keys} ({tiers}): {reason}")
        paragraphs.extend(f"    {hint_line}" for hint_line in hint_lines)
        # The next group that has steps at all prints those that it shares with this one.
        steps_of_later_groups = steps_of_groups[index + 1 :]
        following_steps: list[str] = next(filter(None, steps_of_later_groups), [])
        for step in steps_of_groups[index]:
            if step not in following_steps:
                paragraphs.append(f"    next: {step}")
    return paragraphs


def _next_steps_of(claims: Sequence[ClaimVerdict]) -> list[str]:
    """Return the different next steps of these claims, in their order."""
    steps = dict.fromkeys(judged.next_step for judged in claims)
    return [step for step in steps if step]


def text(
    verdict: Verdict,
    *,
    width: int | None = None,
    everything: bool = False,
    not_run: str = "",
    left_out: Sequence[str] = (),
) -> str:
    """Return the report of `lines` as one text, wrapped to `width` characters (None: unwrapped)."""
    report = lines(verdict, everything=everything, not_run=not_run, left_out=left_out)
    return "\n".join(wrapped(line, width) for line in report)


def json_data(verdict: Verdict) -> dict[str, Any]:
    """Return the content of verdict.json.

    It names the evidence (what was measured) by its sha256 and does not repeat it. A claim without
    hints has no key `hints`, one without a next step no key `next_step`, and an image on the
    matrix's own base no key `other_base`.
    """
    claims = []
    for judged in verdict.claims:
        row: dict[str, Any] = {
            "check": judged.claim.check,
            "tier": str(judged.claim.tier),
            "subject": judged.claim.subject,
            "required": judged.claim.required,
            "verdict": str(judged.status),
            "reason": judged.reason,
            "seconds": judged.seconds,
        }
        if judged.hints:
            row["hints"] = [hint.to_json() for hint in judged.hints]
        if judged.next_step:
            row["next_step"] = judged.next_step
        claims.append(row)

    other_base = {"other_base": verdict.other_base} if verdict.other_base else {}
    return {
        "schema_version": 3,
        "image": verdict.image,
        **other_base,
        "digest": verdict.digest,
        "evidence_sha256": verdict.evidence_sha256,
        "overall": str(verdict.overall),
        "claims": claims,
    }


def advice(hint: Hint) -> str:
    """Return a hint in one line: `hint: CAUSE FIX`, and what serves where there is no Docker."""
    return f"hint: {hint.cause} {hint.remedy}"


def markdown(verdict: Verdict) -> str:
    """Return the report of a validation in Markdown: the verdict, and a table of all claims.

    A row has a claim's verdict, name, seconds, and the reason with hints. Below the table stands
    what to do about the claims that do not hold, once for each step.
    """
    page = [
        f"# {verdict.image}{_on_other_base(verdict)}: {verdict.overall}",
        "",
        f"Image `{verdict.digest}`. {summary(verdict)}.",
        "",
        "| verdict | claim | seconds | reason |",
        "| --- | --- | --- | --- |",
    ]
    for judged in verdict.claims:
        seconds = f"{judged.seconds:.1f}"
        cells = [str(judged.status), judged.claim.key, seconds, _reason_and_hints(judged)]
        escaped = [_escape_cell(cell) for cell in cells]
        page.append(f"| {' | '.join(escaped)} |")

    # Next step -> the claims that it is about.
    steps: dict[str, list[str]] = {}
    for judged in verdict.claims:
        if judged.next_step:
            steps.setdefault(judged.next_step, []).append(judged.claim.key)
    if steps:
        page += ["", "What to do next:", ""]
    for step, keys in steps.items():
        page.append(f"- {', '.join(keys)}: {step.replace('<', '&lt;')}")
    for line in _not_compared(verdict):
        page += ["", _escape_cell(line)]
    return "\n".join([*page, ""])


def _escape_cell(text: str) -> str:
    """Return a text that Markdown shows as it is, in one cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _reason_and_hints(judged: ClaimVerdict) -> str:
    """Return the reason of a verdict, then each hint in a line of its own."""
    reason = judged.reason
    if not judged.claim.required:
        reason = f"{reason} (not required)"
    return "\n".join([reason, *map(advice, judged.hints)])
