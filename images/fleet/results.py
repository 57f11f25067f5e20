"""What a worker gives back of any job that leaves no record in the ledger, as plain data."""

from __future__ import annotations

from images.errors import Problem, UserError
from images.fleet.model import JobRecord
from images.nightly.results import Row


class ToldProblem(Row):
    """What a person is told: images.errors.Problem."""

    where: str
    cause: str
    then: str


class JobResult(JobRecord):
    """The end of a job, in the worker's words. A verdict is judged again by the submitter; what else it looks at again,
    and what it believes, is said where each kind of result is read.
    """

    problems: tuple[ToldProblem, ...] = ()
    """Why there is no more than this; none where the job was done."""


def told(error: UserError) -> tuple[ToldProblem, ...]:
    """What a result says of an error."""
    return tuple(ToldProblem(where=one.where, cause=one.cause, then=one.then) for one in error.problems)


def error_of(result: JobResult) -> UserError | None:
    """What a worker told instead of doing its job."""
    problems = [Problem(where=one.where, cause=one.cause, then=one.then) for one in result.problems]
    return UserError(problems, code=1) if problems else None
