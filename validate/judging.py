"""Defines the verdicts of claims, and what judges share: comparisons, phrases, tolerances.

A judge is a pure function of a check, from evidence to a finding.

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
    """It was measured and does not hold: a silent fault that the pinned versions are known to have.
    It is no failure of the build, and no PASS either."""
    UNPROVEN = "UNPROVEN"
    """It was not measured: no failure for CI, and no PASS for the release gate. See above."""
    NOT_APPLICABLE = "NOT_APPLICABLE"

    __str__ = str.__str__


class Finding(NamedTuple):
    """A verdict and the sentence that says why. A FAIL names the culprit."""

    status: Status
    reason: str
    next_step: str = ""
    """What to do about this reason; empty: the next step of its check (NEXT_STEPS of its file)."""


PROVES_NOTHING = "the measurement proves nothing: "
"""How a problem begins if a result that was made wrong on purpose passed as right.

Such a result (in the code: a control) shows that a check can tell wrong from right."""


passed = partial(Finding, Status.PASS)
failed = partial(Finding, Status.FAIL)
unproven = partial(Finding, Status.UNPROVEN)
not_applicable = partial(Finding, Status.NOT_APPLICABLE)
known_fault = partial(Finding, Status.KNOWN)


def listed(items: Sequence[str], *, limit: int = 3) -> str:
    """Return the first few items as a phrase: `a, b, c and 4 more`."""
    shown = ", ".join(items[:limit])
    return f"{shown} and {len(items) - limit} more" if len(items) > limit else shown


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return `1 file` or `2 files`. `nouns` is the plural if it is more than the noun with an s."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {nouns or noun + 's'}"


def is_finite(value: object) -> TypeGuard[int | float]:
    """Return whether a value of evidence is a finite number: others are recorded as text."""
    return isinstance(value, int | float) and math.isfinite(value)


def is_within(value: object, bound: float) -> bool:
    """Return whether an error is at most `bound`. A negative number is not an error: False."""
    return is_finite(value) and 0 <= value <= bound


def is_beyond(value: object, bound: float) -> bool:
    """Return whether an error is a number above `bound`."""
    return is_finite(value) and value > bound


def is_between(value: object, least: float, most: float) -> bool:
    """Return whether a value is a number from `least` to `most`, both included."""
    return is_finite(value) and least <= value <= most


def scientific(value: object) -> str:
    """Return a number as `1.23e-05`, anything else as text."""
    return f"{value:.2e}" if isinstance(value, int | float) else str(value)


def suspects(evidence: Mapping[str, Any]) -> str:
    """Return a remark about environment variables that may explain a fault; empty: none is set.

    For example ` (OMP_NUM_THREADS=1 is set)`, to be put behind the fault; `are` for several.

    evidence: its `environment` has the variables that were set and change how things are computed.
    """
    variables = [f"{name}={value}" for name, value in evidence.get("environment", {}).items()]
    if not variables:
        return ""
    verb = "is" if len(variables) == 1 else "are"
    return f" ({listed(variables)} {verb} set)"


_FAULTS_SHOWN, _PROBLEMS_SHOWN = 4, 3
_LINE_CHARACTERS = 300
"""A line of an error is cut to this."""
_TRACEBACK = ("File ", "Traceback ", "raise ")
"""How lines of a traceback begin that name no cause."""
_TELLING = re.compile(r"fatal|error|assert|undefined|cannot|no such", re.IGNORECASE)
"""Words of the line in which compilers and interpreters name a cause."""


def conclude(faults: Iterable[str], good: str) -> Finding:
    """Return FAIL with the first faults and a count of the others, or PASS if there are none.

    A fault that is there twice counts once. A path below site-packages is shown from there on:
    `torch/lib/libc10.so`.

    good: the reason of the PASS: a sentence that says what holds.
    """
    shortened = []
    for fault in dict.fromkeys(faults):
        shortened.append(re.sub(r"/\S*/site-packages/", "", fault))
    if shortened:
        return failed(joined(shortened, limit=_FAULTS_SHOWN))
    return passed(good)


def count_unlisted(evidence: Mapping[str, Any], name: str, description: str) -> list[str]:
    """Return the fault `12 DESCRIPTION, besides ...` if evidence lists only the first, else none.

    `evidence[name]` is the list, `evidence["NAME_count"]` counts all.
    """
    if name not in evidence:
        return []
    unlisted = evidence[f"{name}_count"] - len(evidence[name])
    text = f"{unlisted} {description}, besides those that evidence.json lists"
    return [text] if unlisted else []


def joined(problems: Sequence[str], *, limit: int = _PROBLEMS_SHOWN) -> str:
    """Return the first few problems in full and a count of the others: `a; b; c; and 4 more`."""
    shown = "; ".join(problems[:limit])
    return f"{shown}; and {len(problems) - limit} more" if len(problems) > limit else shown


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name fits one of these patterns, as of file names: `lib*.so`."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def cause(error: Mapping[str, Any]) -> str:
    """Return the kind of an error and its first line, in which CUDA and torch name the cause."""
    first_line = str(error["message"]).strip().partition("\n")[0]
    return f"{error['kind']}: {first_line[:_LINE_CHARACTERS]}"


def root_cause(error: Mapping[str, Any]) -> str:
    """Return the first line of an error, and the line further down that names its cause.

    For example `CompilationError: at 5:12: (no such file: cuda.h)`. Compilers print a headline
    first and the cause further down, or only in the log.

    error: an exception as evidence: its class (`kind`), its `message` and, if it was raised in a
        process of its own, the end of what that printed (`log`).
    """
    headline, _, further_lines = str(error["message"]).strip().partition("\n")
    detail = telling_line(further_lines) or telling_line(str(error.get("log", "")))
    text = f"{error['kind']}: {headline[:_LINE_CHARACTERS]}"
    # Leave the detail out if one of the two lines repeats the other.
    if detail and detail not in headline and headline not in detail:
        return f"{text} ({detail})"
    return text


def telling_line(text: str) -> str:
    """Return the line of a program's output that names the cause, at most 300 characters of it.

    It is the first line with a word like `error`, else the last line. Empty lines, and those of a
    traceback that only lead to the error, don't count. Empty: there is no such output.
    """
    last_line = ""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith(_TRACEBACK):
            continue
        if _TELLING.search(stripped):
            return stripped[:_LINE_CHARACTERS]
        last_line = stripped
    return last_line[:_LINE_CHARACTERS]


RULE_T = "T"
"""The name of this tolerance in a claim: a small multiple of plain torch's error in the same dtype,
plus a constant."""
FORWARD_FACTOR, FORWARD_FLOOR = 2.0, 1e-5
BACKWARD_FACTOR, BACKWARD_FLOOR = 3.0, 2e-4


def forward_tolerance(plain_error: float) -> float:
    """Return the largest relative error that rule T allows for a forward result."""
    return FORWARD_FACTOR * plain_error + FORWARD_FLOOR


def backward_tolerance(plain_error: float) -> float:
    """Return the largest relative error that rule T allows for a gradient."""
    return BACKWARD_FACTOR * plain_error + BACKWARD_FLOOR
