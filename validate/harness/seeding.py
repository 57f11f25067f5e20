"""The random seed of a validation run, new for each run: an old answer can't pass as new."""

import os

FIXED_SEED = 20240229
"""The seed outside of the suite, and of measurements that are compared with those of other runs."""
_VARIABLE = "VALIDATE_SEED"


def seed_variable(seed: int) -> dict[str, str]:
    """Return the environment variable that gives a seed to probes and what they start."""
    return {_VARIABLE: str(seed)}


def seed_of_run() -> int:
    """Return the seed of this validation run, or FIXED_SEED outside of the suite."""
    return int(os.environ.get(_VARIABLE, FIXED_SEED))
