"""cpu-examples, gpu-examples, multigpu-examples: the profile's examples, run as users run them, against plain torch."""

import os
from collections.abc import Iterator, Mapping, Sequence

from validate.checks import Settings
from validate.checks._behaviour import BehaviourEvidence, judge_limits
from validate.claims import Claim, Tier
from validate.examples import evidence

SETTINGS = Settings(time_limit=2400, starts_first=True)


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of each example asked for.

    Beside a second GPU the Trainer splits its batches over both, and axolotl starts a rank on each (seen on two H200s):
    examples of one GPU see one alone.
    """
    tier = claims[0].tier
    if tier is Tier.GPU:
        os.environ["CUDA_VISIBLE_DEVICES"] = one_gpu(os.environ)
    return evidence.measure(claims, device="cpu" if tier is Tier.CPU else "cuda")


def one_gpu(environ: Mapping[str, str]) -> str:
    """The first GPU that the process may see, as CUDA_VISIBLE_DEVICES names it."""
    return environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


CLAIMS = {
    "cpu-examples": judge_limits,
    "gpu-examples": judge_limits,
    "multigpu-examples": judge_limits,
}
