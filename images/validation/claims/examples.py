"""The claims of examples/: each is run in the image as users run it, and held against plain torch. Pure.

A row says how to run an example and what its result may deviate. Everything else is the same for all: every step was
taken, the loss falls, what is trained moves and the rest stays, what was saved lacks nothing, and it loads again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from validate.claims import Tier

_STEPS = 20
_WEIGHTS, _ADAPTERS = 21, 28
"""Trained tensors: weights, or halves of adapters."""
_ROUNDED = 1e-3
"""Of the weights' change: what is less was computed in float32 (7e-6), and not in bfloat16 (0.02)."""
_HYBRID_ADAM = "HybridAdam is compiled with nvcc on first use, and this image has neither nvcc nor a wheel with it"
_NORMS = [
    *(f"model.layers.{layer}.{name}_layernorm.weight" for layer in range(2) for name in ("input", "post_attention")),
    "model.norm.weight",
]
"""They begin at 1, where bfloat16 has steps of 0.004: under axolotl's FSDP2 a rate of 5e-4 moves none of them."""


@dataclass(frozen=True)
class Behaviour:
    """What the images of some profiles must do."""

    profiles: tuple[str, ...]
    probe: str
    statement: str
    expect: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    """Pins without which there is nothing to claim."""
    extensions: str = ""
    """The package whose compiled extensions it takes: without them it is UNPROVEN, and not required."""
    without_nvcc: str = ""
    """Why it can't be had without those extensions and without nvcc, which compiles them on first use."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far from plain torch in float32 a run may be. Losses and logits are in their own units, about 6 and 5."""

    losses: float
    """Of each step. The Trainer rounds what it logs to four digits."""
    update: float
    """Of the weights' change, relative to its size. AdamW divides by small numbers, so it is larger than a loss's."""
    reload: float
    """Of the logits of the saved result, loaded again by the framework."""
    held_out: float | None = None
    """Between the loss that the example measured itself and that of the saved result, loaded again. None: it measures
    none."""
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
ADAPTERS_FLOAT32 = Bounds(losses=1e-3, update=1e-3, reload=1e-3)
"""axolotl's on a CPU: measured 5e-5, 1e-5 and 5e-6. The Trainer rounds what it logs to four digits."""
# No GPU has measured the bounds below yet: they are guesses.
BFLOAT16_WEIGHTS = Bounds(losses=0.06, update=0.35, reload=0.25, held_out=0.1, merge=1e-3)
"""Weights and logits, too, are in bfloat16 (steps of 0.03 near 8)."""
ADAPTERS_BFLOAT16 = Bounds(losses=0.08, update=0.35, reload=1e-2, merge=5e-3)
"""Weights of up to 0.4 in bfloat16 are 1e-3 off, and so is what is merged into them."""
WHOLE_BFLOAT16 = Bounds(losses=0.15, update=0.3, reload=1e-2)
"""DeepSpeed keeps float32 copies of the weights, and saves them in bfloat16."""
STORED_BFLOAT16 = Bounds(losses=0.3, update=0.4, reload=1e-2)
"""axolotl under FSDP2, and with tensor parallelism, stores in bfloat16 what it trains: small changes are lost."""


@dataclass(frozen=True)
class Family:
    """Examples of one folder, and what is the same for most of them."""

    folder: str
    adapter: str
    """Who reads what they leave (validate/examples/evidence.py, ADAPTERS)."""
    profiles: tuple[str, ...]
    """Whose images run them."""
    commands: tuple[str, ...]
    """With `{}` for the configuration's name."""


@dataclass(frozen=True)
class Example:
    """An example and the tiers that it runs in, each with its bounds."""

    family: Family
    name: str
    """Of its configuration, in the family's folder."""
    statement: str
    tiers: Mapping[Tier, Bounds]
    own_commands: tuple[str, ...] = ()
    """In place of the family's."""
    _: KW_ONLY
    adapters: bool = False
    """It trains adapters, not whole weights."""
    merges: bool = True
    """Whether it merges its adapters."""
    seconds: float = 600.0
    """For its commands: a hung one ends. Two minutes on an idle machine, and the suite's other probes run beside it."""
    extensions: str = ""
    without_nvcc: str = ""
    needs: tuple[str, ...] = ()
    fall: float = 1.0
    """Of the loss from 6, in 20 steps. Measured: 5.0 of whole weights, 2.6 of adapters; without an optimiser 0.1."""
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What else is expected: `equal`, `at_most` and `at_least`, added to what is expected of all."""

    @property
    def config(self) -> str:
        return f"{self.name}.yaml"

    @property
    def commands(self) -> tuple[str, ...]:
        """After the one that makes the tiny model."""
        return tuple(one.format(self.config) for one in self.own_commands or self.family.commands)


_TORCHRUN = "torchrun --standalone --local-addr 127.0.0.1 --nproc_per_node"
_TRAIN, _MERGE = "axolotl train {}", "axolotl merge-lora {}"
_TRAIN_ON_TWO = "axolotl train {} -- --num_processes=2"
_TRANSFORMERS = Family("transformers", "programs", ("transformers",), ("python3 trainer.py {}",))
_COLOSSALAI = Family("colossalai", "booster", ("colossalai",), (f"{_TORCHRUN} 1 booster.py {{}}",))
_UNSLOTH = Family("unsloth", "unsloth", ("unsloth",), ("python3 sft.py {}",))
_AXOLOTL = Family("axolotl", "axolotl", ("axolotl", "axolotl-multigpu"), (_TRAIN, _MERGE))
_SEVERAL = Family("axolotl-multigpu", "axolotl", ("axolotl-multigpu",), (_TRAIN_ON_TWO,))
_CPU_AND_GPU = {Tier.CPU: FLOAT32, Tier.GPU: FLOAT32}
_IN_BFLOAT16 = {Tier.CPU: BFLOAT16, Tier.GPU: BFLOAT16}
_OF_ADAPTERS = {Tier.CPU: ADAPTERS_FLOAT32, Tier.GPU: ADAPTERS_BFLOAT16}
_WHOLE_ON_TWO = {Tier.MULTIGPU: WHOLE_BFLOAT16}
EXAMPLES: Mapping[str, Example] = {
    "example trainer": Example(
        _TRANSFORMERS,
        "trainer",
        'the Trainer fine-tunes a model placed by device_map="auto" as plain torch does, and saves it',
        _CPU_AND_GPU,
    ),
    "example bf16": Example(
        _TRANSFORMERS,
        "bf16",
        "the same in bfloat16 mixed precision",
        _IN_BFLOAT16,
        more={"at_least": {"update_deviation": _ROUNDED}},
    ),
    "example compile": Example(
        _TRANSFORMERS,
        "compile",
        "the same, compiled by torch.compile",
        _CPU_AND_GPU,
        more={"at_least": {"compiled": 1}},
    ),
    "example qlora": Example(
        _TRANSFORMERS,
        "qlora",
        "QLoRA by peft and bitsandbytes trains adapters as plain torch does over the same NF4 weights",
        _IN_BFLOAT16,
        ("python3 qlora.py {}",),
        adapters=True,
        more={"at_least": {"control_unrounded": 2 * BFLOAT16.losses}},
    ),
    "example ddp": Example(
        _TRANSFORMERS,
        "ddp",
        "the Trainer in two processes trains as plain torch does in one",
        {Tier.CPU: FLOAT32, Tier.MULTIGPU: FLOAT32},
        (f"{_TORCHRUN} 2 trainer.py {{}}",),
        more={"equal": {"ranks": 2}},
    ),
    "example booster": Example(
        _COLOSSALAI,
        "ddp",
        "ColossalAI's Booster with TorchDDPPlugin trains as plain torch does, and saves in shards",
        _CPU_AND_GPU,
    ),
    "example zero": Example(
        _COLOSSALAI,
        "zero",
        "the same with LowLevelZeroPlugin (ZeRO 2) in bfloat16, which takes a GPU",
        {Tier.GPU: BFLOAT16_WEIGHTS},
    ),
    "example hybrid-adam": Example(
        _COLOSSALAI,
        "hybrid-adam",
        "the same with TorchDDPPlugin and HybridAdam",
        {Tier.GPU: FLOAT32},
        extensions="colossalai",
        without_nvcc=_HYBRID_ADAM,
    ),
    "example gemini": Example(
        _COLOSSALAI,
        "gemini",
        "the same with GeminiPlugin and HybridAdam in bfloat16",
        {Tier.GPU: BFLOAT16_WEIGHTS},
        extensions="colossalai",
        without_nvcc=_HYBRID_ADAM,
    ),
    "example sft": Example(
        _UNSLOTH,
        "sft",
        "unsloth trains adapters over 4-bit weights as plain torch does, saves, merges and loads them",
        {Tier.GPU: BFLOAT16_WEIGHTS},
        adapters=True,
    ),
    "example axolotl lora": Example(
        _AXOLOTL,
        "lora",
        "axolotl trains and merges LoRA adapters as plain torch does, and answers with them",
        _OF_ADAPTERS,
        (_TRAIN, _MERGE, "sh ask.sh {} out/lora"),
        adapters=True,
        seconds=900.0,
        more={"at_least": {"answered": 1}},
    ),
    "example axolotl qlora": Example(
        _AXOLOTL,
        "qlora",
        "the same over 4-bit weights (QLoRA)",
        _OF_ADAPTERS,
        adapters=True,
        seconds=900.0,
    ),
    "example axolotl dpo": Example(
        _AXOLOTL,
        "dpo",
        "axolotl learns preferences by DPO as plain torch does",
        _OF_ADAPTERS,
        (_TRAIN,),
        adapters=True,
        merges=False,
        seconds=900.0,
        fall=0.5,
    ),
    "example axolotl ddp": Example(
        _SEVERAL,
        "ddp",
        "two ranks train adapters by accelerate launch as one process does in plain torch",
        # Not on a CPU: with several ranks axolotl asks the driver whether GPUs reach each other, and dies without one.
        {Tier.MULTIGPU: ADAPTERS_BFLOAT16},
        ("accelerate launch --num_processes 2 -m axolotl.cli.train {}",),
        adapters=True,
        merges=False,
        seconds=900.0,
    ),
    "example axolotl fsdp2": Example(
        _SEVERAL,
        "fsdp2",
        "axolotl trains in FSDP2's shards as plain torch does, and merges them",
        {Tier.MULTIGPU: STORED_BFLOAT16},
        (_TRAIN_ON_TWO, "axolotl merge-sharded-fsdp-weights {}"),
        more={"equal": {"moved": _WEIGHTS - len(_NORMS), "unmoved": _NORMS}},
    ),
    "example axolotl zero2": Example(
        _SEVERAL,
        "zero2",
        "axolotl trains by DeepSpeed's ZeRO 2 as plain torch does",
        _WHOLE_ON_TWO,
        needs=("deepspeed",),
    ),
    "example axolotl zero2-offload": Example(
        _SEVERAL,
        "zero2-offload",
        "the same with moments in the host's memory",
        _WHOLE_ON_TWO,
        needs=("deepspeed",),
    ),
    "example axolotl zero3": Example(
        _SEVERAL,
        "zero3",
        "axolotl trains by DeepSpeed's ZeRO 3, under torchrun, as plain torch does",
        _WHOLE_ON_TWO,
        ("torchrun --nproc_per_node=2 -m axolotl.cli.train {}",),
        needs=("deepspeed",),
    ),
    "example axolotl zero3-offload": Example(
        _SEVERAL,
        "zero3-offload",
        "the same with weights and moments in the host's memory",
        _WHOLE_ON_TWO,
        needs=("deepspeed",),
    ),
    "example axolotl tensor-parallel": Example(
        _SEVERAL,
        "tensor-parallel",
        "axolotl trains layers that are split over two GPUs as plain torch does",
        {},  # no claim: accelerate's _prepare_tp ends in a KeyError before the first step (two H200, torch 2.8)
    ),
    "example axolotl context-parallel": Example(
        _SEVERAL,
        "context-parallel",
        "axolotl trains rows that are split over two GPUs as plain torch does",
        {Tier.MULTIGPU: ADAPTERS_BFLOAT16},
        adapters=True,
        merges=False,
        needs=("flash-attn", "ring-flash-attn"),
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
                    example.family.profiles,
                    f"{tier}.examples",
                    example.statement,
                    _expect(example, bounds),
                    needs=example.needs,
                    extensions=example.extensions,
                    without_nvcc=example.without_nvcc,
                ),
            )


def _expect(example: Example, bounds: Bounds) -> dict[str, Any]:
    more, merges, apart = example.more, example.adapters and example.merges, bounds.apart
    held_out = {} if bounds.held_out is None else {"held_out_deviation": bounds.held_out}
    untrained = {} if bounds.held_out is None else {"control_untrained": apart * bounds.held_out}
    return {
        "example": {
            "folder": example.family.folder,
            "commands": ("python3 ../tiny.py", *example.commands),
            "config": example.config,
            "adapter": example.family.adapter,
            "seconds": example.seconds,
        },
        "equal": {
            "steps": _STEPS,
            "moved": _ADAPTERS if example.adapters else _WEIGHTS,
            "unmoved": [],
            "lacking": [],
            **({"merged_lacking": [], "strayed": []} if merges else {}),
            **more.get("equal", {}),
        },
        "at_most": {
            "loss_deviation": bounds.losses,
            "update_deviation": bounds.update,
            "reload_deviation": bounds.reload,
            **held_out,
            **({"merge_deviation": bounds.merge} if merges else {}),
            **more.get("at_most", {}),
        },
        "at_least": {
            "control_idle": apart * bounds.losses,
            "control_frozen": 2 * bounds.update,
            "control_left_out": apart * bounds.reload,
            "fall": example.fall,
            **untrained,
            **({"control_unmerged": apart * bounds.merge} if merges else {}),
            **more.get("at_least", {}),
        },
    }
