"""Images built and validated, wheels compiled, recorded runs judged again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from images.building import lineage, pipeline, records
from images.commands import common, tables, trials
from images.commands.options import (
    BuildInputArguments,
    EngineUrl,
    OfflineInputArguments,
    OneName,
    Out,
    grouped,
    require_writable_file,
)
from images.commands.trials import TrialArguments
from images.config.schema import Matrix
from images.context.hosting import HostSettings, host_settings
from images.engine import Engine, connect, private_engine
from images.engine.progress import Progress
from images.engine.runtime import Runtime
from images.errors import Problem, UserError
from images.locking import lock_file
from images.planning.image import Image
from images.validation import schemas
from images.wheels import builder, recipe
from images.wheels import cache as wheel_cache
from images.wheels.prebuilt import FindWheel
from validate import hints, report
from validate.claims import ClaimSet, Tier
from validate.judge import explain, judge
from validate.judging import Status


@dataclass(frozen=True, kw_only=True)
class BuildArguments:
    """How images are built."""

    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Builds at once.")] = 1
    strict: Annotated[bool, typer.Option("--strict", help="An optional package that can't be had is an error.")] = False
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every step anew.")] = False
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile first what is published as source only (`wheels` does it alone).")
    ] = False


@dataclass(frozen=True, kw_only=True)
class CompileArguments:
    """How wheels are compiled."""

    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0, help="Compilers at once; 0: cores and memory.")] = 0
    recompile: Annotated[bool, typer.Option("--recompile", help="Compile what is in the cache already, too.")] = False
    sdists: Annotated[
        Path | None, typer.Option("--sdists", metavar="FOLDER", help="Take source archives from here, by hash.")
    ] = None


@grouped
def build_verb(
    selectors: Annotated[list[str], typer.Argument(metavar="SELECTOR...")],
    inputs: BuildInputArguments,
    how: BuildArguments,
    trial: TrialArguments,
    engine: EngineUrl = None,
    out: Out = Path("out"),
) -> None:
    """Build images and validate them. An image gets its name only if no claim failed and each probe ended."""
    sources = common.sources()
    images = common.accepted(selectors, sources)
    _warn(images)
    options = pipeline.BuildOptions(
        out=out,
        cache=common.cache(),
        facts=sources.facts,
        base=inputs.base,
        wheelhouse=inputs.wheelhouse,
        wheel_mirror=inputs.wheel_mirror,
        strict=how.strict,
        offline=inputs.offline,
        no_cache=how.no_cache,
        tiers=trial.tiers,
        gpus=trial.gpus,
        pinned_bases=trials.pinned_bases(),
    )
    host = host_settings()
    for warning in host.warnings:
        common.say(warning)
    with trials.open_engine(engine) as docker_engine, Progress() as progress:
        compiling = _compiling(docker_engine, options, sources.matrix, host, progress) if how.compile_ else None
        options = replace(options, compiled=compiling or _cached(docker_engine, options, sources.matrix))
        results = pipeline.build_all(docker_engine, images, options, host, progress, how.jobs)
    _show(results, out)


def _warn(images: Sequence[Image]) -> None:
    """Say what the matrix warns of. Raises UserError for an image without a lock of its own."""
    for image in images:
        lock_file.read(image)
        for warning in image.warnings:
            common.talk.print(f"[yellow]{image.name}[/]: {escape(warning)}")


def _cached(engine: Engine, options: pipeline.BuildOptions, matrix: Matrix) -> FindWheel:
    """The wheel cache alone."""
    compilers = partial(builder.read_base_compilers, engine, reference=options.base)
    return wheel_cache.wheel_finder(matrix, wheel_cache.default(), compilers)


def _compiling(
    engine: Engine, options: pipeline.BuildOptions, matrix: Matrix, host: HostSettings, progress: Progress
) -> FindWheel:
    """The wheel cache, and the builder for what it lacks."""
    wheel_options = builder.WheelOptions(
        out=options.out,
        facts=options.facts,
        cache=wheel_cache.default(),
        pinned_bases=options.pinned_bases,
        base=options.base,
    )
    return builder.wheel_builder(engine, matrix, wheel_options, host, progress)


def _show(results: Sequence[pipeline.Built | UserError], out: Path) -> None:
    """Print every verdict. Raises UserError with what failed and what was withheld."""
    console = common.results()
    problems: list[Problem] = []
    for result in results:
        if isinstance(result, UserError):
            problems += result.problems
            continue
        console.print(tables.verdict(result.verdict))
        if result.withheld:
            problems.append(_withheld(result, out))
        else:
            console.print(
                f"[green]{result.name}[/] is validated as far as this machine can: {out / result.name}/report.md"
            )
    if problems:
        raise UserError(problems, code=1)


@grouped
def wheels_verb(
    name: OneName,
    inputs: OfflineInputArguments,
    how: CompileArguments,
    packages: Annotated[
        list[str] | None, typer.Argument(metavar="PACKAGE...", help="Which; default: all that the image pins.")
    ] = None,
    engine: EngineUrl = None,
    out: Out = Path("out"),
) -> None:
    """Compile packages that are published as source only. What was compiled before is taken, not compiled again."""
    sources = common.sources()
    (image,) = common.accepted([name], sources, exactly_one=True)
    if inputs.offline and how.sdists is None:
        then = "`pip download --no-binary :all: --no-deps` where a network is, then --sdists FOLDER"
        raise UserError(Problem(where="--offline", cause="no source archive can be fetched", then=then))
    chosen = packages or recipe.packages(image, sources.matrix)
    if not chosen:
        known = ", ".join(sources.matrix.sources)
        cause = f"pins nothing that is compiled here ({known})"
        raise UserError(Problem(where=name, cause=cause, then=f"name one: `nox -s wheels -- {name} PACKAGE`"))
    recipes = [recipe.recipe_for(image, package, sources.matrix) for package in chosen]
    options = builder.WheelOptions(
        out=out,
        facts=sources.facts,
        cache=wheel_cache.default(),
        jobs=how.jobs,
        recompile=how.recompile,
        sdists=how.sdists,
        pinned_bases=trials.pinned_bases(),
        base=inputs.base,
        wheelhouse=inputs.wheelhouse,
        offline=inputs.offline,
    )
    with trials.open_engine(engine) as docker_engine, Progress() as progress:
        host = host_settings()
        built = [builder.build_wheel(docker_engine, image, one, options, host, progress) for one in recipes]
    for wheel in built:
        typer.echo(str(wheel))


@dataclass(frozen=True, kw_only=True)
class ValidateArguments:
    """Which image is judged, and by which claims."""

    image: Annotated[str, typer.Option("--image", metavar="REF", help="The image to try; default: NAME itself.")] = ""
    claim: Annotated[
        list[str] | None,
        typer.Option(
            "--claim", metavar="TEXT", help="Only claims with this in `ID SUBJECT`, or `=ID SUBJECT` (repeat it)."
        ),
    ] = None
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write verdict.json there.")] = None


@grouped
def validate_verb(
    name: OneName,
    trial: TrialArguments,
    what: ValidateArguments,
    engine: EngineUrl = None,
    out: Out = Path("out"),
) -> None:
    """Judge an image against a name's claims. Of one that stands on it, what was changed is named.

    FOLDER/validate/IMAGE/evidence.json is there from the first probe on: what is killed leaves what it measured.
    """
    if what.json_file:
        require_writable_file(what.json_file)
    sources = common.sources()
    (wanted,) = common.accepted([name], sources, exactly_one=True)
    reference = what.image or str(wanted.name)
    folder = out / "validate" / reference.replace("/", "_").replace(":", "_")
    with trials.open_runtime(engine) as runtime:
        records.forget_trial(folder)
        keep = partial(records.record_evidence, folder)
        if told := _lineage(runtime, str(wanted.name), reference, out):
            common.talk.print(told, style="dim", highlight=False)
        tried = trials.tried(runtime, wanted, reference, sources, trial, only=what.claim or (), on_evidence=keep)
    evidence, verdict = tried.evidence, tried.verdict
    records.record_trial(folder, evidence, verdict, tried.changes)
    if what.json_file:
        what.json_file.parent.mkdir(parents=True, exist_ok=True)
        what.json_file.write_text(json.dumps(report.json_data(verdict), indent=1) + "\n")
    common.results().print(tables.verdict(verdict, reference))
    typer.echo(f"{folder}/evidence.json", err=True)
    if tried.changes:
        typer.echo(f"{reference} stands on {wanted.name}: " + "\n  ".join(tried.changes.lines()))
    raise typer.Exit(1 if any(one.claim.required for one in verdict.of(Status.FAIL)) else 0)


def _lineage(engine: Runtime, name: str, reference: str, out: Path) -> str:
    """What an image is beside the recorded build of its name, or what the engine calls so; empty: none is there."""
    known, where = records.recorded_layers(out / name), f"{name} as {out / name}/build.json records it"
    if not known and reference != name and (held := engine.find(name)):
        known, where = tuple(held.layers), name
    return f"{reference}: {lineage.relation(where, known, engine.inspect(reference).layers)}" if known else ""


def judge_verb(
    evidence: Annotated[Path, typer.Argument(metavar="FILE", help="An evidence.json of a build or a trial.")],
    tier: Annotated[list[Tier] | None, typer.Option("--tier", help="Judge these alone (repeat it).")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write verdict.json there.")] = None,
) -> None:
    """Judge a recorded run again, by the claims it was measured for. Needs no engine."""
    if json_file:
        require_writable_file(json_file)
    recorded = schemas.read_evidence(evidence)
    _require_claims(evidence, recorded.claim_set, tier or ())
    verdict = explain(judge(recorded.claim_set, recorded, tier or tuple(Tier)), hints.known())
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(report.json_data(verdict), indent=1) + "\n")
    common.results().print(tables.verdict(verdict))
    raise typer.Exit(1 if verdict.of(Status.FAIL) else 0)


def _require_claims(evidence: Path, claims: ClaimSet, tiers: Sequence[Tier]) -> None:
    """Raises UserError for a tier that the run was not asked for: nothing of it is UNPROVEN, either."""
    there = sorted({str(claim.tier) for claim in claims.claims})
    if absent := [str(tier) for tier in tiers if tier not in there]:
        cause = f"holds no claims of the {' and '.join(absent)} tier"
        raise UserError(Problem(where=str(evidence), cause=cause, then=f"--tier may name {', '.join(there)}"))


def engine_verb(
    action: Annotated[str, typer.Argument(metavar="status|start|stop|wipe")] = "status",
) -> None:
    """Show, start or stop the private Docker Engine, or throw away all it keeps."""
    if action == "start":
        with private_engine.open_engine(None, say=common.say) as docker_engine:
            typer.echo(f"{docker_engine.facts.url} (engine {docker_engine.facts.version})")
    elif action == "stop":
        typer.echo("stopped" if private_engine.stop() else "was not running")
    elif action == "wipe":
        was = "stopped" if private_engine.wipe() else "was not running"
        typer.echo(f"{was}; its images, layers and build cache are deleted")
    elif action == "status":
        with connect(None) as docker_engine:
            facts = docker_engine.facts
            typer.echo(f"{facts.url} (engine {facts.version}, {facts.cpus} cores, data in {facts.data_root})")
    else:
        then = "say status, start, stop or wipe"
        raise UserError(Problem(where=action, cause="is an unknown action", then=then))


def _withheld(result: pipeline.Built, out: Path) -> Problem:
    return Problem(
        where=result.name,
        cause=f"{result.withheld}: it stays {result.name}-candidate",
        then=f"read {out / result.name}/report.md; `docker run --rm -it {result.name}-candidate` looks inside",
    )
