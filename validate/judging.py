"""The result of a judge. Each check has one judge, a pure function from evidence to a finding.

UNPROVEN means that a claim was not measured: there is no GPU here, a wheel could not be fetched, or
a probe did not finish. `validate` exits with 1 only for FAIL. `build` also withholds the name if a
probe that was asked for did not finish (images/building/naming.py). The release gate
(images/publish/gate.py) accepts only PASS: it refuses an image while a required claim of its tiers
is UNPROVEN.
"""

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeGuard


class Status(str, Enum):
    """A claim's verdict."""

    PASS = "PASS"
    FAIL = "FAIL"
    KNOWN = "KNOWN"
    """It was measured and does not hold: a silent fault that upstream's pinned versions are known to have. It is no
    failure of the build, and no PASS either."""
    UNPROVEN = "UNPROVEN"
    """It was not measured: no failure to CI, and no PASS to the release gate. See above."""
    NOT_APPLICABLE = "NOT_APPLICABLE"

    __str__ = str.__str__


class Finding(NamedTuple):
    """A verdict and the sentence that says why. A FAIL names the culprit."""

    status: Status
    reason: str


passed, failed = partial(Finding, Status.PASS), partial(Finding, Status.FAIL)
unproven, not_applicable = (
    partial(Finding, Status.UNPROVEN),
    partial(Finding, Status.NOT_APPLICABLE),
)
known_fault = partial(Finding, Status.KNOWN)


def listed(items: Sequence[str], *, limit: int = 3) -> str:
    """The first few items as a phrase: `a, b, c and 4 more`."""
    shown = ", ".join(items[:limit])
    return f"{shown} and {len(items) - limit} more" if len(items) > limit else shown


def is_finite(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and math.isfinite(value)


def is_within(value: object, bound: float) -> bool:
    """Whether an error is at most `bound`. Negative numbers are no errors."""
    return is_finite(value) and 0 <= value <= bound


def is_beyond(value: object, bound: float) -> bool:
    return is_finite(value) and value > bound


def is_between(value: object, least: float, most: float) -> bool:
    return is_finite(value) and least <= value <= most


def scientific(value: object) -> str:
    """A number as `1.23e-05`, anything else as text."""
    return f"{value:.2e}" if isinstance(value, int | float) else str(value)


def suspects(evidence: Mapping[str, Any]) -> str:
    """Variables that send computations another way, where something is wrong."""
    variables = [f"{name}={value}" for name, value in evidence.get("environment", {}).items()]
    return f" ({listed(variables)} is set)" if variables else ""


_FAULTS_SHOWN, _PROBLEMS_SHOWN = 4, 3
_HEAD_CHARACTERS = 300
_TRACEBACK = ("File ", "Traceback ", "raise ")
_TELLING = re.compile(r"fatal|error|assert|undefined|cannot|no such", re.IGNORECASE)


def conclude(faults: Iterable[str], good: str) -> Finding:
    """PASS with `good` if there is no fault. The first faults in full, the others counted.

    Paths are shown from the packages' folder on.
    """
    found = [re.sub(r"/\S*/site-packages/", "", fault) for fault in dict.fromkeys(faults)]
    return failed(joined(found, limit=_FAULTS_SHOWN)) if found else passed(good)


def cut(evidence: Mapping[str, Any], name: str, told: str) -> list[str]:
    """A fault of those that evidence counts and does not list: `12 more` and what is told of them."""
    hidden = evidence[f"{name}_count"] - len(evidence[name]) if name in evidence else 0
    return [f"{hidden} more {told}"] if hidden else []


def joined(problems: Sequence[str], *, limit: int = _PROBLEMS_SHOWN) -> str:
    """The first few problems in full, the others counted."""
    shown = "; ".join(problems[:limit])
    return f"{shown}; and {len(problems) - limit} more" if len(problems) > limit else shown


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def cause(error: Mapping[str, Any]) -> str:
    """Return the first line of an error: CUDA and torch name the cause there."""
    return (
        f"{error['kind']}: {str(error['message']).strip().partition(chr(10))[0][:_HEAD_CHARACTERS]}"
    )


def root_cause(error: Mapping[str, Any]) -> str:
    """An error with the line of it that names the cause: compilers print that one below a headline."""
    head, _, rest = str(error["message"]).strip().partition("\n")
    detail = telling_line(rest) or telling_line(str(error.get("log", "")))
    news = detail and detail not in head and head not in detail
    return f"{error['kind']}: {head[:_HEAD_CHARACTERS]}" + (f" ({detail})" if news else "")


def telling_line(text: str) -> str:
    """The line of a program's output that names the cause: the first with a word like `error`, else the last."""
    stripped = (line.strip() for line in text.splitlines())
    lines = [line for line in stripped if line and not line.startswith(_TRACEBACK)]
    return next((line for line in lines if _TELLING.search(line)), lines[-1] if lines else "")[:300]


RULE_T = "T"
"""How a claim names this tolerance: a small multiple of plain torch's error in the same dtype, plus a constant."""
FORWARD_FACTOR, FORWARD_FLOOR = 2.0, 1e-5
BACKWARD_FACTOR, BACKWARD_FLOOR = 3.0, 2e-4


def forward(plain_error: float) -> float:
    """The largest relative error of a forward result."""
    return FORWARD_FACTOR * plain_error + FORWARD_FLOOR


def backward(plain_error: float) -> float:
    """The largest relative error of a gradient."""
    return BACKWARD_FACTOR * plain_error + BACKWARD_FLOOR
