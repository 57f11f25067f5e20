"""The verb `compare`: two images side by side, by what is recorded of them."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
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
from images.config.selectors import image_name
from images.errors import Problem, UserError, command, wrong
from images.locking import layer_record, lock_file
from images.planning import plan
from images.site import records
from images.site.records import RunLine
from images.validation.rows import read_evidence
from validate.judge import judge
from validate.judging import listed, plural

_WHAT = (
    "An image name (its newest run), a run (cu126-torch25/h200), a folder out/NAME, or an image "
    "that the engine has."
)
_EVIDENCE = "evidence.json"
_WAY_TO_A_RUN = (
    f"`{command('validate', 'NAME')}` writes one into out/validate/NAME, and "
    f"`{command('build', 'NAME')}` into out/NAME: name that folder"
)
_TWO_IMAGES = "name two images, or two runs of one (`cu126-torch25/h200`)"
_MOST_RUNS = 4
"""Recorded runs of an image that a message names at most."""


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_WHAT)],
    b: Annotated[str, typer.Argument(metavar="B", help="The same, for the image after an update.")],
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="As the text of a pull request.")
    ] = False,
    as_json: Json = False,
    engine: EngineUrl = None,
    matrix: MatrixFile = None,
) -> None:
    """Show two images side by side: packages that moved, sizes, claims and training steps.

    It reads what is recorded and measures nothing. What is not recorded is said, not guessed.
    """
    if as_markdown and as_json:
        raise wrong("--markdown", "can't be given together with --json", "give one of the two")
    # Before anything is read: what is read of each would be told twice.
    if a == b:
        raise wrong(a, "A and B are the same", _TWO_IMAGES)
    sources = common.sources(matrix)
    before = _find(a, "A", sources, engine)
    after = _find(b, "B", sources, engine)
    _require_comparable(before, after)
    comparison = compare_records(before, after)
    if as_json:
        # What both records have is in the comparison already.
        same = {"claims", "packages", "system_packages", "layers", "layer_bytes", "steps"}
        content = TypeAdapter(Comparison).dump_python(
            comparison, mode="json", exclude={"before": same, "after": same}
        )
        typer.echo(json.dumps(content, indent=1))
    elif as_markdown:
        typer.echo(tables.markdown(comparison), nl=False)
    else:
        common.show(tables.text_lines(comparison))


def _require_comparable(before: ImageRecord, after: ImageRecord) -> None:
    """Raise UserError for the same image twice, and for images for different platforms."""
    where = f"{before.name} {after.name}"
    is_same_image = before.digest == after.digest
    if is_same_image and before.run == after.run:
        cause = f"both names mean the same: {after.source}, the image {after.digest[:19]}"
        raise wrong(where, cause, _TWO_IMAGES)

    # The platform of an image with a name of its own is not known.
    platforms = {record.platform for record in (before, after) if record.platform}
    if len(platforms) == 2:
        cause = (
            f"A is for {before.platform}, and B for {after.platform}: they have no layer in common"
        )
        then = f"name two images for one platform; `{command('plan')}` lists all"
        raise wrong(where, cause, then)


def _find(text: str, label: str, sources: Sources, engine_url: str | None) -> ImageRecord:
    """Return what is recorded of the image that an argument means. `label`: A or B.

    The argument is, in this order, the ID of a recorded run, the name of an image, the path of a
    validation run, or what an engine calls an image. Raises UserError if it is none of these, or if
    nothing is recorded of the image.
    """
    lines = _with_canonical_layers(records.read(sources.workspace.results), sources)
    for line in lines:
        if line.id == text:
            return _record_of_line(line, label)

    name = sources.matrix.aliases.get(text, text)
    names = [planned.name for planned in plan.plan(sources)]
    runs = [line for line in lines if line.image == name and not line.experiment]
    if runs or name in names:
        return _find_newest(name, runs, label, sources)

    # A name comes before a folder of this name: `./NAME` is the folder.
    # Unlike Path's method, this also answers for a text that is too long for a path.
    if os.path.exists(text):  # noqa: PTH110
        return _read_folder(Path(text), label, sources)

    known_names = [*names, *sources.matrix.aliases, *(line.id for line in lines)]
    record = _read_from_engine(text, label, sources, engine_url, known_names)
    return add_newest_run(record, lines)


def _read_from_engine(
    reference: str, label: str, sources: Sources, engine_url: str | None, known_names: Sequence[str]
) -> ImageRecord:
    """Return what an engine has of an image.

    `known_names` are those of images and recorded runs. Raises UserError with the nearest of them
    if no engine answers or has the image, or if the image's files can't be read.
    """
    # Imported only here: they import Docker's client, which records do not need.
    from images.comparison import engine_image
    from images.engine import private_engine

    then = f"`{command('plan')}` lists the images"
    nearest = get_close_matches(reference, known_names, n=3, cutoff=0.5)
    if nearest:
        then = f"nearest: {', '.join(nearest)}; {then}"
    cause = "is no image of the matrix, no recorded run and no folder"
    unknown = Problem(where=reference, cause=cause, then=then)
    try:
        engine = private_engine.open_engine(engine_url, on_progress=common.say, install=False)
    except UserError as error:
        # It may be an image of an engine that does not answer.
        cause = f"{cause}, and the engine can't be asked: {error.problems[0].cause}"
        raise UserError(replace(unknown, cause=cause)) from None
    with engine:
        if engine.find(reference) is None:
            raise UserError(replace(unknown, cause=f"{cause}, and the engine has no such image"))
        common.tell(f"reading the packages and layers of {reference}")
        return engine_image.read(engine, reference, label, sources.workspace.locks)


def _find_newest(name: str, runs: Sequence[RunLine], label: str, sources: Sources) -> ImageRecord:
    """Return the newest of an image's recorded runs, or the one in out/NAME if that is newer.

    `runs`: those of results/runs.jsonl. Says which others there are, and why out/NAME is left out.
    Raises UserError if there is none.
    """
    beginning = datetime.min.replace(tzinfo=UTC)
    newest_first = sorted(runs, key=lambda run: run.date or beginning, reverse=True)
    candidates = [_record_of_line(line, label) for line in newest_first]
    folder = sources.workspace.out / name
    skipped = ""
    if (folder / _EVIDENCE).is_file():
        record, skipped = _read_own_run(folder, name, label, sources)
        if record:
            candidates.append(record)
    if candidates and skipped:
        common.tell(f"skipped: {skipped}")
    if not candidates:
        cause = "no run of this image is recorded, and none was validated here"
        if skipped:
            cause = f"no run of this image is recorded, and the one here can't be read: {skipped}"
        then = f"{_way_to_build(name, sources)}; for an image that Docker has already, give its "
        raise wrong(name, cause, f"{then}reference with the tag (HOST/NAME:TAG)")

    newest = max(candidates, key=lambda record: record.date or beginning)
    others = [record.source for record in candidates if record is not newest]
    if others:
        common.tell(
            f"{label} is the newest, {newest.source}; there are also "
            f"{listed(others, limit=_MOST_RUNS)}"
        )
    return newest


def _way_to_build(name: str, sources: Sources) -> str:
    """Return what to do about an image without a run: build it, or lock it first, or not at all."""
    build = command("build", name)
    for planned in plan.plan(sources):
        if planned.name != name:
            continue
        if planned.image is None:
            return f"`{command('plan', name)}` says why it can't be built, and names the nearest"
        if not lock_file.is_present(planned.image, sources.workspace.locks):
            return f"`{command('lock', name)}`, then `{build}` builds and validates it"
    return f"`{build}` builds and validates it"


def _read_own_run(
    folder: Path, name: str, label: str, sources: Sources
) -> tuple[ImageRecord | None, str]:
    """Return what the run in out/NAME recorded of the image `name`, or None and why it is left out.

    It is left out if it can't be read, or is of an image that `name` does not mean.
    """
    try:
        record = _read_folder(folder, label, sources)
    except UserError as error:
        problem = error.problems[0]
        return None, f"{problem.where}: {problem.cause}"
    if record.name != name:
        return None, (
            f"{record.source} is a run of {record.name}: give this folder to compare that image"
        )
    return record, ""


def _with_canonical_layers(lines: Iterable[RunLine], sources: Sources) -> list[RunLine]:
    """Return runs whose layers have their canonical digests, as far as locks/layers.json has them.

    Engines write the same files into different tars. A run on an engine whose store could not be
    read has the digests of these, which differ from those of other runs of the same layers.
    """
    known = layer_record.known_forms(layer_record.read(sources.workspace.locks))
    canonical_lines = []
    for line in lines:
        payload = {name: known.get(digest, digest) for name, digest in line.payload.items()}
        canonical_lines.append(line.model_copy(update={"payload": payload}))
    return canonical_lines


def _record_of_line(line: RunLine, label: str, folder: str = "") -> ImageRecord:
    """Return what a run recorded of an image. `folder`: its own; empty: results/runs.jsonl."""
    name = image_name(line.image)
    return ImageRecord(
        label=label,
        name=line.image,
        source=folder or f"run {line.id}",
        run=folder or line.id,
        platform=str(name.platform) if name else "",
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


def _read_folder(path: Path, label: str, sources: Sources) -> ImageRecord:
    """Return what a validation run recorded of an image, judged again by the claims it has.

    `path` is an evidence.json, or its folder. Raises UserError if it is none, or of an audit, or if
    its measurements can't be read.
    """
    file = _find_evidence(path, sources.workspace.results)
    evidence = read_evidence(file)
    if evidence.image.startswith("audit of "):
        cause = "its evidence.json is of an audit, and `compare` needs that of a validation"
        raise wrong(str(path), cause, _WAY_TO_A_RUN)

    # The run as results/runs.jsonl would have it. Each claim may have a measurement of any form, so
    # its figures may be missing or of another type.
    fault = ""
    try:
        verdict = judge(evidence.claim_set, evidence)
        run_line = records.make_run_line(evidence, verdict, "here")
    except UserError as error:
        fault = error.problems[0].cause
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        cause = f"was changed, or written by another release of truetag: {fault}"
        then = f"measure the image again: {_WAY_TO_A_RUN}"
        raise wrong(str(file), cause, then)
    (line,) = _with_canonical_layers([run_line], sources)
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


def _find_evidence(path: Path, results: Path) -> Path:
    """Return the evidence.json that a path names, or that lies in the folder that it names.

    `results`: the folder of recorded runs. Raises UserError if there is none, or if it is the kept
    evidence of a recorded run, which is compressed.
    """
    file = path / _EVIDENCE if path.is_dir() else path
    if not file.is_file():
        raise wrong(str(path), f"there is no {_EVIDENCE} in this folder", _WAY_TO_A_RUN)
    if file.name.endswith(".json.xz") and file.resolve().is_relative_to(results.resolve()):
        run_id = f"{file.parent.name}/{file.name.removesuffix('.json.xz')}"
        cause = "this file is of a recorded run, which has a name of its own"
        raise wrong(str(path), cause, f"give that name in place of the file: {run_id}")
    return file


def add_newest_run(record: ImageRecord, lines: Sequence[RunLine]) -> ImageRecord:
    """Return what is recorded of an engine's image, with claims and steps of its newest run.

    `lines`: the recorded runs. Without a run of the image, a message says how to make one.
    """
    # A run is about every image that has its layers and settings, whatever its digest. Where the
    # layers can't be read, or were not recorded, only the digest tells.
    runs = []
    for line in lines:
        has_same_layers = bool(record.layers) and line.payload == record.layers
        is_of_image = line.digest == record.digest or has_same_layers
        if is_of_image and line.date and not line.experiment:
            runs.append(line)
    if not runs:
        validating = command("validate", "NAME", "--image", record.name)
        common.tell(
            f"no run of {record.name} is recorded: `{validating}` measures its claims and training "
            "steps, and names a folder that can be compared"
        )
        return record
    run = max(runs, key=lambda line: str(line.date))
    return replace(
        record,
        source=f"{record.source}, and run {run.id}",
        run=run.id,
        date=run.date,
        gpus=run.gpus,
        driver=run.driver,
        tiers=run.tiers,
        claims=list(run.rows()),
        steps=run.steps,
    )
