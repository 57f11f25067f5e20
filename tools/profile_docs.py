"""docs/profiles.md: what each profile's page asks, which claims check it, and what its last verdict was."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from images.config import paths, yamlfile
from images.config.facts import Row, Sentence
from images.config.matrix import Sources
from images.errors import Problem, UserError
from images.planning import plan
from images.planning.expectations import DENIED_VARIABLES
from images.planning.image import Image
from images.site import records
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from validate.claims import Claim, Tier
from validate.judging import Status

PAGES = paths.DATA / "pages.yaml"
_NO_RUN = "no run"
_OPEN = "open"
_HELD = (Status.PASS, Status.NOT_APPLICABLE)
_NO_DATE = datetime.min.replace(tzinfo=UTC)
"""Of a run whose date nobody recorded: any other is later."""
_NAMED = 4
"""Claims that a reason names before it counts the others."""


class PageRow(Row):
    """One requirement of a reference page."""

    asks: Sentence
    by: list[Sentence] = []
    """Claims that check it: `pins/torch`, `bitsandbytes/*`."""
    note: str = ""
    open: str = ""
    """Why it does not hold yet."""
    refuses: list[str] = []
    """Variables, or patterns of them, that no image may have: each is one of DENIED_VARIABLES."""


Pages = dict[str, list[PageRow]]
Claims = Mapping[str, Sequence[Claim]]
"""Image name -> its claims."""
Verdicts = Mapping[str, Mapping[tuple[str, str], Status]]
"""Image name -> claim id and subject -> what a recorded run found."""


def pages(path: Path = PAGES) -> Pages:
    """The rows of every page. Raises UserError (with lines: YAML alone) or pydantic's error for a row that is none."""
    file = yamlfile.parse(path.name, path.read_text(encoding="utf-8"))
    return TypeAdapter(Pages).validate_python(file.data)


def recorded(folder: Path = records.FOLDER) -> Verdicts:
    """What the latest run of each claim found; an UNPROVEN counts where no run has another result."""
    found: dict[str, dict[tuple[str, str], Status]] = {}
    runs = [line for line in records.read(folder) if not line.experiment]
    for line in sorted(runs, key=lambda run: run.date or _NO_DATE):
        known = found.setdefault(line.image, {})
        for row in line.rows():
            claim = (row.check, row.subject)
            if row.verdict is not Status.UNPROVEN or claim not in known:
                known[claim] = row.verdict
    return found


def tables(sources: Sources, asked: Pages, verdicts: Verdicts) -> str:
    """The generated part of docs/profiles.md. Raises UserError: a page without rows, a claim that no image has."""
    parts, unheld, problems = [], list[str](), list[Problem]()
    checked = 0
    accepted = [image.image for image in plan.plan(sources) if image.image and image.profile]
    for name, profile in sources.matrix.profiles.items():
        images = [image for image in accepted if image.name.profile == name]
        claims = {
            str(image.name): image_claims(ClaimContext(image=image, facts=sources.facts)).claims
            for image in images
        }
        rows = asked.get(profile.page, [])
        problems += _problems(profile.page, rows, claims)
        parts.append(_section(name, profile.page, images, rows, claims, verdicts))
        checked += sum(bool(row.by or row.open) for row in rows)
        unheld += [
            _line(name, row.asks, why) for row in rows if (why := _unheld(row, claims, verdicts))
        ]
    if problems:
        raise UserError(problems)
    head = ["## What is open", "", "| profile | requirement | why |", "|---|---|---|"]
    return "\n".join([_counted(checked, unheld), "", *parts, *head, *unheld, ""])


def _counted(checked: int, unheld: Sequence[str]) -> str:
    return (
        f"The pages ask for {checked} things that a claim checks or that are known not to hold: "
        f"**{checked - len(unheld)} PASS, {len(unheld)} are open**."
    )


def _problems(page: str, rows: Sequence[PageRow], claims: Claims) -> Iterator[Problem]:
    where, then = f"images/data/pages.yaml: {page}", "name a claim of images/validation/claims/"
    if not rows:
        yield Problem(where=where, cause="has no rows", then="write what the page asks")
    for row in rows:
        if not (row.by or row.note or row.open):
            yield Problem(
                where=where, cause=f"{row.asks!r} names no claim, note or open reason", then=then
            )
        for variable in row.refuses:
            if not any(fnmatch.fnmatchcase(variable, denied) for denied in DENIED_VARIABLES):
                cause = f"says that {variable} is refused, and no image is refused for it"
                yield Problem(
                    where=where,
                    cause=cause,
                    then="add it to images/data/expectations.yaml, or leave it out",
                )
        for pattern in row.by:
            if not any(_matching([pattern], own) for own in claims.values()):
                yield Problem(
                    where=where, cause=f"no image of the profile has a claim {pattern!r}", then=then
                )


def _matching(patterns: Sequence[str], claims: Sequence[Claim]) -> list[Claim]:
    return [
        claim
        for claim in claims
        if any(fnmatch.fnmatchcase(claim.key, pattern) for pattern in patterns)
    ]


def _section(
    name: str,
    page: str,
    images: Sequence[Image],
    rows: Sequence[PageRow],
    claims: Claims,
    verdicts: Verdicts,
) -> str:
    lines = [f"## {name}", "", f"After the page `{page}`.", ""]
    for image in images:
        own = ", ".join(f"{pin.name} {pin.version}" for pin in image.pins if pin.layer == "profile")
        lines.append(f"- `{image.name}`: {own or 'the packages of its stack'}")
        lines += [
            f"  - {warning}"
            for warning in image.warnings
            if not warning.startswith(("xformers", "nvidia-", "silently"))
        ]
    names = [str(image.name) for image in images]
    lines += ["", f"| requirement | checked by | {' | '.join(f'`{one}`' for one in names)} | |"]
    lines.append("|---|---|" + "---|" * (len(names) + 1))
    for row in rows:
        found = [_verdict(row, claims[one], verdicts.get(one, {})) for one in names]
        lines.append(_line(row.asks, ", ".join(row.by) or "-", *found, _remark(row)))
    return "\n".join([*lines, ""])


def _remark(row: PageRow) -> str:
    refused = f"an image that sets one is refused: {', '.join(row.refuses)}" if row.refuses else ""
    known = f"**does not hold yet**: {row.open}" if row.open else ""
    return "; ".join(part for part in (known, row.note, refused) if part)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _unheld(row: PageRow, claims: Claims, verdicts: Verdicts) -> str:
    """Why a requirement can't be taken as met: it is known not to be, or the last runs of some image leave it open."""
    if row.open:
        return row.open
    images: dict[str, list[str]] = {}
    for name, own in claims.items():
        images.setdefault(_why_open(row, own, verdicts.get(name, {})), []).append(f"`{name}`")
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in images.items() if why)


def _why_open(
    row: PageRow, claims: Sequence[Claim], verdicts: Mapping[tuple[str, str], Status]
) -> str:
    """What one image's runs leave open, claim by claim; empty if nothing."""
    if not verdicts:
        return _NO_RUN if _matching(row.by, claims) else ""
    unheld = [
        one
        for one in _matching(row.by, claims)
        if verdicts.get((one.check, one.subject)) not in _HELD
    ]
    if not unheld:
        return ""
    by_verdict: dict[str, list[str]] = {}
    for claim in unheld:
        verdict = verdicts.get((claim.check, claim.subject))
        by_verdict.setdefault(str(verdict) if verdict else "never run", []).append(claim.key)
    told = ", ".join(f"{_some(keys)} {verdict}" for verdict, keys in by_verdict.items())
    gpu = all(claim.tier in (Tier.GPU, Tier.MULTIGPU) for claim in unheld)
    return f"{told} (needs a GPU)" if gpu else told


def _some(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more


def _verdict(
    row: PageRow, claims: Sequence[Claim], verdicts: Mapping[tuple[str, str], Status]
) -> str:
    """PASS where every claim was measured and holds. One that was never run leaves the row open, as UNPROVEN does."""
    own = _matching(row.by, claims)
    if not own:
        return "-"
    if row.open:
        return _OPEN
    found = [verdicts.get((claim.check, claim.subject)) for claim in own]
    held = sum(status in _HELD for status in found)
    if held == len(own):
        return str(Status.PASS if Status.PASS in found else Status.NOT_APPLICABLE)
    if not any(found):
        return _NO_RUN
    return f"{Status.FAIL if Status.FAIL in found else _OPEN} ({held} of {len(own)} PASS)"
