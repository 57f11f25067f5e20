"""What a fleet is to judge, judges and has judged, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from images.commands.common import counted
from images.errors import UserError, command
from images.fleet.folder import JobFolder
from images.fleet.model import JobRecord
from images.fleet.planning import PlannedCell, State, of_verdict
from images.fleet.run import Outcome
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


def plan_as_json(planned: Sequence[PlannedCell]) -> list[dict[str, Any]]:
    """`fleet plan --json`."""
    return [
        {**asdict(one.cell), "state": one.state, "machines": one.worker, "gpus": one.gpus, "reason": one.reason}
        for one in planned
    ]


def outcomes(found: Sequence[Outcome]) -> list[str]:
    """Who judged what, a row a job."""
    rows = [("image", "digest", "tiers", "GPU", "verdict", "machine", "job", "s", "open")]
    for one in sorted(found, key=lambda outcome: outcome.job.key):
        job, record, verdict, told = one.job, one.record, one.verdict, one.cause
        if verdict:
            counts = [f"{len(verdict.of(status))} {status}" for status in Status if verdict.of(status)]
            failed = [f"{each.claim.id} {each.claim.subject}: {each.reason}" for each in verdict.of(Status.FAIL)]
            told = "; ".join([", ".join(counts), *failed[:2]])
        row = (
            job.image,
            _short(job.digest),
            " ".join(map(str, job.tiers)),
            job.arch,
            str(verdict.overall) if verdict else "none",
            record.worker.node if record else "",
            f"{record.worker.executor} {record.worker.id}"[:24] if record else "",
            f"{record.seconds:.0f}" if record else "",
            told,
        )
        rows.append(row)
    return [*aligned(rows), "", counted(len(found), "job")]


def status_rows(folder: JobFolder) -> list[dict[str, Any]]:
    """Every job that this folder knows: judged, leased, or why it has no record."""
    rows = []
    for key in folder.job_keys():
        lease, record, failure = folder.lease(key), folder.record(key), folder.failure(key)
        row = {"job": key, "state": "", "verdict": "", "machine": "", "when": "", "told": ""}
        if record:
            row |= {"machine": record.worker.node, "when": _time(record.ended), **_judged(folder, record)}
        elif lease:
            row |= {"state": "running", "machine": lease.cluster_id, "when": _time(lease.since), "told": lease.owner}
            if not folder.lives(lease.run):
                row |= {"state": "left", "told": _goes_on(lease.executor)}
        elif failure:
            row |= {"state": "failed", "machine": failure.node, "when": _time(failure.at), "told": failure.cause}
        if row["state"]:
            rows.append(row)
    return rows


def _goes_on(on: str) -> str:
    return f"`{command('fleet', 'run', '--resume', '--on', on)}` goes on"


def _judged(folder: JobFolder, record: JobRecord) -> dict[str, str]:
    """What the evidence says by the claims that the job was given, whatever the worker wrote beside it."""
    job = folder.job(record.key)
    if job is None:
        return {"state": "unusable", "told": "job.json is missing: the cell is due"}
    if not job.digest:
        return {"state": "left", "told": _goes_on(record.worker.executor)}
    try:
        verdict = folder.verdict(record, job, job.claim_set)
    except UserError as error:
        return {"state": "unusable", "told": error.problems[0].cause}
    shown = " ".join(f"{cell.tier} {one.verdict}" for cell, one in of_verdict(job, verdict, record.ended, "").items())
    worker = record.worker
    built = ", built there" if record.build else ""
    told = f"{worker.executor} {worker.id}, engine {worker.engine}, {record.seconds:.0f} s{built}"
    return {"state": "judged", "verdict": shown, "told": told}


def status(rows: Sequence[Mapping[str, Any]], folder: JobFolder) -> list[str]:
    """The same for people."""
    if not rows:
        begins = command("fleet", "run", "SELECTOR...")
        return [f"nothing was leased or judged in {folder.path}: `{begins}` begins a run"]
    columns = ("job", "state", "verdict", "machine", "when", "told")
    cells = [[str(row[key]) for key in columns] for row in rows]
    return [*aligned([(*columns[:-1], ""), *cells]), "", counted(len(rows), "job")]


def _time(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
