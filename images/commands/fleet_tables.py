"""What a fleet is to judge, judges and has judged, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from rich.markup import escape
from rich.table import Table

from images.commands.common import counted
from images.errors import UserError
from images.fleet import resuming
from images.fleet.judging import judged
from images.fleet.ledger import Ledger
from images.fleet.model import FleetRecord, FleetRun
from images.fleet.planning import PlannedPair, State, of_verdict
from images.fleet.run import Outcome
from validate.judge import Verdict
from validate.judging import Status

_STATES = {State.FRESH: "green", State.DUE: "yellow", State.BOOKED: "cyan", State.IMPOSSIBLE: "dim"}
_VERDICTS = {Status.PASS: "green", Status.FAIL: "bold red", Status.UNPROVEN: "yellow"}


def plan(planned: Sequence[PlannedPair]) -> Table:
    """One row a pair."""
    counts = {state: sum(one.state is state for one in planned) for state in State}
    title = (
        f"{counted(len(planned), 'pair')}: {', '.join(f'{count} {state}' for state, count in counts.items() if count)}"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("image", "digest", "tier", "GPU", "", "machines"):
        table.add_column(heading, no_wrap=True)
    table.add_column("reason", ratio=1)
    for one in planned:
        pair, colour = one.pair, _STATES[one.state]
        state, gpu = f"[{colour}]{one.state}[/]", f"{one.gpus or ''} {pair.arch}".strip()
        table.add_row(pair.image, _short(pair.digest), pair.tier, gpu, state, one.worker, escape(one.reason))
    return table


def plan_as_json(planned: Sequence[PlannedPair]) -> list[dict[str, Any]]:
    """`fleet plan --json`."""
    return [
        {
            "image": one.pair.image,
            "digest": one.pair.digest,
            "tier": str(one.pair.tier),
            "arch": one.pair.arch,
            "state": str(one.state),
            "machines": one.worker,
            "gpus": one.gpus,
            "reason": one.reason,
        }
        for one in planned
    ]


def outcomes(found: Sequence[Outcome]) -> Table:
    """Who judged what, a row a job."""
    table = Table(title=counted(len(found), "job"), title_justify="left")
    for heading in ("image", "digest", "tiers", "GPU", "verdict", "machine", "job", "s"):
        table.add_column(heading, no_wrap=True)
    table.add_column("open", ratio=1)
    for one in sorted(found, key=lambda outcome: outcome.job.key):
        job, record, verdict = one.job, one.record, one.verdict
        shown = f"[{_VERDICTS[verdict.overall]}]{verdict.overall}[/]" if verdict else "[red]none[/]"
        table.add_row(
            job.image,
            _short(job.digest),
            " ".join(map(str, job.tiers)),
            job.arch,
            shown,
            record.worker.node if record else "",
            f"{record.worker.executor} {record.worker.id}"[:24] if record else "",
            f"{record.seconds:.0f}" if record else "",
            escape(_open(verdict) if verdict else one.cause),
        )
    return table


def _open(verdict: Verdict) -> str:
    counts = [f"{len(verdict.of(status))} {status}" for status in Status if verdict.of(status)]
    failed = [f"{one.claim.id} {one.claim.subject}: {one.reason}" for one in verdict.of(Status.FAIL)]
    return "; ".join([", ".join(counts), *failed[:2]])


def status_rows(ledger: Ledger) -> list[dict[str, Any]]:
    """Every job that this folder knows: judged, booked, or why it has no record."""
    lives, runs = cache(ledger.lives), cache(ledger.readable_runs)
    return [row for key in ledger.job_keys() for row in _status_of(ledger, key, lives, runs)]


def _status_of(
    ledger: Ledger, key: str, lives: Callable[[str], bool], runs: Callable[[], Sequence[FleetRun]]
) -> Iterator[dict[str, Any]]:
    booking, record, failure = ledger.booked(key), ledger.record(key), ledger.failure(key)
    row = {"job": key, "state": "", "verdict": "", "machine": "", "when": "", "told": ""}
    if booking and record is None:
        running = lives(booking.run)
        state, told = ("running", booking.owner) if running else ("left", _next(resuming.resumable_on(runs(), booking)))
        yield {**row, "state": state, "machine": booking.cluster_id, "when": _time(booking.since), "told": told}
    elif record:
        yield {**row, **_judged(ledger, record), "machine": record.worker.node, "when": _time(record.ended)}
    elif failure:
        yield {**row, "state": "failed", "machine": failure.node, "when": _time(failure.at), "told": failure.cause}


def _next(on: str) -> str:
    """What judges a job that a dead run booked. `on`: where it is resumed; empty: it is not."""
    if on:
        return f"`nox -s fleet -- run --resume --on {on}` goes on"
    return (
        "`nox -s fleet -- run SELECTOR...` judges it: its run was killed while it booked jobs, and --resume finds none"
    )


def _judged(ledger: Ledger, record: FleetRecord) -> dict[str, str]:
    """What the evidence says by the claims that the job was given, whatever the worker wrote beside it."""
    job = ledger.job(record.key)
    if job is None:
        return {"state": "unusable", "told": "job.json is missing: the pair is due"}
    try:
        verdict = judged(ledger, record, job, job.claim_set)
    except UserError as error:
        return {"state": "unusable", "told": error.problems[0].cause}
    known = of_verdict(job, verdict, record.ended, "")
    shown = " ".join(f"{pair.tier} {one.verdict}" for pair, one in known)
    worker = record.worker
    told = f"{worker.executor} {worker.id}, engine {worker.engine}, {record.seconds:.0f} s"
    return {"state": "judged", "verdict": shown, "told": told}


def status(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The same for people."""
    table = Table(title=counted(len(rows), "job"), title_justify="left")
    for heading in ("job", "state", "verdict", "machine", "when"):
        table.add_column(heading, no_wrap=True)
    table.add_column("", ratio=1)
    for row in rows:
        table.add_row(*(escape(str(row[key])) for key in ("job", "state", "verdict", "machine", "when", "told")))
    return table


def _time(moment: Any) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]
