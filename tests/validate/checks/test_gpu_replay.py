"""Evidence recorded on a real H100 and on H200s, judged again: healthy images pass, broken ones fail where they are."""

from functools import cache

import pytest

from tests.support import recorded
from validate.claims import Tier
from validate.judge import Verdict, judge
from validate.judging import Status

IMAGE = "cu130-torch211-py312-sm90"

FAULTS = {
    "04-backward-lacks-the-arch": {("G3", "flash-attn-dense"), ("G3", "flash-attn-varlen")},
    "08-triton-interpreted": {
        ("G6", "triton-jit"),
        ("G7", "liger-fused-linear-cross-entropy"),
        ("G7", "liger-rms-norm"),
        ("G7", "liger-rope"),
        ("G7", "liger-swiglu"),
        ("G8", "compile-fullgraph"),
    },
    "08-dynamo-switched-off": {("G8", "compile-fullgraph")},
    "11-tf32-forced": {
        ("G1", "gemm-fp32"),
        ("G1", "svd-fp32"),
        ("G1", "tf32-switch"),
        ("G7", "liger-fused-linear-cross-entropy"),
        ("G8", "compile-fullgraph"),
        ("G10", "nf4-logits"),
    },
    "11-tf32-allowed": {
        ("G1", "gemm-fp32"),
        ("G1", "svd-fp32"),
        ("G1", "tf32-switch"),
        ("G7", "liger-fused-linear-cross-entropy"),
        ("G8", "compile-fullgraph"),
        ("G10", "nf4-logits"),
    },
    "14-four-bit-is-a-no-op": {("G10", "nf4-weights"), ("G10", "nf4-logits")},
}
CULPRITS = {
    "04-backward-lacks-the-arch": "no kernel image is available",
    "08-triton-interpreted": "TRITON_INTERPRET=1",
    "08-dynamo-switched-off": "TORCHDYNAMO_DISABLE=1",
    "11-tf32-forced": "NVIDIA_TF32_OVERRIDE=1",
    "11-tf32-allowed": "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1",
    "14-four-bit-is-a-no-op": "found torch.nn.modules.linear.Linear",
    "16-gpus-hidden": "CUDA_VISIBLE_DEVICES= is set",
}


@cache
def judged(run_id: str) -> Verdict:
    evidence = recorded.evidence(run_id)
    return judge(evidence.claim_set, evidence, [Tier.GPU])


def test_the_healthy_image_passes_every_claim() -> None:
    verdict = judged(f"{IMAGE}/h100")
    assert verdict.overall is Status.PASS, [(row.claim.subject, row.reason) for row in verdict.of(Status.FAIL)]
    assert {f"G{number}" for number in (0, 1, 2, 3, 5, 6, 7, 8, 9, 10)} == {row.claim.id for row in verdict.claims}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_image_fails_where_it_is_broken_and_nowhere_else(name: str) -> None:
    failed = {(row.claim.id, row.claim.subject) for row in judged(f"{IMAGE}/h100-broken-{name}").of(Status.FAIL)}
    assert failed == FAULTS[name]


@pytest.mark.parametrize("name", CULPRITS)
def test_the_reason_names_the_culprit(name: str) -> None:
    reasons = [row.reason for row in judged(f"{IMAGE}/h100-broken-{name}").of(Status.FAIL)]
    assert any(CULPRITS[name] in reason for reason in reasons), reasons


def test_an_image_cannot_skip_its_gpu_tier_by_hiding_the_gpu() -> None:
    """The host's inventory is in the claims: nothing passes but what asks no GPU."""
    passed = {row.claim.subject for row in judged(f"{IMAGE}/h100-broken-16-gpus-hidden").of(Status.PASS)}
    assert passed <= {"cudnn"}
    assert not judged(f"{IMAGE}/h100-broken-16-gpus-hidden").of(Status.NOT_APPLICABLE)


@pytest.mark.parametrize(
    ("run_id", "subjects"),
    [
        (f"{IMAGE}/4xh200-flash-attn", {"flash-attn-dense", "flash-attn-varlen"}),
        (f"{IMAGE}-unsloth/4xh200", {"unsloth import", "unsloth 4-bit"}),
    ],
)
def test_what_an_h200_validated_for_the_first_time(run_id: str, subjects: set[str]) -> None:
    """A flash-attn that was compiled here, and unsloth, which can't be imported without a GPU."""
    verdict = judged(run_id)
    assert verdict.overall is Status.PASS
    assert subjects <= {row.claim.subject for row in verdict.of(Status.PASS)}


def test_the_wheel_that_was_compiled_there_was_judged_before_it_was_kept() -> None:
    record = recorded.beside(f"{IMAGE}/4xh200-flash-attn.wheel")
    assert record["objects"] == {"compiled": 73, "from_cache": 0, "not_cached": 0}
    assert {row["id"]: row["verdict"] for row in record["verdict"]} == dict.fromkeys(("S1", "S3", "S4", "S5"), "PASS")
    assert record["recipe"]["archs"] == ["sm_90"]
