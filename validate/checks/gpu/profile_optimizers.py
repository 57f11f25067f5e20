"""P2 of compiled optimisers: ColossalAI's HybridAdam (on a GPU its FusedAdam) and DeepSpeed's FusedAdam."""

import importlib
import sys
from functools import partial

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.harness import adam
from validate.harness.forked import asked

_OPTIMIZERS = {
    "colossalai fused-adam": ("colossalai.nn.optimizer", "HybridAdam", "colossalai._C.fused_optim_cuda"),
    "deepspeed fused-adam": ("deepspeed.ops.adam", "FusedAdam", "deepspeed.ops.adam.fused_adam_op"),
}
"""Subject -> module, optimizer, and the module of the kernel that was compiled ahead."""


def _compared(module: str, optimizer: str, kernel: str) -> BehaviourEvidence:
    found = adam.compare(getattr(importlib.import_module(module), optimizer), "cuda")
    return {**found, "compiled_ahead": kernel in sys.modules}


measure = partial(asked, measures={subject: partial(_compared, *row) for subject, row in _OPTIMIZERS.items()})
CLAIMS = {"P2": judge}
