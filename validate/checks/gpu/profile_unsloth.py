"""framework of the unsloth profile: it imports, and takes the precision that the GPU has. It does not import without a
GPU.

How it loads weights in 4-bit and trains over them is the example's matter: `gpu-examples/sft`.
"""

import importlib
from functools import partial
from typing import TypedDict

from validate.checks._behaviour import judge_figures
from validate.harness.forked import measure_claimed_subjects
from validate.judging import Finding

_BF16_FROM = (8, 0)


class ImportEvidence(TypedDict):
    device_type: str
    bf16_as_capable: bool


def _imported() -> ImportEvidence:
    """Return the device that unsloth takes, and whether it takes bfloat16 where the GPU has it."""
    unsloth = importlib.import_module("unsloth")
    capability = importlib.import_module("torch").cuda.get_device_capability()
    supported = bool(unsloth.is_bfloat16_supported())
    return {
        "device_type": str(unsloth.DEVICE_TYPE),
        "bf16_as_capable": supported == (capability >= _BF16_FROM),
    }


def judge_import(_subject: str, _expect: object, evidence: ImportEvidence) -> Finding:
    """Judge that unsloth takes the GPU, in the precision that it has."""
    return judge_figures(evidence, equal={"device_type": "cuda", "bf16_as_capable": True})


measure = partial(measure_claimed_subjects, measures={"unsloth-import": _imported})
CLAIMS = {"framework/unsloth-import": judge_import}
