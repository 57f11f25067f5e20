"""The examples that images must run as users do, and how far they may be from plain torch.

EXAMPLES has a row for each. What follows from `expectation_of` is the same for all: every step is
taken, the loss falls, what is trained moves and everything else stays, the saved result lacks
nothing and loads again. The claims are made in profile.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from validate.checks._behaviour import ExampleExpect, ExampleRun

STEPS = 20
TRAINED_WEIGHTS = 21
"""How many tensors an example changes if it trains all weights."""
TRAINED_ADAPTERS = 28
"""How many tensors it changes if it trains adapters, with two each."""
CONTROL_FACTOR = 5.0
"""A control must be this many times as far off as the bound allows."""
FROZEN_FACTOR = 2.0
"""The factor of the control in which one of two layers stays frozen. It is off by only about half
of the update."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far an example's run may be from the same training in plain torch in float32."""

    losses: float
    """Largest difference of a step's loss. Losses are about 6. The Trainer logs four digits."""
    update: float
    """Difference of the weights' change, relative to its size. It is larger than that of a loss,
    because AdamW divides by small numbers."""
    reload: float
    """Largest difference of the logits of the saved result, loaded again by the framework. Logits
    are about 5."""
    held_out: float | None = None
    """Difference of the loss on held-out rows, before the result was saved and after it was loaded
    again. None: the example measures no such loss."""
    merge: float = 1e-5
    """Largest difference of merged weights from the base plus the adapters."""


FLOAT32 = Bounds(losses=0.001, update=0.01, reload=0.001, held_out=0.005)
"""The same arithmetic in another order. Measured on a CPU: losses 5e-5 (the log is rounded), update
7e-6, reload 3e-6, held_out 1e-7 (7e-4 as the mean over two ranks)."""
BFLOAT16 = Bounds(losses=0.02, update=0.15, reload=0.001, held_out=0.01)
"""Products are rounded to 8 bits, which is 0.4 %. Measured on a CPU, of all weights and of adapters
over NF4: losses 0.002, update 0.02, reload 4e-6 (the result is loaded in float32),
held_out 2e-4."""
ADAPTERS_FLOAT32 = Bounds(losses=0.001, update=0.001, reload=0.001)
"""axolotl's adapters on a CPU. Measured: losses 5e-5, update 1e-5, reload 5e-6."""
BFLOAT16_WEIGHTS = Bounds(losses=0.06, update=0.35, reload=0.25, held_out=0.1, merge=0.001)
"""Weights and logits, too, are in bfloat16, whose steps are 0.03 near 8. These bounds and those
below were guessed; runs on GPUs have kept them (results/runs.jsonl)."""
ADAPTERS_BFLOAT16 = Bounds(losses=0.08, update=0.35, reload=0.01, merge=0.005)
"""Adapters over weights in bfloat16: weights of up to 0.4 are rounded by up to 1e-3, also when
adapters are merged into them. axolotl 0.21 on an H200: losses 0.0041, update 0.035."""
WHOLE_BFLOAT16 = Bounds(losses=0.15, update=0.3, reload=0.01)
"""DeepSpeed keeps float32 copies of the weights, and saves them in bfloat16."""
STORED_BFLOAT16 = Bounds(losses=0.3, update=0.4, reload=0.01)
"""axolotl under FSDP2 stores in bfloat16 what it trains: small changes are lost."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The examples in one folder of examples/, and what most of them have in common."""

    folder: str
    profiles: tuple[str, ...]
    """The profiles whose images run them."""
    adapter: str
    """The name of the function that reads what they leave (validate/examples/evidence.py,
    ADAPTERS)."""
    commands: tuple[str, ...]
    """The commands to run after the one that makes the tiny model. {} stands for the file of the
    configuration."""


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
    """One example: how it is run, in which tiers, and what is expected of it."""

    subject: str
    family: Family
    config: str
    """The name of its configuration in the family's folder, without .yaml."""
    statement: str
    catches: str
    """What goes wrong for a user where the claim does not hold."""
    tiers: Mapping[str, Bounds | None]
    """The tiers in which it runs -> the bounds there. None: it draws its own training data, so
    plain torch cannot take the same steps."""
    commands: tuple[str, ...] = ()
    """Used instead of the family's commands."""
    adapter: str = ""
    """Used instead of the family's adapter."""
    probe: str = ""
    """The probe that runs it; empty: `TIER.examples`."""
    trains_adapters: bool = False
    """Whether it trains adapters, and not all weights."""
    merges: bool = True
    """Whether it merges its adapters into the weights."""
    seconds: float = 600.0
    """The limit for all its commands, so that one that hangs ends. An idle machine takes two
    minutes, but other probes run at the same time."""
    fall: float = 1.0
    """How far the loss must fall from 6 in 20 steps. Measured: 5.0 with all weights, 2.6 with
    adapters, 0.1 without an optimiser."""
    equal: Mapping[str, object] = field(default_factory=dict)
    """Figures that must have this value, besides those of all examples."""
    at_least: Mapping[str, float] = field(default_factory=dict)
    """Figures that must be at least this large, besides those of all examples."""
    needs: tuple[str, ...] = ()
    """Packages that the image must pin. Without one of them there is no claim."""
    capability: tuple[int, int] = (0, 0)
    """The least compute capability of the GPU."""
    extensions: str = ""
    """The package whose compiled extensions it uses."""
    without_nvcc: str = ""
    """The reason to give if the image has neither these extensions nor nvcc to compile them."""

    def training_commands(self) -> list[str]:
        """Return its commands, without the first one, which makes the tiny model."""
        commands = self.commands or self.family.commands
        return [command.format(f"{self.config}.yaml") for command in commands]

    def run(self) -> ExampleRun:
        """Return how the container runs it: folder, commands, configuration, reader and limit."""
        return {
            "folder": self.family.folder,
            "commands": ["python3 ../tiny.py", *self.training_commands()],
            "config": f"{self.config}.yaml",
            "adapter": self.adapter or self.family.adapter,
            "seconds": self.seconds,
        }


def expectation_of(example: Example, bounds: Bounds | None) -> ExampleExpect:
    """Return the values that an example's figures must be equal to, at most, or at least.

    The figures are explained where they are measured (validate/examples/evidence.py). A deviation
    is how far the example is from the same training in plain torch. Its control is the deviation of
    something that is wrong on purpose. That must be several times as far off as the bound allows,
    or the bound proves nothing.

    Without bounds, only the example's own expectations count.
    """
    if bounds is None:
        return {
            "example": example.run(),
            "equal": dict(example.equal),
            "at_least": dict(example.at_least),
        }

    # Every tensor that is trained moves, no other one does, and the saved result lacks none.
    moved = TRAINED_ADAPTERS if example.trains_adapters else TRAINED_WEIGHTS
    equal: dict[str, object] = {"steps": STEPS, "moved": moved, "unmoved": [], "lacking": []}

    # Compare losses, the change of the weights, and the result that was loaded again. The controls
    # are an optimiser that does nothing, a layer that stays frozen, and a result without a layer.
    at_most = {
        "loss_deviation": bounds.losses,
        "update_deviation": bounds.update,
        "reload_deviation": bounds.reload,
    }
    at_least = {
        "control_idle": CONTROL_FACTOR * bounds.losses,
        "control_frozen": FROZEN_FACTOR * bounds.update,
        "control_left_out": CONTROL_FACTOR * bounds.reload,
        "fall": example.fall,
    }
    # Some examples measure the loss on held-out rows. The control is the untrained model.
    if bounds.held_out is not None:
        at_most["held_out_deviation"] = bounds.held_out
        at_least["control_untrained"] = CONTROL_FACTOR * bounds.held_out
    # Some examples merge adapters into the weights. The control is the base without adapters.
    if example.trains_adapters and example.merges:
        equal |= {"merged_lacking": [], "strayed": []}
        at_most["merge_deviation"] = bounds.merge
        at_least["control_unmerged"] = CONTROL_FACTOR * bounds.merge

    # The example's own expectations win: under FSDP2, for example, the norms must not move.
    return {
        "example": example.run(),
        "equal": equal | dict(example.equal),
        "at_most": at_most,
        "at_least": at_least | dict(example.at_least),
    }


HOPPER = (9, 0)
USES_FLASH_ATTN_4 = {"flash_attn_4": 1.0}
"""The least number of its backward kernels that must be compiled."""
ONLINE_STEPS = {"steps": 60}
REWARD_RISES = {"rise": 0.3, "said_reward": 0.5}
NORMS = [
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.post_attention_layernorm.weight",
    "model.layers.1.input_layernorm.weight",
    "model.layers.1.post_attention_layernorm.weight",
    "model.norm.weight",
]
"""Weights that do not move in bfloat16: they begin at 1, where its steps are 0.004, and the
learning rate is 5e-4."""
WITHOUT_NVCC = (
    "HybridAdam is compiled with nvcc on first use,"
    " and this image has neither nvcc nor a wheel with it"
)

EXAMPLES: Sequence[Example] = (
    Example(
        subject="trainer",
        family=TRANSFORMERS,
        config="trainer",
        statement=(
            "the Trainer fine-tunes a model placed by"
            ' device_map="auto" as plain torch does, and saves it'
        ),
        catches=(
            "a tensor that the saved model lacks,"
            " a step that the Trainer leaves out (planted: tensor left out)"
        ),
        tiers={"cpu": FLOAT32, "gpu": FLOAT32},
    ),
    Example(
        subject="bf16",
        family=TRANSFORMERS,
        config="bf16",
        statement="the same in bfloat16 mixed precision",
        catches="mixed precision that quietly computes in float32",
        tiers={"cpu": BFLOAT16, "gpu": BFLOAT16},
        # A smaller deviation is that of float32 (7e-6) and not of bfloat16 (0.02).
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
        statement=(
            "QLoRA by peft and bitsandbytes trains adapters"
            " as plain torch does over the same NF4 weights"
        ),
        catches=(
            "adapters that stay frozen (planted: frozen adapters), weights that are not in 4-bit"
        ),
        tiers={"cpu": BFLOAT16, "gpu": BFLOAT16},
        commands=("python3 qlora.py {}",),
        trains_adapters=True,
        # Twice the bound of losses: training over weights that are not in 4-bit must be noticed.
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
        statement=(
            "ColossalAI's Booster with TorchDDPPlugin trains as plain torch does,"
            " and saves in shards"
        ),
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
        statement=(
            "unsloth trains adapters over 4-bit weights as plain torch does,"
            " saves, merges and loads them"
        ),
        catches=(
            "weights that are not in 4-bit, patches that change what is trained,"
            " a merge that loses the adapters"
        ),
        tiers={"gpu": BFLOAT16_WEIGHTS},
        trains_adapters=True,
        # Training over weights that are not in 4-bit must be noticed. Measured: 0.074 (H200).
        at_least={"control_unrounded": BFLOAT16_WEIGHTS.losses},
    ),
    Example(
        subject="grpo",
        family=TRL_VLLM,
        config="grpo",
        statement=(
            "GRPO with vLLM in the same process raises a reward that is computed,"
            " and what is saved answers as well"
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
        # Two GPUs, because NCCL carries the weights over and refuses two ranks on one GPU.
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
        statement=(
            "axolotl trains and merges LoRA adapters as plain torch does, and answers with them"
        ),
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
        statement=(
            "two ranks train adapters by accelerate launch as one process does in plain torch"
        ),
        catches="two ranks that each train alone",
        # Not on a CPU: with several ranks axolotl asks the driver whether GPUs reach each other,
        # and fails without a driver.
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
        catches=(
            "nothing yet: accelerate 1.12's _prepare_tp ends in a KeyError before the first step"
            " (huggingface/accelerate#3835; two H200, torch 2.8), and 1.13 was not run"
        ),
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
