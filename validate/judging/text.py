"""Wording of findings that several judges share."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

from validate.contracts import Error, Raised
from validate.judging import Finding, failed, passed

_FAULTS_SHOWN, _PROBLEMS_SHOWN = 4, 3
_HEAD_CHARACTERS = 160
_TRACEBACK = ("File ", "Traceback ", "raise ")
_TELLING = re.compile(r"fatal|error|assert|undefined|cannot|no such", re.IGNORECASE)


def conclude(faults: Iterable[str], good: str) -> Finding:
    """PASS with `good` if there is no fault. The first faults in full, the others counted.

    Paths are shown from the packages' folder on.
    """
    found = [re.sub(r"/\S*/site-packages/", "", fault) for fault in dict.fromkeys(faults)]
    return failed(joined(found, limit=_FAULTS_SHOWN)) if found else passed(good)


def joined(problems: Sequence[str], *, limit: int = _PROBLEMS_SHOWN) -> str:
    """The first few problems in full, the others counted."""
    shown = "; ".join(problems[:limit])
    return f"{shown}; and {len(problems) - limit} more" if len(problems) > limit else shown


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def cause(error: Raised) -> str:
    """The first line of an error: CUDA and torch name the cause there."""
    return f"{error['kind']}: {str(error['message']).strip().partition(chr(10))[0][:300]}"


def root_cause(error: Raised | Error) -> str:
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
