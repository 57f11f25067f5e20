"""C1: each package imports in a new process, and in a fork that has imported torch. The evidence keeps their output.

The package that is imported first decides whose library a process holds. Some packages log that something failed at
import and raise nothing: xformers logs that it can't load its kernels and goes on.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypedDict, cast

from validate.claims import Claim
from validate.evidence import Error, Measured, Raised
from validate.harness.forked import described, in_fork
from validate.judging import Finding, failed, joined, listed, passed, root_cause

STARTS_FIRST = True
TORCH_FIRST = True


class ImportsExpect(TypedDict):
    modules: list[str]
    first: bool
    """Also in a new process, before anything else."""
    after: bool
    """Also after torch."""
    complaints: list[str]
    harmless: dict[str, str]


class _Imported(Measured):
    said: list[str]


class Imported(_Imported, total=False):
    said_at_exit: list[str]
    """Kept, not judged: torch 2.5 starts a compile worker at import, and it prints a traceback (BrokenPipe)
    where the process that imported torch exits before the worker is ready, as on a busy machine."""


class ImportsEvidence(TypedDict):
    orders: dict[str, Imported]


_SECONDS = 800
"""Then it hangs; below a probe's limit. The imports of cu126-torch27 took 413 s where 17 processes wanted two cores."""
_MOST_LINES = 30
_LINE_CHARACTERS = 300
_MARK = "validate: imported all"
_PROGRAM = (
    f"import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\nprint({_MARK!r}, flush=True)"
)


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ImportsEvidence]]:
    """Yield what importing the modules of each claim raised and printed, in each order."""
    asked = {claim.subject: cast(ImportsExpect, claim.expect) for claim in claims}
    with ThreadPoolExecutor(max_workers=1) as beside:  # it only waits for those processes
        first = {
            subject: beside.submit(_in_new_process, expect["modules"])
            for subject, expect in asked.items()
            if expect["first"]
        }
        importlib.import_module("torch")
        for subject, expect in asked.items():
            after = in_fork(partial(_after_torch, expect["modules"])) if expect["after"] else None
            orders = {"first": first[subject].result()} if subject in first else {}
            yield subject, {"orders": orders if after is None else {**orders, "after torch": after}}


def _in_new_process(modules: Sequence[str]) -> Imported:
    """Import in a new process, as a user's program does. Its exit status and last line become the error."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": {"kind": "timeout", "message": f"not imported within {_SECONDS} s"}, "said": []}
    importing, mark, exiting = done.stdout.decode("utf-8", "replace").partition(_MARK)
    said, at_exit = _lines(importing), _lines(exiting)
    found: Imported = {"said": said, "said_at_exit": at_exit} if at_exit else {"said": said}
    if not mark or done.returncode != 0:
        message = [*said, *at_exit][-1] if said or at_exit else "nothing was said"
        found["error"] = {"kind": f"status {done.returncode}", "message": message}
    return found


def _after_torch(modules: Sequence[str]) -> Imported:
    """Import in a fork that holds torch. Output is kept by file descriptor: C code writes past Python's streams."""
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        error: Error | None = None
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as raised:
                error = described(raised)
                break
        sys.stdout.flush()
        sys.stderr.flush()
        output.seek(0)
        lines = _lines(output.read().decode("utf-8", "replace"))
    found: Imported = {"said": lines}
    if error:
        found["error"] = error
    return found


def _lines(text: str) -> list[str]:
    lines = [line.strip()[:_LINE_CHARACTERS] for line in text.splitlines()]
    return [line for line in lines if line][-_MOST_LINES:]


def judge(_subject: str, expect: ImportsExpect, evidence: ImportsEvidence) -> Finding:
    """C1. expect: {modules, first, complaints: [patterns], harmless: {pattern: why it may be said}}."""
    if not evidence["orders"]:
        return failed("nothing was imported")
    problems = []
    for order, found in evidence["orders"].items():
        if "error" in found:
            error: Raised = {"kind": found["error"]["kind"], "message": found["error"]["message"]}
            problems.append(f"imported {order}: {root_cause(error)}")
            continue
        problems += [f"imported {order} it says: {line}" for line in found["said"] if _is_complaint(expect, line)]
    if problems:
        return failed(joined(list(dict.fromkeys(problems))))
    return passed(f"{listed(list(expect['modules']))} imported {' and '.join(evidence['orders'])}, no complaint")


def _is_complaint(expect: ImportsExpect, line: str) -> bool:
    if any(re.search(pattern, line, re.IGNORECASE) for pattern in expect["harmless"]):
        return False
    return any(re.search(pattern, line, re.IGNORECASE) for pattern in expect["complaints"])


CLAIMS = {"C1": judge}
