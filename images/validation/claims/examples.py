"""The claims of examples/: each is run in the image as users run it, and held against plain torch. Pure.

A row says how to run an example and what its result may deviate. Everything else is the same for all: every step was
taken, the loss falls, what is trained moves and the rest stays, what was saved lacks nothing, and it loads again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from images.validation.claims.axolotl_examples import AXOLOTL
from images.validation.claims.behaviour import Behaviour
from images.validation.claims.example import BFLOAT16, BFLOAT16_WEIGHTS, FLOAT32, Example
from validate.claims import Tier

if TYPE_CHECKING:
    from validate.checks._behaviour import BehaviourExpect

_PROBES = {Tier.CPU: "cpu.examples", Tier.GPU: "gpu.examples", Tier.MULTIGPU: "multigpu.examples"}
_ROUNDED = 1e-3
"""Of the weights' change: what is less was computed in float32 (7e-6), and not in bfloat16 (0.02)."""
_HYBRID_ADAM = "HybridAdam is compiled with nvcc on first use, and this image has neither nvcc nor a wheel with it"
EXAMPLES: Mapping[str, Example] = {
    "example trainer": Example(
        profiles=("transformers",),
        folder="transformers",
        adapter="programs",
        config="trainer.yaml",
        commands=("python3 ../tiny.py", "python3 trainer.py trainer.yaml"),
        statement='the Trainer fine-tunes a model placed by device_map="auto" as plain torch does, and saves it',
        tiers={Tier.CPU: FLOAT32, Tier.GPU: FLOAT32},
        steps=20,
        moved=21,
    ),
    "example bf16": Example(
        profiles=("transformers",),
        folder="transformers",
        adapter="programs",
        config="bf16.yaml",
        commands=("python3 ../tiny.py", "python3 trainer.py bf16.yaml"),
        statement="the same in bfloat16 mixed precision",
        tiers={Tier.CPU: BFLOAT16, Tier.GPU: BFLOAT16},
        steps=20,
        moved=21,
        more={"at_least": {"update_deviation": _ROUNDED}},
    ),
    "example compile": Example(
        profiles=("transformers",),
        folder="transformers",
        adapter="programs",
        config="compile.yaml",
        commands=("python3 ../tiny.py", "python3 trainer.py compile.yaml"),
        statement="the same, compiled by torch.compile",
        tiers={Tier.CPU: FLOAT32, Tier.GPU: FLOAT32},
        steps=20,
        moved=21,
        more={"at_least": {"compiled": 1}},
    ),
    "example qlora": Example(
        profiles=("transformers",),
        folder="transformers",
        adapter="programs",
        config="qlora.yaml",
        commands=("python3 ../tiny.py", "python3 qlora.py qlora.yaml"),
        statement="QLoRA by peft and bitsandbytes trains adapters as plain torch does over the same NF4 weights",
        tiers={Tier.CPU: BFLOAT16, Tier.GPU: BFLOAT16},
        steps=20,
        moved=28,
        adapters=True,
        more={"at_least": {"control_unrounded": 2 * BFLOAT16.losses}},
    ),
    "example ddp": Example(
        profiles=("transformers",),
        folder="transformers",
        adapter="programs",
        config="ddp.yaml",
        commands=(
            "python3 ../tiny.py",
            "torchrun --standalone --local-addr 127.0.0.1 --nproc_per_node 2 trainer.py ddp.yaml",
        ),
        statement="the Trainer in two processes trains as plain torch does in one",
        tiers={Tier.CPU: FLOAT32, Tier.MULTIGPU: FLOAT32},
        steps=20,
        moved=21,
        more={"equal": {"ranks": 2}},
    ),
    "example booster": Example(
        profiles=("colossalai",),
        folder="colossalai",
        adapter="booster",
        config="ddp.yaml",
        commands=(
            "python3 ../tiny.py",
            "torchrun --standalone --local-addr 127.0.0.1 --nproc_per_node 1 booster.py ddp.yaml",
        ),
        statement="ColossalAI's Booster with TorchDDPPlugin trains as plain torch does, and saves in shards",
        tiers={Tier.CPU: FLOAT32, Tier.GPU: FLOAT32},
        steps=20,
        moved=21,
    ),
    "example zero": Example(
        profiles=("colossalai",),
        folder="colossalai",
        adapter="booster",
        config="zero.yaml",
        commands=(
            "python3 ../tiny.py",
            "torchrun --standalone --local-addr 127.0.0.1 --nproc_per_node 1 booster.py zero.yaml",
        ),
        statement="the same with LowLevelZeroPlugin (ZeRO 2) in bfloat16, which takes a GPU",
        tiers={Tier.GPU: BFLOAT16_WEIGHTS},
        steps=20,
        moved=21,
    ),
    "example hybrid-adam": Example(
        profiles=("colossalai",),
        folder="colossalai",
        adapter="booster",
        config="hybrid-adam.yaml",
        commands=(
            "python3 ../tiny.py",
            "torchrun --standalone --local-addr 127.0.0.1 --nproc_per_node 1 booster.py hybrid-adam.yaml",
        ),
        statement="the same with TorchDDPPlugin and HybridAdam",
        tiers={Tier.GPU: FLOAT32},
        steps=20,
        moved=21,
        extensions="colossalai",
        without_nvcc=_HYBRID_ADAM,
    ),
    "example gemini": Example(
        profiles=("colossalai",),
        folder="colossalai",
        adapter="booster",
        config="gemini.yaml",
        commands=(
            "python3 ../tiny.py",
            "torchrun --standalone --local-addr 127.0.0.1 --nproc_per_node 1 booster.py gemini.yaml",
        ),
        statement="the same with GeminiPlugin and HybridAdam in bfloat16",
        tiers={Tier.GPU: BFLOAT16_WEIGHTS},
        steps=20,
        moved=21,
        extensions="colossalai",
        without_nvcc=_HYBRID_ADAM,
    ),
    "example sft": Example(
        profiles=("unsloth",),
        folder="unsloth",
        adapter="unsloth",
        config="sft.yaml",
        commands=("python3 ../tiny.py", "python3 sft.py sft.yaml"),
        statement="unsloth trains adapters over 4-bit weights as plain torch does, saves, merges and loads them",
        tiers={Tier.GPU: BFLOAT16_WEIGHTS},
        steps=20,
        moved=28,
        adapters=True,
    ),
    **AXOLOTL,
}
"""Subject -> example, in the order that reports show."""


def example_rows() -> Iterator[tuple[str, Behaviour]]:
    """Subject and row of every example, once for each of its tiers."""
    for subject, example in EXAMPLES.items():
        for tier in example.tiers:
            yield (
                subject,
                Behaviour(
                    profiles=example.profiles,
                    probe=_PROBES[tier],
                    statement=example.statement,
                    tier=tier,
                    extensions=example.extensions,
                    without_nvcc=example.without_nvcc,
                    expect=_expect(example, tier),
                    needs=example.needs,
                ),
            )


def _expect(example: Example, tier: Tier) -> BehaviourExpect:
    more, bounds, merges = example.more, example.tiers[tier], example.adapters and example.merges
    merged: dict[str, object] = {"merged_lacking": [], "strayed": []} if merges else {}
    return {
        "example": {
            "folder": example.folder,
            "commands": example.commands,
            "config": example.config,
            "adapter": example.adapter,
            "seconds": example.seconds,
        },
        "equal": {
            "steps": example.steps,
            "moved": example.moved,
            "unmoved": [],
            "lacking": [],
            **merged,
            **more.get("equal", {}),
        },
        "at_most": {
            "loss_deviation": bounds.losses,
            "update_deviation": bounds.update,
            "reload_deviation": bounds.reload,
            **({} if bounds.held_out is None else {"held_out_deviation": bounds.held_out}),
            **({"merge_deviation": bounds.merge} if merges else {}),
            **more.get("at_most", {}),
        },
        "at_least": {
            "control_idle": bounds.apart * bounds.losses,
            "control_frozen": 2 * bounds.update,
            "control_left_out": bounds.apart * bounds.reload,
            "fall": example.fall,
            **({} if bounds.held_out is None else {"control_untrained": bounds.apart * bounds.held_out}),
            **({"control_unmerged": bounds.apart * bounds.merge} if merges else {}),
            **more.get("at_least", {}),
        },
    }
