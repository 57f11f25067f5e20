"""The claims of one GPU, `device` to `step`, from the image, the table of kernels, images/data (envelopes.yaml,
baselines.json), and what the host's GPU allows. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from images.config import yamlfile
from images.validation.claims.context import ClaimContext, claim, silent_claims
from images.validation.claims.cpu import quantised_llama
from validate.claims import Claim, Tier
from validate.kernels import Capability, Kernel, dtype_of, expected_path, table

if TYPE_CHECKING:
    from images.hardware.inventory import Inventory

ENVELOPES: Mapping[str, Any] = yamlfile.table("envelopes.yaml")
BASELINES: Mapping[str, Mapping[str, Mapping[str, Any]]] = yamlfile.table("baselines.json")
"""Image -> GPU model -> subject of `step` -> what recorded runs say (tools/baselines.py)."""
_TERA = 1e12
_QUANTISED_LLAMA = {
    "weights": "on the GPU, loading in 4-bit stores every projection as NF4, and its memory shows it",
    "logits": "on the GPU, the 4-bit model computes what its dequantised weights say",
    "training": "QLoRA with gradient checkpointing learns, leaves the base alone, and gives the same bits twice",
}
"""qlora: subject -> statement."""
_STEP_MEMORY = {8: 60 << 30, 2: 22 << 30}
"""Rows of a batch -> bytes of GPU memory that its step takes (45 GB with 8, H100)."""


def gpu_claims(context: ClaimContext) -> Iterator[Claim]:
    """The claims of the gpu tier. Where there is no GPU every claim exists, and is unproven."""
    image, inventory, no_gpu = context.image, context.inventory, context.no_gpu
    capabilities = sorted({gpu.capability for gpu in inventory.gpus}) if inventory else []
    versions = {pin.name: pin.version for pin in image.pins} | {"cuda": str(image.wheel_cuda)}
    sees = {
        "inventory": inventory.as_json() if inventory else None,
        "archs": [str(arch) for arch in image.archs],
    }
    statement = "the container sees the host's GPUs, all of them and no others"
    yield claim("device", "gpus", "gpu.device", statement, sees, unproven=no_gpu)
    for subject, row in sorted(table().items(), key=lambda item: (item[1].check, item[0])):
        if row.package not in versions or not all(name in versions for name in row.needs):
            continue
        expect = _expect(row, capabilities, versions)
        missing = context.missing.get(row.package)
        unproven = no_gpu if missing is None else f"{row.package} is not in this image: {missing}"
        # What this GPU or this version can't do is not held against the image.
        required = missing is None and "not_applicable" not in expect
        yield claim(
            row.check,
            subject,
            row.probe,
            row.statement,
            expect,
            required=required,
            unproven=unproven,
        )
    yield from quantised_llama(context, "qlora", "gpu.llama", _QUANTISED_LLAMA, no_gpu)
    yield from silent_claims(context, Tier.GPU)
    yield from _floors(context, versions)
    yield from _steps(context)


def _floors(context: ClaimContext, versions: Mapping[str, str]) -> Iterator[Claim]:
    """speed. Shares of a peak are claimed of GPU models whose peaks the table has, and required if our runs kept
    them."""
    name, capability, peaks = _one_model(context.inventory)
    unknown = "" if peaks else f"envelopes.yaml has no peaks of {name or 'the GPU that is there'}"
    for subject, row in ENVELOPES["floors"].items():
        expect: dict[str, Any] = {
            "gpu": "",
            "peak": 1.0,
            "least": row.get("least", 0.0),
            "most": row.get("most", 0.0),
        }
        gate = None
        if kernel_row := table()[row["kernel"]] if "kernel" in row else None:
            if kernel_row.package not in versions or kernel_row.package in context.missing:
                continue
            gate = kernel_row.excludes(versions) or (
                kernel_row.supports(capability, versions) if capability else None
            )
        if of := row.get("of"):
            by_major = (
                row["least"] if isinstance(row["least"], Mapping) else {"default": row["least"]}
            )
            least = by_major.get(capability[0] if capability else None, by_major["default"])
            expect |= {"gpu": name, "peak": peaks.get(of, 0.0) * _TERA, "least": least}
        expect |= {"not_applicable": gate} if gate else {}
        unproven = context.no_gpu or (unknown if of else "")
        required = not gate and subject in peaks.get("seen", ())
        yield claim(
            "speed",
            subject,
            "gpu.speed",
            row["statement"],
            expect,
            required=required,
            unproven=unproven,
        )


def _steps(context: ClaimContext) -> Iterator[Claim]:
    """step, required where runs of the image on the GPU model are recorded."""
    name, capability, peaks = _one_model(context.inventory)
    memory = (
        min((gpu.memory for gpu in context.inventory.gpus), default=0) if context.inventory else 0
    )
    rows = next(
        (rows for rows, least in _STEP_MEMORY.items() if memory >= least), min(_STEP_MEMORY)
    )
    takes = _STEP_MEMORY[rows]
    gate = (
        ""
        if memory >= takes
        else f"a step takes {takes >> 30} GiB of GPU memory, there are {memory >> 30}"
    )
    if capability and capability < (8, 0):
        gate = f"bfloat16 takes compute capability 8.0, {name} has {capability[0]}.{capability[1]}"
    recorded = BASELINES.get(str(context.image.name), {}).get(name, {})
    for way, row in ENVELOPES["steps"].items():
        if not all(
            context.image.pin(need) and need not in context.missing for need in row["needs"]
        ):
            continue
        subject = way
        expect = {"gpu": name, "rows": rows, "at_most": row["at_most"]}
        if (
            peaks and way != "qlora"
        ):  # whose weights are packed, and have no gradients: operations aren't counted
            expect |= {"peak_operations": peaks["bf16"] * _TERA}
        expect |= {"baseline": recorded[subject]} if subject in recorded else {}
        expect |= {"not_applicable": gate} if gate and context.inventory else {}
        required = subject in recorded and "not_applicable" not in expect
        statement = row["statement"]
        yield claim(
            "step",
            subject,
            "gpu.step",
            statement,
            expect,
            required=required,
            unproven=context.no_gpu,
        )


def _one_model(inventory: Inventory | None) -> tuple[str, Capability | None, Mapping[str, Any]]:
    """The model of the host's GPUs, its compute capability and peaks; none where they differ or are not known."""
    models = {(gpu.name, gpu.capability) for gpu in inventory.gpus} if inventory else set()
    name, capability = models.pop() if len(models) == 1 else ("", None)
    return name, capability, next((row for row in ENVELOPES["gpus"] if name in row["names"]), {})


def _expect(
    row: Kernel, capabilities: Sequence[Capability], versions: Mapping[str, str]
) -> dict[str, Any]:
    """By the least capable GPU: which of several different ones a process takes first is CUDA's affair."""
    least = capabilities[0] if capabilities else None
    gate = row.excludes(versions) or (row.supports(least, versions) if least else None)
    gated = row.gated(least) if least else {}
    left_out = {**row.leaves_out(versions), **gated}
    rules = row.tolerance.items() if row.cases else ()
    return {
        "cases": [case for case in row.cases if case not in left_out],
        "tolerance": {dtype: rule for dtype, rule in rules if dtype not in map(dtype_of, gated)},
        "figures": {name: list(bounds) for name, bounds in row.figures.items()},
        "facts": dict(row.facts),
        **expected_path(row, versions),
        "libraries": list(row.libraries),
        "package": row.package,
        **({"left_out": left_out} if left_out else {}),
        **({"capability": list(least)} if least else {}),
        **({"capabilities": [list(one) for one in capabilities]} if len(capabilities) > 1 else {}),
        **({"not_applicable": gate} if gate else {}),
    }
