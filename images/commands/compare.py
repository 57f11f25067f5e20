"""The verb `compare`: two images side by side, by what is recorded of them."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter

from images.commands import common
from images.commands.options import EngineUrl, Json, MatrixFile
from images.comparison import tables
from images.comparison.differences import Comparison, ImageRecord
from images.comparison.differences import compare as compare_records
from images.config import paths
from images.config.matrix import Sources
from images.config.selectors import image_name, unmatched
from images.errors import UserError, command, wrong
from images.locking import layer_record
from images.planning import plan
from images.site import records
from images.site.records import RunLine
from images.site.runs import run_of_record
from images.site.status import judged_only_a_part
from images.validation.rows import read_evidence
from validate import terminal
from validate.claims import Tier
from validate.judge import judge
from validate.judging import listed, plural

_WHAT = (
    "An image name (its newest whole run), a run (cu126-torch25/h200), a folder out/NAME, or an "
    "image that the engine has."
)
_EVIDENCE = "evidence.json"
_BEGINNING = datetime.min.replace(tzinfo=UTC)
_MOST_NEWER = 4
"""How many newer runs of an image a message names."""


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_WHAT)],
    b: Annotated[str, typer.Argument(metavar="B", help="The same, for the image after an update.")],
    as_json: Json = False,
    engine: EngineUrl = None,
    matrix: MatrixFile = None,
) -> None:
    """Show two images side by side: packages that moved, sizes, claims and training steps.

    It reads what is recorded and measures nothing. What is not recorded is said, not guessed. The
    output is Markdown, as for a pull request.
    """
    # Before anything is read: what is read of each would be told twice.
    if a == b:
        then = "name two images, or two runs of one (`cu126-torch25/h200`)"
        raise wrong(a, "A and B are the same", then)
    sources = common.sources(matrix)
    # The recorded runs, the newest first.
    runs = sorted(
        records.read(sources.workspace.results),
        key=lambda run: run.date or _BEGINNING,
        reverse=True,
    )
    before = _find(a, "A", runs, sources, engine)
    after = _find(b, "B", runs, sources, engine)
    comparison = compare_records(
        _with_canonical_layers(before, sources), _with_canonical_layers(after, sources)
    )
    if as_json:
        typer.echo(TypeAdapter(Comparison).dump_json(comparison, indent=1).decode())
    else:
        for line in tables.markdown(comparison).splitlines():
            # A row that is broken in two is no row, neither for the eye nor in a pull request.
            if line.startswith("|"):
                typer.echo(terminal.printable(line))
            else:
                common.show([line])


def _find(
    text: str, label: str, runs: Sequence[RunLine], sources: Sources, engine_url: str | None
) -> ImageRecord:
    """Return what is recorded of the image that an argument means. `label`: A or B.

    The argument is, in this order, the ID of a recorded run, the name of an image, the path of a
    validation run, or what an engine calls an image. `runs`: the recorded ones, the newest first.
    Raises UserError if it is none of these, or if nothing is recorded of the image.
    """
    for index, run in enumerate(runs):
        if run.id == text:
            _tell_newer_runs(run, runs[:index])
            return _record_of_line(run, label)

    name = sources.matrix.aliases.get(text, text)
    names = [planned.name for planned in plan.plan(sources)]
    runs_of_image = [run for run in runs if run.image == name and not run.experiment]
    if runs_of_image or name in names:
        return _find_newest(name, label, runs_of_image, sources)

    # A name comes before a folder of this name: `./NAME` is the folder.
    # Unlike Path's method, this also answers for a text that is too long for a path.
    if os.path.exists(text):  # noqa: PTH110
        return _read_folder(Path(text), label)

    known_names = [*names, *sources.matrix.aliases, *(run.id for run in runs)]
    record = _read_from_engine(text, label, sources, engine_url, known_names)
    return add_newest_run(record, runs)


def _tell_newer_runs(run: RunLine, newer_runs: Sequence[RunLine]) -> None:
    """Print which runs of the same image are newer than the run that a person named.

    `cu126-torch25/h200` reads like the runs on an H200, and is the ID of a single one, the first.
    `newer_runs`: recorded runs of all images, the newest first.
    """
    newer = [other.id for other in newer_runs if other.image == run.image and not other.experiment]
    if newer and not run.experiment:
        day = f" of {run.date:%Y-%m-%d}" if run.date else ""
        common.tell(
            f"{run.id} is the ID of one run{day}; newer ones of this image: "
            f"{listed(newer, limit=_MOST_NEWER)} (`{run.image}` alone is its newest whole run)"
        )


def _read_from_engine(
    reference: str, label: str, sources: Sources, engine_url: str | None, known_names: Sequence[str]
) -> ImageRecord:
    """Return what an engine has of an image.

    `known_names` are those of images and recorded runs. Raises UserError with the nearest of them
    if no engine answers or has the image, or if the image's files can't be read.
    """
    # Imported only here: they import Docker's client, which records do not need.
    from images.comparison import engine_image
    from images.engine.client import connect

    cause = "is no image of the matrix, no recorded run and no folder"
    unknown = unmatched(reference, known_names).problems[0]
    lines = paths.shown(sources.workspace.results / records.LINES)
    unknown = replace(unknown, then=f"{unknown.then}, and {lines} all recorded runs")
    try:
        engine = connect(engine_url)
    except UserError as error:
        # It may be an image of an engine that does not answer.
        cause = f"{cause}, and the engine can't be asked: {error.problems[0].cause}"
        then = (
            "if you mean an image of Docker, start its engine (`docker info` shows whether it "
            f"runs) and give the command again; if not: {unknown.then}"
        )
        raise UserError(replace(unknown, cause=cause, then=then)) from None
    with engine:
        if engine.find(reference) is None:
            raise UserError(replace(unknown, cause=f"{cause}, and the engine has no such image"))
        common.tell(f"reading the packages and layers of {reference}")
        return engine_image.read(engine, reference, label, sources.workspace.locks)


def _find_newest(name: str, label: str, runs: Sequence[RunLine], sources: Sources) -> ImageRecord:
    """Return what the newest whole validation run of an image recorded.

    There are two places to look: results/runs.jsonl, of which `runs` has the image's lines, the
    newest first; and the folder out/NAME, where the last build on this machine left its run. A
    recorded run of only a part of the claims counts if there is no whole one. `label` says which of
    the two images to compare it is: A or B.

    Raises UserError if neither place has a run, or if the run in the folder is damaged.
    """
    candidates = []
    # The order stays among whole runs, and among others, so the first is the newest.
    for line in _sort_partial_last(runs)[:1]:
        candidates.append(_record_of_line(line, label))
    folder = sources.workspace.out / name
    if (folder / _EVIDENCE).is_file():
        candidates.append(_read_folder(folder, label))

    if not candidates:
        raise wrong(
            name,
            "no run of this image is recorded, and it was not built here",
            f"`{command('build', name)}` builds and validates it; for a run of `validate`, give "
            f"its folder (out/validate/{name}); for an image that Docker has already, give its "
            "reference with the tag (HOST/NAME:TAG)",
        )
    # Old runs have no date: they count as the oldest.
    return max(candidates, key=lambda record: record.date or _BEGINNING)


def _sort_partial_last(lines: Sequence[RunLine]) -> list[RunLine]:
    """Return the runs of an image: whole ones, then runs of some tiers, then of a part of a tier.

    A whole run has the tiers static, cpu and gpu. A part is, for example, the claims about speed:
    all other claims would not be compared. Within each group the order stays. Runs whose layers
    have moved since count like others, because a name stands for every image that had it.
    """
    # `judged_only_a_part` compares a run with those of its digest, which are to be all of them.
    runs = {line.id: replace(run_of_record(line, line.id), digest="") for line in lines}
    all_runs = list(runs.values())

    def partiality(line: RunLine) -> tuple[bool, bool]:
        run = runs[line.id]
        is_part_of_a_tier = any(judged_only_a_part(run, tier, all_runs) for tier in run.tiers)
        lacks_a_tier = not run.tiers.keys() >= {Tier.STATIC, Tier.CPU, Tier.GPU}
        return is_part_of_a_tier, lacks_a_tier

    return sorted(lines, key=partiality)


def _record_of_line(line: RunLine, label: str, folder: str = "") -> ImageRecord:
    """Return what a run recorded of an image. `folder`: its own; empty: results/runs.jsonl."""
    return ImageRecord(
        label=label,
        name=line.image,
        source=folder or f"run {line.id}",
        digest=line.digest,
        date=line.date,
        gpus=line.gpus,
        driver=line.driver,
        pins=list(line.packages),
        packages={**line.packages, **line.locked},
        all_packages=bool(line.locked),
        bytes=line.bytes,
        layers=line.payload,
        layer_bytes=line.layer_bytes,
        tiers=line.tiers,
        claims=list(line.rows()),
        steps=line.steps,
    )


def _read_folder(path: Path, label: str) -> ImageRecord:
    """Return what a validation run recorded of an image, judged again by the claims it has.

    `path` is an evidence.json, or its folder. Raises UserError if it is none, or of an audit.
    """
    file = path / _EVIDENCE if path.is_dir() else path
    evidence = read_evidence(file)
    if image_name(evidence.image) is None:
        cause = (
            f"its evidence.json is of {evidence.image}, and `compare` reads only that of an image "
            "of the matrix"
        )
        then = (
            f"`{command('validate', 'NAME')}` writes one into out/validate/NAME, and "
            f"`{command('build', 'NAME')}` into out/NAME: name that folder"
        )
        raise wrong(str(path), cause, then)
    line = records.make_run_line(evidence, judge(evidence.claim_set, evidence), "here")
    record = _record_of_line(line, label, paths.shown(file.parent.resolve()))

    # Evidence of an image on another base (--base), and of one that a user built on one of ours,
    # has the name of ours.
    name = record.name
    other_base = evidence.host.get("other_base")
    if other_base:
        name += f" on {other_base}"
    steps_above = evidence.host.get("steps_above")
    if steps_above:
        name += f" with {plural(steps_above, 'step')} above"
    return replace(record, name=name)


def _with_canonical_layers(record: ImageRecord, sources: Sources) -> ImageRecord:
    """Return a record with the canonical digests of its layers, where locks/layers.json has them.

    Engines write the same files into different tars. A run on an engine whose store could not be
    read has the digests of these, which differ from those of other runs of the same layers.
    """
    known = layer_record.known_forms(layer_record.read(sources.workspace.locks))
    layers = {name: known.get(digest, digest) for name, digest in record.layers.items()}
    return replace(record, layers=layers)


def add_newest_run(record: ImageRecord, runs: Sequence[RunLine]) -> ImageRecord:
    """Return what is recorded of an engine's image, with claims and steps of its newest run.

    `runs`: the recorded ones, the newest first. Without a run of the image, a message says how to
    make one.
    """
    runs_of_image = []
    for run in runs:
        # A run is about every image that has its layers and settings, whatever its digest. Where
        # the layers can't be read, or were not recorded, only the digest tells.
        has_same_layers = bool(record.layers) and run.payload == record.layers
        is_of_image = run.digest == record.digest or has_same_layers
        if is_of_image and not run.experiment:
            runs_of_image.append(run)
    if not runs_of_image:
        validating = command("validate", "NAME", "--image", record.name)
        common.tell(
            f"no run of {record.name} is recorded: `{validating}` measures its claims and training "
            "steps, and names a folder that can be compared"
        )
        return record

    newest = _sort_partial_last(runs_of_image)[0]
    return replace(
        record,
        source=f"{record.source}, and run {newest.id}",
        date=newest.date,
        gpus=newest.gpus,
        driver=newest.driver,
        pins=list(newest.packages),
        tiers=newest.tiers,
        claims=list(newest.rows()),
        steps=newest.steps,
    )
