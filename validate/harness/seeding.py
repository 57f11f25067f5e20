"""The random seed of a validation run. Each run has a new one, so that an old answer cannot pass for a new one."""

import os

FIXED_SEED = 20240229
"""The seed outside of the suite, and of measurements that are compared with those of other runs."""
_VARIABLE = "VALIDATE_SEED"


def seed_variable(seed: int) -> dict[str, str]:
    """Return the environment variable by which probes, and processes that they start, get a seed."""
    return {_VARIABLE: str(seed)}


def seed_of_run() -> int:
    """Return the seed of this validation run, or FIXED_SEED outside of the suite."""
    return int(os.environ.get(_VARIABLE, FIXED_SEED))
