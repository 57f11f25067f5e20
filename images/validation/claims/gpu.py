"""The claims of the gpu tier: what the image must do on one GPU, and how fast.

They are made from the image, the table of kernels (validate/kernels), the tables of images/data
(envelopes.yaml, baselines.json) and the host's GPUs. Nothing here reads the image or the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from images.config import yamlfile
from images.validation.claims.context import ClaimContext, claim, silent_claims
from images.validation.claims.cpu import quantised_llama_claims
from validate.claims import Claim, Tier
from validate.kernels import Capability, Kernel, dtype_of, expected_path, table

if TYPE_CHECKING:
    from images.hardware.inventory import Inventory

ENVELOPES: Mapping[str, Any] = yamlfile.table("envelopes.yaml")
"""Peaks of GPU models, floors of `speed`, and bounds of `step`: the file explains its keys."""
BASELINES: Mapping[str, Mapping[str, Mapping[str, Any]]] = yamlfile.table("baselines.json")
"""Image -> GPU model -> subject of `step` -> what recorded runs needed (tools/baselines.py)."""
_TERA = 1e12
_QUANTISED_LLAMA = {
    "weights": (
        "on the GPU, loading in 4-bit stores every projection as NF4, and its memory shows it"
    ),
    "logits": "on the GPU, the 4-bit model computes what its dequantised weights say",
    "training": (
        "QLoRA with gradient checkpointing learns, leaves the base alone,"
        " and gives the same bits twice"
    ),
}
"""Subject of `qlora` -> statement."""
_STEP_MEMORY = {8: 60 << 30, 2: 22 << 30}
"""Rows of a batch, the most first -> bytes of GPU memory that a training step takes. With 8 rows an
H100 used 45 GB."""
_STEP_CAPABILITY = (8, 0)
"""The least compute capability of a training step, which is in bfloat16."""


def gpu_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims of the gpu tier. Without a GPU every claim is there, and unproven."""
    versions = {pin.name: pin.version for pin in context.image.pins}
    versions["cuda"] = str(context.image.wheel_cuda)
    yield device_claim(context)
    yield from kernel_claims(context, versions)
    yield from quantised_llama_claims(
        context, "qlora", "gpu.llama", _QUANTISED_LLAMA, context.no_gpu
    )
    yield from silent_claims(context, Tier.GPU)
    yield from speed_claims(context, versions)
    yield from step_claims(context)


def device_claim(context: ClaimContext) -> Claim:
    """Return the claim that the container sees the host's GPUs."""
    expect = {
        "inventory": context.inventory.as_json() if context.inventory else None,
        "archs": [str(arch) for arch in context.image.archs],
    }
    statement = "the container sees the host's GPUs, all of them and no others"
    return claim("device", "gpus", "gpu.device", statement, expect, unproven=context.no_gpu)


def kernel_claims(context: ClaimContext, versions: Mapping[str, str]) -> Iterator[Claim]:
    """Yield a claim for each kernel of the table whose packages the image pins.

    `versions`: the image's pins, and its CUDA as `cuda`. A claim is not required if its package is
    missing, or if these GPUs or versions cannot run the kernel: that is no fault of the image.
    """
    capabilities: list[Capability] = []
    if context.inventory:
        capabilities = sorted({gpu.capability for gpu in context.inventory.gpus})
    kernels = sorted(table().items(), key=lambda item: (item[1].check, item[0]))
    for subject, kernel in kernels:
        needs = (kernel.package, *kernel.needs)
        if not all(package in versions for package in needs):
            continue
        expect = kernel_expect(kernel, capabilities, versions)
        reason_missing = context.missing.get(kernel.package)
        unproven = context.no_gpu
        if reason_missing is not None:
            unproven = f"{kernel.package} is not in this image: {reason_missing}"
        yield claim(
            kernel.check,
            subject,
            kernel.probe,
            kernel.statement,
            expect,
            required=reason_missing is None and "not_applicable" not in expect,
            unproven=unproven,
        )


def kernel_expect(
    kernel: Kernel, capabilities: Sequence[Capability], versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return what the claim about a kernel expects (validate/kernels/_evidence.py).

    `capabilities`: those of the host's GPUs, ascending; empty if no host is known. The least one
    decides, because CUDA may choose any of several different GPUs for a process.
    """
    not_applicable = kernel.excludes(versions)
    cases_beyond_gpu: Mapping[str, str] = {}
    if capabilities:
        least = capabilities[0]
        not_applicable = not_applicable or kernel.supports(least, versions)
        cases_beyond_gpu = kernel.gated(least)
    left_out = {**kernel.leaves_out(versions), **cases_beyond_gpu}

    # A case that is left out for the GPU has a dtype that no other case has.
    dtypes_beyond_gpu = {dtype_of(case) for case in cases_beyond_gpu}
    tolerance = {}
    if kernel.cases:
        for dtype, largest_error in kernel.tolerance.items():
            if dtype not in dtypes_beyond_gpu:
                tolerance[dtype] = largest_error

    expect: dict[str, Any] = {
        "cases": [case for case in kernel.cases if case not in left_out],
        "tolerance": tolerance,
        "figures": {name: list(bounds) for name, bounds in kernel.figures.items()},
        "facts": dict(kernel.facts),
        **expected_path(kernel, versions),
        "libraries": list(kernel.libraries),
        "package": kernel.package,
    }
    if left_out:
        expect["left_out"] = left_out
    if capabilities:
        expect["capability"] = list(capabilities[0])
    if len(capabilities) > 1:
        expect["capabilities"] = [list(capability) for capability in capabilities]
    if not_applicable:
        expect["not_applicable"] = not_applicable
    return expect


def speed_claims(context: ClaimContext, versions: Mapping[str, str]) -> Iterator[Claim]:
    """Yield a claim for each floor of envelopes.yaml whose kernel, if it has one, is in the image.

    A floor that is a share of a peak is unproven on a GPU model whose peaks the table does not
    have. A floor is required on the models on which our own runs have kept it.
    """
    model = find_gpu_model(context.inventory)
    for subject, floor in ENVELOPES["floors"].items():
        not_applicable = None
        if "kernel" in floor:
            kernel = table()[floor["kernel"]]
            if kernel.package not in versions or kernel.package in context.missing:
                continue
            not_applicable = kernel.excludes(versions)
            if model.capability:
                not_applicable = not_applicable or kernel.supports(model.capability, versions)

        unproven = context.no_gpu
        if "of" in floor and not model.peaks:
            gpu = model.name or "the GPU that is there"
            unproven = unproven or f"envelopes.yaml has no peaks of {gpu}"
        expect = floor_expect(floor, model)
        if not_applicable:
            expect["not_applicable"] = not_applicable
        # `seen` lists the floors that our own runs on this model have kept.
        is_seen = subject in model.peaks.get("seen", ())
        yield claim(
            "speed",
            subject,
            "gpu.speed",
            floor["statement"],
            expect,
            required=is_seen and not not_applicable,
            unproven=unproven,
        )


def floor_expect(floor: Mapping[str, Any], model: GpuModel) -> dict[str, Any]:
    """Return the bound of a floor of envelopes.yaml (validate/checks/gpu/speed.py, SpeedExpect).

    With `of` it is a share of that peak of the GPU model, which may depend on the GPU's major
    compute capability. Otherwise it is a number that holds on any GPU, with 1 as the peak.
    """
    if "of" not in floor:
        return {
            "gpu": "",
            "peak": 1.0,
            "least": floor.get("least", 0.0),
            "most": floor.get("most", 0.0),
        }

    least = floor["least"]
    if isinstance(least, Mapping):
        major = model.capability[0] if model.capability else None
        least = least.get(major, least["default"])
    peak = model.peaks.get(floor["of"], 0.0) * _TERA
    return {"gpu": model.name, "peak": peak, "least": least, "most": floor.get("most", 0.0)}


def step_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield a claim for each variant of a training step whose packages the image has.

    It is required if runs of this image on this GPU model are recorded, and compares with these.
    """
    model = find_gpu_model(context.inventory)
    batch_rows, not_applicable = choose_step_size(context.inventory, model)
    recorded = BASELINES.get(str(context.image.name), {}).get(model.name, {})
    for variant, bounds in ENVELOPES["steps"].items():
        needs = bounds["needs"]
        if not all(context.image.pin(need) and need not in context.missing for need in needs):
            continue

        expect = {"gpu": model.name, "rows": batch_rows, "at_most": bounds["at_most"]}
        # The operations of QLoRA are not counted: its weights are packed and have no gradients.
        if model.peaks and variant != "qlora":
            expect["peak_operations"] = model.peaks["bf16"] * _TERA
        if variant in recorded:
            expect["baseline"] = recorded[variant]
        if not_applicable:
            expect["not_applicable"] = not_applicable
        yield claim(
            "step",
            variant,
            "gpu.step",
            bounds["statement"],
            expect,
            required=variant in recorded and not not_applicable,
            unproven=context.no_gpu,
        )


def choose_step_size(inventory: Inventory | None, model: GpuModel) -> tuple[int, str]:
    """Return the rows of a training step's batch, and why no GPU of the host can run it.

    The batch is the largest that fits into the memory of the host's smallest GPU. The reason is
    empty if it can run, or if no host is known.
    """
    least_memory = 0
    if inventory:
        least_memory = min((gpu.memory for gpu in inventory.gpus), default=0)
    batch_rows = min(_STEP_MEMORY)
    for rows, needed_memory in _STEP_MEMORY.items():
        if least_memory >= needed_memory:
            batch_rows = rows
            break

    if not inventory:
        return batch_rows, ""
    if model.capability and model.capability < _STEP_CAPABILITY:
        actual = f"{model.name} has {model.capability[0]}.{model.capability[1]}"
        return batch_rows, f"bfloat16 takes compute capability 8.0, {actual}"
    needed_memory = _STEP_MEMORY[batch_rows]
    if least_memory < needed_memory:
        needed = f"a step takes {needed_memory >> 30} GiB of GPU memory"
        return batch_rows, f"{needed}, there are {least_memory >> 30}"
    return batch_rows, ""


class GpuModel(NamedTuple):
    """The one model of a host's GPUs."""

    name: str  # as the driver names it; empty: there are several models, or no host is known
    capability: Capability | None
    peaks: Mapping[str, Any]  # its row of envelopes.yaml; empty: it has none


def find_gpu_model(inventory: Inventory | None) -> GpuModel:
    """Return the model of the host's GPUs, without a name if they differ or no host is known."""
    models = set()
    if inventory:
        models = {(gpu.name, gpu.capability) for gpu in inventory.gpus}
    if len(models) != 1:
        return GpuModel(name="", capability=None, peaks={})

    name, capability = models.pop()
    for peaks in ENVELOPES["gpus"]:
        if name in peaks["names"]:
            return GpuModel(name, capability, peaks)
    return GpuModel(name, capability, peaks={})
