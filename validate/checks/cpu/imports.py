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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.harness.forked import described, half_of_the_cores, in_forks
from validate.judging import Finding, conclude, failed, listed, root_cause

SETTINGS = Settings(starts_first=True, begins_with_torch=True)

_SECONDS = 800
"""Then it hangs; below a probe's limit. The imports of cu126-torch27 took 413 s where 17 processes wanted two cores."""
_MOST_LINES = 30
_LINE_CHARACTERS = 300
_MARK = "validate: imported all"
_PROGRAM = (
    f"import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\nprint({_MARK!r}, flush=True)"
)


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what importing the modules of each claim raised and printed, in each order."""
    asked = {claim.subject: claim.expect for claim in claims}
    at_once = half_of_the_cores()  # in each order
    with ThreadPoolExecutor(max_workers=at_once) as beside:  # it only waits for those processes
        alone = {name: beside.submit(_in_new_process, one["modules"]) for name, one in asked.items() if one["first"]}
        importlib.import_module("torch")
        after = [name for name, one in asked.items() if one["after"]]
        forks = in_forks([partial(_after_torch, asked[name]["modules"]) for name in after], at_once)
        ended = ((after[number], {"after torch": evidence}) for number, evidence in forks)
        for subject, orders in chain(ended, ((name, {}) for name in asked if name not in after)):
            first = {"first": alone[subject].result()} if subject in alone else {}
            yield subject, {"orders": first | orders}


def _in_new_process(modules: Sequence[str]) -> Mapping[str, Any]:
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
        return {"error": {"kind": "timeout", "message": f"not imported within {_SECONDS} s"}, "said": []}
    importing, mark, exiting = done.stdout.decode("utf-8", "replace").partition(_MARK)
    said, at_exit = _lines(importing), _lines(exiting)
    found: dict[str, Any] = {"said": said, "said_at_exit": at_exit} if at_exit else {"said": said}
    if not mark or done.returncode != 0:
        message = [*said, *at_exit][-1] if said or at_exit else "nothing was said"
        found["error"] = {"kind": f"status {done.returncode}", "message": message}
    return found


def _after_torch(modules: Sequence[str]) -> Mapping[str, Any]:
    """Import in a fork that holds torch. Output is kept by file descriptor: C code writes past Python's streams."""
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        found: dict[str, Any] = {}
        try:
            for name in modules:
                importlib.import_module(name)
        except Exception as raised:
            found["error"] = described(raised)
        sys.stdout.flush()
        sys.stderr.flush()
        output.seek(0)
        return {**found, "said": _lines(output.read().decode("utf-8", "replace"))}


def _lines(text: str) -> list[str]:
    lines = [line.strip()[:_LINE_CHARACTERS] for line in text.splitlines()]
    return [line for line in lines if line][-_MOST_LINES:]


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """imports. expect: {modules, first: also in a new process before anything else, after: also after torch,
    complaints: [patterns], harmless: {pattern: why it may be said}}.

    evidence: {orders: {`first` or `after torch`: {said: lines, error?, said_at_exit?}}}. What is said at exit is not
    judged: torch 2.5 starts a compile worker at import, which prints a traceback (BrokenPipe) where the process that
    imported torch exits before the worker is ready, as on a busy machine.
    """
    if not evidence["orders"]:
        return failed("nothing was imported")
    problems = []
    for order, found in evidence["orders"].items():
        if "error" in found:
            problems.append(f"imported {order}: {root_cause({**found['error'], 'log': ''})}")
            continue
        for line in found["said"]:
            bad, harmless = (
                any(re.search(pattern, line, re.IGNORECASE) for pattern in expect[key])
                for key in ("complaints", "harmless")
            )
            problems += [f"imported {order} it says: {line}"] if bad and not harmless else []
    good = f"{listed(list(expect['modules']))} imported {' and '.join(evidence['orders'])}, no complaint"
    return conclude(problems, good)


CLAIMS = {"imports": judge}
