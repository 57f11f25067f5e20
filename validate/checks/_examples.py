"""cpu-examples, gpu-examples, multigpu-examples: check that examples train as plain torch does.

They are run as users run them.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from validate.checks import Settings
from validate.checks._behaviour import BehaviourEvidence, judge_limits
from validate.claims import Claim, Tier
from validate.examples import evidence
from validate.next_steps import REPORT, pin

SETTINGS = Settings(time_limit=2400, starts_first=True)


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Run the example program of each claim, and yield its name and what was measured.

    All claims are of one tier: the CPU, one GPU or several GPUs.
    """
    tier = claims[0].tier
    if tier is Tier.GPU:
        # With a second GPU, the Trainer would split its batches over both, and axolotl would start
        # a process on each (seen on two H200s).
        os.environ["CUDA_VISIBLE_DEVICES"] = first_visible_gpu(os.environ)
    device = "cpu" if tier is Tier.CPU else "cuda"
    return evidence.measure(claims, device=device)


def first_visible_gpu(environ: Mapping[str, str]) -> str:
    """Return the first GPU that the process may see, as CUDA_VISIBLE_DEVICES names it."""
    return environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


CLAIMS = {
    "cpu-examples": judge_limits,
    "gpu-examples": judge_limits,
    "multigpu-examples": judge_limits,
}
_NEXT_STEP = (
    "start this example by hand in a container of this image "
    "(examples/README.md of truetag says how); if it fails by hand as well, "
    f"{pin('another release of the framework')}; if it works by hand, {REPORT}"
)
NEXT_STEPS = dict.fromkeys(CLAIMS, _NEXT_STEP)
