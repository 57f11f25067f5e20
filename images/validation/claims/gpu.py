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
    from images.hardware.inventory import Gpu, Inventory
    from validate.checks.gpu.speed import SpeedExpect
    from validate.checks.gpu.step import StepExpect

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
_STEP_MEMORY_BY_ROWS = {8: 60 << 30, 2: 22 << 30}
"""Rows of a batch, the most first -> bytes of GPU memory that a training step takes. With 8 rows an
H100 used 45 GB."""
_STEP_CAPABILITY = (8, 0)
"""The least compute capability of a training step, which is in bfloat16."""


def gpu_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield all claims about an image that are measured on one GPU (the gpu tier).

    If the host has no GPU, the claims are the same, and all of them are unproven.
    """
    # Which kernels are claimed depends on the image's packages and its CUDA.
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

    `versions`: the image's pins, and its CUDA as `cuda`. A claim is not required if the wheel of
    its package could not be had.
    """
    capabilities: list[Capability] = []
    if context.inventory:
        capabilities = sorted({gpu.capability for gpu in context.inventory.gpus})
    # If the host's GPUs differ, a process may get any of them. So the oldest one decides.
    least_capability = capabilities[0] if capabilities else None

    # Sort by check, then by subject, as reports show them.
    kernels = sorted(table().items(), key=lambda row: (row[1].check, row[0]))
    for subject, kernel in kernels:
        needs = (kernel.package, *kernel.needs)
        if not all(package in versions for package in needs):
            continue
        reason_missing = context.missing.get(kernel.package)
        unproven = context.no_gpu
        if reason_missing is not None:
            unproven = (
                f"{kernel.package} is not in this image: {reason_missing}. Unless you use it, "
                "nothing needs to be done"
            )
        yield claim(
            kernel.check,
            subject,
            kernel.probe,
            kernel.statement,
            kernel_expectation(kernel, capabilities, versions),
            required=reason_missing is None,
            unproven=unproven,
            not_applicable=reason_kernel_cannot_run(kernel, least_capability, versions),
        )


def reason_kernel_cannot_run(
    kernel: Kernel, capability: Capability | None, versions: Mapping[str, str]
) -> str:
    """Return why a kernel can't run with some versions of packages, or on a GPU; empty if it can.

    `versions`: package -> version. `capability` is the GPU's compute capability; None: the GPU is
    not known, and only the versions count.
    """
    # With some versions, the kernel runs on no GPU at all.
    reason = kernel.version_obstacle(versions)
    if not reason and capability:
        reason = kernel.gpu_obstacle(capability, versions)
    return reason or ""


def kernel_expectation(
    kernel: Kernel, capabilities: Sequence[Capability], versions: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a kernel's test must show: which cases run, how exact they are, and more.

    A case is the kernel with some shape and dtype. The keys are those of KernelExpect
    (validate/kernels/_evidence.py). `capabilities` are the compute capabilities of the host's GPUs,
    ascending; empty if no host is known. `versions`: package -> version.
    """
    # Case -> why it can't run: with these versions, or on the oldest of the host's GPUs.
    beyond_gpu = kernel.find_cases_beyond(capabilities[0]) if capabilities else {}
    left_out = {**kernel.leaves_out(versions), **beyond_gpu}

    # A case that needs a newer GPU has a dtype of its own (a test checks this for every kernel). If
    # it is left out, nothing runs in this dtype, so the dtype needs no tolerance.
    dtypes_beyond_gpu = {dtype_of(case) for case in beyond_gpu}
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
        # The CUDA kernels that a profile must show, and those that it must not.
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
    return expect


def speed_claims(context: ClaimContext, versions: Mapping[str, str]) -> Iterator[Claim]:
    """Yield a claim for each floor of envelopes.yaml: how fast something must be at least.

    A floor about a kernel needs the kernel's package in the image. A floor that is a share of the
    GPU's peak needs the peaks of the host's GPU model; without them the claim is unproven. It is
    required only on models on which our own runs have kept it.
    """
    model = find_gpu_model(context.inventory)
    least_gpu = find_least_gpu(context.inventory)
    for subject, floor in ENVELOPES["floors"].items():
        not_applicable = ""
        if "kernel" in floor:
            # The floor names a subject of the table of kernels.
            kernel = table()[floor["kernel"]]
            if kernel.package not in versions or kernel.package in context.missing:
                continue
            capability = least_gpu.capability if least_gpu else None
            not_applicable = reason_kernel_cannot_run(kernel, capability, versions)

        unproven = context.no_gpu
        # `{of: bf16, least: 0.5}`: see `floor_expectation`.
        is_share_of_peak = "of" in floor
        if is_share_of_peak and not model.envelope and not unproven:
            unproven = f"envelopes.yaml has no peaks of {model.name or 'the GPU that is there'}"
        # `seen` lists the floors that our own runs on this model have kept.
        is_seen = subject in model.envelope.get("seen", ())
        yield claim(
            "speed",
            subject,
            "gpu.speed",
            floor["statement"],
            floor_expectation(floor, model),
            required=is_seen,
            unproven=unproven,
            not_applicable=not_applicable,
        )


def floor_expectation(floor: Mapping[str, Any], model: GpuModel) -> SpeedExpect:
    """Return the bound that a floor of envelopes.yaml sets on a GPU model.

    `{of: bf16, least: 0.5}` is a share of the model's peak in bfloat16, and the share may differ by
    the major of the GPU's compute capability: `{of: bf16, least: {default: 0.2, 10: 0.08}}`.
    `{most: 0.5}` is a ratio, or seconds, and holds on any GPU.
    """
    most = floor.get("most", 0.0)
    if "of" not in floor:
        # Give the bound as a share of 1, so that the judge needs no second rule.
        return {"gpu": "", "peak": 1.0, "least": floor.get("least", 0.0), "most": most}

    least = floor["least"]
    if isinstance(least, Mapping):
        major = model.capability[0] if model.capability else None
        least = least.get(major, least["default"])
    # The table has TFLOP/s and TB/s. If it lacks the model, this is 0, and the claim is unproven.
    peak = model.envelope.get(floor["of"], 0.0) * _TERA
    return {"gpu": model.name, "peak": peak, "least": least, "most": most}


def step_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield a claim for each variant of a training step whose packages the image has.

    A claim is required if runs of this image on this GPU model are recorded: their figures are then
    the `baseline` that the step is compared with.
    """
    image, missing = context.image, context.missing
    model = find_gpu_model(context.inventory)
    batch_rows = choose_batch_rows(context.inventory)
    not_applicable = reason_without_step(context.inventory)
    recorded_by_variant = BASELINES.get(str(image.name), {}).get(model.name, {})
    for variant, bounds in ENVELOPES["steps"].items():
        if not all(image.pin(need) and need not in missing for need in bounds["needs"]):
            continue

        expect: StepExpect = {
            "gpu": model.name,
            "rows": batch_rows,
            "at_most": bounds["at_most"],
        }
        # The operations of QLoRA are not counted: its weights are packed and have no gradients.
        if model.envelope and variant != "qlora":
            expect["peak_operations"] = model.envelope["bf16"] * _TERA
        if variant in recorded_by_variant:
            expect["baseline"] = recorded_by_variant[variant]
        yield claim(
            "step",
            variant,
            "gpu.step",
            bounds["statement"],
            expect,
            required=variant in recorded_by_variant,
            unproven=context.no_gpu,
            not_applicable=not_applicable,
        )


def choose_batch_rows(inventory: Inventory | None) -> int:
    """Return the rows of a training step's batch: the most for which each GPU has the memory.

    If not even the least rows fit, or if no host is known, it is the least rows.
    """
    least_memory = find_least_memory(inventory)
    for rows, needed_memory in _STEP_MEMORY_BY_ROWS.items():
        if least_memory >= needed_memory:
            return rows
    return min(_STEP_MEMORY_BY_ROWS)


def reason_without_step(inventory: Inventory | None) -> str:
    """Return why a GPU of the host can't run a training step; empty if all can.

    It is also empty if no host is known.
    """
    least_gpu = find_least_gpu(inventory)
    if not least_gpu:
        return ""
    if least_gpu.capability < _STEP_CAPABILITY:
        actual = f"{least_gpu.name} has {least_gpu.capability[0]}.{least_gpu.capability[1]}"
        return f"bfloat16 takes compute capability 8.0, {actual}"
    least_memory = find_least_memory(inventory)
    needed_memory = _STEP_MEMORY_BY_ROWS[choose_batch_rows(inventory)]
    if least_memory < needed_memory:
        needed = f"a step takes {needed_memory >> 30} GiB of GPU memory"
        return f"{needed}, there are {least_memory >> 30}"
    return ""


def find_least_gpu(inventory: Inventory | None) -> Gpu | None:
    """Return the host's GPU of the least compute capability; None without a GPU.

    If the host's GPUs differ, a process may get any of them. So the oldest one decides.
    """
    gpus = inventory.gpus if inventory else ()
    return min(gpus, key=lambda gpu: gpu.capability, default=None)


def find_least_memory(inventory: Inventory | None) -> int:
    """Return the bytes of memory of the host's smallest GPU; 0 without a GPU."""
    gpus = inventory.gpus if inventory else ()
    return min((gpu.memory for gpu in gpus), default=0)


class GpuModel(NamedTuple):
    """The model of all GPUs of a host. Everything is empty if they differ, or without a host."""

    name: str  # as the driver names it: `NVIDIA H200`
    capability: Capability | None
    envelope: Mapping[str, Any]  # its row of envelopes.yaml; empty: it has none


def find_gpu_model(inventory: Inventory | None) -> GpuModel:
    """Return the model of a host's GPUs with its row of envelopes.yaml.

    Returns an empty model if the GPUs differ, or if no host is known.
    """
    models = set()
    if inventory:
        models = {(gpu.name, gpu.capability) for gpu in inventory.gpus}
    if len(models) != 1:
        return GpuModel(name="", capability=None, envelope={})

    name, capability = models.pop()
    for row in ENVELOPES["gpus"]:
        if name in row["names"]:
            # The row has the model's peaks, and which floors our runs on it have kept (`seen`).
            return GpuModel(name, capability, envelope=row)
    return GpuModel(name, capability, envelope={})
