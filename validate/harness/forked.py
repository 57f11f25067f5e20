"""Measuring in a forked process: native code that aborts or crashes takes only its own subject with it."""

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from validate.claims import Claim
from validate.harness.error_codes import codes_of

LOG_TAIL_CHARACTERS = 2000
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Where something else runs beside it: threads that wait don't hold its cores. Six runs of cpu.resume on two cores took
75 s of processor time without it, 38 s with it."""
T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Mapping[str, object])
"""Evidence. `error` is all there is where measuring raised: {kind, message, numbers (ErrorCodes)}, and
of a fork its `log`."""


def in_fork(measure: Callable[[], E]) -> E:
    """Evidence of `measure`, run in a fork of this process; `{"error": ...}` with its log if it raised or died.

    The fork shares what this process has imported, so isolation costs milliseconds instead of another torch import.
    """
    return next(in_forks([measure]))[1]


def in_forks(measures: Sequence[Callable[[], E]], at_once: int = 1) -> Iterator[tuple[int, E]]:
    """The same of several, `at_once` of them side by side: number and evidence of each, as they end."""
    waiting, running = list(enumerate(measures)), dict[int, tuple[int, Path]]()
    with tempfile.TemporaryDirectory(prefix="fork-") as folder:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, measure = waiting.pop(0)
                result, log = Path(folder, f"{number}-result"), Path(folder, f"{number}-log")
                child = os.fork()
                if child == 0:
                    _be_the_child(measure, result, log)
                running[child] = number, result
            # Of several by their numbers: `os.wait` would take other children of this process, too.
            flags = os.WNOHANG if len(running) > 1 else 0
            while not (ended_one := next((pid for pid in running if (end := os.waitpid(pid, flags))[0]), 0)):
                time.sleep(0.01)
            status = end[1]
            number, result = running.pop(ended_one)
            noise = Path(folder, f"{number}-log").read_text(encoding="utf-8", errors="replace")
            print(noise, end="", flush=True)  # noqa: T201  the probe's log
            code = os.waitstatus_to_exitcode(status)
            death = ended(code) + " before it was done" * (code >= 0)
            evidence: dict[str, Any] = {"error": {"kind": "crash", "message": death}}
            if result.exists():
                evidence = json.loads(result.read_text(encoding="utf-8"))
            if "error" in evidence:
                evidence["error"]["log"] = noise[-LOG_TAIL_CHARACTERS:]
            yield number, cast("E", evidence)


def half_of_the_cores() -> int:
    """How many processes a probe may run side by side: other probes run beside it."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def run_apart(command: Sequence[str], log: Path, seconds: float, **options: Any) -> int | None:
    """How a program ended, in a session of its own, so that nothing that it started outlives it. None: it ran too long.

    What it prints goes to `log`. options: those of subprocess.Popen.
    """
    with log.open("wb") as output:
        options |= {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        child = subprocess.Popen(command, start_new_session=True, **options)
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_session(child.pid)
            child.wait()


def end_session(pid: int) -> None:
    """A process and all of its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def attempt(measure: Callable[[], E]) -> E:
    """Evidence of `measure`, or what it raised as evidence."""
    try:
        return cast("E", dict(measure()))
    except Exception as error:
        traceback.print_exc()
        return cast("E", {"error": described(error)})


def asked(claims: Sequence[Claim], measures: Mapping[str, Callable[[], E]]) -> Iterator[tuple[str, E]]:
    """The evidence of each subject that a claim asks for, in the order of `measures`."""
    subjects = {claim.subject for claim in claims}
    for subject, measure in measures.items():
        if subject in subjects:
            yield subject, attempt(measure)


def on_all_cores(work: Callable[[T], U], items: Sequence[T], *, chunk: int = 1) -> Iterator[U]:
    """Results of `work` as they are done, by a fork a core; a single item is done here."""
    if len(items) < 2:
        yield from map(work, items)
        return
    with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), len(items))) as pool:
        yield from pool.imap_unordered(work, items, chunk)


def described(error: BaseException) -> dict[str, Any]:
    """Return an exception as evidence. Long messages keep their start, where the cause stands."""
    message = str(error)[:LOG_TAIL_CHARACTERS]
    return {"kind": type(error).__name__, "message": message, **codes_of(error)}


def mapped(pattern: str) -> list[str]:
    """Files like this (a regular expression) that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = {parts[5] for line in lines if len(parts := line.split(None, 5)) == 6 and parts[5].startswith("/")}
    return sorted(path for path in paths if re.search(pattern, path))


_PORTS = range(10_000, 30_000)
"""Below those that Linux gives to who asks for any (from 32768), so none is taken between asking and listening."""


def free_port() -> int:
    """A TCP port that nobody here listens on. Processes that ask at the same time get different ones."""
    own = os.getpid()
    for turn in range(len(_PORTS)):
        port = _PORTS[(own + turn) % len(_PORTS)]
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError(f"all ports from {_PORTS[0]} to {_PORTS[-1]} are taken")


def ended(status: int) -> str:
    """How a process came to its end, by its exit status; below zero, by this signal."""
    if status >= 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


def _be_the_child(measure: Callable[[], Mapping[str, object]], result: Path, log: Path) -> NoReturn:
    """Measure, write the result, exit. `os._exit` keeps the parent's exit handlers and unwritten output out of it."""
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
