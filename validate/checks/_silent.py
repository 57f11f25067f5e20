"""silent-faults: check that nothing is computed wrong without an error.

Upstream releases had such faults for months. Training with one goes on, and is worth nothing. The
functions that show each fault: validate/kernels/silent/.
"""

import importlib
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.harness import seeding
from validate.harness.forked import attempt, measure_in_fork
from validate.judging import (
    PROVES_NOTHING,
    Finding,
    failed,
    is_beyond,
    is_within,
    known_fault,
    not_applicable,
    passed,
    scientific,
    unproven,
)
from validate.kernels.silent import find_function, leave_end_unwritten, measure_error
from validate.next_steps import FREE_THE_GPU, pin

SETTINGS = Settings(begins_with_torch=True, starts_first=True)


class _Expect(TypedDict):
    tolerance: float  # the largest error allowed, as a share of the largest right value
    gigabytes: float  # of GPU memory that it takes to show the fault
    alone: bool  # it may end its process, so it needs a fork
    known: bool  # these versions are known to have the fault: then it is KNOWN and not FAIL
    fault: str  # a sentence about the fault and its remedy


class SilentExpect(_Expect, total=False):
    """What is expected of one silent fault."""

    times: float  # how many times as long as the right way it may take; 0 or absent: any


class SilentEvidence(TypedDict, total=False):
    """What one silent fault's function gave. With too little GPU memory: `free` and `total`."""

    free: float  # GB
    total: float  # GB
    off: float  # the error, as a share of the largest right value
    control: float  # the error of a result that is wrong on purpose
    seconds: float
    gigabytes: float  # the most GPU memory that was in use
    figures: Mapping[str, float]  # `times`: how many times as long as the right way it took


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, SilentEvidence]]:
    """Look for known faults that give wrong numbers without an error, one for each claim.

    Yields the name of the fault, and how far the result of a computation that may be affected is
    from the right one; or the error that it raised.
    """
    importlib.import_module("torch")
    # Some computations (`alone`) may crash their process, so each of them runs in a fork. They come
    # first, because a process that has used CUDA can't be forked.
    with_fork = [claim for claim in claims if claim.expect["alone"]]
    without_fork = [claim for claim in claims if not claim.expect["alone"]]
    for claim in [*with_fork, *without_fork]:
        # The probes gpu.silent and cpu.silent share this file.
        device = "cuda" if claim.probe == "gpu.silent" else "cpu"
        run = partial(examine, claim.subject, device, claim.expect["gigabytes"])
        if claim.expect["alone"]:
            yield claim.subject, measure_in_fork(run)
        else:
            yield claim.subject, attempt(run)


def examine(subject: str, device: str, gigabytes: float = 0, **sizes: int) -> SilentEvidence:
    """Run the function of one fault, and return how far its result is off.

    The evidence has the error of the result (`off`), the error of a result that is wrong on purpose
    (`control`), and the time and memory that it took. If the GPU has too little free memory,
    nothing runs, and only the free and the total memory are returned, in GB.

    subject: the name of the fault.
    device: `cuda` or `cpu`.
    gigabytes: the GPU memory that the function needs.
    sizes: replace the function's default sizes, for a rehearsal with smaller ones.
    """
    torch = importlib.import_module("torch")
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        if free_bytes / 1e9 < gigabytes:
            return {"free": free_bytes / 1e9, "total": total_bytes / 1e9}
        torch.cuda.reset_peak_memory_stats()

    # Each fault has random inputs of its own, whichever others are measured.
    torch.manual_seed(seeding.seed_of_run() ^ zlib.crc32(subject.encode()))
    start = time.perf_counter()
    # The fault's own function computes a result, and the right one in another way.
    comparison = find_function(subject)(torch, device, **sizes)
    wrong = comparison.wrong
    # If the function has no wrong result of its own, set the end of the computed one to 0.
    if wrong is None:
        wrong = leave_end_unwritten(torch, comparison.computed)
    evidence: SilentEvidence = {
        "off": measure_error(torch, comparison.computed, comparison.reference),
        "control": measure_error(torch, wrong, comparison.reference),
    }
    evidence["seconds"] = time.perf_counter() - start
    if on_gpu:
        evidence["gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    if comparison.figures is not None:
        evidence["figures"] = comparison.figures
    return evidence


def judge(_subject: str, expect: SilentExpect, evidence: SilentEvidence) -> Finding:
    """Pass if a computation, in which some versions make a silent fault, is right and fast enough.

    A silent fault gives wrong numbers, or takes far too long, without an error. If these versions
    are known to have it, it is KNOWN instead of FAIL. The control, a result that is wrong on
    purpose, must not pass as right. An error is not silent: apply_judge (validate/judge.py) makes
    it FAIL, whatever is known.
    """
    # The function did not run: too little memory was free.
    if "free" in evidence:
        return judge_memory(expect, evidence)

    fault, tolerance = expect["fault"], expect["tolerance"]
    report_fault = known_fault if expect["known"] else failed
    # The largest error, as a part of the largest right value.
    off = f"the result is off by {scientific(evidence['off'])} of the largest value"
    # Judge the result before the control, which is made of it: if one is NaN, both are.
    if not is_within(evidence["off"], tolerance):
        return report_fault(f"{off}, and at most {scientific(tolerance)} is allowed. {fault}")
    if not is_beyond(evidence["control"], tolerance):
        control = scientific(evidence["control"])
        return failed(
            f"{PROVES_NOTHING}a result that was made wrong on purpose is off by {control}, and "
            f"passes as right (up to {scientific(tolerance)} is allowed)"
        )

    figures = evidence.get("figures", {})
    most_times = expect.get("times")
    if most_times:
        times = figures.get("times", math.nan)
        # `times > most_times` would let NaN pass.
        if not times <= most_times:
            longer = f"the slow way takes {times:.0f} times as long as the right one"
            return report_fault(f"{longer}, and at most {most_times:g} is allowed. {fault}")

    cost = describe_cost(evidence)
    known = ", though these versions are said to have it" if expect["known"] else ""
    return passed(f"{off} ({cost}){known}")


def judge_memory(expect: SilentExpect, evidence: SilentEvidence) -> Finding:
    """Judge a fault that needs more GPU memory than was free."""
    needed = f"the size at which this fault shows takes {expect['gigabytes']:g} GB of GPU memory"
    total = f"{evidence['total']:.0f}"
    if evidence["total"] < expect["gigabytes"]:
        return not_applicable(f"{needed}, and this GPU has {total} GB")
    free = f"{evidence['free']:.0f}"
    return unproven(f"{needed}, and {free} of {total} GB are free", FREE_THE_GPU)


def describe_cost(evidence: SilentEvidence) -> str:
    """Write the time, memory and further figures that were measured: `1.2 s, 3 GB`."""
    parts = [f"{evidence['seconds']:.3g} s"]
    if "gigabytes" in evidence:
        parts.append(f"{evidence['gigabytes']:.3g} GB")
    for name, value in evidence.get("figures", {}).items():
        if value is not None:
            parts.append(f"{value:.3g} {name}")
    return ", ".join(parts)


CLAIMS = {"silent-faults": judge}
_PIN = pin("a release of the package without this fault")
NEXT_STEPS = {
    "silent-faults": {
        # The reason ends with a way out, behind the issue in brackets.
        "); ": "in programs that this fault concerns, do what stands at the end of the reason; or "
        f"{_PIN}",
        "": f"keep your programs away from the case that the reason names; or {_PIN}",
    }
}
