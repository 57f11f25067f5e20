"""Lines of nightly runs, results/nightly/*.jsonl, and what they say in sentences and issues.

Lines are appended, never rewritten. Their schema comes from here.
"""

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, TypeAdapter

from images.errors import Problem, UserError
from images.validation.rows import Change, ClaimRow, Row, TierCount, read_lines
from validate.claims import Tier
from validate.judging import Status, plural

BUILD = "build"
"""The claim's id where an image could not be built or started."""
_REASON = 240
"""Characters of a reason in a sentence."""


class Job(StrEnum):
    """Which versions an image of a nightly run is built from."""

    CONTROL = "control"
    """The committed lock, built without a cache."""
    CANARY = "canary"
    """The newest that the matrix's ranges allow."""


class Outcome(StrEnum):
    """The result of one job. Only PASS is green."""

    PASS = "PASS"
    FAIL = "FAIL"
    """A claim failed."""
    UNPROVEN = "UNPROVEN"
    """None failed, and a required one could not be measured."""
    NOT_BUILT = "NOT_BUILT"
    """A step of the build failed, or the suite did not start: `cause` says why."""
    UNRESOLVED = "UNRESOLVED"
    """No set of versions fits together: `cause` has the resolver's message."""
    UNCHANGED = "UNCHANGED"
    """The newest versions are those of the image: there was nothing to build."""


class JobLine(Row):
    """One image, built from one set of versions and validated."""

    schema_version: Literal[4] = 4
    kind: Literal["job"] = "job"
    date: AwareDatetime
    """When it was judged, UTC."""
    image: str
    job: Job
    outcome: Outcome
    versions: str = ""
    """First 12 hexadecimal digits of the sha256 over the lock's files; empty where nothing could be
    locked.
    """
    revision: str
    """Short hash of matrix and facts."""
    tiers: dict[Tier, TierCount] = {}
    """The tiers that were judged; empty where there is no verdict."""
    failing: list[ClaimRow] = []
    """Claims that are FAIL, and required ones that are UNPROVEN."""
    digest: str = ""
    """`sha256:...` of the image that was judged; empty where there is none."""
    bytes: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0)] = 0.0
    """Resolving, building and judging."""
    gpus: list[str] = []
    """Names of the GPUs that the validation run saw."""
    changes: list[Change] = []
    """What moved against the committed lock."""
    cause: str = ""
    """Why there is no verdict; empty where there is one."""


class BreakageLine(Row):
    """What breaks a canary, found by bisection."""

    schema_version: Literal[4] = 4
    kind: Literal["breakage"] = "breakage"
    date: AwareDatetime
    image: str
    versions: str
    """Of the canary."""
    revision: str
    claims: list[ClaimRow]
    """What fails where only the culprits moved; the first is the one that was bisected."""
    culprits: list[Change]
    """The smallest set that breaks it: with any one of them put back, the first claim does not
    fail.
    """
    sentence: str
    key: str
    """Equal for the same culprits at the same versions on any image: an issue is found by it."""


Line = Annotated[JobLine | BreakageLine, Field(discriminator="kind")]
_LINE: TypeAdapter[JobLine | BreakageLine] = TypeAdapter(Line)


def append(line: JobLine | BreakageLine, folder: Path) -> Path:
    """Append a line to the month's file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{line.date:%Y-%m}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(line.model_dump_json() + "\n")
    return path


def read(*folders: Path) -> tuple[JobLine | BreakageLine, ...]:
    """Return every line of every nightly run in these folders (*.jsonl), oldest first.

    A line is the result of one job, or a breakage that was found. A folder that is not there has
    none. Raises UserError with all bad lines.
    """
    problems: list[Problem] = []
    lines: list[JobLine | BreakageLine] = []
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl")):
            parsed = read_lines(path, _LINE.validate_json, "line of a nightly run", problems)
            lines += [line for _, line in parsed]
    if problems:
        raise UserError(problems)
    return tuple(sorted(lines, key=lambda line: line.date))


def describe_breakage(culprits: Sequence[Change], claims: Sequence[ClaimRow]) -> str:
    """Return a sentence such as `torchao 0.11.0 -> 0.14.1 breaks libraries/environment: REASON`.

    REASON is the first claim's.
    """
    moved = " with ".join(str(change) for change in culprits)
    verb = "breaks" if len(culprits) == 1 else "together break"
    *others, last = dict.fromkeys(claim.key for claim in claims)
    names = f"{', '.join(others)} and {last}" if others else last
    return f"{moved} {verb} {names}: {shorten(claims[0].reason)}"


def shorten(reason: str) -> str:
    """Return a reason in one line, cut to _REASON characters."""
    text = " ".join(reason.split())
    if len(text) <= _REASON:
        return text
    return text[: _REASON - 4].rstrip() + " ..."


def culprits_key(culprits: Sequence[Change]) -> str:
    """Return a word for these culprits at these versions: `peft-0.21.2--transformers-5.0.0`.

    It is the same for every image that they break.
    """
    versions = sorted((change.name, change.after or "gone") for change in culprits)
    text = "--".join(f"{name}-{version}" for name, version in versions)
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower())


def write_issue(line: BreakageLine) -> str:
    """Return the Markdown of an issue: its title first, then the claims that broke.

    `line` is a breakage that a nightly run found: packages (the culprits) whose new versions make
    claims about an image fail. The comment at its end has the key of the culprits, by which later
    runs find the issue again.
    """
    # `torchao 0.14.1`, or `transformers 5.0.0 with peft 0.21.2` if it takes both.
    moved = " with ".join(f"{change.name} {change.after}" for change in line.culprits)
    table = ""
    for claim in line.claims:
        reason = shorten(claim.reason).replace("|", "\\|")
        table += (
            f"| {claim.check} | {claim.subject} | {claim.tier} | {claim.verdict} | {reason} |\n"
        )
    advice = (
        "To hold a pinned package back until upstream has fixed it, "
        "give it a range below `nightly` in matrix.yaml."
    )
    return f"""# {moved} breaks {line.image}

**{line.image}**, {line.date:%Y-%m-%d %H:%M} UTC: {line.sentence}

| claim | subject | tier | verdict | reason |
|---|---|---|---|---|
{table}
Found by bisection over the packages that changed.

{advice}

<!-- truetag: {line.key} -->
"""


def summarize(line: JobLine) -> str:
    """Return the result of one job in a line: `canary FAIL (90 PASS, 1 FAIL); ...`.

    After that come the number of changed packages and why the image was not built, if any.
    """
    counts: Counter[Status] = Counter()
    for tier in line.tiers.values():
        counts.update(tier.counts)
    result = f"{line.job} {line.outcome}"
    if counts:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        result += f" ({verdicts})"
    parts = [result]
    if line.changes:
        parts.append(f"{plural(len(line.changes), 'package')} changed")
    if line.cause:
        parts.append(shorten(line.cause))
    return "; ".join(parts)
