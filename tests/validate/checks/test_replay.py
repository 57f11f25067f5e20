"""Evidence that was recorded on H100s and H200s, judged again: images fail where they are broken.

Every kept run, those of healthy images too, is judged again claim by claim in
tests/images/site/test_records.py.
"""

from dataclasses import replace
from functools import cache

import pytest

from images.planning.expectations import TOOLKIT_EXCEPTIONS
from tests.support import recorded
from tests.support.judging import judge_claim
from validate.claims import Tier
from validate.judge import Verdict, judge
from validate.judging import Status

IMAGE = "cu130-torch211-py312-sm90"
GPUS = [Tier.GPU, Tier.MULTIGPU]
FLOAT32_CLAIMS = {
    "numerics/gemm-fp32",
    "numerics/svd-fp32",
    "numerics/tf32-switch",
    "liger/fused-linear-cross-entropy",
    "compile/fullgraph",
    "qlora/logits",
}
LIGER_CLAIMS = {
    f"liger/{name}" for name in ("fused-linear-cross-entropy", "rms-norm", "rope", "swiglu")
}
BROKEN = {
    f"{IMAGE}/h100-broken-04-backward-lacks-the-arch": (
        {"attention/flash-attn-dense", "attention/flash-attn-varlen"},
        "no kernel image is available",
    ),
    f"{IMAGE}/h100-broken-08-triton-interpreted": (
        {"triton/jit", *LIGER_CLAIMS, "compile/fullgraph"},
        "TRITON_INTERPRET=1",
    ),
    f"{IMAGE}/h100-broken-08-dynamo-switched-off": ({"compile/fullgraph"}, "TORCHDYNAMO_DISABLE=1"),
    f"{IMAGE}/h100-broken-11-tf32-forced": (FLOAT32_CLAIMS, "NVIDIA_TF32_OVERRIDE=1"),
    f"{IMAGE}/h100-broken-11-tf32-allowed": (FLOAT32_CLAIMS, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"),
    f"{IMAGE}/h100-broken-14-four-bit-is-a-no-op": (
        {"qlora/weights", "qlora/logits"},
        "found torch.nn.modules.linear.Linear",
    ),
    f"{IMAGE}/2xh200-broken-15-nccl-conf": (
        {"collectives/transport"},
        "talk over NET/Socket (NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1)",
    ),
}


"""Recorded run -> the claims that must fail, and what one of their reasons must say."""


@cache
def judge_run(run_id: str, *tiers: Tier) -> Verdict:
    """Judge a recorded run by the claims of its time: those of these tiers, or of the GPU tiers."""
    evidence = recorded.evidence(run_id)
    return judge(evidence.claim_set, evidence, tiers or GPUS)


@pytest.mark.parametrize("run_id", BROKEN)
def test_a_broken_image_fails_where_it_is_broken_and_nowhere_else(run_id: str) -> None:
    faults, culprit = BROKEN[run_id]

    failed = judge_run(run_id).claims_with(Status.FAIL)

    assert {judged.claim.key for judged in failed} == faults
    assert any(culprit in judged.reason for judged in failed)


def test_an_image_cannot_skip_its_gpu_tier_by_hiding_the_gpu() -> None:
    """The host's inventory is in the claims: nothing passes."""
    verdict = judge_run(f"{IMAGE}/h100-broken-16-gpus-hidden")

    assert not verdict.claims_with(Status.PASS)
    assert not verdict.claims_with(Status.NOT_APPLICABLE)
    failed = verdict.claims_with(Status.FAIL)
    assert any("CUDA_VISIBLE_DEVICES= is set" in judged.reason for judged in failed)


def test_the_toolkits_debugger_for_other_pythons_failed_by_the_claims_of_then() -> None:
    """On the given base of four GPUs."""
    (failed,) = judge_run(f"{IMAGE}/4xh200", Tier.STATIC).claims_with(Status.FAIL)

    assert failed.claim.key == "libraries/toolkit"


def test_the_toolkits_debugger_for_other_pythons_passes_by_the_exceptions_of_today() -> None:
    (failed,) = judge_run(f"{IMAGE}/4xh200", Tier.STATIC).claims_with(Status.FAIL)
    exceptions = [*failed.claim.expect["exceptions"], *TOOLKIT_EXCEPTIONS]
    claim = replace(failed.claim, expect={**failed.claim.expect, "exceptions": exceptions})

    assert judge_claim(claim, failed.evidence).status is Status.PASS
