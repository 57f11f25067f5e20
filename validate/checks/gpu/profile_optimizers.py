"""framework of compiled optimisers: FusedAdam (ColossalAI, DeepSpeed) must step as AdamW does."""

import importlib
import sys
from functools import partial
from typing import NamedTuple

from validate.checks._adam import NEXT_STEP, judge_adam
from validate.harness import adam
from validate.harness.forked import measure_claimed_subjects


class CompiledOptimizer(NamedTuple):
    """An optimiser, and the module of its kernel, which was compiled when the image was built."""

    module: str
    name: str
    kernel_module: str


_OPTIMIZERS = {
    "colossalai-fused-adam": CompiledOptimizer(
        # On a GPU, HybridAdam is FusedAdam.
        module="colossalai.nn.optimizer",
        name="HybridAdam",
        kernel_module="colossalai._C.fused_optim_cuda",
    ),
    "deepspeed-fused-adam": CompiledOptimizer(
        module="deepspeed.ops.adam",
        name="FusedAdam",
        kernel_module="deepspeed.ops.adam.fused_adam_op",
    ),
}
"""By the subject of the claim."""


def measure_optimizer(optimizer: CompiledOptimizer) -> adam.CompiledDeviations:
    """Compare the steps of an optimiser with torch's AdamW on the GPU.

    "compiled_ahead" tells whether it used the kernel that was compiled with the image: then its
    module is loaded.
    """
    optimizer_class = getattr(importlib.import_module(optimizer.module), optimizer.name)
    deviations = adam.compare(optimizer_class, "cuda")
    return {**deviations, "compiled_ahead": optimizer.kernel_module in sys.modules}


measure = partial(
    measure_claimed_subjects,
    measures={
        subject: partial(measure_optimizer, optimizer) for subject, optimizer in _OPTIMIZERS.items()
    },
)
CLAIMS = {f"framework/{subject}": judge_adam for subject in _OPTIMIZERS}
NEXT_STEPS = dict.fromkeys(CLAIMS, NEXT_STEP)
