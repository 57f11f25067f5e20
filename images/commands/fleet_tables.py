"""What a fleet is to judge, judges and has judged, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from images.commands.common import counted
from images.errors import UserError, command
from images.fleet.folder import JobFolder
from images.fleet.model import Job, JobRecord
from images.fleet.planning import PlannedCell, State, of_verdict
from validate.judging import Status
from validate.terminal import aligned


def plan(planned: Sequence[PlannedCell]) -> list[str]:
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
            rows.append((cell.image, _short(cell.digest), cell.tier, gpu, one.state, one.worker, one.reason))
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
            row |= {"machine": record.worker.node, "when": _time(record.ended), **_judged(folder, job, record)}
        elif lease:
            row |= {"state": "running", "machine": lease.cluster_id, "when": _time(lease.since), "told": lease.owner}
            if not folder.lives(lease.run):
                row |= {"state": "left", "told": _goes_on(job, lease.executor)}
        elif failure:
            row |= {"state": "failed", "machine": failure.node, "when": _time(failure.at), "told": failure.cause}
        if row["state"]:
            rows.append(row)
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
    failed = [f"{each.claim.id} {each.claim.subject}: {each.reason}" for each in verdict.of(Status.FAIL)]
    return {"state": "judged", "verdict": shown, "told": "; ".join([counts, *failed[:2], who])}


def status(folder: JobFolder, keys: Iterable[str]) -> list[str]:
    """The same for people, a row a job."""
    rows = status_rows(folder, keys)
    if not rows:
        begins = command("fleet", "run", "SELECTOR...")
        return [f"nothing was leased or judged in {folder.path}: `{begins}` begins a run"]
    columns = ("job", "state", "verdict", "machine", "when", "told")
    cells = [[row[key] for key in columns] for row in rows]
    return [*aligned([(*columns[:-1], ""), *cells]), "", counted(len(rows), "job")]


def _time(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
