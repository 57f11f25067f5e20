"""framework: check that ColossalAI's HybridAdam takes the steps of torch's AdamW.

The profile's example `booster` trains by ColossalAI's Booster, and is compared with plain torch.
"""

import importlib
import sys
from functools import partial

from validate.checks._adam import NEXT_STEP, judge_adam
from validate.harness import adam
from validate.harness.forked import measure_claimed_subjects


def compare_hybrid_adam() -> adam.CompiledDeviations:
    """Compare HybridAdam on the CPU with torch's AdamW (validate/harness/adam.py)."""
    deviations = adam.compare(importlib.import_module("colossalai.nn.optimizer").HybridAdam)
    return {**deviations, "compiled_ahead": "colossalai._C.cpu_adam_x86" in sys.modules}


measure = partial(
    measure_claimed_subjects, measures={"colossalai-hybrid-adam": compare_hybrid_adam}
)
CLAIMS = {"framework/colossalai-hybrid-adam": judge_adam}
NEXT_STEPS = dict.fromkeys(CLAIMS, NEXT_STEP)
