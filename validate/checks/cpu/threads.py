"""threads: check that torch computes with several threads, on one OpenMP runtime.

The probe imports all packages of the image first. It counts a thread as busy by the processor time
that the kernel has recorded for it, because torch reports threads that may not run. Two OpenMP
runtimes in one process have a thread pool each: they compete for the cores, and some pairs hang.
"""

import importlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.harness.error_codes import ErrorEvidence
from validate.harness.forked import describe_error, list_mapped_files, measure_in_fork
from validate.judging import Finding, failed, joined, listed, passed, root_cause, suspects, unproven
from validate.next_steps import BUILD_ANEW, remove_variables

SETTINGS = Settings(begins_with_torch=True)

_OPENMP = r"/lib(?:gomp|iomp5|omp)[-.\w]*\.so[^/]*$"
"""The paths of OpenMP runtimes."""
_SIZE = 1200
"""Rows and columns of the matrix that is multiplied."""
_BUSY_TICKS = 5
"""The least processor time of a thread that has worked, in hundredths of a second (proc(5): ticks).
"""
_SECONDS = 1.0
"""How long all threads are given to work. When it is over, two that have worked are enough."""
_MOST_PROCESSOR_SECONDS = 20.0
"""How much processor time this process may use until a second thread has worked. On a machine under
load, that may take seconds."""


class ThreadsExpect(TypedDict):
    """What is imported, and which further OpenMP runtimes it may load."""

    modules: Sequence[str]  # imported before the measurement
    bundled: Mapping[str, str]  # pattern of a runtime's path -> why it may be loaded beside torch's


class ThreadsEvidence(TypedDict):
    """What `measure` yields."""

    cores: int  # that this process may use
    torch_threads: int  # as torch reports
    busy_threads: int  # threads that have worked
    environment: Mapping[str, str]  # variables for OpenMP and MKL that the user has
    not_imported: Mapping[str, ErrorEvidence]  # module -> what importing it raised
    openmp: list[str]  # paths of OpenMP runtimes in the process


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ThreadsEvidence]]:
    """Yield each claimed subject and its evidence, measured in a fork that has imported torch."""
    importlib.import_module("torch")
    for claim in claims:
        yield claim.subject, measure_in_fork(partial(import_and_compute, claim.expect["modules"]))


def import_and_compute(modules: Sequence[str]) -> ThreadsEvidence:
    """Import these modules, multiply matrices, and count the threads that did the work.

    Also returned are the OpenMP runtimes that are then in the process: with two of them, threads
    get in each other's way. A module that can't be imported is reported in `not_imported`.
    """
    torch = importlib.import_module("torch")
    # The user's variables, without those that the suite has set for this process.
    environ = user_environment.recorded().environ
    errors = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            errors[name] = describe_error(error)

    busy_threads = count_busy_threads(torch)
    # The same runtime may be mapped under two paths, so follow links.
    runtimes = set(map(os.path.realpath, list_mapped_files(_OPENMP)))
    environment = {}
    for name, value in environ.items():
        if name.startswith(("OMP_", "MKL_", "KMP_")):
            environment[name] = value
    return {
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "busy_threads": busy_threads,
        "environment": environment,
        "not_imported": errors,
        "openmp": sorted(runtimes),
    }


def count_busy_threads(torch: Any) -> int:
    """Multiply matrices until all of torch's threads have worked, and return how many have.

    On a busy machine some threads may not get a core. So after a second, two threads are enough. If
    not even two have worked, give up after 20 seconds of processor time.
    """
    all_threads = min(len(os.sched_getaffinity(0)), torch.get_num_threads())
    enough_threads = min(2, all_threads)
    matrix = torch.randn(_SIZE, _SIZE)
    ticks_before = read_thread_ticks()
    deadline = time.monotonic() + _SECONDS
    # Count processor time, because other programs on a busy machine do not use that up.
    processor_deadline = time.process_time() + _MOST_PROCESSOR_SECONDS
    while True:
        # The product uses the threads of the BLAS, tanh those of OpenMP's own scheduler.
        torch.tanh(matrix @ matrix)
        busy_threads = count_threads_since(ticks_before)
        if busy_threads >= all_threads:
            return busy_threads

        if time.monotonic() < deadline:
            continue
        has_waited_long = time.process_time() >= processor_deadline
        if busy_threads >= enough_threads or has_waited_long:
            return busy_threads


def count_threads_since(ticks_before: Mapping[str, int]) -> int:
    """Return how many threads have worked since `ticks_before` was read: at least _BUSY_TICKS."""
    busy_threads = 0
    for thread, ticks in read_thread_ticks().items():
        # A thread that is new since then had used no time.
        if ticks - ticks_before.get(thread, 0) >= _BUSY_TICKS:
            busy_threads += 1
    return busy_threads


def read_thread_ticks() -> dict[str, int]:
    """Return the processor time of each thread of this process, by thread ID, in ticks."""
    ticks = {}
    for task in Path("/proc/self/task").iterdir():
        # A thread may end while the folder is read.
        with suppress(OSError):
            # utime and stime are fields 14 and 15 of proc(5). After the name in brackets, which is
            # field 2, they are 11 and 12.
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks[task.name] = int(fields[11]) + int(fields[12])
    return ticks


def judge(_subject: str, expect: ThreadsExpect, evidence: ThreadsEvidence) -> Finding:
    """Pass if torch computes on several threads of the CPU, and one OpenMP runtime is loaded.

    Two runtimes in one process may hang or slow down each other. Those that a package bundles for
    its own use only (`expect["bundled"]`) are not counted. UNPROVEN on a machine with one core.
    """
    runtimes = []
    bundled = []
    for path in evidence["openmp"]:
        if is_bundled(path, expect["bundled"]):
            bundled.append(PurePosixPath(path).name)
        else:
            runtimes.append(path)

    problems = list(thread_problems(runtimes, evidence))
    if problems:
        return failed(joined(problems))
    if evidence["cores"] < 2:
        return unproven(
            "the container has one core, so it can't be seen whether torch uses several",
            "validate on a machine with several cores, of which containers may use more than one",
        )

    # There is exactly one runtime: any other number was a problem above.
    runtime = PurePosixPath(runtimes[0]).name
    others = " alone"
    if bundled:
        others = f" (also loaded, used only by the package that bundles it: {listed(bundled)})"
    threads = f"{evidence['busy_threads']} threads worked on {evidence['cores']} cores"
    return passed(f"{threads}, under {runtime}{others}")


def thread_problems(runtimes: Sequence[str], evidence: ThreadsEvidence) -> Iterator[str]:
    """Yield what is wrong with imports, OpenMP runtimes and threads.

    `runtimes` are the paths of the OpenMP runtimes that no package bundles for itself. On a single
    core, any number of threads is right.
    """
    for name, error in evidence["not_imported"].items():
        yield f"`import {name}` fails: {root_cause(error)}"

    if len(runtimes) > 1:
        yield f"one process loads {len(runtimes)} OpenMP runtimes: {listed(runtimes)}"
    if not runtimes:
        yield "no OpenMP runtime is loaded"

    cores, threads, busy = evidence["cores"], evidence["torch_threads"], evidence["busy_threads"]
    # A variable such as OMP_NUM_THREADS=1 may be the reason.
    if cores > 1 and threads < 2:
        yield f"torch takes 1 thread on {cores} cores{suspects(evidence)}, and could take more"
    elif cores > 1 and busy < 2:
        yield f"torch reports {threads} threads, and {busy} of them worked"


def is_bundled(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a runtime's path matches a pattern of runtimes that packages bundle."""
    return any(PurePosixPath(path).match(pattern) for pattern in patterns)


CLAIMS = {"threads": judge}
NEXT_STEPS = {
    "threads": {
        "OpenMP runtimes": "remove the package that brings the second runtime, or install it from "
        "PyPI in place of conda or Debian, and build the image again",
        "no OpenMP": BUILD_ANEW,
        "": remove_variables("OMP_NUM_THREADS and MKL_NUM_THREADS"),
    }
}
