"""Evidence recorded on real H100s and H200s, judged again: broken images fail where they are broken.

Every kept run, those of healthy images too, is judged again claim by claim in tests/images/site/test_records.py.
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
TF32 = {
    "numerics/gemm-fp32",
    "numerics/svd-fp32",
    "numerics/tf32-switch",
    "liger/fused-linear-cross-entropy",
    "compile/fullgraph",
    "qlora/logits",
}
LIGER = {f"liger/{name}" for name in ("fused-linear-cross-entropy", "rms-norm", "rope", "swiglu")}
BROKEN = {
    f"{IMAGE}/h100-broken-04-backward-lacks-the-arch": (
        {"attention/flash-attn-dense", "attention/flash-attn-varlen"},
        "no kernel image is available",
    ),
    f"{IMAGE}/h100-broken-08-triton-interpreted": (
        {"triton/jit", *LIGER, "compile/fullgraph"},
        "TRITON_INTERPRET=1",
    ),
    f"{IMAGE}/h100-broken-08-dynamo-switched-off": ({"compile/fullgraph"}, "TORCHDYNAMO_DISABLE=1"),
    f"{IMAGE}/h100-broken-11-tf32-forced": (TF32, "NVIDIA_TF32_OVERRIDE=1"),
    f"{IMAGE}/h100-broken-11-tf32-allowed": (TF32, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"),
    f"{IMAGE}/h100-broken-14-four-bit-is-a-no-op": (
        {"qlora/weights", "qlora/logits"},
        "found torch.nn.modules.linear.Linear",
    ),
    f"{IMAGE}/2xh200-broken-15-nccl-conf": (
        {"collectives/transport"},
        "talk over NET/Socket (NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1)",
    ),
}


@cache
def judged(run_id: str, *tiers: Tier) -> Verdict:
    evidence = recorded.evidence(run_id)
    return judge(evidence.claim_set, evidence, tiers or GPUS)


@pytest.mark.parametrize("run_id", BROKEN)
def test_a_broken_image_fails_where_it_is_broken_and_nowhere_else(run_id: str) -> None:
    faults, culprit = BROKEN[run_id]
    failed = judged(run_id).claims_with(Status.FAIL)
    assert {row.claim.key for row in failed} == faults
    assert any(culprit in row.reason for row in failed)


def test_an_image_cannot_skip_its_gpu_tier_by_hiding_the_gpu() -> None:
    """The host's inventory is in the claims: nothing passes."""
    verdict = judged(f"{IMAGE}/h100-broken-16-gpus-hidden")
    assert not verdict.claims_with(Status.PASS)
    assert not verdict.claims_with(Status.NOT_APPLICABLE)
    assert any(
        "CUDA_VISIBLE_DEVICES= is set" in row.reason for row in verdict.claims_with(Status.FAIL)
    )


def test_what_failed_on_the_given_base_of_four_gpus_is_called_a_fault_no_longer() -> None:
    """The toolkit's debugger for other Pythons: judged by the claims of then, and by today's."""
    (row,) = judged(f"{IMAGE}/4xh200", Tier.STATIC).claims_with(Status.FAIL)
    assert (row.claim.check, row.claim.subject) == ("libraries", "toolkit")
    exceptions = [*row.claim.expect["exceptions"], *TOOLKIT_EXCEPTIONS]
    today = replace(row.claim, expect={**row.claim.expect, "exceptions": exceptions})
    assert judge_claim(today, row.evidence).status is Status.PASS
