"""imports: each package imports in a new process, and in a fork that has imported torch. The evidence keeps their
output.

The package that is imported first decides whose library a process holds. Some packages log that something failed at
import and raise nothing: xformers logs that it can't load its kernels and goes on.
"""

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypedDict, cast

from validate.checks import Settings
from validate.claims import Claim
from validate.harness.error_codes import ErrorEvidence
from validate.harness.forked import describe_error, half_of_the_cores, measure_in_forks
from validate.judging import Finding, conclude, failed, listed, root_cause

SETTINGS = Settings(starts_first=True, begins_with_torch=True)

_SECONDS = 800
"""Then it hangs; below a probe's limit. The imports of cu126-torch27 took 413 s where 17 processes wanted two cores."""
_MOST_LINES = 30
_LINE_CHARACTERS = 300
_MARK = "validate: imported all"
_PROGRAM = f"import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\nprint({_MARK!r}, flush=True)"


class ImportExpect(TypedDict):
    """Modules to import: `first`: in a new process before anything else; `after`: in one that has torch."""

    modules: Sequence[str]
    first: bool
    after: bool
    complaints: Sequence[str]  # patterns of what must not be printed
    harmless: Mapping[str, str]  # pattern -> why it may be printed all the same


class ImportRun(TypedDict, total=False):
    """Lines that importing printed, and what it raised. What is printed at exit is not judged: torch 2.5 starts a
    compile worker at import, which prints a traceback (BrokenPipe) where the process that imported torch exits before
    the worker is ready, as on a busy machine."""

    said: list[str]
    said_at_exit: list[str]
    error: ErrorEvidence


class ImportEvidence(TypedDict):
    """By order: `first` or `after torch`."""

    orders: Mapping[str, ImportRun]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ImportEvidence]]:
    """Yield what importing the modules of each claim raised and printed, in each order."""
    expects: dict[str, ImportExpect] = {
        claim.subject: cast("ImportExpect", claim.expect) for claim in claims
    }
    at_once = half_of_the_cores()  # in each order
    # The threads only wait for the new processes.
    with ThreadPoolExecutor(max_workers=at_once) as waiting:
        in_new_processes = {}
        for subject, expect in expects.items():
            if expect["first"]:
                in_new_processes[subject] = waiting.submit(_in_new_process, expect["modules"])

        importlib.import_module("torch")
        after_torch = [subject for subject, expect in expects.items() if expect["after"]]
        forks = [partial(_after_torch, expects[subject]["modules"]) for subject in after_torch]
        for number, run in measure_in_forks(forks, at_once):
            subject = after_torch[number]
            yield subject, {"orders": {**_first(in_new_processes, subject), "after torch": run}}

        for subject in expects:
            if subject not in after_torch:
                yield subject, {"orders": _first(in_new_processes, subject)}


def _first(in_new_processes: Mapping[str, Future[ImportRun]], subject: str) -> dict[str, ImportRun]:
    """Wait for the new process of a subject, where it has one."""
    return {"first": in_new_processes[subject].result()} if subject in in_new_processes else {}


def _in_new_process(modules: Sequence[str]) -> ImportRun:
    """Import in a new process, as a user's program does. Its exit status and last line become the error."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {
            "error": {"kind": "timeout", "message": f"not imported within {_SECONDS} s"},
            "said": [],
        }
    importing, mark, exiting = done.stdout.decode("utf-8", "replace").partition(_MARK)
    printed, printed_at_exit = _lines(importing), _lines(exiting)
    run: ImportRun = {"said": printed}
    if printed_at_exit:
        run["said_at_exit"] = printed_at_exit
    if not mark or done.returncode != 0:
        last_line = [*printed, *printed_at_exit][-1:]
        message = last_line[0] if last_line else "nothing was said"
        run["error"] = {"kind": f"status {done.returncode}", "message": message}
    return run


def _after_torch(modules: Sequence[str]) -> ImportRun:
    """Import in a fork that holds torch. Output is kept by file descriptor: C code writes past Python's streams."""
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        run: ImportRun = {}
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception as raised:
            run["error"] = describe_error(raised)
        sys.stdout.flush()
        sys.stderr.flush()
        output.seek(0)
        run["said"] = _lines(output.read().decode("utf-8", "replace"))
        return run


def _lines(text: str) -> list[str]:
    """Return the last lines that are not empty, shortened."""
    lines = [line.strip()[:_LINE_CHARACTERS] for line in text.splitlines()]
    return [line for line in lines if line][-_MOST_LINES:]


def judge(_subject: str, expect: ImportExpect, evidence: ImportEvidence) -> Finding:
    """Judge that everything is imported in each order, and prints no complaint."""
    if not evidence["orders"]:
        return failed("nothing was imported")

    problems = []
    for order, run in evidence["orders"].items():
        if "error" in run:
            problems.append(f"imported {order}: {root_cause({**run['error'], 'log': ''})}")
            continue
        for line in run["said"]:
            if _matches(line, expect["complaints"]) and not _matches(line, expect["harmless"]):
                problems.append(f"imported {order} it says: {line}")
    good = f"{listed(list(expect['modules']))} imported {' and '.join(evidence['orders'])}, no complaint"
    return conclude(problems, good)


def _matches(line: str, patterns: Iterable[str]) -> bool:
    """Return whether a line holds one of these patterns, in upper or lower case."""
    return any(re.search(pattern, line, re.IGNORECASE) for pattern in patterns)


CLAIMS = {"imports": judge}
