"""The claims of profiles: what their pages ask beyond packages, versions and variables (S1, S7). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from images.planning.image import Image
from images.validation.claims.behaviour import Behaviour
from images.validation.claims.context import ClaimContext
from images.validation.claims.examples import example_rows
from validate.claims import Claim, Tier

if TYPE_CHECKING:
    from validate.checks._behaviour import BehaviourExpect

ENTRYPOINT = "/usr/local/bin/entrypoint"
"""Where templates/stages/image.j2 puts a profile's entrypoint."""
_SAME_NUMBERS = 1e-4
"""Float32 logits of order 1 to 10 through another path; a result 1 % off is 0.05 away (measured with torch 2.8)."""
_TOLD_APART = 1e-2
_LEARNED = 0.2
"""Eight steps on one batch bring a tiny model's loss below 1 % of its start (measured): it learns, or it does not."""


_AXOLOTL = ("axolotl", "axolotl-multigpu")
_ADAM: BehaviourExpect = {
    "equal": {"compiled_ahead": True},
    "at_most": {"deviation": 2e-6},
    "at_least": {"moved": 0.02, "control_adam": 1e-3, "control_fewer": 1e-3},
}
"""Four steps of 0.01 on weights of order 1 to 4, in float32: rounding is 5e-7 and less. The controls are AdamW without
one of its parts."""
BEHAVIOURS: Mapping[str, Behaviour] = {
    "device-map": Behaviour(
        profiles=("transformers",),
        probe="cpu.profile_transformers",
        statement='device_map="auto" places a whole model, and what memory can\'t hold on disk, with the same numbers',
        expect={
            "equal": {"unplaced": 0, "devices": ["cpu"], "split_devices": ["cpu", "disk"]},
            "at_most": {"deviation": _SAME_NUMBERS, "split_deviation": _SAME_NUMBERS},
            "at_least": {"split_control": _TOLD_APART},
        },
    ),
    "mixed-precision": Behaviour(
        profiles=("transformers",),
        probe="cpu.profile_transformers",
        statement="bf16 mixed precision multiplies in bfloat16, keeps weights and gradients in float32, and learns",
        expect={
            "equal": {
                "products": ["torch.bfloat16"],
                "parameters": ["torch.float32"],
                "gradients": ["torch.float32"],
            },
            "at_most": {"loss_ratio": _LEARNED},
        },
    ),
    "compile": Behaviour(
        profiles=("transformers",),
        probe="cpu.profile_transformers",
        statement="torch.compile captures a transformers model, with the same numbers",
        expect={
            "at_least": {"graphs": 1, "control": _TOLD_APART},
            "at_most": {"deviation": _SAME_NUMBERS},
        },
    ),
    "trainer": Behaviour(
        profiles=("transformers",),
        probe="cpu.profile_transformers",
        statement="Trainer trains a model, moves every weight, and saves it",
        expect={"equal": {"steps": 8}, "at_most": {"loss_ratio": _LEARNED}, "at_least": {"moved_share": 0.99}},
    ),
    "axolotl commands": Behaviour(
        profiles=_AXOLOTL,
        probe="cpu.profile_axolotl",
        statement="axolotl's command line loads, with its trainers and tools",
        expect={
            "holds": {
                "commands": [
                    "train",
                    "preprocess",
                    "inference",
                    "evaluate",
                    "merge-lora",
                    "merge-sharded-fsdp-weights",
                ]
            }
        },
    ),
    "axolotl configuration": Behaviour(
        profiles=_AXOLOTL,
        probe="cpu.profile_axolotl",
        statement="axolotl accepts a QLoRA configuration, and refuses QLoRA on 8-bit weights",
        expect={"equal": {"adapter": "qlora", "load_in_4bit": True, "control_refused": True}},
    ),
    "AXOLOTL_NCCL_TIMEOUT": Behaviour(
        profiles=("axolotl-multigpu",),
        probe="cpu.profile_axolotl",
        statement="two ranks wait for each other as long as AXOLOTL_NCCL_TIMEOUT says, without it 1800 s",
        expect={"equal": {"world": 2, "seconds": 77.0, "default": 1800.0}},
    ),
    "NCCL_P2P_DISABLE": Behaviour(
        profiles=("axolotl-multigpu",),
        probe="cpu.profile_entrypoint",
        statement="the entrypoint sets NCCL_P2P_DISABLE=1 where GPUs can't reach each other, and nowhere else",
        expect={
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
        profiles=("axolotl-multigpu",),
        probe="cpu.profile_deepspeed",
        statement="DeepSpeed reads ZeRO 0 to 3, and the Trainer that hands them to it is there",
        needs=("deepspeed",),
        expect={
            "equal": {
                "stages": [0, 1, 2, 3],
                "zero3_init": True,
                "control_refused": True,
                "nvcc_there_or_ignored": True,
            }
        },
    ),
    "ray train": Behaviour(
        profiles=("axolotl-multigpu",),
        probe="cpu.profile_deepspeed",
        statement="ray[train] trains a torch model on two workers",
        needs=("ray",),
        expect={"equal": {"workers": 2}, "at_most": {"spread": 1e-6}, "at_least": {"moved": 1e-3}},
    ),
    "colossalai launch": Behaviour(
        profiles=("colossalai",),
        probe="cpu.profile_colossalai",
        statement="ColossalAI launches, with CUDA_DEVICE_MAX_CONNECTIONS at 1",
        expect={"equal": {"connections_before": "1", "connections_after": "1", "world": 1}},
    ),
    "colossalai booster": Behaviour(
        profiles=("colossalai",),
        probe="cpu.profile_colossalai",
        statement="ColossalAI's Booster boosts a model, and a step of it is plain torch's step",
        expect={"at_most": {"deviation": 1e-6}, "at_least": {"moved": 1e-3}},
    ),
    "colossalai hybrid-adam": Behaviour(
        profiles=("colossalai",),
        probe="cpu.profile_colossalai",
        statement="HybridAdam, compiled with ColossalAI, takes the steps of torch's AdamW on the CPU",
        extensions="colossalai",
        expect=_ADAM,
    ),
    "colossalai fused-adam": Behaviour(
        profiles=("colossalai",),
        probe="gpu.profile_optimizers",
        statement="HybridAdam, compiled with ColossalAI, takes the steps of torch's AdamW on a GPU",
        tier=Tier.GPU,
        extensions="colossalai",
        expect=_ADAM,
    ),
    "deepspeed cpu-adam": Behaviour(
        profiles=("axolotl-multigpu",),
        probe="cpu.profile_deepspeed",
        statement="DeepSpeed's CPUAdam, compiled with it, takes the steps of torch's AdamW",
        extensions="deepspeed",
        expect=_ADAM,
    ),
    "deepspeed fused-adam": Behaviour(
        profiles=("axolotl-multigpu",),
        probe="gpu.profile_optimizers",
        statement="DeepSpeed's FusedAdam, compiled with it, takes the steps of torch's AdamW on a GPU",
        tier=Tier.GPU,
        extensions="deepspeed",
        expect=_ADAM,
    ),
    "unsloth import": Behaviour(
        profiles=("unsloth",),
        probe="gpu.profile_unsloth",
        statement="unsloth imports, and takes the precision that the GPU has",
        tier=Tier.GPU,
        expect={"equal": {"device_type": "cuda", "bf16_as_capable": True}},
    ),
    "unsloth 4-bit": Behaviour(
        profiles=("unsloth",),
        probe="gpu.profile_unsloth",
        statement="unsloth loads a model in 4-bit: every projection is stored as NF4",
        tier=Tier.GPU,
        expect={"equal": {"dtypes": ["torch.uint8"], "quant_types": ["nf4"]}, "at_least": {"projections": 14}},
    ),
}
"""Subject -> what is claimed, in the order that reports show."""


_NUMBER = {Tier.CPU: "P1", Tier.GPU: "P2", Tier.MULTIGPU: "P3"}


def profile_claims(context: ClaimContext) -> Iterator[Claim]:
    """P1 (cpu), P2 (gpu) and P3 (multigpu) of an image's profile; none of an image without one."""
    image = context.image
    unproven = {Tier.CPU: "", Tier.GPU: context.no_gpu, Tier.MULTIGPU: context.no_ranks}
    for subject, row in (*BEHAVIOURS.items(), *example_rows()):
        if image.profile in row.profiles and all(image.pin(name) for name in row.needs) and _possible(image, row):
            out_of_reach = _out_of_reach(context, row)
            yield Claim(
                id=_NUMBER[row.tier],
                subject=subject,
                tier=row.tier,
                probe=row.probe,
                statement=row.statement,
                expect=row.expect,
                required=not out_of_reach,
                unproven=out_of_reach or unproven[row.tier],
            )


def _possible(image: Image, row: Behaviour) -> bool:
    """Whether the extensions that a row takes can be had at all: compiled ahead of time, or on first use."""
    pin = image.pin(row.extensions) if row.extensions else None
    return not row.extensions or bool(row.without_nvcc) or bool(pin and pin.extensions)


def _out_of_reach(context: ClaimContext, row: Behaviour) -> str:
    """Why the image can't do what a row claims; empty if it can."""
    pin = context.image.pin(row.extensions) if row.extensions else None
    lacking = context.without_extensions(pin) if pin else ""
    if row.without_nvcc:
        has = bool(pin and pin.extensions) and not lacking
        return "" if context.image.devel or has else row.without_nvcc
    return lacking
