"""Nightly runs: control and canary of each tracked image, what broke, and update proposals."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from images.building.options import BuildOptions
from images.commands import common, trials
from images.commands.options import EngineUrl, ImageInputArguments, Selectors, grouped, in_workspace
from images.commands.trials import TrialArguments
from images.config import matrix, paths
from images.config.matrix import Sources
from images.context.hosting import host_settings
from images.engine import Engine
from images.engine.progress import Progress
from images.errors import Problem, UserError, command, problem_of
from images.locking import lock_file
from images.nightly import judge, overlay, proposal
from images.nightly import report as nightly_report
from images.nightly import run as nightly
from images.nightly.canary import Locked
from images.nightly.options import Judge, NightlyOptions
from images.nightly.run import ImageResult
from images.nightly.state import State
from images.planning import plan
from images.planning.plan import Planned
from images.wheels import cache as wheel_cache


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """How a nightly run goes."""

    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run: no trial is repeated.")] = False
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="NAME>=X,<Y", help="What canaries may take of a package, for this run."),
    ] = None
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=1, help="Sets of versions that a bisection tries at once.")
    ] = 1
    over: Annotated[
        bool, typer.Option("--over", help="Install versions over the existing image, instead of building it: quick.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class OutputArguments:
    """Where a nightly run leaves what it found."""

    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FOLDER", help="Texts of issues; default: OUT/reports.")
    ] = None
    lines: Annotated[
        Path | None,
        typer.Option("--results", metavar="FOLDER", help="Where lines are appended; default: results/nightly."),
    ] = None
    branch: Annotated[bool, typer.Option("--branch", help="Commit each update proposal to a branch of its own.")] = (
        False
    )
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="State, evidence, update proposals.", callback=in_workspace)
    ] = Path("out/nightly")

    @property
    def reports(self) -> Path:
        return self.report or self.out / "reports"

    def proposal(self, image: str) -> Path:
        """The folder of an image's update proposal."""
        return self.out / "proposals" / image


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a nightly run found, an image each, and what stopped some of it."""

    images: Sequence[ImageResult]
    problems: Sequence[Problem]

    @property
    def broken(self) -> bool:
        return any(one.broken for one in self.images)


@grouped
def nightly_verb(
    run: RunArguments,
    output: OutputArguments,
    inputs: ImageInputArguments,
    trial: TrialArguments,
    selectors: Selectors = None,
    engine: EngineUrl = None,
) -> None:
    """Build and validate images as they are locked and at the newest versions; bisect what breaks."""
    sources = common.sources()
    asked = Asked(
        sources=sources,
        tracked=_tracked(selectors or [], sources),
        run=run,
        output=output,
        inputs=inputs,
        trial=trial,
        engine=engine,
    )
    found = _here(asked)
    _write_reports(found, output)
    proposals = {one.image: _proposal(one, sources, output) for one in found.images if one.proposed}
    _tell(found, proposals, output, _now())
    if found.problems:
        raise UserError(found.problems, code=1)
    raise typer.Exit(1 if found.broken else 0)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """All that a nightly run was asked for."""

    sources: Sources
    tracked: Sequence[Planned]
    run: RunArguments
    output: OutputArguments
    inputs: ImageInputArguments
    trial: TrialArguments
    engine: str | None

    def options(self, judge: Judge, tell: Callable[[str, str], None], cancel: Callable[[], None]) -> NightlyOptions:
        return NightlyOptions(
            sources=self.sources,
            judge=judge,
            state=State(self.output.out / "state.jsonl", resume=self.run.resume),
            now=_now,
            results=self.output.lines or paths.workspace().results / "nightly",
            ranges=_ranges(self.run.ranges or [], self.tracked),
            tiers=self.trial.tiers,
            tell=tell,
            at_once=self.run.jobs,
            cancel=cancel,
        )

    def build_options(self) -> BuildOptions:
        return BuildOptions(
            out=self.output.out,
            sources=self.sources,
            host=host_settings(),
            base=self.inputs.base,
            wheelhouse=self.inputs.wheelhouse,
            wheel_mirror=self.inputs.wheel_mirror,
            tiers=self.trial.tiers,
            gpus=self.trial.gpus,
            compiled=wheel_cache.wheel_finder(self.sources.matrix, wheel_cache.default()),
        )


def _here(asked: Asked) -> Found:
    build = asked.build_options()
    with trials.open_engine(asked.engine) as engine, Progress() as progress:
        judge_here = _judge(engine, build, asked.tracked, progress, over=asked.run.over)
        options = asked.options(judge_here, progress.say, engine.cancel)
        return _run_all(asked, options)


def _judge(engine: Engine, build: BuildOptions, tracked: Sequence[Planned], progress: Progress, *, over: bool) -> Judge:
    if not over:
        return judge.on_engine(engine, build, progress)
    images = [planned.image for planned in tracked if planned.image]
    controls = {
        str(image.name): Locked(image=image, lock=lock_file.read(image, build.sources.workspace.locks))
        for image in images
    }
    return overlay.over(engine, controls, build, progress)


def _run_all(asked: Asked, options: NightlyOptions) -> Found:
    """Every image: one that can't be run does not stop the others."""
    images: list[ImageResult] = []
    problems: list[Problem] = []
    for planned in asked.tracked:
        if planned.image is None:
            continue
        with _collected(problems, planned.name):
            images.append(nightly.run(planned, planned.image, options))
    return Found(images=images, problems=problems)


@contextmanager
def _collected(problems: list[Problem], name: str) -> Iterator[None]:
    """What stops one piece of work is kept for the end of the run."""
    try:
        yield
    except UserError as error:
        problems.extend(error.problems)
    except OSError as error:
        problems.append(problem_of(error, name))


def _tracked(selectors: list[str], sources: Sources) -> list[Planned]:
    """The images of a nightly run. Raises UserError: the matrix tracks none, or one of them is refused."""
    track = selectors or sources.matrix.nightly.track
    if not track:
        then = "name images, or track some under `nightly` in matrix.yaml"
        raise UserError(Problem(where="nightly", cause="no image is tracked", then=then))
    accepted = {str(image.name) for image in common.accepted(list(track), sources)}
    return [planned for planned in plan.select(track, sources) if planned.name in accepted]


def _ranges(texts: Sequence[str], wanted: Sequence[Planned]) -> dict[str, str]:
    """`torchao>=0.11,<0.15` as distribution -> range. Raises UserError for what is none, or is no pin of any image."""
    found: dict[str, str] = {}
    pinned = sorted({pin.name for planned in wanted if planned.image for pin in planned.image.pins})
    for text in texts:
        try:
            parsed = Requirement(text)
        except InvalidRequirement as error:
            cause = f"is no range: {str(error).splitlines()[0]}"
            raise UserError(Problem(where=f"--range {text}", cause=cause, then="--range 'torchao>=0.11'")) from None
        name = str(canonicalize_name(parsed.name))
        if name not in pinned:
            then = f"name one of {', '.join(pinned)}"
            raise UserError(Problem(where=f"--range {text}", cause=f"no such image pins {name}", then=then))
        found[name] = str(parsed.specifier)
    return found


def _write_reports(found: Found, output: OutputArguments) -> None:
    """Texts of issues."""
    texts = nightly_report.issues([line for one in found.images for line in one.breakages])
    for name, text in texts.items():
        output.reports.mkdir(parents=True, exist_ok=True)
        (output.reports / name).write_text(text)


def _proposal(found: ImageResult, sources: Sources, output: OutputArguments) -> str:
    """Write the change that moves an image to its canary. Returns where it is: a folder, or a branch."""
    if found.proposed is None:
        return ""
    text = paths.workspace().matrix.read_text(encoding="utf-8")
    moved = proposal.pins(text, sources.matrix_file, found.proposed.image, found.canary.changes)
    after = {"matrix.yaml": moved, **proposal.locks(found.proposed)}
    root = paths.workspace().root
    before = {path: (root / path).read_text(encoding="utf-8") for path in after if (root / path).is_file()}
    validated = f"{nightly_report.job(found.canary)}, on {found.canary.date:%Y-%m-%d}, as the committed lock."
    log = proposal.log(found.image, validated, found.canary.changes, _before_merging(moved, found, sources))
    folder = output.proposal(found.image)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / proposal.PATCH).write_text(proposal.patch(before, after))
    (folder / proposal.LOG).write_text(log)
    name = f"nightly/{found.image}-{found.canary.date:%Y%m%d}"
    return _commit(after, name, log) if output.branch else str(folder)


def _before_merging(text: str, found: ImageResult, sources: Sources) -> list[str]:
    """Images that the rules then refuse, locks that are then stale, and locks of whose files nothing is known."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "matrix.yaml")
        file.write_text(text)
        planned = plan.plan(matrix.load(matrix=file))
    accepted = {one.name for one in plan.plan(sources) if one.accepted}
    refused = [one for one in planned if not one.accepted and one.name in accepted]
    stale = [
        one.name
        for one in planned
        if one.image
        and one.name != found.image
        and lock_file.state(one.image, sources.workspace.locks).status is lock_file.Status.STALE
    ]
    todo = [f"{one.name} would be refused: {'; '.join(one.reasons)}" for one in refused]
    if stale:
        todo.append(f"validate those that share the stack, too: {' '.join(stale)}")
    # The patch has no locks/wheels. S10 is required, and UNPROVEN of files that nobody has read.
    locks = f"`{command('lock', found.image, *stale)}` renews locks, and reads what their new files bring"
    return [*todo, f"{locks}; until then `publish` refuses the image (S10)"]


def _commit(files: Mapping[str, str], name: str, message: str) -> str:
    """The files over HEAD as a commit of a new branch; checkout and index stay as they are. Raises UserError."""

    def git(*arguments: str, text: str = "") -> str:
        command, root = ["git", *arguments], paths.workspace().root
        done = subprocess.run(
            command, cwd=root, input=text, capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            raise UserError(Problem(where=f"git {arguments[0]}", cause=done.stderr.strip(), then="fix that"), code=1)
        return done.stdout.strip()

    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "GIT_INDEX_FILE": str(Path(scratch, "index"))}
        git("read-tree", "HEAD")
        for path, text in files.items():
            blob = git("hash-object", "-w", "--stdin", text=text)
            git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
        commit = git("commit-tree", git("write-tree"), "-p", "HEAD", text=message.removeprefix("# "))
        git("branch", "--force", name, commit)
    return name


def _tell(found: Found, proposals: Mapping[str, str], output: OutputArguments, now: datetime) -> None:
    if output.as_json:
        rows = [_row(one, proposals.get(one.image, "")) for one in found.images]
        typer.echo(json.dumps({"date": now.isoformat(), "images": rows}, indent=1))
        return
    for one in found.images:
        for line in (one.control, one.canary):
            typer.echo(f"{one.image}  {nightly_report.job(line)}")
        for breakage in one.breakages:
            typer.echo(f"{one.image}  {breakage.sentence} ({nightly_report.searched(breakage)})")
        if one.image in proposals:
            typer.echo(f"{one.image}  update proposal: {proposals[one.image]}")


def _row(one: ImageResult, proposal: str) -> dict[str, object]:
    return {
        "image": one.image,
        "control": one.control.model_dump(mode="json"),
        "canary": one.canary.model_dump(mode="json"),
        "breakages": [line.model_dump(mode="json") for line in one.breakages],
        "proposal": proposal,
    }
