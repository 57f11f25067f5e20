"""Many images on many machines, through Slurm or Ray."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from images.building import records
from images.commands import common, executors, fleet_tables
from images.commands.common import talk
from images.commands.executors import ExecutorArguments
from images.commands.options import EngineUrl, ReadOut, grouped
from images.commands.trials import TrialArguments
from images.config import paths
from images.config.matrix import Sources
from images.engine import Engine
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.fleet import booking, config, gather, planning, resuming, run, travel
from images.fleet.config import Fleet
from images.fleet.gather import Holding, Located, Places, RequestedImage
from images.fleet.ledger import Ledger
from images.fleet.model import ON_GPUS, FleetRecord, FleetRun, Job
from images.fleet.planning import FleetImage, PlanInputs, PlannedPair, State
from images.fleet.run import Outcome, RunOptions
from images.registry.reference import Repository
from validate import hints
from validate.claims import Tier
from validate.judge import explain
from validate.judging import Status

ACTIONS = "plan|run|status"


@dataclass(frozen=True, kw_only=True)
class FleetArguments(ExecutorArguments):
    """Which machines, and where what they judged is kept."""

    resume: Annotated[
        bool, typer.Option("--resume", help="Judge what the last run left: it was killed, or lost jobs.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class WhatArguments:
    """Which images, and which of their claims."""

    image: Annotated[
        list[str] | None,
        typer.Option("--image", metavar="NAME=REF", help="An image to hold to NAME's claims (repeat it)."),
    ] = None
    claim: Annotated[
        list[str] | None, typer.Option("--claim", metavar="TEXT", help="As `validate` has it (repeat it).")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, on stdout and nothing else.")] = False


@grouped
def fleet_verb(
    action: Annotated[str, typer.Argument(metavar=ACTIONS)],
    how: FleetArguments,
    what: WhatArguments,
    trial: TrialArguments,
    selectors: Annotated[list[str] | None, typer.Argument(metavar="SELECTOR...", help="Which images.")] = None,
    engine: EngineUrl = None,
    out: ReadOut = Path("out/fleet"),
) -> None:
    """Judge images on a fleet: plan what is fresh, due or impossible, run what is due, show who judged what.

    FOLDER keeps bookings and records; on Slurm it lies where the nodes see it, and everybody who shares it judges
    no pair twice at once.
    """
    ledger = Ledger(out)
    if action == "status":
        _status(ledger, as_json=what.as_json)
        return
    if action not in ACTIONS.split("|"):
        raise UserError(Problem(where=action, cause="is an unknown action", then=f"say one of {ACTIONS}"))
    executors.require_known(how.on)
    act(action, how, what, trial, selectors or [], engine, ledger)


def act(
    action: str,
    how: FleetArguments,
    what: WhatArguments,
    trial: TrialArguments,
    selectors: list[str],
    engine: str | None,
    ledger: Ledger,
) -> None:
    """Plan or run. A run exits with 1 for what has no PASS. Raises UserError."""
    fleet = config.read(how.file)
    if engine and action == "run" and how.on != "local":
        raise executors.no_engine_of(engine, how.on)
    resumes = action == "run" and how.resume
    context = RunContext(ledger=ledger, fleet=fleet, on=how.on, gpus=trial.gpus, engine=engine or "", resumes=resumes)
    if resumes:
        _finish(context, *_resumed(context))
        return
    sources = common.sources()
    with executors.local_engine(engine) as docker_engine:
        travels = action == "run" and how.on != "local"
        repository = _repository(how, fleet, needed=travels)
        holding = Holding(
            sources=sources, cache=common.cache(), tiers=trial.tiers or tuple(Tier), only=what.claim or ()
        )
        located = gather.images(
            _wishes(selectors, what.image or [], sources),
            Places(engine=docker_engine, repository=repository),
            holding,
        )
        before = ledger.records_of(ledger.job_keys())
        given = PlanInputs(
            fleet=fleet,
            now=datetime.now(UTC),
            known=gather.known(ledger, before, [paths.workspace().results], [one.planned for one in located]),
            tiers=trial.tiers or tuple(Tier),
            booked=gather.booked(ledger),
        )
        planned = planning.plan([one.planned for one in located], given)
        if action == "plan":
            _show_plan(planned, as_json=what.as_json)
            return
        images = _sent(located, planned, docker_engine, repository)
    jobs = planning.jobs(planned, images, what.claim or ())
    keys = [job.key for group in jobs.values() for job in group]
    _finish(replace(context, outdated=before), booking.new_run(context.executor, keys), jobs, planned)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a run is given, beside its jobs."""

    ledger: Ledger
    fleet: Fleet
    on: str
    gpus: str
    engine: str
    resumes: bool = False
    outdated: Mapping[str, FleetRecord] = field(default_factory=dict)
    """The records that the plan knew, by the keys of their jobs: those of jobs that are due are made anew."""

    @property
    def executor(self) -> str:
        """Its name, without an address."""
        return self.on.partition(":")[0]

    def options(self) -> RunOptions:
        """Raises UserError: the executor can't be had."""
        return RunOptions(
            fleet=self.fleet,
            ledger=self.ledger,
            executor=executors.executor(self.on, self.ledger.folder, self.fleet),
            say=executors.tell,
            gpus=self.gpus,
            engine=self.engine,
            outdated=self.outdated,
            resumes=self.resumes,
            keep=lambda outcome: _report(self.ledger, outcome),
        )


def _finish(
    context: RunContext, run_of: FleetRun, jobs: Mapping[str, Sequence[Job]], planned: Sequence[PlannedPair] = ()
) -> None:
    """Run jobs, and tell what came of them and of the pairs that were asked for. Exits with 1 for what has no PASS."""
    outcomes: tuple[Outcome, ...] = ()
    if any(jobs.values()):
        outcomes = run.run(run_of, jobs, context.options())
        common.results().print(fleet_tables.outcomes(outcomes))
    else:
        talk.print("nothing is due: `nox -s fleet -- plan` says why")
    there = {one.job.key for one in outcomes}
    others = [job.key for group in jobs.values() for job in group if job.key not in there]
    unanswered = planning.unanswered(planned, [one.job for one in outcomes])
    if unanswered:
        common.results().print(fleet_tables.plan(unanswered))
    _require_verdicts(outcomes, "`nox -s fleet -- run --resume`, with the same --on, judges what has no verdict")
    raise typer.Exit(1 if _failed(outcomes) or others or unanswered else 0)


def _require_verdicts(outcomes: Sequence[Outcome], then: str) -> None:
    lost = [one for one in outcomes if one.verdict is None]
    if lost:
        raise UserError([Problem(where=one.job.key, cause=one.cause, then=then) for one in lost], code=1)


def _failed(outcomes: Sequence[Outcome]) -> bool:
    return any(one.verdict and one.verdict.overall is Status.FAIL for one in outcomes)


def _report(ledger: Ledger, outcome: Outcome) -> None:
    """verdict.json, junit.xml and reports beside the evidence."""
    if outcome.record and outcome.verdict:
        evidence = ledger.evidence_read(outcome.record)
        records.record_validation(ledger.pair(outcome.job.key), evidence, explain(outcome.verdict, hints.known()))


def _resumed(context: RunContext) -> tuple[FleetRun, dict[str, list[Job]]]:
    """A new run of what the last one left that left anything. Raises UserError: none did."""
    ledger = context.ledger
    over = ledger.end_runs()
    for one in over:
        executors.tell(one.id, "has ended: nothing of it is left")
    last = resuming.newest_left(ledger, context.executor)
    if last is None:
        if not over:
            cause = f"no run in {ledger.folder} left anything to judge"
            then = "`nox -s fleet -- run SELECTOR...` begins one; `nox -s fleet -- status` shows those that go on"
            raise UserError(Problem(where="--resume", cause=cause, then=then))
        return booking.new_run(context.executor, ()), {}
    keys = resuming.undone(ledger, last)
    jobs = _placed(ledger, context.fleet, last, keys)
    executors.tell(last.id, f"left {len(keys)} of its {len(last.jobs)} jobs: they are taken over")
    return booking.new_run(context.executor, keys), jobs


def _placed(ledger: Ledger, fleet: Fleet, last: FleetRun, keys: Sequence[str]) -> dict[str, list[Job]]:
    """Machines -> the jobs that a run left. Raises UserError for those that nobody knows."""
    found = {key: ledger.job(key) for key in keys}
    jobs: dict[str, list[Job]] = {}
    for job in filter(None, found.values()):
        jobs.setdefault(_machines(job, fleet), []).append(job)
    then = f"begin a new run of these images, and take runs/{last.id}.json in {ledger.folder} away"
    if unknown := [key for key, job in found.items() if job is None]:
        cause = f"{last.id} was to judge it, and its job.json is missing"
        raise UserError([Problem(where=key, cause=cause, then=then) for key in unknown], code=1)
    return jobs


def _machines(job: Job, fleet: Fleet) -> str:
    fleet = fleet.of(job.platform)
    if not fleet.workers:
        then = "put them into fleet.yaml again, or begin a new run"
        raise UserError(Problem(where=job.key, cause=f"no machine of the fleet is {job.platform} any more", then=then))
    if not set(job.tiers) & set(ON_GPUS):
        return fleet.plain
    if job.arch not in fleet.by_arch:
        then = "put them into fleet.yaml again, or begin a new run"
        raise UserError(Problem(where=job.key, cause=f"no machine of the fleet has {job.arch} any more", then=then))
    return fleet.by_arch[job.arch][0]


def _wishes(selectors: list[str], references: list[str], sources: Sources) -> list[RequestedImage]:
    """What selectors mean, and what `--image NAME=REF` names. Without either: every image that can be built."""
    wishes = []
    for text in references:
        name, equals, reference = text.partition("=")
        if not equals or not reference:
            raise UserError(Problem(where=f"--image {text}", cause="is not NAME=REF", then="name both"))
        (image,) = common.accepted([name], sources, exactly_one=True)
        wishes.append(RequestedImage(image=image, reference=reference))
    if selectors or not references:
        wishes += [RequestedImage(image=image) for image in common.accepted(selectors, sources)]
    return wishes


def _repository(how: FleetArguments, fleet: Fleet, *, needed: bool) -> Repository | None:
    text = how.through or fleet.through
    return travel.repository(text) if text or needed else None


def _sent(
    located: Sequence[Located], planned: Sequence[PlannedPair], engine: Engine | None, repository: Repository | None
) -> list[FleetImage]:
    """The images with references for the workers: what is due and in no registry yet is sent there."""
    due = {one.pair.digest for one in planned if one.state is State.DUE}
    references: dict[str, str] = {}
    with Progress() as progress:
        for one in located:
            digest, local = one.planned.digest, one.found.local if one.found else None
            if digest not in due or digest in references or local is None or engine is None:
                continue
            if repository is None:
                references[digest] = digest
                continue
            told = progress.job(one.planned.name)
            references[digest] = travel.send(engine, local, repository, common.cache() / "push", told)
    return gather.sent(located, references)


def _show_plan(planned: Sequence[PlannedPair], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(fleet_tables.plan_as_json(planned), indent=1))
        return
    common.results().print(fleet_tables.plan(planned))


def _status(ledger: Ledger, *, as_json: bool) -> None:
    rows = fleet_tables.status_rows(ledger)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    if not rows:
        typer.echo(f"nothing was booked or judged in {ledger.folder}: `nox -s fleet -- run SELECTOR...` begins a run")
        return
    common.results().print(fleet_tables.status(rows))
