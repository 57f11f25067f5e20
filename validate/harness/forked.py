"""Measuring in a forked process: native code that aborts or crashes takes only its own subject with it."""

import ctypes
import json
import math
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from validate.claims import Claim
from validate.harness.error_codes import ErrorEvidence, codes_of

LOG_TAIL_CHARACTERS = 2000
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Where something else runs beside it: threads that wait don't hold its cores. Six runs of cpu.resume on two cores took
75 s of processor time without it, 38 s with it."""
_LOOK_SECONDS = 0.01
"""Between two looks at forks."""
_PR_SET_PDEATHSIG = 1
T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Mapping[str, object])
"""Evidence, whose `error` (ErrorEvidence) is all there is where measuring raised."""


def in_fork(measure: Callable[[], E]) -> E:
    """Evidence of `measure`, run in a fork of this process; `{"error": ...}` with its log if it raised or died.

    The fork shares what this process has imported, so isolation costs milliseconds instead of another torch import.
    """
    return next(in_forks([measure]))[1]


def in_forks(measures: Sequence[Callable[[], E]], at_once: int = 1) -> Iterator[tuple[int, E]]:
    """The same of several, `at_once` of them side by side: number and evidence of each, as they end."""
    with tempfile.TemporaryDirectory(prefix="fork-") as folder:
        results = [Path(folder, f"{number}-result") for number in range(len(measures))]
        works = []
        for measure, result in zip(measures, results):  # noqa: B905  Python 3.9
            works.append(
                Work(partial(_write_evidence, measure, result), log=result.with_suffix(".log"))
            )

        for end in fork_each(works, at_once):
            output = works[end.number].log.read_text(encoding="utf-8", errors="replace")
            print(output, end="", flush=True)  # noqa: T201  the probe's log
            evidence: dict[str, Any]
            if results[end.number].exists():
                evidence = json.loads(results[end.number].read_text(encoding="utf-8"))
            else:
                code = end.exit_code or 0
                death = ended(code) if code < 0 else f"{ended(code)} before it was done"
                evidence = {"error": {"kind": "crash", "message": death}}
            if "error" in evidence:
                evidence["error"]["log"] = output[-LOG_TAIL_CHARACTERS:]
            yield end.number, cast("E", evidence)


def _write_evidence(measure: Callable[[], Mapping[str, object]], result: Path) -> None:
    """Measure, and write the evidence whole or not at all."""
    text = json.dumps(attempt(measure))
    partial_result = result.with_suffix(".partial")
    partial_result.write_text(text, encoding="utf-8")
    partial_result.rename(result)


class Work(NamedTuple):
    """Something to be done in a fork."""

    run: Callable[[], None]
    log: Path
    """Where the fork's output goes."""
    seconds: float = math.inf
    """The fork's deadline."""


class ForkEnd(NamedTuple):
    """How a fork came to its end."""

    number: int
    """Of its work."""
    exit_code: int | None
    """Below zero: it was killed by this signal. None: it ran past its deadline."""
    seconds: float


def fork_each(
    works: Sequence[Work], at_once: int, *, own_sessions: bool = False
) -> Iterator[ForkEnd]:
    """Do each work in a fork of this process, `at_once` of them side by side, and yield how each ends.

    `own_sessions`: each fork leads a session, which is ended with it, so that nothing that it started outlives it. Only
    such forks can have deadlines.
    """
    waiting = list(enumerate(works))
    running: dict[int, tuple[int, float]] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            number, work = waiting.pop(0)
            child = os.fork()
            if child == 0:
                _be_the_child(work, own_session=own_sessions)
            running[child] = number, time.monotonic()

        # Each is asked for by its number: `os.wait` would take other children of this process, too.
        for child, (number, started) in list(running.items()):
            has_ended, status = os.waitpid(child, os.WNOHANG)
            seconds = time.monotonic() - started
            if not has_ended and seconds < works[number].seconds:
                continue
            if own_sessions:
                end_session(child)
            if not has_ended:
                os.waitpid(child, 0)
            del running[child]
            yield ForkEnd(number, os.waitstatus_to_exitcode(status) if has_ended else None, seconds)
        if running:
            time.sleep(_LOOK_SECONDS)


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
    """Kill a process that leads a session, with all of its process group and of its descendants.

    Descendants may lead sessions of their own, as torchrun's workers do. Those that outlived the process that started
    them are found no more: they end with the container.
    """
    started = descendants(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process in started:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that these started (proc(5))."""
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # A program's name stands in brackets and may hold any character. The parent comes after the state.
            parent = int(file.read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(file.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def attempt(measure: Callable[[], E]) -> E:
    """Evidence of `measure`, or what it raised as evidence."""
    try:
        return cast("E", dict(measure()))
    except Exception as error:
        traceback.print_exc()
        return cast("E", {"error": described(error)})


def asked(
    claims: Sequence[Claim], measures: Mapping[str, Callable[[], E]]
) -> Iterator[tuple[str, E]]:
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
    with multiprocessing.get_context("fork").Pool(
        min(len(os.sched_getaffinity(0)), len(items))
    ) as pool:
        yield from pool.imap_unordered(work, items, chunk)


def described(error: BaseException) -> ErrorEvidence:
    """Return an exception as evidence. Long messages keep their start, where the cause stands."""
    message = str(error)[:LOG_TAIL_CHARACTERS]
    return cast(
        "ErrorEvidence", {"kind": type(error).__name__, "message": message, **codes_of(error)}
    )


def mapped(pattern: str) -> list[str]:
    """Files like this (a regular expression) that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = {
        parts[5]
        for line in lines
        if len(parts := line.split(None, 5)) == 6 and parts[5].startswith("/")
    }
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


def _be_the_child(work: Work, *, own_session: bool) -> NoReturn:
    """Do the work, and end. `os._exit` keeps the parent's exit handlers and unwritten output out of this process."""
    code = 1
    try:
        sys.stdout.flush()
        if own_session:
            os.setsid()
            # A parent that is killed takes this process along: no session would end it (prctl(2), PR_SET_PDEATHSIG).
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        output = os.open(work.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(
            1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
        )
        work.run()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
