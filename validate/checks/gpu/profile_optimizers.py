"""framework of compiled optimisers: ColossalAI's HybridAdam (on a GPU its FusedAdam) and DeepSpeed's FusedAdam."""

import importlib
import sys
from functools import partial

from validate.checks._adam import judge_adam
from validate.harness import adam
from validate.harness.forked import measure_claimed_subjects

_OPTIMIZERS = {
    "colossalai-fused-adam": (
        "colossalai.nn.optimizer",
        "HybridAdam",
        "colossalai._C.fused_optim_cuda",
    ),
    "deepspeed-fused-adam": ("deepspeed.ops.adam", "FusedAdam", "deepspeed.ops.adam.fused_adam_op"),
}
"""Subject -> module, optimizer, and the module of the kernel that was compiled ahead."""


def _compared(module: str, optimizer: str, kernel: str) -> adam.CompiledDeviations:
    """Compare the steps of an optimiser on a GPU."""
    found = adam.compare(getattr(importlib.import_module(module), optimizer), "cuda")
    return {**found, "compiled_ahead": kernel in sys.modules}


measure = partial(
    measure_claimed_subjects,
    measures={subject: partial(_compared, *row) for subject, row in _OPTIMIZERS.items()},
)
CLAIMS = {f"framework/{subject}": judge_adam for subject in _OPTIMIZERS}
