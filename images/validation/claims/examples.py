"""The claims of examples/: each is run in the image as users run it, and held against plain torch. Pure.

A row says how to run an example and what its result may deviate. Everything else is the same for all: every step was
taken, the loss falls, what is trained moves and the rest stays, what was saved lacks nothing, and it loads again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from images.validation.claims.behaviour import Behaviour
from validate.claims import Tier
from validate.contracts.profile import BehaviourExpect

_PROBES = {Tier.CPU: "cpu.examples", Tier.GPU: "gpu.examples", Tier.MULTIGPU: "multigpu.examples"}


_FALL = 1.0
"""Of the loss from 6, in 20 steps. Measured: 5.0 of whole weights, 2.6 of adapters; without an optimiser 0.1."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far from plain torch in float32 a run may be. Losses and logits are in their own units, about 6 and 5."""

    losses: float
    """Of each step. The Trainer rounds what it logs to four digits."""
    update: float
    """Of the weights' change, relative to its size. AdamW divides by small numbers, so it is larger than a loss's."""
    reload: float
    """Of the logits of the saved result, loaded again by the framework."""
    held_out: float
    """Between the loss that the example measured itself and that of the saved result, loaded again."""
    merge: float = 1e-5
    """Of merged weights, from the base's plus what the adapters add."""
    apart: float = 5.0
    """The controls are to be this many times further off than the bound that they try."""


FLOAT32 = Bounds(losses=1e-3, update=0.01, reload=1e-3, held_out=5e-3)
"""The same arithmetic in another order. Measured on a CPU: 5e-5 (the log is rounded); 7e-6; 3e-6; 1e-7 (7e-4 as the
mean over two ranks)."""
BFLOAT16 = Bounds(losses=0.02, update=0.15, reload=1e-3, held_out=0.01)
"""Products have 8 bits: 0.4 % each. Measured on a CPU, of whole weights and of adapters over NF4: 0.002; 0.02; 4e-6, as
the result is loaded in float32; 2e-4."""
BFLOAT16_WEIGHTS = Bounds(losses=0.06, update=0.35, reload=0.25, held_out=0.1, merge=1e-3)
"""Weights and logits, too, are in bfloat16 (steps of 0.03 near 8). Guesses: no GPU has measured them yet."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example and the tiers that it runs in."""

    profiles: tuple[str, ...]
    folder: str
    adapter: str
    config: str
    commands: tuple[str, ...]
    statement: str
    tiers: Mapping[Tier, Bounds]
    seconds: float = 600.0
    """For its commands: a hung one ends. Two minutes on an idle machine, and the suite's other probes run beside it."""
    steps: int
    moved: int
    """Trained tensors: weights, or halves of adapters."""
    adapters: bool = False
    without_nvcc: str = ""
    more: BehaviourExpect = field(default_factory=BehaviourExpect)
    """What else is expected: `equal`, `at_most` and `at_least`, added to what is expected of all."""


_ROUNDED = 1e-3
"""Of the weights' change: what is less was computed in float32 (7e-6), and not in bfloat16 (0.02)."""
_HYBRID_ADAM = "HybridAdam is compiled with nvcc on first use, and this image has none"
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
}
"""Subject -> example, in the order that reports show."""


def example_rows() -> Iterator[tuple[str, Behaviour]]:
    """Subject and row of every example, once for each of its tiers."""
    for subject, example in EXAMPLES.items():
        for tier, bounds in example.tiers.items():
            yield (
                subject,
                Behaviour(
                    profiles=example.profiles,
                    probe=_PROBES[tier],
                    statement=example.statement,
                    tier=tier,
                    without_nvcc=example.without_nvcc,
                    expect=_expect(example, bounds),
                ),
            )


def _expect(example: Example, bounds: Bounds) -> BehaviourExpect:
    more = example.more
    merged: dict[str, object] = {"merged_lacking": [], "strayed": []} if example.adapters else {}
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
            "held_out_deviation": bounds.held_out,
            **({"merge_deviation": bounds.merge} if example.adapters else {}),
            **more.get("at_most", {}),
        },
        "at_least": {
            "control_idle": bounds.apart * bounds.losses,
            "control_frozen": 2 * bounds.update,
            "control_left_out": bounds.apart * bounds.reload,
            "fall": _FALL,
            "control_untrained": bounds.apart * bounds.held_out,
            **({"control_unmerged": bounds.apart * bounds.merge} if example.adapters else {}),
            **more.get("at_least", {}),
        },
    }
