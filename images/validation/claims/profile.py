"""The claims of profiles: what their pages ask beyond packages, versions and variables (S1, S7). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from images.validation.claims.context import ClaimContext, claim
from images.validation.claims.examples import Behaviour, example_rows
from images.validation.claims.provenance import ENTRYPOINT
from validate.claims import Claim

_SAME_NUMBERS = 1e-4
"""Float32 logits of order 1 to 10 through another path; a result 1 % off is 0.05 away (measured with torch 2.8)."""
_TOLD_APART = 1e-2
_LEARNED = 0.2
"""Eight steps on one batch bring a tiny model's loss below 1 % of its start (measured): it learns, or it does not."""
_TRANSFORMERS = ("transformers",)
_AXOLOTL = ("axolotl", "axolotl-multigpu")
_SEVERAL = ("axolotl-multigpu",)
_COLOSSALAI = ("colossalai",)
_ADAM = {
    "equal": {"compiled_ahead": True},
    "at_most": {"deviation": 2e-6},
    "at_least": {"moved": 0.02, "control_adam": 1e-3, "control_fewer": 1e-3},
}
"""Four steps of 0.01 on weights of order 1 to 4, in float32: rounding is 5e-7 and less. The controls are AdamW without
one of its parts."""
BEHAVIOURS: Mapping[str, Behaviour] = {
    "device-map": Behaviour(
        _TRANSFORMERS,
        "cpu.profile_transformers",
        'device_map="auto" places a whole model, and what memory can\'t hold on disk, with the same numbers',
        {
            "equal": {"unplaced": 0, "devices": ["cpu"], "split_devices": ["cpu", "disk"]},
            "at_most": {"deviation": _SAME_NUMBERS, "split_deviation": _SAME_NUMBERS},
            "at_least": {"split_control": _TOLD_APART},
        },
    ),
    "mixed-precision": Behaviour(
        _TRANSFORMERS,
        "cpu.profile_transformers",
        "bf16 mixed precision multiplies in bfloat16, keeps weights and gradients in float32, and learns",
        {
            "equal": {
                "products": ["torch.bfloat16"],
                "parameters": ["torch.float32"],
                "gradients": ["torch.float32"],
            },
            "at_most": {"loss_ratio": _LEARNED},
        },
    ),
    "compile": Behaviour(
        _TRANSFORMERS,
        "cpu.profile_transformers",
        "torch.compile captures a transformers model, with the same numbers",
        {"at_least": {"graphs": 1, "control": _TOLD_APART}, "at_most": {"deviation": _SAME_NUMBERS}},
    ),
    "trainer": Behaviour(
        _TRANSFORMERS,
        "cpu.profile_transformers",
        "Trainer trains a model, moves every weight, and saves it",
        {"equal": {"steps": 8}, "at_most": {"loss_ratio": _LEARNED}, "at_least": {"moved_share": 0.99}},
    ),
    "axolotl commands": Behaviour(
        _AXOLOTL,
        "cpu.profile_axolotl",
        "axolotl's command line loads, with its trainers and tools",
        {
            "holds": {
                "commands": ["train", "preprocess", "inference", "evaluate", "merge-lora", "merge-sharded-fsdp-weights"]
            }
        },
    ),
    "axolotl configuration": Behaviour(
        _AXOLOTL,
        "cpu.profile_axolotl",
        "axolotl accepts a QLoRA configuration, and refuses QLoRA on 8-bit weights",
        {"equal": {"adapter": "qlora", "load_in_4bit": True, "control_refused": True}},
    ),
    "AXOLOTL_NCCL_TIMEOUT": Behaviour(
        _SEVERAL,
        "cpu.profile_axolotl",
        "two ranks wait for each other as long as AXOLOTL_NCCL_TIMEOUT says, without it 1800 s",
        {"equal": {"world": 2, "seconds": 77.0, "default": 1800.0}},
    ),
    "NCCL_P2P_DISABLE": Behaviour(
        _SEVERAL,
        "cpu.profile_entrypoint",
        "the entrypoint sets NCCL_P2P_DISABLE=1 where GPUs can't reach each other, and nowhere else",
        {
            "program": ENTRYPOINT,
            "equal": {
                "linked": "unset",
                "apart": "1",
                "unsupported": "1",
                "single": "unset",
                "none": "unset",
                "given": "0",
            },
        },
    ),
    "deepspeed configuration": Behaviour(
        _SEVERAL,
        "cpu.profile_deepspeed",
        "DeepSpeed reads ZeRO 0 to 3, and the Trainer that hands them to it is there",
        {
            "equal": {
                "stages": [0, 1, 2, 3],
                **dict.fromkeys(("zero3_init", "control_refused", "nvcc_there_or_ignored"), True),
            }
        },
        needs=("deepspeed",),
    ),
    "ray train": Behaviour(
        _SEVERAL,
        "cpu.profile_deepspeed",
        "ray[train] trains a torch model on two workers",
        {"equal": {"workers": 2}, "at_most": {"spread": 1e-6}, "at_least": {"moved": 1e-3}},
        needs=("ray",),
    ),
    "colossalai launch": Behaviour(
        _COLOSSALAI,
        "cpu.profile_colossalai",
        "ColossalAI launches, with CUDA_DEVICE_MAX_CONNECTIONS at 1",
        {"equal": {"connections_before": "1", "connections_after": "1", "world": 1}},
    ),
    "colossalai booster": Behaviour(
        _COLOSSALAI,
        "cpu.profile_colossalai",
        "ColossalAI's Booster boosts a model, and a step of it is plain torch's step",
        {"at_most": {"deviation": 1e-6}, "at_least": {"moved": 1e-3}},
    ),
    "colossalai hybrid-adam": Behaviour(
        _COLOSSALAI,
        "cpu.profile_colossalai",
        "HybridAdam, compiled with ColossalAI, takes the steps of torch's AdamW on the CPU",
        _ADAM,
        extensions="colossalai",
    ),
    "colossalai fused-adam": Behaviour(
        _COLOSSALAI,
        "gpu.profile_optimizers",
        "HybridAdam, compiled with ColossalAI, takes the steps of torch's AdamW on a GPU",
        _ADAM,
        extensions="colossalai",
    ),
    "deepspeed cpu-adam": Behaviour(
        _SEVERAL,
        "cpu.profile_deepspeed",
        "DeepSpeed's CPUAdam, compiled with it, takes the steps of torch's AdamW",
        _ADAM,
        extensions="deepspeed",
    ),
    "deepspeed fused-adam": Behaviour(
        _SEVERAL,
        "gpu.profile_optimizers",
        "DeepSpeed's FusedAdam, compiled with it, takes the steps of torch's AdamW on a GPU",
        _ADAM,
        extensions="deepspeed",
    ),
    "unsloth import": Behaviour(
        ("unsloth",),
        "gpu.profile_unsloth",
        "unsloth imports, and takes the precision that the GPU has",
        {"equal": {"device_type": "cuda", "bf16_as_capable": True}},
    ),
    "unsloth 4-bit": Behaviour(
        ("unsloth",),
        "gpu.profile_unsloth",
        "unsloth loads a model in 4-bit: every projection is stored as NF4",
        {"equal": {"dtypes": ["torch.uint8"], "quant_types": ["nf4"]}, "at_least": {"projections": 14}},
    ),
}
"""Subject -> what is claimed, in the order that reports show."""


def profile_claims(context: ClaimContext) -> Iterator[Claim]:
    """P1 (cpu), P2 (gpu) and P3 (multigpu) of an image's profile; none of an image without one."""
    image = context.image
    by_tier = {"cpu": ("P1", ""), "gpu": ("P2", context.no_gpu), "multigpu": ("P3", context.no_ranks)}
    for subject, row in (*BEHAVIOURS.items(), *example_rows()):
        if image.profile not in row.profiles:
            continue
        pin = image.pin(row.extensions) if row.extensions else None
        has_extensions = bool(pin and pin.extensions)
        # Extensions can be had at all if they are compiled ahead of time, or on first use.
        is_possible = not row.extensions or bool(row.without_nvcc) or has_extensions
        if not is_possible or not all(image.pin(name) for name in row.needs):
            continue
        lacking = context.without_extensions(pin) if pin else ""
        if row.without_nvcc:
            lacking = "" if image.devel or (has_extensions and not lacking) else row.without_nvcc
        number, no_gpu = by_tier[row.probe.partition(".")[0]]
        yield claim(
            number,
            subject,
            row.probe,
            row.statement,
            row.expect,
            required=not lacking,
            unproven=lacking or no_gpu,
        )
