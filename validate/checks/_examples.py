"""cpu-examples, gpu-examples, multigpu-examples: check that examples train as plain torch does.

They are run as users run them.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from validate.checks import Settings
from validate.checks._behaviour import BehaviourEvidence, judge_limits
from validate.claims import Claim, Tier
from validate.examples import evidence

SETTINGS = Settings(time_limit=2400, starts_first=True)


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield each claimed example and its figures. All claims are of the same tier.

    Examples of the gpu tier see one GPU. With a second one, the Trainer would split its batches
    over both, and axolotl would start a rank on each (seen on two H200s).
    """
    tier = claims[0].tier
    if tier is Tier.GPU:
        os.environ["CUDA_VISIBLE_DEVICES"] = first_visible_gpu(os.environ)
    return evidence.measure(claims, device="cpu" if tier is Tier.CPU else "cuda")


def first_visible_gpu(environ: Mapping[str, str]) -> str:
    """Return the first GPU that the process may see, as CUDA_VISIBLE_DEVICES names it."""
    return environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


CLAIMS = {
    "cpu-examples": judge_limits,
    "gpu-examples": judge_limits,
    "multigpu-examples": judge_limits,
}
