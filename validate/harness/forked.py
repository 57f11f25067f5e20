"""Measuring in a forked process: native code that aborts or crashes takes only its own subject with it."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

LOG_TAIL_CHARACTERS = 2000


def in_fork(measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Evidence of `measure`, run in a fork of this process; `{"error": ...}` with its log if it raised or died.

    The fork shares what this process has imported, so isolation costs milliseconds instead of another torch import.
    """
    with tempfile.TemporaryDirectory(prefix="fork-") as folder:
        result, log = Path(folder, "result"), Path(folder, "log")
        child = os.fork()
        if child == 0:
            _be_the_child(measure, result, log)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        noise = log.read_text(encoding="utf-8", errors="replace")
        print(noise, end="", flush=True)  # noqa: T201  the probe's log
        evidence: dict[str, Any] = {"error": {"kind": "crash", "message": _death(status)}}
        if result.exists():
            evidence = json.loads(result.read_text(encoding="utf-8"))
        if "error" in evidence:
            evidence["error"]["log"] = noise[-LOG_TAIL_CHARACTERS:]
        return evidence


def attempt(measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Evidence of `measure`, or what it raised as evidence."""
    try:
        return dict(measure())
    except Exception as error:
        traceback.print_exc()
        return {"error": described(error)}


def described(error: BaseException) -> dict[str, str]:
    """An exception as evidence. Long messages keep their start, where the cause stands."""
    return {"kind": type(error).__name__, "message": str(error)[:LOG_TAIL_CHARACTERS]}


def _be_the_child(measure: Callable[[], Mapping[str, Any]], result: Path, log: Path) -> None:
    """Never returns: `os._exit` keeps the parent's exit handlers and unwritten output out of the fork."""
    try:
        sys.stdout.flush()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
        text = json.dumps(attempt(measure))
        partial = result.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        partial.rename(result)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _death(status: int) -> str:
    if status >= 0:
        return f"ended with status {status} before it was done"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
