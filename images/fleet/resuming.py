"""What `--resume` takes over: jobs of unended runs that are not done, and that no living process has. The same for
images that are judged and that are built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from images.errors import Problem, UserError
from images.fleet.ledger import JobLedger
from images.fleet.model import Booking, FleetRun

AnyLedger = JobLedger[Any, Any]


def newest_left(ledger: AnyLedger, executor: str, asked: Collection[str] = ()) -> FleetRun | None:
    """The newest run that left any job: on this executor, if any did there. None: no run did.

    `asked`: keys of the jobs that are taken over, whichever run left them; without, those that are left of the run.
    Raises UserError: living processes do the jobs, or another executor may still do them.
    """
    unended = [one for one in ledger.runs() if one.ended is None]
    of_run = {one.id: undone(ledger, one, asked) for one in unended}
    runs = [one for one in unended if not all(map(ledger.held, of_run[one.id]))]
    if runs:
        found = next((one for one in reversed(runs) if one.executor == executor), runs[-1])
        _refuse_other_executor(ledger, executor, found, asked or found.jobs)
        return found
    held = [booked for one in unended for key in of_run[one.id] if (booked := ledger.held(key))]
    if held:
        cause, then = f"{held[-1].run} goes on: {held[-1].owner}", "wait for its end, or end that process"
        raise UserError(Problem(where="--resume", cause=cause, then=then), code=1)
    return None


def resumable_on(runs: Iterable[FleetRun], booked: Booking) -> str:
    """The executor on which `--resume` takes over a job that a dead run booked. Empty: none, no unended run has it.

    `runs`: oldest first. A run is noted once all its jobs are booked: who is killed before has left no run.
    """
    found = [one.executor for one in runs if one.ended is None and booked.key in one.jobs]
    return booked.executor if booked.executor in found else found[-1] if found else ""


def undone(ledger: AnyLedger, run: FleetRun, asked: Collection[str] = ()) -> list[str]:
    """Keys of a run's jobs that are not done; `asked`: of these jobs alone."""
    return [key for key in run.jobs if (not asked or key in asked) and not ledger.done(key)]


def _refuse_other_executor(ledger: AnyLedger, executor: str, left: FleetRun, keys: Collection[str]) -> None:
    """Refuse one that does not know what another may still do, or may not have the images. Raises UserError.

    Ray ends the tasks of a killed submitter, and their images are in a registry: any other may go on.
    Nothing is booked yet. What another process submits until then is left to it (JobLedger.book).
    """
    free = (key for key in keys if not ledger.done(key) and not ledger.held(key))
    forgotten = [booked for key in free if (booked := ledger.booked(key)) and booked.is_forgotten_on(executor)]
    of_run = [(left.id, left.executor)] if left.executor not in ("ray", executor) else []
    for run, was_on in [*of_run, *((one.run, one.executor) for one in forgotten)]:
        cause, then = f"{run} was on {was_on}", f"add --on {was_on}; without --resume a new run begins"
        raise UserError(Problem(where=f"--on {executor}", cause=cause, then=then))
