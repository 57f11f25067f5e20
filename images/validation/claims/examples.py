"""The claims of examples/: each is run in the image as users run it, and held against plain torch. Pure.

A row says how an example is run and how far its result may be from plain torch's. Everything else is the same for all:
every step was taken, the loss falls, what is trained moves and the rest stays, what was saved lacks nothing, and it
loads again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from validate.checks._behaviour import ExampleExpect, ExampleRun

STEPS = 20
TRAINED_WEIGHTS = 21
"""Tensors that an example moves where it trains whole weights."""
TRAINED_ADAPTERS = 28
"""The same where it trains adapters: each has two halves."""
CONTROL_FACTOR = 5.0
"""An example's controls are to be this many times further off than the bound that they try."""
FROZEN_FACTOR = 2.0
"""The same of a run in which one layer of two stayed frozen: its update is off by about the half of it."""


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
    no such loss."""
    merge: float = 1e-5
    """Of merged weights, from the base's plus what the adapters add."""


FLOAT32 = Bounds(losses=0.001, update=0.01, reload=0.001, held_out=0.005)
"""The same arithmetic in another order. Measured on a CPU: 5e-5 (the log is rounded); 7e-6; 3e-6; 1e-7 (7e-4 as the
mean over two ranks)."""
BFLOAT16 = Bounds(losses=0.02, update=0.15, reload=0.001, held_out=0.01)
"""Products have 8 bits: 0.4 % each. Measured on a CPU, of whole weights and of adapters over NF4: 0.002; 0.02; 4e-6, as
the result is loaded in float32; 2e-4."""
ADAPTERS_FLOAT32 = Bounds(losses=0.001, update=0.001, reload=0.001)
"""axolotl's on a CPU: measured 5e-5, 1e-5 and 5e-6."""
BFLOAT16_WEIGHTS = Bounds(losses=0.06, update=0.35, reload=0.25, held_out=0.1, merge=0.001)
"""Weights and logits, too, are in bfloat16, whose steps are 0.03 near 8. These bounds and those below were guesses;
runs on GPUs that were held to them passed (results/runs.jsonl)."""
ADAPTERS_BFLOAT16 = Bounds(losses=0.08, update=0.35, reload=0.01, merge=0.005)
"""Weights of up to 0.4 in bfloat16 are 1e-3 off, and so is what is merged into them. axolotl 0.21 on an H200: losses
0.0041 off at most, weights 0.035."""
WHOLE_BFLOAT16 = Bounds(losses=0.15, update=0.3, reload=0.01)
"""DeepSpeed keeps float32 copies of the weights, and saves them in bfloat16."""
STORED_BFLOAT16 = Bounds(losses=0.3, update=0.4, reload=0.01)
"""axolotl under FSDP2 stores in bfloat16 what it trains: small changes are lost."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Examples of one folder of examples/, and what is the same for most of them."""

    folder: str
    profiles: tuple[str, ...]
    """Whose images run them."""
    adapter: str
    """Who reads what they leave (validate/examples/evidence.py, ADAPTERS)."""
    commands: tuple[str, ...]
    """After the one that makes the tiny model, with {} for the configuration."""


TRANSFORMERS = Family(
    folder="transformers",
    profiles=("transformers",),
    adapter="programs",
    commands=("python3 trainer.py {}",),
)
COLOSSALAI = Family(
    folder="colossalai",
    profiles=("colossalai",),
    adapter="booster",
    commands=("torchrun --standalone --local-addr 127.0.0.1 --nproc_per_node 1 booster.py {}",),
)
UNSLOTH = Family(
    folder="unsloth",
    profiles=("unsloth",),
    adapter="unsloth",
    commands=("python3 sft.py {}",),
)
TRL_VLLM = Family(
    folder="trl-vllm",
    profiles=("trl-vllm",),
    adapter="rewards",
    commands=("python3 online.py {}",),
)
AXOLOTL = Family(
    folder="axolotl",
    profiles=("axolotl", "axolotl-multigpu"),
    adapter="axolotl",
    commands=("axolotl train {}", "axolotl merge-lora {}"),
)
AXOLOTL_MULTIGPU = Family(
    folder="axolotl-multigpu",
    profiles=("axolotl-multigpu",),
    adapter="axolotl",
    commands=("axolotl train {} -- --num_processes=2",),
)


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example, and what is claimed of it."""

    subject: str
    family: Family
    config: str
    """The name of its configuration in the family's folder, without .yaml."""
    statement: str
    catches: str
    """What goes wrong for a user where the claim does not hold."""
    tiers: Mapping[str, Bounds | None]
    """Tiers that it runs in, each with its bounds. None: sampling decides, plain torch would take other steps."""
    commands: tuple[str, ...] = ()
    """In place of the family's."""
    adapter: str = ""
    """In place of the family's."""
    probe: str = ""
    """Who runs it; empty: `TIER.examples`."""
    trains_adapters: bool = False
    """It trains adapters, not whole weights."""
    merges: bool = True
    """It merges its adapters."""
    seconds: float = 600.0
    """For its commands, so that a hung one ends. Two minutes on an idle machine; other probes run beside it."""
    fall: float = 1.0
    """How far the loss must fall from 6 in 20 steps. Measured: 5.0 of whole weights, 2.6 of adapters, 0.1 without an
    optimiser."""
    equal: Mapping[str, object] = field(default_factory=dict)
    """Expected beside what is expected of all examples."""
    at_least: Mapping[str, float] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Pins without which there is nothing to claim."""
    capability: tuple[int, int] = (0, 0)
    """The least compute capability of the GPU."""
    extensions: str = ""
    """The package whose compiled extensions it takes."""
    without_nvcc: str = ""
    """Why it can't be had without `extensions` and without nvcc, which compiles them on first use."""

    def steps(self) -> list[str]:
        """Return the commands after the one that makes the tiny model."""
        return [
            command.format(f"{self.config}.yaml")
            for command in self.commands or self.family.commands
        ]

    def run(self) -> ExampleRun:
        """Return how the container runs it."""
        return {
            "folder": self.family.folder,
            "commands": ["python3 ../tiny.py", *self.steps()],
            "config": f"{self.config}.yaml",
            "adapter": self.adapter or self.family.adapter,
            "seconds": self.seconds,
        }


def expect_of(example: Example, bounds: Bounds | None) -> ExampleExpect:
    """Return what is expected of an example's run within these bounds."""
    if bounds is None:
        return {
            "example": example.run(),
            "equal": dict(example.equal),
            "at_least": dict(example.at_least),
        }

    moved = TRAINED_ADAPTERS if example.trains_adapters else TRAINED_WEIGHTS
    equal: dict[str, object] = {"steps": STEPS, "moved": moved, "unmoved": [], "lacking": []}
    at_most = {
        "loss_deviation": bounds.losses,
        "update_deviation": bounds.update,
        "reload_deviation": bounds.reload,
    }
    # Each control must be beyond the bound that it tries.
    at_least = {
        "control_idle": CONTROL_FACTOR * bounds.losses,
        "control_frozen": FROZEN_FACTOR * bounds.update,
        "control_left_out": CONTROL_FACTOR * bounds.reload,
        "fall": example.fall,
    }
    if bounds.held_out is not None:
        at_most["held_out_deviation"] = bounds.held_out
        at_least["control_untrained"] = CONTROL_FACTOR * bounds.held_out
    if example.trains_adapters and example.merges:
        equal |= {"merged_lacking": [], "strayed": []}
        at_most["merge_deviation"] = bounds.merge
        at_least["control_unmerged"] = CONTROL_FACTOR * bounds.merge

    return {
        "example": example.run(),
        "equal": equal | dict(example.equal),
        "at_most": at_most,
        "at_least": at_least | dict(example.at_least),
    }


HOPPER = (9, 0)
USES_FLASH_ATTN_4 = {"flash_attn_4": 1.0}
"""Its backward kernels that were compiled."""
ONLINE_STEPS = {"steps": 60}
REWARD_RISES = {"rise": 0.3, "said_reward": 0.5}
NORMS = [
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.post_attention_layernorm.weight",
    "model.layers.1.input_layernorm.weight",
    "model.layers.1.post_attention_layernorm.weight",
    "model.norm.weight",
]
"""They begin at 1, where bfloat16 has steps of 0.004: a rate of 5e-4 moves none of them."""
WITHOUT_NVCC = "HybridAdam is compiled with nvcc on first use, and this image has neither nvcc nor a wheel with it"

EXAMPLES: Sequence[Example] = (
    Example(
        subject="trainer",
        family=TRANSFORMERS,
        config="trainer",
        statement='the Trainer fine-tunes a model placed by device_map="auto" as plain torch does, and saves it',
        catches="a tensor that the saved model lacks, a step that the Trainer leaves out (planted: tensor left out)",
        tiers={"cpu": FLOAT32, "gpu": FLOAT32},
    ),
    Example(
        subject="bf16",
        family=TRANSFORMERS,
        config="bf16",
        statement="the same in bfloat16 mixed precision",
        catches="mixed precision that quietly computes in float32",
        tiers={"cpu": BFLOAT16, "gpu": BFLOAT16},
        # What is less was computed in float32 (7e-6), and not in bfloat16 (0.02).
        at_least={"update_deviation": 0.001},
    ),
    Example(
        subject="compile",
        family=TRANSFORMERS,
        config="compile",
        statement="the same, compiled by torch.compile",
        catches="torch.compile that falls back without a word, or computes other numbers",
        tiers={"cpu": FLOAT32, "gpu": FLOAT32},
        at_least={"compiled": 1},
    ),
    Example(
        subject="qlora",
        family=TRANSFORMERS,
        config="qlora",
        statement="QLoRA by peft and bitsandbytes trains adapters as plain torch does over the same NF4 weights",
        catches="adapters that stay frozen (planted: frozen adapters), weights that are not in 4-bit",
        tiers={"cpu": BFLOAT16, "gpu": BFLOAT16},
        commands=("python3 qlora.py {}",),
        trains_adapters=True,
        # Twice the bound of losses.
        at_least={"control_unrounded": 0.04},
    ),
    Example(
        subject="flash4",
        family=TRANSFORMERS,
        config="flash4",
        statement="the same in bfloat16 with the attention of flash-attn-4",
        catches="another attention than flash-attn-4's, taken without a word",
        tiers={"gpu": BFLOAT16},
        at_least=USES_FLASH_ATTN_4,
        needs=("flash-attn-4",),
        capability=HOPPER,
    ),
    Example(
        subject="ddp",
        family=TRANSFORMERS,
        config="ddp",
        statement="the Trainer in two processes trains as plain torch does in one",
        catches="two processes that each train alone",
        tiers={"cpu": FLOAT32, "multigpu": FLOAT32},
        commands=("torchrun --standalone --local-addr 127.0.0.1 --nproc_per_node 2 trainer.py {}",),
        equal={"ranks": 2},
    ),
    Example(
        subject="booster",
        family=COLOSSALAI,
        config="ddp",
        statement="ColossalAI's Booster with TorchDDPPlugin trains as plain torch does, and saves in shards",
        catches="a shard that is not saved, a step that is not plain torch's",
        tiers={"cpu": FLOAT32, "gpu": FLOAT32},
    ),
    Example(
        subject="zero",
        family=COLOSSALAI,
        config="zero",
        statement="the same with LowLevelZeroPlugin (ZeRO 2) in bfloat16, which takes a GPU",
        catches="gradients that ZeRO 2 reduces wrongly",
        tiers={"gpu": BFLOAT16_WEIGHTS},
    ),
    Example(
        subject="hybrid-adam",
        family=COLOSSALAI,
        config="hybrid-adam",
        statement="the same with TorchDDPPlugin and HybridAdam",
        catches="a compiled optimiser that takes other steps than AdamW",
        tiers={"gpu": FLOAT32},
        extensions="colossalai",
        without_nvcc=WITHOUT_NVCC,
    ),
    Example(
        subject="gemini",
        family=COLOSSALAI,
        config="gemini",
        statement="the same with GeminiPlugin and HybridAdam in bfloat16",
        catches="chunks that Gemini gathers or saves wrongly",
        tiers={"gpu": BFLOAT16_WEIGHTS},
        extensions="colossalai",
        without_nvcc=WITHOUT_NVCC,
    ),
    Example(
        subject="sft",
        family=UNSLOTH,
        config="sft",
        statement="unsloth trains adapters over 4-bit weights as plain torch does, saves, merges and loads them",
        catches="weights that are not in 4-bit, patches that change what is trained, a merge that loses the adapters",
        tiers={"gpu": BFLOAT16_WEIGHTS},
        trains_adapters=True,
        # Losses over weights that are not in 4-bit are further off than the bound (0.074, H200).
        at_least={"control_unrounded": BFLOAT16_WEIGHTS.losses},
    ),
    Example(
        subject="grpo",
        family=TRL_VLLM,
        config="grpo",
        statement=(
            "GRPO with vLLM in the same process raises a reward that is computed, and what is saved answers as well"
        ),
        catches="a sampler that the trainer's weights never reach: the reward stays where it is",
        tiers={"gpu": None},
        probe="gpu.profile_trl_vllm",
        equal=ONLINE_STEPS,
        at_least=REWARD_RISES,
    ),
    Example(
        subject="rloo",
        family=TRL_VLLM,
        config="rloo",
        statement="the same by RLOO",
        catches="the same",
        tiers={"gpu": None},
        probe="gpu.profile_trl_vllm",
        equal=ONLINE_STEPS,
        at_least=REWARD_RISES,
    ),
    Example(
        subject="grpo-server",
        family=TRL_VLLM,
        config="grpo-server",
        # NCCL carries the weights over, which refuses two ranks on one GPU. Without them the reward stays where it is.
        statement="GRPO on one GPU with a vLLM server on another raises the same reward",
        catches="a server that goes on sampling from the first policy",
        tiers={"multigpu": None},
        commands=("sh server.sh {}",),
        equal=ONLINE_STEPS,
        at_least=REWARD_RISES,
    ),
    Example(
        subject="trl-dpo",
        family=TRL_VLLM,
        config="dpo",
        statement="trl learns preferences by DPO as plain torch does",
        catches="a loss that prefers the wrong answer, or takes another reference than the start",
        tiers={"cpu": ADAPTERS_FLOAT32, "gpu": ADAPTERS_FLOAT32},
        commands=("python3 dpo.py {}",),
        adapter="preferences",
        trains_adapters=True,
        merges=False,
        fall=0.5,
    ),
    Example(
        subject="axolotl-lora",
        family=AXOLOTL,
        config="lora",
        statement="axolotl trains and merges LoRA adapters as plain torch does, and answers with them",
        catches="adapters that are merged into nothing, a model that answers without them",
        tiers={"cpu": ADAPTERS_FLOAT32, "gpu": ADAPTERS_BFLOAT16},
        commands=("axolotl train {}", "axolotl merge-lora {}", "sh ask.sh {} out/lora"),
        trains_adapters=True,
        seconds=900.0,
        at_least={"answered": 1},
    ),
    Example(
        subject="axolotl-qlora",
        family=AXOLOTL,
        config="qlora",
        statement="the same over 4-bit weights (QLoRA)",
        catches="weights that are not in 4-bit, or a merge over rounded ones",
        tiers={"cpu": ADAPTERS_FLOAT32, "gpu": ADAPTERS_BFLOAT16},
        trains_adapters=True,
        seconds=900.0,
    ),
    Example(
        subject="axolotl-dpo",
        family=AXOLOTL,
        config="dpo",
        statement="axolotl learns preferences by DPO as plain torch does",
        catches="a loss that prefers the wrong answer, or takes another reference than the start",
        tiers={"cpu": ADAPTERS_FLOAT32, "gpu": ADAPTERS_BFLOAT16},
        commands=("axolotl train {}",),
        trains_adapters=True,
        merges=False,
        seconds=900.0,
        fall=0.5,
    ),
    Example(
        subject="axolotl-flash4",
        family=AXOLOTL,
        config="flash4",
        statement="LoRA with the attention of flash-attn-4 trains adapters as plain torch does",
        catches="another attention than flash-attn-4's, taken without a word",
        tiers={"gpu": ADAPTERS_BFLOAT16},
        trains_adapters=True,
        seconds=900.0,
        at_least=USES_FLASH_ATTN_4,
        needs=("flash-attn-4",),
        capability=HOPPER,
    ),
    Example(
        subject="axolotl-ddp",
        family=AXOLOTL_MULTIGPU,
        config="ddp",
        statement="two ranks train adapters by accelerate launch as one process does in plain torch",
        catches="two ranks that each train alone",
        # Not on a CPU: with several ranks axolotl asks the driver whether GPUs reach each other, and dies without one.
        tiers={"multigpu": ADAPTERS_BFLOAT16},
        commands=("accelerate launch --num_processes 2 -m axolotl.cli.train {}",),
        trains_adapters=True,
        merges=False,
        seconds=900.0,
    ),
    Example(
        subject="axolotl-fsdp2",
        family=AXOLOTL_MULTIGPU,
        config="fsdp2",
        statement="axolotl trains in FSDP2's shards as plain torch does, and merges them",
        catches="shards that are merged wrongly",
        tiers={"multigpu": STORED_BFLOAT16},
        commands=("axolotl train {} -- --num_processes=2", "axolotl merge-sharded-fsdp-weights {}"),
        equal={"moved": 16, "unmoved": NORMS},
    ),
    Example(
        subject="axolotl-zero2",
        family=AXOLOTL_MULTIGPU,
        config="zero2",
        statement="axolotl trains by DeepSpeed's ZeRO 2 as plain torch does",
        catches="a configuration of DeepSpeed that axolotl or the Trainer reads otherwise",
        tiers={"multigpu": WHOLE_BFLOAT16},
        needs=("deepspeed",),
    ),
    Example(
        subject="axolotl-zero2-offload",
        family=AXOLOTL_MULTIGPU,
        config="zero2-offload",
        statement="the same with moments in the host's memory",
        catches="moments that are lost on their way to the host's memory",
        tiers={"multigpu": WHOLE_BFLOAT16},
        needs=("deepspeed",),
    ),
    Example(
        subject="axolotl-zero3",
        family=AXOLOTL_MULTIGPU,
        config="zero3",
        statement="axolotl trains by DeepSpeed's ZeRO 3, under torchrun, as plain torch does",
        catches="partitioned weights that are saved as parts",
        tiers={"multigpu": WHOLE_BFLOAT16},
        commands=("torchrun --nproc_per_node=2 -m axolotl.cli.train {}",),
        needs=("deepspeed",),
    ),
    Example(
        subject="axolotl-zero3-offload",
        family=AXOLOTL_MULTIGPU,
        config="zero3-offload",
        statement="the same with weights and moments in the host's memory",
        catches="weights that are lost on their way to the host's memory",
        tiers={"multigpu": WHOLE_BFLOAT16},
        needs=("deepspeed",),
    ),
    Example(
        subject="axolotl-tensor-parallel",
        family=AXOLOTL_MULTIGPU,
        config="tensor-parallel",
        statement="axolotl trains layers that are split over two GPUs as plain torch does",
        catches="nothing yet: accelerate's _prepare_tp ends in a KeyError before the first step (two H200, torch 2.8)",
        tiers={},  # no claim
    ),
    Example(
        subject="axolotl-context-parallel",
        family=AXOLOTL_MULTIGPU,
        config="context-parallel",
        statement="axolotl trains rows that are split over two GPUs as plain torch does",
        catches="ranks that attend to their own part of a row alone",
        tiers={"multigpu": ADAPTERS_BFLOAT16},
        trains_adapters=True,
        merges=False,
        needs=("flash-attn", "ring-flash-attn"),
    ),
)
"""In the order that reports show."""
