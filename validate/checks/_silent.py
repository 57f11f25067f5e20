"""silent-faults: what upstream computed wrong for months, without an error.

Training goes on, and is worth nothing. The corpus: validate/kernels/silent/.
"""

import importlib
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.harness import seeding
from validate.harness.forked import attempt, measure_in_fork
from validate.judging import (
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
from validate.kernels.silent import error, function, unwritten

SETTINGS = Settings(begins_with_torch=True)


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What may end its process comes first, each in a fork: none can be made once this process uses CUDA."""
    importlib.import_module("torch")
    for claim in sorted(claims, key=lambda one: not one.expect["alone"]):
        device = "cuda" if claim.probe == "gpu.silent" else "cpu"
        run = partial(examine, claim.subject, device, claim.expect["gigabytes"])
        yield claim.subject, measure_in_fork(run) if claim.expect["alone"] else attempt(run)


def examine(subject: str, device: str, gigabytes: float = 0, **sizes: int) -> Mapping[str, Any]:
    """Run one: how far it is off, and how far a wrong result. `sizes`: others than its own."""
    torch = importlib.import_module("torch")
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        free, total = (count / 1e9 for count in torch.cuda.mem_get_info())
        if free < gigabytes:
            return {"free": free, "total": total}
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(seeding.seed_of_run() ^ zlib.crc32(subject.encode()))
    begun = time.perf_counter()
    comparison = function(subject)(torch, device, **sizes)
    reference = comparison.reference
    wrong = comparison.wrong
    if wrong is None:
        wrong = unwritten(torch, comparison.computed)
    evidence: dict[str, Any] = {
        "off": error(torch, comparison.computed, reference),
        "control": error(torch, wrong, reference),
    }
    evidence["seconds"] = time.perf_counter() - begun
    if on_gpu:
        evidence["gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    if comparison.figures is not None:
        evidence["figures"] = comparison.figures
    return evidence


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """silent-faults. expect: {tolerance, times: as long as the right way, 0: any, gigabytes, alone, known: these
    versions have it, so a wrong result is KNOWN and no FAIL, fault: a sentence with its remedy}.

    evidence: {off: how far of the largest right value, control: the same of a wrong result, seconds, gigabytes?,
    figures?}, or {free: GB of GPU memory, where they are too few, of `total`}."""
    fault, tolerance = expect["fault"], expect["tolerance"]
    if "free" in evidence:
        if evidence["total"] < expect["gigabytes"]:
            return not_applicable(
                f"{evidence['total']:.0f} GB of GPU memory are too few to reach it"
            )
        return unproven(
            f"{evidence['free']:.0f} of {evidence['total']:.0f} GB of GPU memory are free: too few to reach it"
        )
    # What raises an error is not silent: apply_judge calls that FAIL, whatever is known.
    wrong = known_fault if expect["known"] else failed
    off = f"off by {scientific(evidence['off'])} of the largest value"
    if not is_within(
        evidence["off"], tolerance
    ):  # first: what is made of a result that is NaN is NaN as well
        return wrong(f"{off}, at most {scientific(tolerance)} is allowed. {fault}")
    if not is_beyond(evidence["control"], tolerance):
        return failed(
            f"control: a wrong result is off by {scientific(evidence['control'])}, which passes as well"
        )
    times = evidence.get("figures", {}).get("times", math.nan)
    if (most := expect.get("times")) and not times <= most:
        return wrong(
            f"takes {times:.0f} times as long as the right way, {most:g} is the most. {fault}"
        )
    figures = {
        "s": evidence["seconds"],
        "GB": evidence.get("gigabytes"),
        **evidence.get("figures", {}),
    }
    took = ", ".join(f"{value:.3g} {name}" for name, value in figures.items() if value is not None)
    return passed(
        f"{off} ({took})"
        + (", though these versions are said to have it" if expect["known"] else "")
    )


CLAIMS = {"silent-faults": judge}
