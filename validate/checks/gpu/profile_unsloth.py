"""framework of the unsloth profile: unsloth must import, and take bfloat16 where the GPU has it.

It does not import without a GPU. The example `gpu-examples/sft` shows whether it trains.
"""

import importlib
from functools import partial
from typing import TypedDict

from validate.checks._behaviour import judge_figures
from validate.harness.forked import measure_claimed_subjects
from validate.judging import Finding
from validate.next_steps import pin

_BF16_FROM = (8, 0)
"""The compute capability from which on GPUs have bfloat16."""


class ImportEvidence(TypedDict):
    """What unsloth decided when it was imported."""

    device_type: str
    bf16_as_capable: bool  # whether it takes bfloat16 exactly if the GPU has it


def import_unsloth() -> ImportEvidence:
    """Import unsloth, and return which device it takes and whether it knows the GPU's bfloat16."""
    unsloth = importlib.import_module("unsloth")
    capability = importlib.import_module("torch").cuda.get_device_capability()
    takes_bfloat16 = bool(unsloth.is_bfloat16_supported())
    has_bfloat16 = capability >= _BF16_FROM
    return {
        "device_type": str(unsloth.DEVICE_TYPE),
        "bf16_as_capable": takes_bfloat16 == has_bfloat16,
    }


def judge_import(_subject: str, _expect: object, evidence: ImportEvidence) -> Finding:
    """Judge that unsloth takes the GPU, in the precision that it has."""
    return judge_figures(evidence, equal={"device_type": "cuda", "bf16_as_capable": True})


measure = partial(measure_claimed_subjects, measures={"unsloth-import": import_unsloth})
CLAIMS = {"framework/unsloth-import": judge_import}
NEXT_STEPS = {
    "framework/unsloth-import": pin("another release of unsloth and unsloth_zoo")
    + "; until then, set `dtype` in `FastLanguageModel.from_pretrained`"
}
