"""What a check's inputs are drawn with: drawn anew for each run, so that an answer of yesterday's is none to it."""

import os

ALWAYS = 20240229
"""Outside of the suite, and where runs are held against each other."""
_VARIABLE = "VALIDATE_SEED"


def variable(seed: int) -> dict[str, str]:
    """How probes, and the processes that they start, get a seed."""
    return {_VARIABLE: str(seed)}


def seed() -> int:
    """This run's; outside of the suite always the same."""
    return int(os.environ.get(_VARIABLE, ALWAYS))
