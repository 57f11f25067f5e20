"""What pods logged (validate/logged.py), as the records of whole containers. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from validate import logged
from validate.evidence import Record

_BEGIN = re.compile(r'\{"')
"""Where an object may begin. Before it stands what `kubectl logs --prefix` and `--timestamps` write, or the line that a
killed container left without its end."""
_DECODER = json.JSONDecoder()
_SLACK = timedelta(days=1)
"""How far a node's clock may be ahead of this machine's: more than local time that was set as UTC (14 hours). A date
in the future would keep a verdict fresh for as long."""
_DEEPEST = 64
"""Levels of a line's JSON. Recorded evidence has 11 at most, and what copies and writes it follows some hundreds."""
_RECORD = TypeAdapter(Record)


@dataclass(frozen=True, kw_only=True)
class ContainerLog:
    """What one container measured, from its first line to its last."""

    job: str
    pod: str
    name: str
    records: tuple[Record, ...]
    began: datetime
    ended: datetime
    cpus: int
    rendering: str
    claims: str
    """sha256 of the claims that it measured."""
    suite: str
    """sha256 of the suite that measured them."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A container of whose log something is missing."""

    job: str
    pod: str
    name: str
    cause: str
    ended: bool
    """Its last line is there: it does not run any more."""


def read(texts: Iterable[str], now: datetime) -> list[ContainerLog | Unfinished]:
    """Every container of these logs, in the order of their first lines. What is no line of ours is passed over."""
    found: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = {}
    for line in (line for text in texts for line in text.splitlines()):
        row = _row(line)
        if row:
            found.setdefault((row["job"], row["pod"], row["container"]), {})[row["number"]] = row
    return [_container(whose, rows, now) for whose, rows in found.items()]


def _row(line: str) -> Mapping[str, Any] | None:
    """What a line of ours says, wherever it begins. It ends with the line."""
    if '"truetag"' not in line:
        return None
    found = (_object(line, one.start()) for one in _BEGIN.finditer(line))
    return next((row for row in found if row and _is_ours(row)), None)


def _object(line: str, start: int) -> Mapping[str, Any] | None:
    try:
        found, end = _DECODER.raw_decode(line, start)
    except (ValueError, RecursionError):  # lists in lists, more than Python follows
        return None
    return found if not line[end:].strip() else None


def _is_ours(row: Mapping[str, Any]) -> bool:
    if row.get("truetag") != logged.VERSION or _is_deep(row, _DEEPEST):
        return False
    texts = all(isinstance(row.get(key), str) for key in ("job", "pod", "container"))
    number = row.get("number")
    return texts and type(number) is int and number >= 0  # True is an int, too


def _is_deep(found: Any, left: int) -> bool:
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    return left < 0 or any(_is_deep(one, left - 1) for one in inner)


def _container(
    whose: tuple[str, str, str], rows: Mapping[int, Mapping[str, Any]], now: datetime
) -> ContainerLog | Unfinished:
    try:
        return _whole(whose, rows, now)
    except ValueError as error:
        cause = str(error)
    except KeyError as error:
        cause = f"a line lacks {error}"
    job, pod, name = whose
    return Unfinished(job=job, pod=pod, name=name, cause=cause, ended="ended" in rows[max(rows)])


def _whole(whose: tuple[str, str, str], rows: Mapping[int, Mapping[str, Any]], now: datetime) -> ContainerLog:
    """Raises ValueError, or KeyError: something is missing, or is not as a container writes it."""
    last = max(rows)
    if "ended" not in rows[last]:
        raise ValueError("its log has no end: the container was killed, still runs, or the log was cut off")
    missing = last + 1 - len(rows)  # numbers are whole, from 0 on, and each is there once
    if missing:
        raise ValueError(f"{missing} of {last + 1} lines are missing (`kubectl logs --tail=-1` gives all)")
    texts = [json.dumps(rows[number]["record"], sort_keys=True) for number in range(1, last)]
    if logged.sha256(texts) != rows[last]["sha256"]:
        raise ValueError("its records are not those that were measured: the log was changed")
    job, pod, name = whose
    began, ended = _times(rows[0]["began"], rows[last]["ended"], now)
    return ContainerLog(
        job=job,
        pod=pod,
        name=name,
        records=tuple(_record(rows[number]["record"], number) for number in range(1, last)),
        began=began,
        ended=ended,
        cpus=_cpus(rows[0]["cpus"]),
        **{key: str(rows[0].get(key, "")) for key in ("rendering", "claims", "suite")},
    )


def _times(began: Any, ended: Any, now: datetime) -> tuple[datetime, datetime]:
    try:
        first, last = (datetime.fromtimestamp(one, UTC) for one in (began, ended))
    except (TypeError, ValueError, OverflowError, OSError):
        raise ValueError("it began or ended at no point in time") from None
    if not first <= last <= now + _SLACK:
        then = "is the clock of the node right?"
        raise ValueError(f"it began {first:%Y-%m-%d %H:%M}, and ended {last:%Y-%m-%d %H:%M} UTC: {then}")
    return first, last


def _cpus(found: Any) -> int:
    if type(found) is not int or found < 1:
        raise ValueError("its number of CPUs is no number")
    return found


def _record(found: Any, number: int) -> Record:
    """By the types that records have: what judges read below `evidence` is theirs to check."""
    try:
        return _RECORD.validate_python(found)
    except (ValidationError, RecursionError):
        raise ValueError(f"line {number} has no record as probes write it") from None


def pods(found: Sequence[ContainerLog | Unfinished], job: str) -> Iterator[tuple[str, list[ContainerLog | Unfinished]]]:
    """Pod -> its containers, of one job, in the order of their first lines."""
    names = dict.fromkeys(one.pod for one in found if one.job == job)
    for pod in names:
        yield pod, [one for one in found if one.job == job and one.pod == pod]
