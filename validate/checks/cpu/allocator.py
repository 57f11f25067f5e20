"""allocator: check that torch's CUDA allocator has the settings of the image's environment.

torch reads them from a variable that it has renamed, and does not complain about one that it does
not read: users then run out of memory where others do not. The probe asks the allocator itself,
which needs no GPU.
"""

import importlib
from functools import partial
from typing import TypedDict

from validate.checks import Settings
from validate.checks._behaviour import judge_limits
from validate.harness.forked import measure_claimed_subjects
from validate.next_steps import REPORT

SETTINGS = Settings(begins_with_torch=True)


class AllocatorEvidence(TypedDict):
    """The settings of torch's CUDA allocator."""

    settings: str  # the text of the variable that it has read; `none`: it has read none
    expandable_segments: bool


def read_settings() -> AllocatorEvidence:
    """Ask torch's CUDA allocator which settings it has read."""
    snapshot = importlib.import_module("torch").cuda.memory._snapshot()
    settings = snapshot["allocator_settings"]
    text = "none"
    # The variable is PYTORCH_CUDA_ALLOC_CONF or, in newer releases, PYTORCH_ALLOC_CONF.
    for name, value in settings.items():
        if name.startswith("PYTORCH_") and value:
            text = str(value)
            break
    return {"settings": text, "expandable_segments": bool(settings["expandable_segments"])}


measure = partial(measure_claimed_subjects, measures={"settings": read_settings})
CLAIMS = {"allocator": judge_limits}
NEXT_STEPS = {
    "allocator": "of these variables, let your Dockerfile set only the one that its torch reads "
    "(PYTORCH_ALLOC_CONF from torch 2.10 on, PYTORCH_CUDA_ALLOC_CONF before), and build the image "
    f"again; if it sets none, {REPORT}"
}
