"""Show a comparison of two images as Markdown, for a terminal and for a pull request. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from images.comparison.differences import Comparison, ImageRecord, LayerState
from images.validation.rows import Change, ClaimRow, StepRow
from validate.claims import Tier
from validate.judging import Status, plural

_NONE = "-"
"""What an image does not have, or what is not recorded of it."""
_MOST_REASON = 240
"""Characters of a claim's reason."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a comparison: a title, a table, and sentences below it."""

    title: str
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    sentences: Sequence[str] = ()


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown, with tables that a terminal can show, too.

    A section has a title, and below it a table, a list of sentences, or both.
    """
    text = ""
    for section in _sections(comparison):
        text += f"### {section.title}\n"
        if section.rows or section.sentences:
            text += "\n"
        table: list[list[str]] = []
        if section.rows:
            rule = ["---"] * len(section.header)
            for row in (section.header, rule, *section.rows):
                table.append([cell.replace("|", "\\|") for cell in row])
        # All cells of a column get the width of its longest one.
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            text += f"| {' | '.join(cells)} |\n"
        if section.rows and section.sentences:
            text += "\n"
        for sentence in section.sentences:
            text += f"- {sentence}\n"
        text += "\n"
    return f"{text.rstrip()}\n"


def _sections(comparison: Comparison) -> Iterator[Section]:
    """Yield the sections of a comparison, in their order. Those without anything are left out."""
    before, after = comparison.before, comparison.after
    yield _images(before, after)
    if before.packages and after.packages:
        yield _packages(comparison, "Packages", comparison.packages)
    if comparison.system_packages:
        title = "Packages of Debian and the CUDA toolkit"
        yield _packages(comparison, title, comparison.system_packages)
    if before.bytes or after.bytes or comparison.layers:
        yield _layers(comparison)
    if before.tiers.keys() & after.tiers.keys():
        yield _claims(comparison)
    if comparison.steps:
        yield _steps(comparison)

    missing = []
    for record in (before, after):
        if record.missing:
            missing.append(f"{record.label}: {', '.join(record.missing)}")
    if missing:
        yield Section(title="Not recorded, and not compared", sentences=missing)


def _images(before: ImageRecord, after: ImageRecord) -> Section:
    """Return the section about the images: where and how they were measured, and their verdicts."""
    old_facts, new_facts = _describe(before), _describe(after)
    rows = []
    for fact, old in old_facts.items():
        new = new_facts[fact]
        if (old, new) != (_NONE, _NONE):
            rows.append((fact, old, new))
    title = before.name if before.name == after.name else f"{before.name} -> {after.name}"
    return Section(
        title=title,
        header=("", before.label, after.label),
        rows=rows,
        sentences=[*_claims_without_pass(before), *_claims_without_pass(after)],
    )


def _claims_without_pass(record: ImageRecord) -> Iterator[str]:
    """Yield for each tier how many claims of a run have each verdict but PASS.

    `B, gpu, not passed: 12 KNOWN, 2 UNPROVEN`. Nothing for a tier of which all passed.
    """
    for tier, count in record.tiers.items():
        others = [f"{count.counts[status]} {status}" for status in count.counts if status != "PASS"]
        if others:
            yield f"{record.label}, {tier}, not passed: {', '.join(others)}"


def _describe(record: ImageRecord) -> dict[str, str]:
    """Return the facts about an image: what it is about -> the fact, a hyphen if not recorded.

    Only required claims decide on a tier, so some of a tier that is PASS may not have passed.
    """
    model = record.gpus[0].removeprefix("NVIDIA ") if record.gpus else ""
    facts = {
        "from": record.source,
        "image": record.digest.removeprefix("sha256:")[:12],
        "measured": f"{record.date:%Y-%m-%d}" if record.date else _NONE,
        "GPUs": f"{len(record.gpus)} x {model}" if record.gpus else _NONE,
        "driver": record.driver or _NONE,
    }
    for tier in Tier:
        facts[tier] = _NONE
        result = record.tiers.get(tier)
        if result:
            passed = result.counts.get(Status.PASS, 0)
            claims = sum(result.counts.values())
            # What became of the others is said below the table.
            facts[tier] = f"{result.verdict}, {passed} of {claims} claims passed"
    return facts


def _packages(comparison: Comparison, what: str, changes: Sequence[Change]) -> Section:
    """Return a section of packages that moved, with both versions. `what`: the kind of packages."""
    rows = []
    for change in changes:
        kind = "pinned" if change.pinned else ""
        rows.append((change.name, change.before or _NONE, change.after or _NONE, kind))
    return Section(
        title=f"{what}: {plural(len(rows), 'change')}",
        header=("package", comparison.before.label, comparison.after.label, ""),
        rows=rows,
    )


def _layers(comparison: Comparison) -> Section:
    """Return the section of sizes: a row for each layer that differs, and one for the whole image.

    The largest layers come first. Those that are the same in both images are named below the table.
    """
    before, after = comparison.before, comparison.after
    same_layers = []
    rows = []
    for row in sorted(comparison.layers, key=lambda row: -max(row.before or 0, row.after or 0)):
        if row.state is LayerState.SAME:
            same_layers.append(row.layer)
        else:
            rows.append((row.layer, *_compare_sizes(row.before, row.after), str(row.state)))
    if before.bytes or after.bytes:
        rows.append(("whole image", *_compare_sizes(before.bytes or None, after.bytes or None), ""))
    sentences = [f"the same: {', '.join(same_layers)}"] if same_layers else []
    return Section(
        title="Size, unpacked",
        header=("layer", before.label, after.label, "difference", ""),
        rows=rows,
        sentences=sentences,
    )


def _claims(comparison: Comparison) -> Section:
    """Return the section of claims that changed: a row for each, and below the table their reasons.

    Only tiers that both runs measured have claims here. Claims that only one of the runs measured
    have not changed: they are counted and named below the table.
    """
    labels = (comparison.before.label, comparison.after.label)
    rows = []
    # Label of the only run that measured them -> claims.
    unmatched: dict[str, list[str]] = {}
    # Several claims may have one reason, such as a package that is missing.
    claims_by_reason: dict[tuple[str, str], list[str]] = {}
    for change in comparison.claims:
        claims = (change.before, change.after)
        if change.before and change.after:
            rows.append((str(change.tier), change.claim, *map(_describe_verdict, claims)))
        else:
            label = labels[0] if change.before else labels[1]
            verdict = _describe_verdict(change.before or change.after)
            name = change.claim if verdict == Status.PASS else f"{change.claim}: {verdict}"
            unmatched.setdefault(label, []).append(name)
        for label, claim in zip(labels, claims, strict=True):
            if claim and claim.reason and claim.verdict is not Status.PASS:
                reason = " ".join(claim.reason.split())
                claims_by_reason.setdefault((label, reason), []).append(change.claim)
    sentences = []
    for (label, reason), keys in claims_by_reason.items():
        shown = reason if len(reason) <= _MOST_REASON else f"{reason[:_MOST_REASON]} ..."
        sentences.append(f"{label}, {', '.join(keys)}: {shown}")
    for label, keys in unmatched.items():
        sentences.append(f"measured in {label} only: {len(keys)} ({', '.join(keys)})")
    return Section(
        title=f"Claims that changed: {len(rows)}",
        header=("tier", "claim", *labels),
        rows=rows,
        sentences=sentences,
    )


def _describe_verdict(claim: ClaimRow | None) -> str:
    """Return `PASS`, or `FAIL, not required`; a hyphen for a claim that was not judged."""
    if claim is None:
        return _NONE
    return str(claim.verdict) if claim.required else f"{claim.verdict}, not required"


def _steps(comparison: Comparison) -> Section:
    """Return the section of the training steps, side by side.

    A row has the time, memory and loss of a step in both images, and how much longer it takes in
    the second one (`+2.1%`), with our judgement of that.
    """
    rows = []
    for step in comparison.steps:
        judgement = step.judgement
        if step.before and step.after:
            judgement = f"{step.after.seconds / step.before.seconds - 1:+.1%} {judgement}"
        rows.append((step.step, _figures(step.before), _figures(step.after), judgement))
    return Section(
        title="Training steps: time, memory and loss",
        header=("step", comparison.before.label, comparison.after.label, "difference"),
        rows=rows,
    )


def _figures(step: StepRow | None) -> str:
    """Return the figures of a training step: `312.1 ms +-0.7%, 44.75 GB, 5.352`."""
    if step is None:
        return _NONE
    return f"{step.seconds * 1e3:.1f} ms +-{step.spread:.1%}, {_size(step.peak)}, {step.loss:.3f}"


def _compare_sizes(before: int | None, after: int | None) -> tuple[str, str, str]:
    """Return two sizes in bytes and their difference as text: `6.23 GB`, `7.00 GB`, `+774.0 MB`."""
    difference = ""
    if before is not None and after is not None:
        difference = f"{(after - before) / 1e6:+.1f} MB"
    return _size(before), _size(after), difference


def _size(size: int | None) -> str:
    """Return bytes as `6.23 GB` or `12.3 MB`."""
    if size is None:
        return _NONE
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
