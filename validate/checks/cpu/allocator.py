"""C17: torch's CUDA allocator does not have the settings that the image's environment has for it.

torch reads them from a variable that it renamed, and says nothing of one that it does not read: people run out of
memory that others have. What the allocator was told is asked of itself, which needs no GPU.
"""

import importlib
from collections.abc import Iterator, Sequence

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.claims import Claim
from validate.harness.forked import asked


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    yield from asked(claims, {"allocator": _settings})


def _settings() -> BehaviourEvidence:
    """What the allocator has read, and whether its segments can grow."""
    has = importlib.import_module("torch").cuda.memory._snapshot()["allocator_settings"]
    read = [str(text) for name, text in has.items() if name.startswith("PYTORCH_") and text]
    return {"settings": "".join(read[:1]) or "none", "expandable_segments": bool(has["expandable_segments"])}


CLAIMS = {"C17": judge}
