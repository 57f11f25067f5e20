"""allocator: torch's CUDA allocator does not have the settings that the image's environment has for it.

torch reads them from a variable that it renamed, and says nothing of one that it does not read: people run out of
memory that others have. What the allocator was told is asked of itself, which needs no GPU.
"""

import importlib
from functools import partial
from typing import TypedDict

from validate.checks._behaviour import judge_limits
from validate.harness.forked import measure_claimed_subjects


class AllocatorEvidence(TypedDict):
    settings: str
    expandable_segments: bool


def _settings() -> AllocatorEvidence:
    """Return what the allocator has read, and whether its segments can grow."""
    has = importlib.import_module("torch").cuda.memory._snapshot()["allocator_settings"]
    read = [str(text) for name, text in has.items() if name.startswith("PYTORCH_") and text]
    return {
        "settings": "".join(read[:1]) or "none",
        "expandable_segments": bool(has["expandable_segments"]),
    }


measure = partial(measure_claimed_subjects, measures={"settings": _settings})
CLAIMS = {"allocator": judge_limits}
