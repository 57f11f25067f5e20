"""Claims of the trl-vllm profile: healthy evidence passes, and each wrong figure fails by name."""

from collections.abc import Mapping
from typing import Any

import pytest

from images.validation.claims.context import ClaimContext
from images.validation.claims.profile import profile_claims
from tests.support.judging import fails, judge_claim
from tests.support.sources import SOURCES, image
from validate.checks.gpu.profile_trl_vllm import CONTROLS
from validate.judging import Status

NAME = "cu130-torch213-trl-vllm"
STEP = {
    **dict.fromkeys(("loss_deviation", "advantage_deviation", "liger_loss_deviation"), 1e-5),
    **dict.fromkeys(("gradient_deviation", "liger_gradient_deviation"), 1e-4),
    "spread": 2.0,
    "control_fixed": 0.3,
    "control_uncorrected": 0.01,
}
WEIGHTS = {"compared": 21, "differing": [], "control_stale": 21}
ROLLOUT = {**dict.fromkeys(CONTROLS, 0.8), "outside": 0.05, "median": 0.01}
ONLINE = {"steps": 60, "rise": 0.6, "said_reward": 0.7}
HEALTHY: Mapping[str, Mapping[str, Any]] = {
    "grpo-step": STEP,
    "grpo-arguments": {**STEP, "logprobs_mode": "processed_logprobs"},
    "server-weights": WEIGHTS,
    "server-adapters": WEIGHTS,
    "weight-sync": WEIGHTS,
    "sleep": {"taken_gib": 12.0, "back": 0.99},
    "rollout-eager": {**ROLLOUT, "cached": 0},
    "rollout-graphs": {**ROLLOUT, "cached": 100},
    "rollout-float16": {**ROLLOUT, "cached": 100},
    "rollout-lora": ROLLOUT,
    "grpo": ONLINE,
    "rloo": ONLINE,
    "grpo-server": ONLINE,
}
"""Subject of a claim -> figures of an image that is well."""
LARGER_IS_WORSE = ("deviation", "outside", "median")
"""Ends of the names of figures that must be small. Others must be large, or have one value."""


def wrong_value(figure: str, healthy_value: Any) -> Any:
    """A value of a figure that a broken image measures."""
    if figure.endswith(LARGER_IS_WORSE):
        return 2.0
    # Each of the two values is wrong where the other one is right.
    if figure == "cached":
        return 0 if healthy_value else 100
    if isinstance(healthy_value, str | list):
        return ["model.norm.weight"]
    return 0


CLAIMS = {
    claim.subject: claim
    for claim in profile_claims(ClaimContext(image=image(NAME), facts=SOURCES.facts))
    if claim.subject in HEALTHY
}


@pytest.mark.parametrize("subject", HEALTHY)
def test_a_healthy_image_passes(subject: str) -> None:
    assert judge_claim(CLAIMS[subject], HEALTHY[subject]).status is Status.PASS


@pytest.mark.parametrize("subject", HEALTHY)
def test_each_wrong_figure_fails_by_its_name(subject: str) -> None:
    healthy = HEALTHY[subject]
    for figure, value in healthy.items():
        evidence = {**healthy, figure: wrong_value(figure, value)}

        fails(judge_claim(CLAIMS[subject], evidence), figure)
