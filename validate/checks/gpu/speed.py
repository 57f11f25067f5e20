"""speed: an image that computes right, and slowly: attention by plain products, no TF32, no cuDNN, launches that wait.

Floors need no run to compare with: a share of what the GPU's datasheet says, of the clock or of the host itself. Which
times count, and when one says nothing, stands in validate/harness/timing.py.
"""

import gc
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.harness import timing
from validate.harness.forked import attempt
from validate.harness.timing import Conditions, Timed, Watch
from validate.judging import Finding, failed, joined, passed, suspects, unproven
from validate.kernels import runner, xformers_cutlass
from validate.kernels._evidence import DeviceFacts
from validate.kernels._flash4 import padded
from validate.kernels._sdpa import forced

SETTINGS = Settings(runs_alone=True, time_limit=300)

_WARM, _REPEATS = 3, 15
_HEAD, _HEADS, _LENGTH, _BATCH = 128, 16, 8192, 2
_CORES = 4
"""With fewer, threads have little to gain."""
_MOST = 1.3
"""Of a datasheet's peak, which is of the boost clock: models by other makers run a little above it."""
_LOAD = 0.5
"""Of the cores, taken by others: threads are measured against none then."""


Work = tuple[Callable[[], object], float]
"""What is timed, and how many operations or bytes it takes."""


class SpeedExpect(TypedDict):
    """A bound of a figure: a share of the peak of a datasheet, or (peak 1) of a ratio or of seconds."""

    gpu: str  # as the driver names the model of the table; empty: any
    peak: float  # operations or bytes a second
    least: float  # of the peak; 0: there is `most` instead
    most: float


class Measured(TypedDict, total=False):
    """A figure, how it was timed, facts about the host, and what the GPU was like under it."""

    figure: float
    timed: Timed
    facts: Mapping[str, float]
    under_load: list[Mapping[str, int]]


class SpeedEvidence(Measured, total=False):
    conditions: Conditions
    device: DeviceFacts
    environment: Mapping[str, str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, SpeedEvidence]]:
    """Yield the evidence of each subject asked for, one after another."""
    before = runner.environment()
    torch = importlib.import_module("torch")
    with timing.watched(torch) as (watch, conditions):
        for claim in claims:
            measured = attempt(partial(of_subject, claim.subject, torch, "cuda", watch))
            under_load = measured.pop("under_load", [])
            yield (
                claim.subject,
                {
                    **measured,
                    "device": runner.device_facts(torch),
                    "environment": before,
                    "conditions": {**conditions, "under_load": under_load},
                },
            )
            gc.collect()
            torch.cuda.empty_cache()


def of_subject(subject: str, torch: Any, device: str, watch: Watch) -> Measured:
    """Measure one subject. `device`: `cpu` is a rehearsal, at small sizes."""
    if subject in ALONE_KNOWN:
        return ALONE_KNOWN[subject](torch, device)
    work, amount = WORKS[subject](torch, device)
    seconds, reading = timing.time_runs(
        torch, work, device, warm=_WARM, repeats=_REPEATS, watch=watch
    )
    timed = timing.summarise_times(seconds)
    return {"figure": amount / timed["seconds"], "timed": timed, "under_load": [reading]}


def _normal(torch: Any, device: str, *shape: int, dtype: str = "bfloat16") -> Any:
    return torch.randn(*shape, device=device, dtype=getattr(torch, dtype))


def _matmul(dtype: str, torch: Any, device: str) -> Work:
    size = 8192 if device == "cuda" else 64
    one, other = (_normal(torch, device, size, size, dtype=dtype) for _ in "ab")

    def work() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")  # TF32 for float32; bfloat16 is as it is
        one @ other
        torch.set_float32_matmul_precision(before)

    return work, 2.0 * size**3


def _convolution(torch: Any, device: str) -> Work:
    batch, channels, size = (256, 256, 56) if device == "cuda" else (2, 8, 8)
    layout = torch.channels_last
    images = _normal(torch, device, batch, channels, size, size).contiguous(memory_format=layout)
    weight = _normal(torch, device, channels, channels, 3, 3).contiguous(memory_format=layout)
    operations = 2.0 * batch * size * size * channels * channels * 9
    return lambda: torch.nn.functional.conv2d(images, weight, padding=1), operations


def _copy(torch: Any, device: str) -> Work:
    values = (1 << 30) if device == "cuda" else 1 << 12
    source, target = (torch.zeros(values, device=device, dtype=torch.bfloat16) for _ in "ab")
    return lambda: target.copy_(source), 2.0 * 2 * values


def _adamw(torch: Any, device: str) -> Work:
    """Weights, gradients and both moments in bfloat16 are read, all but gradients written."""
    parts, values = (16, 1 << 24) if device == "cuda" else (2, 1 << 8)
    weights = [torch.nn.Parameter(_normal(torch, device, values)) for _ in range(parts)]
    for weight in weights:
        weight.grad = _normal(torch, device, values)
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    return optimizer.step, 7.0 * 2 * parts * values


def _nf4(torch: Any, device: str) -> Work:
    size = 8192 if device == "cuda" else 128
    bitsandbytes = importlib.import_module("bitsandbytes")
    weight, inputs = _normal(torch, device, size, size), _normal(torch, device, size, size)
    packed, state = bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4")
    return lambda: bitsandbytes.matmul_4bit(inputs, packed.t(), quant_state=state), 2.0 * size**3


def _attention(run: Callable[[Any, Any, Any, bool], Any], torch: Any, device: str) -> Work:
    """Causal, forward and backward: 3.5 times the operations of the forward (dao-AILab/flash-attention, benchmarks)."""
    length = _LENGTH if device == "cuda" else 64
    inputs = [_normal(torch, device, _BATCH, length, _HEADS, _HEAD).transpose(1, 2) for _ in "qkv"]
    query, key, value = (one.requires_grad_(True) for one in inputs)
    upstream = torch.ones_like(query)

    def work() -> None:
        torch.autograd.grad(run(query, key, value, True), (query, key, value), upstream)

    return work, 3.5 * 4 * _BATCH * _HEADS * length**2 * _HEAD / 2


def _as_torch_chooses(query: Any, key: Any, value: Any, causal: bool) -> Any:
    functional = importlib.import_module("torch.nn.functional")
    return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


def _launches(torch: Any, _device: str) -> Measured:
    """Return the share of a kernel's time that its launch waits for."""
    shares = []
    for _ in range(5):
        start = time.perf_counter()
        torch.cuda._sleep(40_000_000)  # cycles: 20 ms and more
        launched = time.perf_counter()
        torch.cuda.synchronize()
        shares.append((launched - start) / max(time.perf_counter() - start, 1e-9))
    return {"figure": median(shares)}


def _allocations(torch: Any, device: str) -> Measured:
    """Return the seconds to take and give back 64 MiB of the GPU's memory that was used before."""
    found = []
    for _ in range(200):
        start = time.perf_counter()
        torch.empty(64 << 20, dtype=torch.uint8, device=device)
        found.append(time.perf_counter() - start)
    return {"figure": median(found)}


def _threads(torch: Any, _device: str) -> Measured:
    """Return how much faster the host multiplies with the threads that torch takes by itself than with one."""
    one, other = (torch.randn(1536, 1536) for _ in "ab")
    threads, load = torch.get_num_threads(), os.getloadavg()[0]

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        found, _ = timing.time_runs(
            torch, lambda: one @ other, "cpu", warm=2, repeats=7, watch=dict
        )
        return timing.summarise_times(found)["seconds"]

    gain = seconds(1) / seconds(threads)
    facts: dict[str, float] = {
        "threads": threads,
        "cores": len(os.sched_getaffinity(0)),
        "load": load,
    }
    limit = _limit_of_container()
    if limit is not None:
        facts["limit"] = limit
    return {"figure": gain, "facts": facts}


def _limit_of_container() -> float | None:
    """Return how many cores the container may use; None: all."""
    # Control groups of version 2, and of version 1.
    for name in ("cpu.max", "cpu/cpu.cfs_quota_us"):
        file = Path("/sys/fs/cgroup", name)
        if file.is_file():
            quota = file.read_text().split()[0]
            if quota.isdigit():
                # Of 100 ms, the period unless somebody set another.
                return int(quota) / 1e5
    return None


WORKS: Mapping[str, Callable[[Any, str], Work]] = {
    "matmul-bf16": partial(_matmul, "bfloat16"),
    "matmul-tf32": partial(_matmul, "float32"),
    "convolution-bf16": _convolution,
    "copy": _copy,
    "fused-adamw": _adamw,
    "nf4-matmul": _nf4,
    "attention": partial(_attention, _as_torch_chooses),
    "attention-flash": partial(_attention, forced("FLASH_ATTENTION")),
    "attention-cudnn": partial(_attention, forced("CUDNN_ATTENTION")),
    "attention-flash-attn-4": partial(_attention, padded),
    "attention-xformers": partial(_attention, partial(xformers_cutlass.attention, "")),
}
ALONE_KNOWN: Mapping[str, Callable[[Any, str], Measured]] = {
    "launches": _launches,
    "allocations": _allocations,
    "host-threads": _threads,
}
"""What needs no peak to be compared with."""


def of_another_gpu(gpu: str, device: DeviceFacts) -> str:
    """Return why figures say nothing: they are of another model of GPU than the bound."""
    name = str(device.get("name", ""))
    return f"measured on {name}, the bound is of {gpu}" if gpu not in ("", name) else ""


def judge(subject: str, expect: SpeedExpect, evidence: SpeedEvidence) -> Finding:
    """Judge a figure by its bound. On the wrong side of it, it fails where nothing disturbed it."""
    if reason := of_another_gpu(expect["gpu"], evidence["device"]):
        return unproven(reason)

    share, summary = evidence["figure"] / expect["peak"], _summary(subject, expect, evidence)
    if expect["peak"] != 1 and share > _MOST:
        impossible = f"{_MOST:.0%} is more than it can: its work was not done, or not timed"
        return failed(f"{summary}; {impossible}{suspects(evidence)}")
    is_good = share >= expect["least"] if expect["least"] else share <= expect["most"]
    if is_good:
        return passed(summary)

    facts = evidence.get("facts", {})
    if "cores" in facts:
        disturbances = list(_disturbances_of_host(facts))
    else:
        times = [evidence["timed"]] if "timed" in evidence else []
        disturbances = list(timing.disturbances(evidence["conditions"], *times))
    if disturbances:
        return unproven(f"{summary}, but {joined(disturbances)}")
    return failed(f"{summary}{suspects(evidence)}")


def _disturbances_of_host(facts: Mapping[str, float]) -> Iterator[str]:
    """Yield why threads of the host say nothing. What the GPU does says nothing of them."""
    cores = facts["cores"]
    if cores < _CORES:
        yield f"{cores} cores are too few"
    limit = facts.get("limit", cores)
    if limit < cores:
        yield f"the container may use {limit:g} of {cores} cores"
    if facts["load"] > _LOAD * cores:
        yield f"the host's load is {facts['load']:.0f}"


def _summary(subject: str, expect: SpeedExpect, evidence: SpeedEvidence) -> str:
    """Write a figure beside its bound."""
    figure, peak = evidence["figure"], expect["peak"]
    least, most = expect["least"], expect["most"]
    if peak != 1:
        unit, scale = ("TB/s" if peak < 1e13 else "TFLOP/s"), 1e12
        rate = f"{figure / scale:.3g} {unit}, {figure / peak:.0%} of the datasheet's {peak / scale:.4g}"
        return f"{rate}; {least:.0%} is the least"
    if subject == "host-threads":
        threads = evidence["facts"]["threads"]
        return f"{threads} threads are {figure:.1f} times as fast as one; {least:g} is the least"
    if subject == "allocations":
        return f"{figure * 1e6:.1f} us to take and give back 64 MiB; {most * 1e6:.0f} is the most"
    return f"a launch waits for {figure:.0%} of its kernel's time; {most:.0%} is the most"


CLAIMS = {"speed": judge}
