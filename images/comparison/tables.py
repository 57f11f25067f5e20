"""Show a comparison of two images: as lines for a terminal, and as Markdown for a pull request.

Both show the same sections, which are made only once. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from images.comparison.differences import (
    ClaimChange,
    Comparison,
    ImageRecord,
    LayerState,
    ReasonChange,
)
from images.engine.configuration import SETTINGS
from images.validation.rows import Change, StepRow
from validate import terminal
from validate.claims import Tier
from validate.judging import Status, plural

_NOT_RECORDED = "not recorded"
_NONE = "-"
_MOST_REASON = 240
"""Characters of a claim's reason."""
_MOST_SYSTEM_PACKAGES = 40
"""Packages of Debian and the toolkit that are shown: with another release of Debian, all differ."""
_MOST_WIDTH = 45
"""Characters of a column in a terminal; a longer cell moves the rest of its line."""
_MOST_LINE = 78
"""Characters of a sentence in a terminal, where not all reasons of a section are shown."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a comparison: a title, a table, and sentences below it."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    sentences: Sequence[str] = ()
    long_sentences: Sequence[str] = ()
    """Those that only Markdown has: too long for a terminal. There, they are counted."""


def text_lines(comparison: Comparison) -> Iterator[str]:
    """Yield the comparison as lines for a terminal: each section with its table."""
    for section in _sections(comparison):
        yield section.title
        if section.rows:
            for line in terminal.aligned([section.header, *section.rows], most=_MOST_WIDTH):
                yield f"  {line}".rstrip()
        for sentence in section.sentences:
            yield f"  {sentence}"
        if section.long_sentences:
            count = plural(len(section.long_sentences), "longer reason")
            yield f"  {count}: `--markdown` and `--json` have them"
        yield ""


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown: each section with its table."""
    text = ""
    for section in _sections(comparison):
        text += f"### {section.title}\n\n"
        if section.rows:
            rule = ["---"] * len(section.header)
            for cells in (section.header, rule, *section.rows):
                escaped = [cell.replace("|", "\\|") for cell in cells]
                text += f"| {' | '.join(escaped)} |\n"
            text += "\n"
        sentences = [*section.sentences, *section.long_sentences]
        for sentence in sentences:
            text += f"- {sentence}\n"
        if sentences:
            text += "\n"
    return f"{text.rstrip()}\n"


def _sections(comparison: Comparison) -> Iterator[Section]:
    """Yield the sections of a comparison. Those without anything to show are left out."""
    before, after = comparison.before, comparison.after
    title = before.name if before.name == after.name else f"{before.name} -> {after.name}"
    yield Section(
        title=title,
        header=("", "image", "measured", "on", "from"),
        rows=[_describe(before), _describe(after)],
    )
    yield _packages(comparison)
    if comparison.system_packages:
        yield _system_packages(comparison)
    yield _layers(comparison)
    if before.tiers or after.tiers:
        yield _tiers(comparison)
    yield from _claims(comparison)
    if comparison.steps:
        yield _steps(comparison)
    if comparison.notes:
        yield Section(title="Not compared", header=(), rows=(), sentences=comparison.notes)


def _describe(record: ImageRecord) -> tuple[str, ...]:
    """Return the row about an image: label, digest, day, GPUs, and where it was read."""
    short_digest = record.digest.removeprefix("sha256:")[:12]
    day = f"{record.date:%Y-%m-%d}" if record.date else _NOT_RECORDED
    # A run without GPUs has none.
    gpus = _NONE
    if record.gpus:
        model = record.gpus[0].removeprefix("NVIDIA ")
        gpus = f"{len(record.gpus)} x {model}"
    return record.label, short_digest, day, gpus, record.source


def _package_rows(changes: Sequence[Change]) -> list[tuple[str, ...]]:
    """Return a row for each package that moved: its name, both versions, and whether it is pinned.

    A hyphen in place of a version: the image does not have the package.
    """
    rows: list[tuple[str, ...]] = []
    for change in changes:
        kind = "pinned" if change.pinned else ""
        rows.append((change.name, change.before or _NONE, change.after or _NONE, kind))
    return rows


def _system_packages(comparison: Comparison) -> Section:
    """Return the section of Debian's packages and the toolkit's, of many only the first."""
    changes = comparison.system_packages
    sentences = []
    if len(changes) > _MOST_SYSTEM_PACKAGES:
        sentences.append(f"{len(changes) - _MOST_SYSTEM_PACKAGES} more: `--json` has all of them")
    return Section(
        title=f"Packages of Debian and the CUDA toolkit: {plural(len(changes), 'change')}",
        header=("package", comparison.before.label, comparison.after.label, ""),
        rows=_package_rows(changes[:_MOST_SYSTEM_PACKAGES]),
        sentences=sentences,
    )


def _packages(comparison: Comparison) -> Section:
    """Return the section of the Python packages that moved."""
    rows = _package_rows(comparison.packages)
    title = f"Packages: {plural(len(rows), 'change')}"
    if not comparison.before.packages or not comparison.after.packages:
        title = "Packages: not compared"
    return Section(
        title=title,
        header=("package", comparison.before.label, comparison.after.label, ""),
        rows=rows,
    )


def _layers(comparison: Comparison) -> Section:
    """Return the section of sizes: each layer that is not the same, the largest first, and all."""
    before, after = comparison.before, comparison.after
    same_layers = 0
    shown = []
    for row in comparison.layers:
        if row.state is not LayerState.SAME:
            shown.append(row)
        # The settings are compared as if they were a layer, and are none.
        elif row.layer != SETTINGS:
            same_layers += 1
    shown.sort(key=lambda row: max(row.before or 0, row.after or 0), reverse=True)

    rows = []
    for row in shown:
        old_size, new_size = _size(row.before), _size(row.after)
        # What an image does not have has no size that could be recorded. Settings never have one.
        if row.state is LayerState.ADDED or row.layer == SETTINGS:
            old_size = _NONE
        if row.state is LayerState.REMOVED or row.layer == SETTINGS:
            new_size = _NONE
        state = "" if row.state is LayerState.NOT_RECORDED else str(row.state)
        difference = _difference(row.before, row.after)
        rows.append((row.layer, old_size, new_size, difference, state))

    # The size of a whole image is 0 if it is not recorded.
    old_bytes, new_bytes = before.bytes or None, after.bytes or None
    difference = _difference(old_bytes, new_bytes)
    rows.append(("whole image", _size(old_bytes), _size(new_bytes), difference, ""))
    sentences = []
    if same_layers:
        sentences.append(f"{plural(same_layers, 'layer is', 'layers are')} the same")
    return Section(
        title="Size, unpacked",
        header=("layer", before.label, after.label, "difference", ""),
        rows=rows,
        sentences=sentences,
    )


def _tiers(comparison: Comparison) -> Section:
    """Return the section with the verdict on each tier, and how many of its claims passed.

    Only required claims decide on a tier, so some of a tier that is PASS may not have passed.
    """
    before, after = comparison.before, comparison.after
    rows = []
    for tier in Tier:
        if tier not in {*before.tiers, *after.tiers}:
            continue
        cells = []
        for record in (before, after):
            count = record.tiers.get(tier)
            cell = "not measured"
            if count:
                passed = count.counts.get(Status.PASS, 0)
                cell = f"{count.verdict}, {passed} of {sum(count.counts.values())} claims passed"
            cells.append(cell)
        rows.append((str(tier), *cells))
    return Section(
        title="Claims, by tier",
        header=("tier", before.label, after.label),
        rows=rows,
    )


def _claims(comparison: Comparison) -> Iterator[Section]:
    """Yield sections of claims: of another verdict, of another reason, and that one run judged."""
    changed: list[ClaimChange] = []
    of_one_run: list[ClaimChange] = []
    for change in comparison.claims:
        if change.before is None or change.after is None:
            of_one_run.append(change)
        else:
            changed.append(change)

    # With a tier that both measured, it is news that no verdict has changed. Without one, no claim
    # was compared.
    common_tiers = comparison.before.tiers.keys() & comparison.after.tiers.keys()
    if common_tiers:
        yield _claims_section(comparison, changed, "Claims with another verdict")
    if comparison.reasons:
        yield _reasons_section(comparison)
    if of_one_run:
        yield _claims_section(comparison, of_one_run, "Claims that only one run judged")


def _claims_section(comparison: Comparison, changes: Sequence[ClaimChange], title: str) -> Section:
    """Return a section of claims: a row for each, and below the table their reasons."""
    rows = []
    # Several claims may have one reason, such as a package that is missing.
    claims_by_reason: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        verdicts = [str(verdict or _NONE) for verdict in (change.before, change.after)]
        rows.append((str(change.tier), change.claim, *verdicts))
        if change.reason:
            reason = " ".join(change.reason.split())
            claims_by_reason.setdefault((change.reason_of, reason), []).append(change.claim)
    sentences = []
    for (label, reason), claims in claims_by_reason.items():
        shown = reason
        if len(reason) > _MOST_REASON:
            shown = f"{reason[:_MOST_REASON]} ..."
        sentences.append(f"{label}, {', '.join(claims)}: {shown}")
    return Section(
        title=f"{title}: {len(rows)}",
        header=("tier", "claim", comparison.before.label, comparison.after.label),
        rows=rows,
        sentences=sentences,
    )


def _reasons_section(comparison: Comparison) -> Section:
    """Return the section of claims that do not hold in either run, for another reason or weight."""
    labels = (comparison.before.label, comparison.after.label)
    rows = []
    # Several claims may have the same two reasons.
    claims_by_reasons: dict[tuple[str, str], list[str]] = {}
    for change in comparison.reasons:
        difference = _describe_difference(change)
        rows.append((str(change.tier), change.claim, str(change.verdict), difference))
        if change.reason_before != change.reason_after:
            reasons = (change.reason_before, change.reason_after)
            claims_by_reasons.setdefault(reasons, []).append(change.claim)

    sentences, long_sentences = [], []
    for reasons, claims in claims_by_reasons.items():
        pair = []
        for label, reason in zip(labels, reasons, strict=True):
            pair.append(f"{label}, {', '.join(claims)}: {' '.join(reason.split())}")
        # The two reasons are read together.
        if max(map(len, pair)) <= _MOST_LINE:
            sentences += pair
        else:
            long_sentences += pair
    return Section(
        title=f"Claims with the same verdict, of which something else differs: {len(rows)}",
        header=("tier", "claim", "verdict", "what differs"),
        rows=rows,
        sentences=sentences,
        long_sentences=long_sentences,
    )


def _describe_difference(change: ReasonChange) -> str:
    """Return what differs of a claim with the same verdict: `reason`, `no longer required`."""
    words = []
    if change.reason_before != change.reason_after:
        words.append("reason")
    if change.required_before and not change.required_after:
        words.append("no longer required")
    if change.required_after and not change.required_before:
        words.append("now required")
    return ", ".join(words)


def _steps(comparison: Comparison) -> Section:
    """Return the section of the training steps: time, memory and loss of each, side by side."""
    rows = []
    for step in comparison.steps:
        old, new = step.before, step.after
        time_change, peak_change, loss_change = "", "", ""
        if old and new:
            time_change = _percent(old.seconds, new.seconds)
            peak_change = _percent(old.peak, new.peak)
            loss_change = f"{new.loss - old.loss:+.3f}"
        judgement = "not judged"
        if step.longest_seconds is not None:
            words = ", ".join(step.findings) or "within noise"
            judgement = f"{words} (to {_milliseconds(step.longest_seconds)})"
        rows.append((step.step, _time(old), _time(new), f"{time_change} {judgement}".strip()))
        rows.append(("  memory", _peak(old), _peak(new), peak_change))
        rows.append(("  loss", _loss(old), _loss(new), loss_change))

    gpus = {*comparison.before.gpus, *comparison.after.gpus}
    return Section(
        title=f"Training steps on {' and '.join(sorted(gpus))}",
        header=("step", comparison.before.label, comparison.after.label, "difference"),
        rows=rows,
        sentences=[
            "a time has its noise; behind it in brackets: how long it may take within the noise of "
            "both"
        ],
    )


def _size(size: int | None) -> str:
    """Return bytes as `6.23 GB` or `12.3 MB`. None: not recorded."""
    if size is None:
        return _NOT_RECORDED
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _difference(before: int | None, after: int | None) -> str:
    """Return how many megabytes a size changed: `+774.0 MB`. Empty if one is not recorded."""
    if before is None or after is None:
        return ""
    return f"{(after - before) / 1e6:+.1f} MB"


def _percent(before: float, after: float) -> str:
    """Return how much a figure changed, as a share of the earlier one: `-4.9%`."""
    return f"{after / before - 1:+.1%}" if before else ""


def _milliseconds(seconds: float) -> str:
    """Return seconds as `312.1 ms`."""
    return f"{seconds * 1e3:.1f} ms"


def _time(step: StepRow | None) -> str:
    """Return the time of a training step with its spread: `312.1 ms +-0.7%`."""
    if step is None:
        return _NOT_RECORDED
    return f"{_milliseconds(step.seconds)} +-{step.spread:.1%}"


def _peak(step: StepRow | None) -> str:
    """Return the peak of GPU memory in a training step: `44.75 GB`."""
    return _size(step.peak if step else None)


def _loss(step: StepRow | None) -> str:
    """Return the loss after the last training step: `5.352`."""
    return f"{step.loss:.3f}" if step else _NOT_RECORDED
