"""Run measurements in forks of this process: one that crashes loses only its own evidence."""

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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from validate.claims import Claim
from validate.harness.error_codes import ErrorEvidence, codes_of

LOG_TAIL_CHARACTERS = 2000
PASSIVE_WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Environment of processes that share their cores: OpenMP threads that wait then sleep.

Six runs of cpu.resume on two cores took 75 s of processor time without it, 38 s with it.
"""
_POLL_SECONDS = 0.01
"""How long to sleep before the forks are looked at again."""
_PR_SET_PDEATHSIG = 1
T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Mapping[str, object])
"""The type of evidence. Where measuring raised, it holds nothing but `error` (ErrorEvidence)."""


def measure_in_fork(measure: Callable[[], E]) -> E:
    """Call `measure` in a fork of this process, and return its result.

    Returns `{"error": ...}`, with the end of the fork's output, if `measure` raised or the fork
    died. The fork has what this process has imported, and need not import torch again.
    """
    _, evidence = next(measure_in_forks([measure]))
    return evidence


def measure_in_forks(
    measures: Sequence[Callable[[], E]], at_once: int = 1
) -> Iterator[tuple[int, E]]:
    """Run each of `measures` in a fork, up to `at_once` at the same time.

    Yields (index in `measures`, evidence) of each, as its fork ends. The evidence is
    `{"error": ...}`, with the end of the fork's output, where a measure raised or its fork died.
    """
    with tempfile.TemporaryDirectory(prefix="fork-") as folder:
        results = [Path(folder, f"{number}-result") for number in range(len(measures))]
        works = []
        for measure, result in zip(measures, results):  # noqa: B905  Python 3.9
            write = partial(_write_evidence, measure, result)
            works.append(Work(write, log=result.with_suffix(".log")))

        for end in fork_each(works, at_once):
            output = works[end.number].log.read_text(encoding="utf-8", errors="replace")
            print(output, end="", flush=True)  # noqa: T201  the probe's log
            evidence = _read_evidence(results[end.number], end)
            if "error" in evidence:
                evidence["error"]["log"] = output[-LOG_TAIL_CHARACTERS:]
            # JSON brought back what `measure` returned, or an error: both are of its type E.
            yield end.number, cast("E", evidence)


def _write_evidence(measure: Callable[[], Mapping[str, object]], result: Path) -> None:
    """Measure, and write the evidence as JSON to `result`: the whole of it or nothing."""
    text = json.dumps(attempt(measure))
    partial_result = result.with_suffix(".partial")
    partial_result.write_text(text, encoding="utf-8")
    # A rename is atomic: a fork that is killed before it leaves no result.
    partial_result.rename(result)


def _read_evidence(result: Path, end: "ForkEnd") -> dict[str, Any]:
    """Return the evidence (what was measured) that a fork wrote to the file `result`.

    If the fork ended without writing any, the evidence is an error of the kind `crash`, which says
    how it ended.
    """
    if result.exists():
        evidence: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return evidence

    # The exit code is None only after a deadline, and these forks have none.
    exit_code = end.exit_code or 0
    message = describe_exit(exit_code)
    # `ended with status 0` alone would read as if all were well.
    if exit_code >= 0:
        message += " before it was done"
    return {"error": {"kind": "crash", "message": message}}


class Work(NamedTuple):
    """A function to run in a fork."""

    run: Callable[[], None]
    log: Path
    """The file that gets the fork's stdout and stderr."""
    seconds: float = math.inf
    """The deadline: the fork is killed when it has run so long. Only a fork that leads a session of
    its own may have one."""


class ForkEnd(NamedTuple):
    """How a fork ended."""

    number: int
    """The index of its work."""
    exit_code: int | None
    """Negative: the number of the signal that killed it. None: it ran past its deadline."""
    seconds: float
    """How long it ran."""


class _RunningFork(NamedTuple):
    number: int  # the index of its work
    started: float  # time.monotonic()


def fork_each(
    works: Sequence[Work], at_once: int, *, own_sessions: bool = False
) -> Iterator[ForkEnd]:
    """Do each work in a fork of this process, up to `at_once` at the same time.

    Yields how each fork ended, as it ends: `number` in it is the index of the work. With
    `own_sessions`, each fork leads a session of its own, and everything it started is killed when
    it ends or is past its deadline. A work that raises ends its fork with status 1.
    """
    waiting = deque(enumerate(works))
    running: dict[int, _RunningFork] = {}  # by process ID
    while waiting or running:
        while waiting and len(running) < at_once:
            number, work = waiting.popleft()
            # Otherwise the fork would get a copy of these buffers, and print them once more.
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                # This is the fork. It ends in this function.
                _do_work_and_exit(work, own_session=own_sessions)
            running[pid] = _RunningFork(number, time.monotonic())

        for pid, fork in list(running.items()):
            end = _end_of_fork(pid, fork, works[fork.number].seconds, own_session=own_sessions)
            if end:
                del running[pid]
                yield end
        if running:
            time.sleep(_POLL_SECONDS)


def _end_of_fork(
    pid: int, fork: _RunningFork, deadline: float, *, own_session: bool
) -> ForkEnd | None:
    """Return how a fork ended; None if it still runs. Kill it if it has run too long.

    `deadline` is the number of seconds that it may run. If it is killed, the exit code in the
    result is None. With `own_session`, the processes that it started are killed at its end, too.
    """
    # WNOHANG: do not wait for the fork to end. (`os.wait` would also take other children of this
    # process.)
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    seconds = time.monotonic() - fork.started
    if ended_pid == pid:
        # The fork may have left processes running.
        if own_session:
            end_session(pid)
        return ForkEnd(fork.number, os.waitstatus_to_exitcode(status), seconds)

    # Only a fork that leads a session has a deadline (see Work). Without one it is infinite.
    if seconds >= deadline:
        end_session(pid)
        # Wait for the killed process. Otherwise it stays a zombie.
        os.waitpid(pid, 0)
        return ForkEnd(fork.number, None, seconds)
    return None


def _do_work_and_exit(work: Work, *, own_session: bool) -> NoReturn:
    """Do the work in this process, which is a fork, and end the process.

    Its stdout and stderr go to the log of the work. Its exit status is 0, or 1 if the work raised.
    With `own_session`, it becomes the leader of a session, so that all that it starts can be ended.
    """
    exit_code = 1
    try:
        if own_session:
            os.setsid()
            # Let the kernel kill this process if its parent is killed: nobody else would end the
            # session then (prctl(2), PR_SET_PDEATHSIG).
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Redirect descriptors 1 and 2, for C code and further processes, and Python's own streams.
        output = os.open(work.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(
            1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
        )
        work.run()
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Unlike sys.exit, this runs no exit handlers and writes no buffered output of the parent.
        os._exit(exit_code)


def run_in_own_session(
    command: Sequence[str], log: Path, seconds: float, **options: Any
) -> int | None:
    """Run a program in a session of its own, and kill everything that it started when it ends.

    Its output goes to `log`. `options` are those of subprocess.Popen. Returns its exit status, or
    None if it ran longer than `seconds`.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            start_new_session=True,
            **options,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_session(process.pid)
            process.wait()


def end_session(pid: int) -> None:
    """Kill a process that leads a session, its process group and its descendants.

    Descendants are killed by their own process IDs, because they may lead other sessions, as
    torchrun's workers do. A descendant whose parent has ended is not found: it ends with the
    container.
    """
    process_ids = find_descendants(pid)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process_id in process_ids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process_id, signal.SIGKILL)


def find_descendants(pid: int) -> list[int]:
    """Return the IDs of all processes that a process started, directly or through others.

    A process whose parent has ended is not found. `pid` itself is not among them.
    """
    children: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while the folder is read.
        with suppress(OSError):
            # "ID (program) state parent ...", where the program's name may hold brackets: proc(5).
            after_name = file.read_bytes().rpartition(b")")[2].split()
            # After the name come the state and the parent's ID.
            parent = int(after_name[1])
            children.setdefault(parent, []).append(int(file.parent.name))

    descendants: list[int] = []
    unvisited = [pid]
    while unvisited:
        started = children.get(unvisited.pop(), [])
        descendants += started
        unvisited += started
    return descendants


def attempt(measure: Callable[[], E]) -> E:
    """Return the evidence of `measure`, or `{"error": ...}` (ErrorEvidence) if it raised."""
    try:
        return cast("E", dict(measure()))
    except Exception as error:
        traceback.print_exc()
        return cast("E", {"error": describe_error(error)})


def measure_claimed_subjects(
    claims: Sequence[Claim], measures: Mapping[str, Callable[[], E]]
) -> Iterator[tuple[str, E]]:
    """Call the functions in `measures` that a claim asks for, and yield each name and result.

    `measures`: name -> function. A claim asks for the function whose name is the claim's subject.
    If a function raises, the error is yielded as its result.
    """
    subjects = {claim.subject for claim in claims}
    for subject, measure in measures.items():
        if subject in subjects:
            yield subject, attempt(measure)


def half_of_the_cores() -> int:
    """Return how many processes a probe may run at once: other probes run at the same time."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def map_on_all_cores(
    function: Callable[[T], U], items: Sequence[T], *, chunk: int = 1
) -> Iterator[U]:
    """Yield `function(item)` of each item, in the order in which they are done.

    One forked process a core does the work, and takes `chunk` items at a time. So the function must
    be one that pickle finds by its name: no lambda. What it raises is raised here.
    """
    # For a single item, no process is worth starting.
    if len(items) < 2:
        yield from map(function, items)
        return

    processes = min(len(os.sched_getaffinity(0)), len(items))
    # The pool ends its processes by SIGTERM, which they would ignore if their parent does.
    obey = (signal.SIGTERM, signal.SIG_DFL)
    with multiprocessing.get_context("fork").Pool(processes, signal.signal, obey) as pool:
        yield from pool.imap_unordered(function, items, chunk)
        # Let the processes end by themselves. SIGTERM would be lost on one that has just started
        # and still ignores it, and the pool would wait for it for ever.
        pool.close()
        pool.join()


def describe_error(error: BaseException) -> ErrorEvidence:
    """Return an exception as evidence. A long message keeps its start, where the cause stands."""
    evidence = {
        "kind": type(error).__name__,
        "message": str(error)[:LOG_TAIL_CHARACTERS],
        **codes_of(error),
    }
    return cast("ErrorEvidence", evidence)


def describe_exit(status: int) -> str:
    """Return how a process ended: `ended with status 1`, or `killed by SIGSEGV` for status -11."""
    if status >= 0:
        return f"ended with status {status}"
    # Real-time signals have no name.
    with suppress(ValueError):
        return f"killed by {signal.Signals(-status).name}"
    return f"killed by signal {-status}"


def list_mapped_files(pattern: str = "") -> list[str]:
    """Return the sorted paths of the files that are mapped into this process, libraries above all.

    With `pattern`, a regular expression, only the paths in which it is found.
    """
    text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    paths = set()
    for line in text.splitlines():
        # "address permissions offset device inode path": proc(5). Memory of no file has no path.
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith("/") and re.search(pattern, fields[5]):
            paths.add(fields[5])
    return sorted(paths)


_PORTS = range(10_000, 30_000)
"""Linux gives ports from 32768 on to programs that ask for any, so it gives away none of these."""


def find_free_port() -> int:
    """Return a TCP port on which nothing listens.

    The search starts at a port that depends on the process ID, so that processes which search at
    the same time get different ports. Raises OSError if all are taken.
    """
    pid = os.getpid()
    for attempt_number in range(len(_PORTS)):
        port = _PORTS[(pid + attempt_number) % len(_PORTS)]
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise OSError(f"all ports from {_PORTS[0]} to {_PORTS[-1]} are taken")
