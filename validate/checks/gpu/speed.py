"""speed: GPU work must not be slower than a floor: a share of the datasheet's peak, or a ratio.

An image can compute right and slowly: attention by plain products, no TF32, no cuDNN, launches that
wait. A floor needs no earlier run to compare with. How times are taken, and when they say nothing,
is described in validate/harness/timing.py.
"""

import gc
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypedDict

from validate.checks import Settings
from validate.claims import Claim
from validate.harness import timing
from validate.harness.forked import attempt
from validate.harness.timing import Conditions, Timed, Watch
from validate.judging import Finding, failed, joined, passed, suspects, unproven
from validate.kernels import runner, xformers_cutlass
from validate.kernels._evidence import DeviceFacts
from validate.kernels._flash4 import flash_attention_4
from validate.kernels._sdpa import force_backend
from validate.next_steps import MEASURE_AGAIN, REPORT, calm_gpu, pin

SETTINGS = Settings(runs_alone=True, time_limit=300)

_WARM_UP_RUNS, _TIMED_RUNS = 3, 15
_BATCH, _TOKENS, _HEADS, _HEAD_WIDTH = 2, 8192, 16, 128
"""The size of the timed attention."""
_LEAST_CORES = 4
"""On fewer cores, threads have little to gain."""
_LARGEST_SHARE = 1.3
"""Of a datasheet's peak, which holds for the boost clock: cards of other makers run a little above
it. A larger share is impossible."""
_LARGEST_LOAD = 0.5
"""As a share of the cores. If other programs take more, the speed of threads says nothing."""


class Work(NamedTuple):
    """Something to time: a function without arguments, and the operations or bytes of one call."""

    run: Callable[[], object]
    amount: float


class SpeedExpect(TypedDict):
    """The bound of a figure: a share of a datasheet's peak, or a plain number (then peak is 1)."""

    gpu: str  # the model of the peak, as the driver names it; empty: any
    peak: float  # operations or bytes a second
    least: float  # as a share of the peak; 0: `most` is the bound
    most: float


class Measured(TypedDict, total=False):
    """A figure and how it was measured."""

    figure: float  # operations or bytes a second; or a ratio, or seconds
    timed: Timed
    facts: Mapping[str, float]  # about the host
    under_load: list[Mapping[str, int]]  # NVML's readings of the GPU during the runs


class SpeedEvidence(Measured, total=False):
    """A figure with everything that may have disturbed it."""

    conditions: Conditions
    device: DeviceFacts
    environment: Mapping[str, str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, SpeedEvidence]]:
    """Measure how fast this GPU computes what each claim names, one after another.

    Yields the subject of the claim (`matmul-bf16`) and its figure, with the conditions: the GPU,
    its clocks and temperature under load, and environment variables. If a measurement raises an
    error, the error is yielded in place of the figure.
    """
    # Read the variables first, because torch sets some of its own when it is imported.
    environment = runner.environment()
    torch = importlib.import_module("torch")
    with timing.watch_gpu(torch) as (watch, conditions):
        for claim in claims:
            measured = attempt(partial(measure_subject, claim.subject, torch, "cuda", watch))
            # The readings of the GPU under load belong to the conditions.
            under_load = measured.pop("under_load", [])
            yield (
                claim.subject,
                {
                    **measured,
                    "device": runner.device_facts(torch),
                    "environment": environment,
                    "conditions": {**conditions, "under_load": under_load},
                },
            )
            # Give the memory back before the next subject takes its own.
            gc.collect()
            torch.cuda.empty_cache()


def measure_subject(subject: str, torch: Any, device: str, watch: Watch) -> Measured:
    """Measure one figure: operations or bytes a second of a repeated work, or a ratio.

    `subject` is the name of the figure. `watch` reads the GPU's clocks meanwhile. `device` may be
    `cpu`, for a rehearsal at small sizes. Raises KeyError for an unknown subject.
    """
    if subject in MEASURES_WITHOUT_PEAK:
        return MEASURES_WITHOUT_PEAK[subject](torch, device)

    work = WORKS[subject](torch, device)
    seconds, reading = timing.time_runs(
        torch, work.run, device, warm=_WARM_UP_RUNS, repeats=_TIMED_RUNS, watch=watch
    )
    # `timed["seconds"]` is the median of the runs.
    timed = timing.summarise_times(seconds)
    return {"figure": work.amount / timed["seconds"], "timed": timed, "under_load": [reading]}


def draw_normal(torch: Any, device: str, *shape: int, dtype: str = "bfloat16") -> Any:
    """Return a tensor of this shape with normally distributed numbers."""
    return torch.randn(*shape, device=device, dtype=getattr(torch, dtype))


def prepare_matmul(dtype: str, torch: Any, device: str) -> Work:
    """Return a function to time, and its number of floating-point operations (`amount`).

    The function multiplies two square matrices of this dtype; float32 is multiplied in TF32.
    """
    # Without a GPU, this is only a rehearsal.
    size = 8192 if device == "cuda" else 64
    left = draw_normal(torch, device, size, size, dtype=dtype)
    right = draw_normal(torch, device, size, size, dtype=dtype)

    def multiply() -> None:
        # "high" allows TF32 for float32, and changes nothing for bfloat16.
        precision_before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        left @ right
        torch.set_float32_matmul_precision(precision_before)

    return Work(multiply, amount=2.0 * size**3)


def prepare_convolution(torch: Any, device: str) -> Work:
    """Return a 3 x 3 convolution of images in bfloat16, to be timed, and its number of operations.

    On a CPU it is a small one, for a rehearsal.
    """
    batch, channels, size = (256, 256, 56) if device == "cuda" else (2, 8, 8)
    images = draw_normal(torch, device, batch, channels, size, size)
    images = images.contiguous(memory_format=torch.channels_last)
    weight = draw_normal(torch, device, channels, channels, 3, 3)
    weight = weight.contiguous(memory_format=torch.channels_last)

    def convolve() -> Any:
        return torch.nn.functional.conv2d(images, weight, padding=1)

    # For each output value a multiplication and an addition with each of 3 x 3 x channels inputs.
    outputs = batch * size * size * channels
    return Work(convolve, amount=2.0 * outputs * channels * 9)


def prepare_copy(torch: Any, device: str) -> Work:
    """Prepare a copy within the device's memory. The amount is bytes, read and written."""
    values = (1 << 30) if device == "cuda" else 1 << 12
    source = torch.zeros(values, device=device, dtype=torch.bfloat16)
    target = torch.zeros(values, device=device, dtype=torch.bfloat16)
    return Work(lambda: target.copy_(source), amount=2.0 * 2 * values)


def prepare_fused_adamw(torch: Any, device: str) -> Work:
    """Return a step of fused AdamW in bfloat16, to be timed, and the bytes it reads and writes."""
    tensors, values = (16, 1 << 24) if device == "cuda" else (2, 1 << 8)
    weights = [torch.nn.Parameter(draw_normal(torch, device, values)) for _ in range(tensors)]
    for weight in weights:
        weight.grad = draw_normal(torch, device, values)
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    # Weights, gradients and two moments are read, and all but the gradients are written: 7 values
    # of 2 bytes.
    return Work(optimizer.step, amount=7.0 * 2 * tensors * values)


def prepare_nf4_matmul(torch: Any, device: str) -> Work:
    """Return bitsandbytes' product with a 4-bit weight, to be timed, and its operations."""
    size = 8192 if device == "cuda" else 128
    bitsandbytes = importlib.import_module("bitsandbytes")
    weight = draw_normal(torch, device, size, size)
    inputs = draw_normal(torch, device, size, size)
    packed, state = bitsandbytes.functional.quantize_4bit(weight, quant_type="nf4")
    return Work(
        lambda: bitsandbytes.matmul_4bit(inputs, packed.t(), quant_state=state),
        amount=2.0 * size**3,
    )


def prepare_attention(
    attention: Callable[[Any, Any, Any, bool], Any], torch: Any, device: str
) -> Work:
    """Return a function to time, and its number of floating-point operations (`amount`).

    The function computes causal attention forward and backward. `attention` takes query, key and
    value, each [batch, heads, tokens, width], and whether it is causal. On a `device` other than
    `cuda` the sizes are small, for a rehearsal.
    """
    tokens = _TOKENS if device == "cuda" else 64
    tensors = []
    for _ in range(3):
        tensor = draw_normal(torch, device, _BATCH, tokens, _HEADS, _HEAD_WIDTH)
        tensors.append(tensor.transpose(1, 2).requires_grad_(True))
    query, key, value = tensors
    upstream = torch.ones_like(query)

    def run_both_ways() -> None:
        """Compute the output, and the gradients of all three inputs."""
        output = attention(query, key, value, True)
        torch.autograd.grad(output, (query, key, value), upstream)

    # Both ways take 3.5 times the operations of the forward alone (dao-AILab/flash-attention,
    # benchmarks). A causal mask leaves half of them.
    forward_operations = 4 * _BATCH * _HEADS * tokens**2 * _HEAD_WIDTH / 2
    return Work(run_both_ways, amount=3.5 * forward_operations)


def default_attention(query: Any, key: Any, value: Any, causal: bool) -> Any:
    """Compute attention by the kernel that torch chooses."""
    functional = importlib.import_module("torch.nn.functional")
    return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


def measure_launches(torch: Any, _device: str) -> Measured:
    """Measure how long the launch of a kernel blocks the host, as a share of the kernel's run time.

    A launch returns at once, unless launches are made to wait (CUDA_LAUNCH_BLOCKING).
    """
    shares = []
    for _ in range(5):
        start = time.perf_counter()
        torch.cuda._sleep(40_000_000)  # clock cycles: at least 20 ms
        launch_end = time.perf_counter()
        torch.cuda.synchronize()
        # At least a nanosecond, because the clock may not have moved: total must not be zero.
        total = max(time.perf_counter() - start, 1e-9)
        shares.append((launch_end - start) / total)
    return {"figure": median(shares)}


def measure_allocations(torch: Any, device: str) -> Measured:
    """Measure the seconds to take and give back 64 MiB of GPU memory.

    torch keeps memory that was used before, so only the first time asks the driver for it.
    """
    seconds = []
    for _ in range(200):
        start = time.perf_counter()
        torch.empty(64 << 20, dtype=torch.uint8, device=device)
        seconds.append(time.perf_counter() - start)
    return {"figure": median(seconds)}


def measure_host_threads(torch: Any, _device: str) -> Measured:
    """Measure how much faster the host multiplies with torch's number of threads than with one.

    The figure is that ratio. The facts are the numbers of threads and cores, the host's load (how
    many threads wanted a core, as a mean of the last minute), and the container's limit of cores if
    it has one.
    """
    left = torch.randn(1536, 1536)
    right = torch.randn(1536, 1536)
    threads = torch.get_num_threads()
    load = os.getloadavg()[0]

    def multiply() -> Any:
        return left @ right

    def time_product(thread_count: int) -> float:
        """Return the seconds that the product takes with this number of threads."""
        torch.set_num_threads(thread_count)
        # `watch=dict`: the GPU, which has no part in this, is not watched.
        seconds, _ = timing.time_runs(torch, multiply, "cpu", warm=2, repeats=7, watch=dict)
        return timing.summarise_times(seconds)["seconds"]

    # The second call also restores torch's number of threads.
    gain = time_product(1) / time_product(threads)
    facts: dict[str, float] = {
        "threads": threads,
        "cores": len(os.sched_getaffinity(0)),
        "load": load,
    }
    limit = read_core_limit()
    if limit is not None:
        facts["limit"] = limit
    return {"figure": gain, "facts": facts}


def read_core_limit() -> float | None:
    """Return how many cores the container may use, by its control group. None: all."""
    # The files of control groups of version 2 and of version 1.
    for name in ("cpu.max", "cpu/cpu.cfs_quota_us"):
        file = Path("/sys/fs/cgroup", name)
        if file.is_file():
            quota = file.read_text().split()[0]
            if quota.isdigit():
                # Microseconds of processor time in 100 ms, the period unless somebody set another.
                return int(quota) / 1e5
    return None


WORKS: Mapping[str, Callable[[Any, str], Work]] = {
    "matmul-bf16": partial(prepare_matmul, "bfloat16"),
    "matmul-tf32": partial(prepare_matmul, "float32"),
    "convolution-bf16": prepare_convolution,
    "copy": prepare_copy,
    "fused-adamw": prepare_fused_adamw,
    "nf4-matmul": prepare_nf4_matmul,
    "attention": partial(prepare_attention, default_attention),
    "attention-flash": partial(prepare_attention, force_backend("FLASH_ATTENTION")),
    "attention-cudnn": partial(prepare_attention, force_backend("CUDNN_ATTENTION")),
    "attention-flash-attn-4": partial(prepare_attention, flash_attention_4),
    "attention-xformers": partial(prepare_attention, partial(xformers_cutlass.attention, "")),
}
"""Subject -> the function that prepares its work, given torch and the device."""
MEASURES_WITHOUT_PEAK: Mapping[str, Callable[[Any, str], Measured]] = {
    "launches": measure_launches,
    "allocations": measure_allocations,
    "host-threads": measure_host_threads,
}
"""Subject -> the function that measures it, if no datasheet's peak is needed to judge it."""


def judge_gpu(bound_gpu: str, device: DeviceFacts) -> Finding | None:
    """Return UNPROVEN if figures were measured on another GPU model than their bound is for.

    None if the bound can judge them. An empty `bound_gpu` holds for every model.
    """
    measured_gpu = str(device.get("name", ""))
    if bound_gpu in ("", measured_gpu):
        return None
    return unproven(
        f"this was measured on {measured_gpu}, and the bound is for a whole {bound_gpu}",
        "nothing needs to be done; to have this judged, validate on a machine whose containers "
        f"get a whole {bound_gpu}",
    )


def judge(subject: str, expect: SpeedExpect, evidence: SpeedEvidence) -> Finding:
    """Judge how fast something was on a GPU: a figure, by the least or the most that it may be.

    A figure on the wrong side of its bound is a FAIL, or UNPROVEN if something disturbed the
    measurement, such as other work on the GPU. A figure far above the GPU's peak is a FAIL: no GPU
    can be so fast. UNPROVEN on another GPU model than the bound is for.
    """
    other_gpu = judge_gpu(expect["gpu"], evidence["device"])
    if other_gpu:
        return other_gpu

    # Bounds are shares of the GPU's peak. A figure without a peak has 1 in its place.
    share = evidence["figure"] / expect["peak"]
    summary = summarise(subject, expect, evidence)
    if expect["peak"] != 1 and share > _LARGEST_SHARE:
        impossible = (
            f"more than {_LARGEST_SHARE:.0%} can't be true: the work was not done, or not timed"
        )
        # Variables that may be to blame have a next step of their own (validate/judge.py).
        variables = suspects(evidence)
        step = "" if variables else f"{MEASURE_AGAIN}; if it says the same again, {REPORT}"
        return failed(f"{summary}; {impossible}{variables}", step)
    # The bound is either the least or the most. The other one is 0.
    if expect["least"]:
        is_good = share >= expect["least"]
    else:
        is_good = share <= expect["most"]
    if is_good:
        return passed(summary)

    # The figure is out of bounds. That may have a cause outside of the image, such as a busy GPU.
    disturbances = list(find_disturbances(evidence))
    if disturbances:
        is_of_host = "cores" in evidence.get("facts", {})
        reason = joined(disturbances)
        step = _FREE_THE_HOST if is_of_host else calm_gpu(reason)
        return unproven(f"{summary}, but {reason}", step)
    return failed(f"{summary}{suspects(evidence)}")


def find_disturbances(evidence: SpeedEvidence) -> Iterator[str]:
    """Yield why a figure says nothing about the image, because something disturbed its measurement.

    Disturbances are, for example, other work on the GPU, or on the host.
    """
    facts = evidence.get("facts", {})
    # Only `host-threads` has cores among its facts. There, the state of the GPU does not matter.
    if "cores" in facts:
        yield from find_host_disturbances(facts)
    elif "timed" in evidence:
        yield from timing.disturbances(evidence["conditions"], evidence["timed"])
    else:
        yield from timing.disturbances(evidence["conditions"])


def find_host_disturbances(facts: Mapping[str, float]) -> Iterator[str]:
    """Yield why the speed of the host's threads says nothing about the image."""
    cores = facts["cores"]
    if cores < _LEAST_CORES:
        yield f"the machine has {cores} cores, and at least {_LEAST_CORES} are needed"
    limit = facts.get("limit", cores)
    if limit < cores:
        yield f"the container may use {limit:g} of {cores} cores"
    if facts["load"] > _LARGEST_LOAD * cores:
        largest_load = _LARGEST_LOAD * cores
        yield f"the host's load is {facts['load']:.0f}, and at most {largest_load:.0f} is allowed"


def summarise(subject: str, expect: SpeedExpect, evidence: SpeedEvidence) -> str:
    """Return in one line a figure and its bound, in units that a person reads.

    The figure is operations or bytes a second; or a ratio, or seconds, where the peak is 1. The
    bound is the least or the most that it may be, as a share of the peak:

    `612 TFLOP/s, 62% of the datasheet's 989; at least 55% is required`
    """
    figure, peak = evidence["figure"], expect["peak"]
    least, most = expect["least"], expect["most"]
    # A peak of 1 stands for a figure without a datasheet's peak. There are three such figures.
    if peak != 1:
        # Memory moves less than 10 TB/s, and products are more than 10 TFLOP/s.
        unit = "TB/s" if peak < 1e13 else "TFLOP/s"
        of_peak = f"{figure / peak:.0%} of the datasheet's {peak / 1e12:.4g}"
        return f"{figure / 1e12:.4g} {unit}, {of_peak}; at least {least:.0%} is required"
    if subject == "host-threads":
        threads = evidence["facts"]["threads"]
        times = f"{threads} threads are {figure:.1f} times as fast as one"
        return f"{times}; at least {least:g} times is required"
    if subject == "allocations":
        microseconds = f"{figure * 1e6:.1f} us to take 64 MiB of GPU memory and give them back"
        return f"{microseconds}; at most {most * 1e6:.0f} us is allowed"
    # The only other figure without a peak is `launches`.
    return f"a launch waits for {figure:.0%} of its kernel's time; at most {most:.0%} is allowed"


_FREE_THE_HOST = "validate again on a host with more cores that does nothing else"
CLAIMS = {"speed": judge}
_AGAIN_THEN_PIN = (
    "measure again on a GPU that nothing else uses, after `nvidia-smi -q -d "
    "PERFORMANCE,CLOCK,POWER` shows neither a limit nor heat; if it is slow on such a GPU as well, "
)
NEXT_STEPS = {
    "speed/nf4-matmul": f"{_AGAIN_THEN_PIN}{pin('another release of bitsandbytes')}",
    "speed/attention-flash-attn-4": f"{_AGAIN_THEN_PIN}{pin('another release of flash-attn-4')}",
    "speed/attention-xformers": f"{_AGAIN_THEN_PIN}{pin('another release of xformers')}",
    "speed": f"{_AGAIN_THEN_PIN}{pin('another release of torch')}",
}
