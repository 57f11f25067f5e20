"""`fleet`: images built and validated on many machines, through Slurm or Ray."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from images.commands import common
from images.commands.common import counted, talk
from images.commands.options import EngineUrl, Gpus, MatrixFile, OutFolder, Selectors, Tiers
from images.config.matrix import Sources
from images.config.paths import Workspace
from images.engine import Engine, NoEngine, private_engine
from images.engine.progress import Progress
from images.errors import Problem, UserError, command, wrong
from images.fleet import config, images, planning, run
from images.fleet.config import Fleet
from images.fleet.executors import Executor, LocalExecutor, library
from images.fleet.folder import JobFolder
from images.fleet.model import ON_GPUS, Job, JobRecord
from images.fleet.planning import FleetImage, PlannedCell, State, of_verdict
from images.fleet.run import Outcome
from images.host import cache
from images.locking import lock_file
from images.planning.image import Image
from images.registry.reference import Repository
from validate.claims import Tier
from validate.judging import Status
from validate.terminal import aligned

NAMES = "local|slurm|ray|ray://HEAD:PORT"
LOCAL = "local"


def fleet(
    action: Annotated[str, typer.Argument(metavar="plan|run|status")],
    selectors: Selectors = None,
    on: Annotated[str, typer.Option("--on", metavar=NAMES, help="What runs the jobs.")] = LOCAL,
    staging: Annotated[
        str,
        typer.Option(
            "--staging",
            metavar="REGISTRY/REPOSITORY",
            help="Images travel through it by digest; workers build what it lacks.",
        ),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option("--fleet", metavar="FILE", help="The machines; default: fleet.yaml beside the matrix."),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option("--image", metavar="NAME=REF", help="An image to hold to NAME's claims (repeat it)."),
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option("--claim", metavar="TEXT", help="As `validate` has it (repeat it).")
    ] = None,
    tier: Tiers = None,
    gpus: Gpus = "auto",
    engine: EngineUrl = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Build and validate images on a fleet: plan what is fresh or due, run what is due, show who did what.

    OUT (out/fleet) keeps leases and records. On Slurm it lies where the nodes see it, and nobody who shares it does a
    job twice at once. A run exits with 1 for what has no PASS.
    """
    if on not in (LOCAL, "slurm", "ray") and not on.startswith("ray://"):
        raise wrong(f"--on {on}", "is nothing that runs jobs", f"say {NAMES}")
    if engine and action == "run" and on != LOCAL:
        then = "leave --engine out: DOCKER_HOST says where this machine's is, and each worker finds its own"
        raise wrong(f"--engine {engine}", f"does not reach workers of {on}", then)
    sources = common.sources(matrix)
    folder = JobFolder(out or sources.workspace.out / "fleet")
    if action == "status":
        common.show(status_table(folder, folder.job_keys()))
        return
    if action not in ("plan", "run"):
        raise wrong(action, "is an unknown action", "say one of plan, run, status")
    machines = config.read(file, sources.workspace.root)

    wanted, tiers = _requested(selectors or [], image or [], sources), tuple(tier or Tier)
    place = staging or machines.staging
    if action == "run" and on != LOCAL and not place:
        then = "`--staging HOST/NAME`, or `staging:` in fleet.yaml: workers pull images from there by digest"
        raise wrong("--staging", "no registry is named that images travel through", then)
    repository = Repository.parse(place) if place else None
    outcomes, unanswered, others = [], list[PlannedCell](), False
    while wanted and tiers:
        # A record without a verdict, of a submitter that was killed, is judged by this run, and its job not repeated.
        before = {key: record for key, record in folder.records().items() if folder.done(key)}
        begun = images.begun(folder)
        with _local_engine(engine) as docker_engine:
            there = [images.locate(*one, docker_engine, repository, sources, claim or (), begun) for one in wanted]
            known = images.known(folder, before, there, sources)
            now, leased = datetime.now(UTC), images.leased(folder)
            cells = planning.plan(there, machines, now, tiers=tiers, known=known, leased=leased)
            if action == "plan":
                common.show(plan_table(cells))
                return
            there = _sent(there, cells, docker_engine, repository)
        jobs = planning.jobs(cells, there, machines, claim or ())
        found: list[Outcome] = []
        if jobs:
            found = run.run(
                jobs,
                before,
                fleet=machines,
                folder=folder,
                executor=open_executor(on, folder.path, machines, sources.workspace),
                progress=_progress,
                sources=sources,
                gpus=gpus,
                engine=engine or "",
            )
        built = {one.job.image for one in found if one.job.context and one.verdict}
        others = others or len(found) < sum(map(len, jobs.values()))
        left_over = [one for one in cells if one.cell.image not in built]
        unanswered += planning.unanswered(left_over, [one.job for one in found])
        outcomes += found
        # The GPU tiers of what was built, now that its digest is known.
        wanted = [one for one in wanted if str(one[0].name) in built]
        tiers = tuple(one for one in tiers if one in ON_GPUS)
    _end(folder, outcomes, unanswered, others=others)


def open_executor(on: str, folder: Path, fleet: Fleet, workspace: Workspace) -> Executor:
    """What `--on` names. `folder`: where Slurm's files lie, which the nodes see. Raises UserError: it can't be had."""
    if on == LOCAL:
        return LocalExecutor()
    if on == "slurm":
        library("submitit")
        from images.fleet.executors.slurm import SlurmExecutor

        return SlurmExecutor(folder, fleet.slurm)
    from images.fleet.executors.ray import RayExecutor

    return RayExecutor("auto" if on == "ray" else on, fleet.ray, workspace)


def _end(folder: JobFolder, outcomes: Sequence[Outcome], unanswered: Sequence[PlannedCell], *, others: bool) -> None:
    """Tell what came of the jobs, and exit: 1 for what has no PASS. Raises UserError for jobs without a verdict."""
    if outcomes:
        common.show(status_table(folder, [one.job.key for one in outcomes]))
    else:
        talk.print(f"nothing is due: `{command('fleet', 'plan')}` says why")
    if unanswered:
        common.show(plan_table(unanswered))
    then = "give the same command again: it does what has no verdict"
    if lost := [one for one in outcomes if one.verdict is None]:
        raise UserError([Problem(where=one.job.key, cause=one.cause, then=then) for one in lost], code=1)
    failed = any(one.verdict and one.verdict.overall is Status.FAIL for one in outcomes)
    raise typer.Exit(1 if failed or others or unanswered else 0)


def _requested(selectors: list[str], references: Sequence[str], sources: Sources) -> list[tuple[Image, str]]:
    """What selectors mean, and `--image NAME=REF` names, with REF. Without either: every image that can be built."""
    wanted = []
    for text in references:
        name, equals, reference = text.partition("=")
        if not equals or not reference:
            raise wrong(f"--image {text}", "is not NAME=REF", "name both")
        (image,) = common.accepted([name], sources, exactly_one=True)
        wanted.append((image, reference))
    if selectors or not references:
        found = common.accepted(selectors, sources)
        states = lock_file.states(found, sources.workspace.locks)
        named = {*selectors, *(sources.matrix.aliases.get(text) for text in selectors)}
        locked = {name for name, state in states.items() if state is lock_file.Status.PRESENT}
        lacking = [name for name in states if name not in locked | named]
        if lacking and len(lacking) < len(found):
            common.say(f"left out, as they have no lock of their pins: {', '.join(lacking)}")
            found = [image for image in found if str(image.name) not in lacking]
        wanted += [(image, "") for image in found]
    return wanted


def _sent(
    there: Sequence[FleetImage], planned: Sequence[PlannedCell], engine: Engine | None, staging: Repository | None
) -> list[FleetImage]:
    """The images with references for the workers: what is due and in no registry yet is sent to staging."""
    due = {one.cell.digest for one in planned if one.state is State.DUE}
    references: dict[str, str] = {}
    with Progress() as progress:
        for one in there:
            if one.local and one.digest in due and one.digest not in references:
                references[one.digest] = one.digest
                if staging and engine:
                    pushed, told = cache.folder() / "push", progress.job(one.name)
                    references[one.digest] = images.send(engine, one.local, staging, pushed, told)
    return [replace(one, reference=references.get(one.digest, one.reference)) for one in there]


@contextmanager
def _local_engine(url: str | None) -> Iterator[Engine | None]:
    """This machine's engine; a login node has none: then they are in the registry."""
    try:
        engine = private_engine.open_engine(url, on_progress=common.say, install=False, builds=False)
    except NoEngine:
        common.say("no Docker Engine answers here: images are looked for in the registry alone")
        yield None
        return
    with engine:
        yield engine


def _progress(key: str, text: str) -> None:
    """A line of progress about a job."""
    talk.print(f"[cyan]{key}[/]  {escape(text)}", highlight=False, soft_wrap=True)


def plan_table(planned: Sequence[PlannedCell]) -> list[str]:
    """One row a cell that can be judged; below them, said once of all, why others can't."""
    counts = {state: sum(one.state is state for one in planned) for state in State}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    rows = [("image", "digest", "tier", "GPU", "state", "machines", "reason")]
    impossible: dict[tuple[str, str], dict[str, None]] = {}  # reason and image -> its tiers
    for one in planned:
        cell, gpu = one.cell, f"{one.gpus or ''} {one.cell.arch}".strip()
        if one.state is State.IMPOSSIBLE:
            why = one.reason.replace(cell.image, "NAME")
            impossible.setdefault((why, cell.image), {})[cell.tier] = None
        else:
            digest = cell.digest.removeprefix("sha256:")[:12]
            rows.append((cell.image, digest, cell.tier, gpu, one.state, one.worker, one.reason))
    notes: dict[tuple[str, str], list[str]] = {}
    for (why, image), tiers in impossible.items():
        notes.setdefault((", ".join(tiers), why), []).append(image)
    below = [f"impossible: {tiers} of {', '.join(images)}: {why}" for (tiers, why), images in notes.items()]
    return [*(aligned(rows) if rows[1:] else ()), *below, "", f"{counted(len(planned), 'matrix cell')}: {told}"]


def status_rows(folder: JobFolder, keys: Iterable[str]) -> list[dict[str, str]]:
    """These jobs, as far as the folder knows them: judged, leased, or why there is no record."""
    rows = []
    for key in sorted(keys):
        lease, record, failure, job = folder.lease(key), folder.record(key), folder.failure(key), folder.job(key)
        row = {"job": key, "state": "", "verdict": "", "machine": "", "when": "", "told": ""}
        if record:
            when, more = record.ended, {"machine": record.worker.node, **_judged(folder, job, record)}
        elif lease and folder.lives(lease.run):
            when, more = lease.since, {"state": "running", "machine": lease.cluster_id, "told": lease.owner}
        elif lease:
            told = _goes_on(job, lease.executor)
            when, more = lease.since, {"state": "left", "machine": lease.cluster_id, "told": told}
        elif failure:
            when, more = failure.at, {"state": "failed", "machine": failure.node, "told": failure.cause}
        else:
            continue
        rows.append({**row, "when": f"{when:%Y-%m-%d %H:%M}", **more})
    return rows


def _goes_on(job: Job | None, on: str) -> str:
    return f"`{command('fleet', 'run', job.image if job else 'SELECTOR', '--on', on)}` goes on"


def _judged(folder: JobFolder, job: Job | None, record: JobRecord) -> dict[str, str]:
    """What the evidence says by the claims that the job was given, whatever the worker wrote beside it."""
    if job is None:
        return {"state": "unusable", "told": "job.json is missing: the cell is due"}
    if not job.digest:
        return {"state": "left", "told": _goes_on(job, record.worker.executor)}
    try:
        verdict = folder.verdict(record, job, job.claim_set)
    except UserError as error:
        return {"state": "unusable", "told": error.problems[0].cause}
    shown = " ".join(f"{cell.tier} {one.verdict}" for cell, one in of_verdict(job, verdict, record.ended, "").items())
    worker, built = record.worker, ", built there" if record.build else ""
    who = f"{worker.executor} {worker.id}, engine {worker.engine}, {record.seconds:.0f} s{built}"
    counts = ", ".join(f"{len(verdict.of(status))} {status}" for status in Status if verdict.of(status))
    failed = [f"{each.claim.key}: {each.reason}" for each in verdict.of(Status.FAIL)]
    return {"state": "judged", "verdict": shown, "told": "; ".join([counts, *failed[:2], who])}


def status_table(folder: JobFolder, keys: Iterable[str]) -> list[str]:
    """The same for people, a row a job."""
    rows = status_rows(folder, keys)
    if not rows:
        begins = command("fleet", "run", "SELECTOR...")
        return [f"nothing was leased or judged in {folder.path}: `{begins}` begins a run"]
    columns = ("job", "state", "verdict", "machine", "when", "told")
    cells = [[row[key] for key in columns] for row in rows]
    return [*aligned([(*columns[:-1], ""), *cells]), "", counted(len(rows), "job")]
