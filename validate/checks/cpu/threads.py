"""threads: torch computes with more than one thread, on one OpenMP runtime, when all packages of the image are
imported.

The probe counts a thread as busy by the processor time that the kernel has recorded for it, not by torch's own word.
Two OpenMP runtimes in one process have a thread pool each: they compete for the cores, and some pairs hang.
"""

import importlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import user_environment
from validate.harness.error_codes import ErrorEvidence
from validate.harness.forked import describe_error, list_mapped_files, measure_in_fork
from validate.judging import Finding, failed, joined, listed, passed, root_cause, suspects, unproven

SETTINGS = Settings(begins_with_torch=True)

_OPENMP = r"/lib(?:gomp|iomp5|omp)[-.\w]*\.so[^/]*$"
_SIZE = 1200
_SECONDS = 1.0
"""At most, where two threads have worked: until then all of them may have."""
_BUSY_TICKS = 5
"""Of the kernel's clock, which ticks a hundred times a second."""
_MOST_SECONDS = 20.0
"""Of this process's own processor time, until a second thread has worked: beside load it may be seconds in coming."""


class ThreadsExpect(TypedDict):
    """`modules` are imported before; `bundled`: pattern of an OpenMP runtime -> why it may be loaded beside torch's."""

    modules: Sequence[str]
    bundled: Mapping[str, str]


class ThreadsEvidence(TypedDict):
    cores: int
    torch_threads: int
    busy_threads: int
    environment: Mapping[str, str]
    not_imported: Mapping[str, ErrorEvidence]
    openmp: list[str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ThreadsEvidence]]:
    """Yield the evidence of each claim, from a fork that has torch."""
    importlib.import_module("torch")
    for claim in claims:
        yield claim.subject, measure_in_fork(partial(_worked, claim.expect["modules"]))


def _worked(modules: Sequence[str]) -> ThreadsEvidence:
    """Import everything, compute, and count the threads that have worked."""
    torch = importlib.import_module("torch")
    environ = user_environment.recorded().environ
    errors = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as raised:
            errors[name] = describe_error(raised)
    matrix = torch.randn(_SIZE, _SIZE)
    before = _ticks()
    end = time.monotonic() + _SECONDS
    last_processor_second = time.process_time() + _MOST_SECONDS
    all_threads = min(len(os.sched_getaffinity(0)), torch.get_num_threads())
    busy = 0
    while True:
        # All threads may have worked until the time is up; two must have, however slow the machine is.
        waits_for_all = busy < all_threads and time.monotonic() < end
        waits_for_two = busy < min(2, all_threads) and time.process_time() < last_processor_second
        if not (waits_for_all or waits_for_two):
            break
        # One product for the BLAS, one loop for OpenMP's own scheduler.
        torch.tanh(matrix @ matrix)
        busy = sum(
            ticks - before.get(thread, 0) >= _BUSY_TICKS for thread, ticks in _ticks().items()
        )
    return {
        "cores": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
        "busy_threads": busy,
        "environment": {
            name: text
            for name, text in environ.items()
            if name.startswith(("OMP_", "MKL_", "KMP_"))
        },
        "not_imported": errors,
        "openmp": sorted(set(map(os.path.realpath, list_mapped_files(_OPENMP)))),
    }


def _ticks() -> dict[str, int]:
    """Return the processor time of each thread of this process: utime and stime of proc(5)."""
    ticks = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks[task.name] = int(fields[11]) + int(fields[12])
    return ticks


def judge(_subject: str, expect: ThreadsExpect, evidence: ThreadsEvidence) -> Finding:
    """Judge that more than one thread has computed, under one OpenMP runtime."""
    problems = [
        f"import {name}: {root_cause(error)}" for name, error in evidence["not_imported"].items()
    ]
    bundled = expect["bundled"]
    runtimes = [path for path in evidence["openmp"] if not _is_bundled(path, bundled)]
    beside = [PurePosixPath(path).name for path in evidence["openmp"] if path not in runtimes]
    if len(runtimes) > 1:
        problems.append(f"{len(runtimes)} OpenMP runtimes in one process: {listed(runtimes)}")
    if not runtimes:
        problems.append("no OpenMP runtime is loaded")
    if evidence["cores"] > 1 and evidence["torch_threads"] < 2:
        problems.append(f"torch takes 1 thread on {evidence['cores']} cores{suspects(evidence)}")
    elif evidence["cores"] > 1 and evidence["busy_threads"] < 2:
        problems.append(
            f"torch reports {evidence['torch_threads']} threads, {evidence['busy_threads']} has worked"
        )
    if problems:
        return failed(joined(problems))
    if evidence["cores"] < 2:
        return unproven("only one core is at hand here")
    runtime = PurePosixPath(runtimes[0]).name
    others = (
        f" (also loaded, used only by the package that bundles it: {listed(beside)})"
        if beside
        else " alone"
    )
    return passed(
        f"{evidence['busy_threads']} threads worked on {evidence['cores']} cores, under {runtime}{others}"
    )


def _is_bundled(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a package brings this runtime for its own loops."""
    return any(PurePosixPath(path).match(pattern) for pattern in patterns)


CLAIMS = {"threads": judge}
