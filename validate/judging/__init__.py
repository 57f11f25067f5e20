"""What a judge gives back. One judge a claim id, pure: evidence in, finding out.

What UNPROVEN means to CI: the claim was not measured (no GPU here, a wheel that could not be had, a probe that did not
finish), so it is neither kept nor broken, and `validate` and `judge` exit with 1 for FAIL alone. `build` gives no name
where a probe that was asked for did not finish, either (images/building/validating.py). The release
gate (`publish`, images/publish/gate.py) takes only PASS: it refuses an image while a required claim of the tiers that
it asks for is UNPROVEN, and every page shows such a claim as open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import wraps
from typing import NamedTuple, TypeVar, cast

from validate.claims import Claim


class Status(str, Enum):
    """A claim's verdict."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNPROVEN = "UNPROVEN"
    """It was not measured: no failure to CI, and no PASS to the release gate. See above."""
    NOT_APPLICABLE = "NOT_APPLICABLE"

    __str__ = str.__str__


class Finding(NamedTuple):
    """A verdict and the sentence that says why. A FAIL names the culprit."""

    status: Status
    reason: str


Judging = Callable[[Claim, Mapping[str, object]], Finding]

E = TypeVar("E")
V = TypeVar("V")


def typed(judge: Callable[[str, E, V], Finding]) -> Judging:
    """A judge of a subject, what its claim expects and its evidence, each by their contract (validate/contracts/).

    What stands in a JSON file is taken to keep to its contract; validate/judge.py calls what does not unreadable.
    """

    @wraps(judge)
    def judging(claim: Claim, evidence: Mapping[str, object]) -> Finding:
        return judge(claim.subject, cast("E", claim.expect), cast("V", evidence))

    return judging


def by_subject(judges: Mapping[str, Judging]) -> Judging:
    """One judge of a claim whose subjects are judged each in its own way; under "" all that are not named."""
    return lambda claim, evidence: judges.get(claim.subject, judges.get("", _unknown))(claim, evidence)


def _unknown(claim: Claim, _evidence: Mapping[str, object]) -> Finding:
    raise KeyError(claim.subject)


def passed(reason: str) -> Finding:
    return Finding(Status.PASS, reason)


def failed(reason: str) -> Finding:
    return Finding(Status.FAIL, reason)


def unproven(reason: str) -> Finding:
    return Finding(Status.UNPROVEN, reason)


def not_applicable(reason: str) -> Finding:
    return Finding(Status.NOT_APPLICABLE, reason)


def listed(items: list[str], *, limit: int = 3) -> str:
    """The first few items as a phrase: `a, b, c and 4 more`."""
    shown = ", ".join(items[:limit])
    return f"{shown} and {len(items) - limit} more" if len(items) > limit else shown
