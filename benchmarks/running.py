"""Runs a command and says what it took: seconds, processor time, memory. Nothing it started outlives us."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from images.errors import Problem, UserError

_PATIENCE = 60.0
"""Seconds that an interrupted command gets to tidy up."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a command took, those it waited for included. `peak` is the largest process's resident memory, in bytes."""

    seconds: float
    cpu: float
    peak: int


def run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: IO[bytes] | None = None) -> Usage:
    """Run to the end. Raises UserError with the last lines it printed when it fails."""
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        child = subprocess.Popen(
            list(command), cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=output or log, stderr=log
        )
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            stop(child)
            raise
        seconds = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            log.seek(0)
            last = " | ".join(log.read().decode(errors="replace").strip().splitlines()[-4:])
            then = "give that command by itself; its own message says what to do"
            cause = f"ended with {child.returncode}: {last}"
            raise UserError(Problem(where=" ".join(command[:6]), cause=cause, then=then), code=1)
    return Usage(seconds=seconds, cpu=usage.ru_utime + usage.ru_stime, peak=usage.ru_maxrss * 1024)


def stop(child: subprocess.Popen[bytes], patience: float = _PATIENCE) -> None:
    """Ask a process to end, and see that it does."""
    child.terminate()  # not SIGINT: who was started in the background ignores it
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
