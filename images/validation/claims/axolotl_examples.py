"""The examples of axolotl, on one GPU and on several. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from images.validation.claims.example import Bounds, Example
from validate.claims import Tier

ADAPTERS_FLOAT32 = Bounds(losses=1e-3, update=1e-3, reload=1e-3)
"""axolotl's on a CPU: measured 5e-5, 1e-5 and 5e-6. The Trainer rounds what it logs to four digits."""
# No GPU has measured the bounds below yet: they are guesses.
ADAPTERS_BFLOAT16 = Bounds(losses=0.08, update=0.35, reload=1e-2, merge=5e-3)
"""Weights of up to 0.4 in bfloat16 are 1e-3 off, and so is what is merged into them."""
WHOLE_BFLOAT16 = Bounds(losses=0.15, update=0.3, reload=1e-2)
"""DeepSpeed keeps float32 copies of the weights, and saves them in bfloat16."""
STORED_BFLOAT16 = Bounds(losses=0.3, update=0.4, reload=1e-2)
"""axolotl under FSDP2, and with tensor parallelism, stores in bfloat16 what it trains: small changes are lost."""

_NORMS = [
    *(f"model.layers.{layer}.{name}_layernorm.weight" for layer in range(2) for name in ("input", "post_attention")),
    "model.norm.weight",
]
"""They begin at 1, where bfloat16 has steps of 0.004: under axolotl's FSDP2 a rate of 5e-4 moves none of them."""
_TINY = "python3 ../tiny.py"
_AXOLOTL = ("axolotl", "axolotl-multigpu")


def _axolotl(name: str, statement: str, *, asks: bool = False) -> Example:
    """Adapters by axolotl on one GPU, or a CPU: trained, and merged unless it learns preferences."""
    train, merge = f"axolotl train {name}.yaml", f"axolotl merge-lora {name}.yaml"
    merges = name != "dpo"
    commands = (_TINY, train, *((merge,) if merges else ()), *((f"sh ask.sh {name}.yaml out/{name}",) if asks else ()))
    return Example(
        profiles=_AXOLOTL,
        folder="axolotl",
        adapter="axolotl",
        config=f"{name}.yaml",
        commands=commands,
        statement=statement,
        tiers={Tier.CPU: ADAPTERS_FLOAT32, Tier.GPU: ADAPTERS_BFLOAT16},
        steps=20,
        moved=28,
        adapters=True,
        merges=merges,
        seconds=900.0,
        more={"at_least": {"answered": 1}} if asks else {},
        fall=0.5 if name == "dpo" else 1.0,
    )


def _several(
    config: str, statement: str, bounds: Bounds, command: str, *, after: str = "", needs: tuple[str, ...] = ()
) -> Example:
    """axolotl on two GPUs: whole weights."""
    return Example(
        profiles=("axolotl-multigpu",),
        folder="axolotl-multigpu",
        adapter="axolotl",
        config=f"{config}.yaml",
        commands=(_TINY, command, *((after,) if after else ())),
        statement=statement,
        tiers={Tier.MULTIGPU: bounds},
        steps=20,
        moved=21,
        needs=needs,
    )


AXOLOTL: Mapping[str, Example] = {
    "example axolotl lora": _axolotl(
        "lora", "axolotl trains and merges LoRA adapters as plain torch does, and answers with them", asks=True
    ),
    "example axolotl qlora": _axolotl("qlora", "the same over 4-bit weights (QLoRA)"),
    "example axolotl dpo": _axolotl("dpo", "axolotl learns preferences by DPO as plain torch does"),
    "example axolotl ddp": Example(
        profiles=("axolotl-multigpu",),
        folder="axolotl-multigpu",
        adapter="axolotl",
        config="ddp.yaml",
        commands=(_TINY, "accelerate launch --num_processes 2 -m axolotl.cli.train ddp.yaml"),
        statement="two ranks train adapters by accelerate launch as one process does in plain torch",
        # Not on a CPU: with several ranks axolotl asks the driver whether GPUs reach each other, and dies without one.
        tiers={Tier.MULTIGPU: ADAPTERS_BFLOAT16},
        steps=20,
        moved=28,
        adapters=True,
        merges=False,
        seconds=900.0,
    ),
    "example axolotl fsdp2": replace(
        _several(
            "fsdp2",
            "axolotl trains in FSDP2's shards as plain torch does, and merges them",
            STORED_BFLOAT16,
            "axolotl train fsdp2.yaml -- --num_processes=2",
            after="axolotl merge-sharded-fsdp-weights fsdp2.yaml",
        ),
        more={"equal": {"moved": 21 - len(_NORMS), "unmoved": _NORMS}},
    ),
    "example axolotl zero2": _several(
        "zero2",
        "axolotl trains by DeepSpeed's ZeRO 2 as plain torch does",
        WHOLE_BFLOAT16,
        "axolotl train zero2.yaml -- --num_processes=2",
        needs=("deepspeed",),
    ),
    "example axolotl zero2-offload": _several(
        "zero2-offload",
        "the same with moments in the host's memory",
        WHOLE_BFLOAT16,
        "axolotl train zero2-offload.yaml -- --num_processes=2",
        needs=("deepspeed",),
    ),
    "example axolotl zero3": _several(
        "zero3",
        "axolotl trains by DeepSpeed's ZeRO 3, under torchrun, as plain torch does",
        WHOLE_BFLOAT16,
        "torchrun --nproc_per_node=2 -m axolotl.cli.train zero3.yaml",
        needs=("deepspeed",),
    ),
    "example axolotl zero3-offload": _several(
        "zero3-offload",
        "the same with weights and moments in the host's memory",
        WHOLE_BFLOAT16,
        "axolotl train zero3-offload.yaml -- --num_processes=2",
        needs=("deepspeed",),
    ),
    "example axolotl tensor-parallel": replace(
        _several(
            "tensor-parallel",
            "axolotl trains layers that are split over two GPUs as plain torch does",
            STORED_BFLOAT16,
            "axolotl train tensor-parallel.yaml -- --num_processes=2",
        ),
        # No claim: accelerate's _prepare_tp ends in a KeyError before the first step (two H200, torch 2.8).
        tiers={},
    ),
    "example axolotl context-parallel": Example(
        profiles=("axolotl-multigpu",),
        folder="axolotl-multigpu",
        adapter="axolotl",
        config="context-parallel.yaml",
        commands=(_TINY, "axolotl train context-parallel.yaml -- --num_processes=2"),
        statement="axolotl trains rows that are split over two GPUs as plain torch does",
        tiers={Tier.MULTIGPU: ADAPTERS_BFLOAT16},
        steps=20,
        moved=28,
        adapters=True,
        merges=False,
        needs=("flash-attn", "ring-flash-attn"),
    ),
}
"""Subject -> example, in the order that reports show."""
