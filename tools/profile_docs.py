"""Make docs/profiles.md: what each profile's reference page asks, and whether it holds.

For each requirement it has the claims that check it, and the verdict of the last recorded run.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from images.config import paths, yamlfile
from images.config.facts import Row, Sentence
from images.config.matrix import Sources
from images.context.prose import to_markdown
from images.errors import Problem, UserError
from images.planning import plan
from images.planning.expectations import DENIED_VARIABLES
from images.planning.image import Image
from images.site import records
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from validate.claims import GPU_TIERS, Claim
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
"""Reference page -> its requirements."""
Claims = Mapping[str, Sequence[Claim]]
"""Image -> its claims."""
ImageVerdicts = Mapping[tuple[str, str], Status]
"""Check and subject of a claim -> what the last run of an image found."""
Verdicts = Mapping[str, ImageVerdicts]
"""Image -> its verdicts."""


def pages(path: Path = PAGES) -> Pages:
    """Return the rows of every page.

    Raises UserError if the file is no YAML, pydantic's error for a row with other fields.
    """
    file = yamlfile.parse(path.name, path.read_text(encoding="utf-8"))
    return TypeAdapter(Pages).validate_python(file.data)


def recorded(folder: Path = records.FOLDER) -> Verdicts:
    """Return what the latest run of each claim found.

    UNPROVEN counts only if no run has another result.
    """
    verdicts: dict[str, dict[tuple[str, str], Status]] = {}
    runs = [line for line in records.read(folder) if not line.experiment]
    for line in sorted(runs, key=lambda run: run.date or _NO_DATE):
        of_image = verdicts.setdefault(line.image, {})
        for row in line.rows():
            claim = (row.check, row.subject)
            if row.verdict is not Status.UNPROVEN or claim not in of_image:
                of_image[claim] = row.verdict
    return verdicts


def tables(sources: Sources, all_rows: Pages, verdicts: Verdicts) -> str:
    """Return the generated part of docs/profiles.md.

    Raises UserError for a page without rows, and for a row that names a claim that no image has.
    """
    planned = [row for row in plan.plan(sources) if row.profile]
    profile_images = [row.image for row in planned if row.image]
    sections: list[str] = []
    open_lines: list[str] = []
    problems: list[Problem] = []
    checked = 0
    for name, profile in sources.matrix.profiles.items():
        images = [image for image in profile_images if image.name.profile == name]
        claims: dict[str, Sequence[Claim]] = {}
        for image in images:
            context = ClaimContext(image=image, facts=sources.facts)
            claims[str(image.name)] = image_claims(context).claims

        rows = all_rows.get(profile.page, [])
        problems += _problems(profile.page, rows, claims)
        sections.append(_section(name, profile.page, images, rows, claims, verdicts))
        for row in rows:
            checked += bool(row.by or row.open)
            why = _why_open(row, claims, verdicts)
            if why:
                open_lines.append(_line(name, row.asks, why))
    if problems:
        raise UserError(problems)

    summary = (
        f"The pages ask for {checked} things that a claim checks or that are known not to hold: "
        f"**{checked - len(open_lines)} PASS, {len(open_lines)} are open**."
    )
    head = ["## What is open", "", "| profile | requirement | why |", "|---|---|---|"]
    return "\n".join([summary, "", *sections, *head, *open_lines, ""])


def _problems(page: str, rows: Sequence[PageRow], claims: Claims) -> Iterator[Problem]:
    """Yield what is wrong with the rows of a page, of which these are the images' claims."""
    where = f"images/data/pages.yaml: {page}"
    name_a_claim = "name a claim of images/validation/claims/ under `by`"
    if not rows:
        then = "add a row for each thing that the page asks (`asks`, `by`)"
        yield Problem(where=where, cause="this page has no rows", then=then)
    for row in rows:
        if not (row.by or row.note or row.open):
            cause = f"the row {row.asks!r} has none of `by`, `note` and `open`"
            then = f"{name_a_claim}, or say under `open` why nothing checks it"
            yield Problem(where=where, cause=cause, then=then)
        for variable in row.refuses:
            if not any(fnmatch.fnmatchcase(variable, denied) for denied in DENIED_VARIABLES):
                cause = (
                    f"the row {row.asks!r} says that images with {variable} are refused, and no "
                    "claim refuses them"
                )
                then = (
                    "add the variable to those that are denied in images/data/expectations.yaml, "
                    "or take it out of this row"
                )
                yield Problem(where=where, cause=cause, then=then)
        for pattern in row.by:
            if not any(_matching([pattern], of_image) for of_image in claims.values()):
                cause = f"no image of the profile has a claim {pattern!r}"
                yield Problem(where=where, cause=cause, then=name_a_claim)


def _matching(patterns: Sequence[str], claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims that one of the patterns matches (`bitsandbytes/*`), in their order."""
    matching = []
    for claim in claims:
        if any(fnmatch.fnmatchcase(claim.key, pattern) for pattern in patterns):
            matching.append(claim)
    return matching


def _section(
    name: str,
    page: str,
    images: Sequence[Image],
    rows: Sequence[PageRow],
    claims: Claims,
    verdicts: Verdicts,
) -> str:
    """Return the section of a profile: its images with their warnings, and a table of its rows."""
    lines = [f"## {name}", "", f"After the page `{page}`.", ""]
    for image in images:
        packages = ", ".join(
            f"{pin.name} {pin.version}" for pin in image.pins if pin.layer == "profile"
        )
        lines.append(f"- `{image.name}`: {packages or 'the packages of its stack'}")
        # Warnings that are not about packages of the profile stand on other pages.
        for warning in image.warnings:
            if not warning.startswith(("xformers", "nvidia-", "silently")):
                lines.append(f"  - {warning}")

    names = [str(image.name) for image in images]
    columns = " | ".join(f"`{image_name}`" for image_name in names)
    lines += ["", f"| requirement | checked by | {columns} | |"]
    lines.append("|---|---|" + "---|" * (len(names) + 1))
    for row in rows:
        cells = [_verdict(row, claims[one], verdicts.get(one, {})) for one in names]
        lines.append(_line(row.asks, ", ".join(row.by) or "-", *cells, _remark(row)))
    return "\n".join([*lines, ""])


def _remark(row: PageRow) -> str:
    """Return the last cell of a row: why it does not hold, its note, and what is refused."""
    remarks = []
    if row.open:
        remarks.append(f"**does not hold yet**: {row.open}")
    if row.note:
        remarks.append(row.note)
    if row.refuses:
        remarks.append(f"an image that sets one is refused: {', '.join(row.refuses)}")
    return "; ".join(remarks)


def _line(*cells: str) -> str:
    """Return a line of a Markdown table."""
    escaped = [to_markdown(cell).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _why_open(row: PageRow, claims: Claims, verdicts: Verdicts) -> str:
    """Return why a requirement can't be taken as met, image by image; empty if it can.

    Either it is known not to hold, or the last runs of some images leave it open.
    """
    if row.open:
        return row.open
    images_by_reason: dict[str, list[str]] = {}
    for name, of_image in claims.items():
        why = _why_open_in(row, of_image, verdicts.get(name, {}))
        if why:
            images_by_reason.setdefault(why, []).append(f"`{name}`")
    parts = [f"{', '.join(names)}: {why}" for why, names in images_by_reason.items()]
    return "; ".join(parts)


def _why_open_in(row: PageRow, claims: Sequence[Claim], verdicts: ImageVerdicts) -> str:
    """Return what one image's runs leave open, claim by claim; empty if nothing."""
    own_claims = _matching(row.by, claims)
    if not verdicts:
        return _NO_RUN if own_claims else ""

    open_claims = []
    keys_by_verdict: dict[str, list[str]] = {}
    for claim in own_claims:
        verdict = verdicts.get((claim.check, claim.subject))
        if verdict not in _HELD:
            open_claims.append(claim)
            keys_by_verdict.setdefault(str(verdict or "never run"), []).append(claim.key)
    if not open_claims:
        return ""

    parts = [f"{_first_of(keys)} {verdict}" for verdict, keys in keys_by_verdict.items()]
    text = ", ".join(parts)
    need_gpu = all(claim.tier in GPU_TIERS for claim in open_claims)
    return f"{text} (needs a GPU)" if need_gpu else text


def _first_of(keys: Sequence[str]) -> str:
    """Return the first claims as a phrase, with the number of the others."""
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(keys[:_NAMED]) + more


def _verdict(row: PageRow, claims: Sequence[Claim], verdicts: ImageVerdicts) -> str:
    """Return a row's cell for one image: PASS if every claim was measured and holds.

    A claim that was never run leaves the row open, as UNPROVEN does.
    """
    own_claims = _matching(row.by, claims)
    if not own_claims:
        return "-"
    if row.open:
        return _OPEN
    statuses = [verdicts.get((claim.check, claim.subject)) for claim in own_claims]
    held = sum(status in _HELD for status in statuses)
    if held == len(own_claims):
        return str(Status.PASS if Status.PASS in statuses else Status.NOT_APPLICABLE)
    if not any(statuses):
        return _NO_RUN
    word = Status.FAIL if Status.FAIL in statuses else _OPEN
    return f"{word} ({held} of {len(own_claims)} PASS)"
