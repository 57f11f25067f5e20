"""Evidence of two and of four real H200s, judged again: healthy images pass, broken ones fail where they are broken."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from images.planning.expectations import TOOLKIT_EXCEPTIONS
from tests.support import recorded
from tests.support.judging import judge_claim
from validate.claims import Tier
from validate.judge import Verdict, judge
from validate.judging import Status

HEALTHY = "cu130-torch211-py312-sm90/2xh200"
DISTRIBUTED = "cu130-torch211-py312-sm90-distributed/2xh200"
ON_FOUR = "cu130-torch211-py312-sm90/4xh200"
FAULTS = {
    f"{HEALTHY}-broken-15-nccl-conf": {("M1", "settings"), ("M1", "transport")},
    f"{HEALTHY}-broken-01-another-nccl": {("M1", "nccl")},
    f"{DISTRIBUTED}-broken-deepspeed-without-nvcc": {("M4", "zero 1"), ("M4", "zero 2"), ("M4", "zero 3")},
}
CULPRITS = {
    f"{HEALTHY}-broken-15-nccl-conf": "/etc/nccl.conf sets NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE=1",
    f"{HEALTHY}-broken-01-another-nccl": "NCCL 2.28.3 runs, nvidia-nccl-cu13 is 2.28.9",
    f"{DISTRIBUTED}-broken-deepspeed-without-nvcc": "No such file or directory: '/usr/local/cuda-13.0/bin/nvcc'",
}


@cache
def judged(run_id: str) -> Verdict:
    evidence = recorded.evidence(run_id)
    return judge(evidence.claim_set, evidence, [Tier.MULTIGPU])


def found(verdict: Verdict, subject: str) -> Any:
    (one,) = [row for row in verdict.claims if row.claim.subject == subject]
    return one


@pytest.mark.parametrize("run_id", [HEALTHY, DISTRIBUTED, ON_FOUR], ids=["two", "distributed", "four"])
def test_a_healthy_image_passes_every_claim(run_id: str) -> None:
    verdict = judged(run_id)
    assert verdict.overall is Status.PASS, [(row.claim.subject, row.reason) for row in verdict.of(Status.FAIL)]
    assert {row.status for row in verdict.claims} == {Status.PASS}, "a slow link would only warn"


def test_the_image_with_deepspeed_and_ray_has_every_claim_of_the_tier() -> None:
    assert {row.claim.id for row in judged(DISTRIBUTED).claims} == {f"M{number}" for number in range(1, 9)}


@pytest.mark.parametrize(("run_id", "gpus"), [(HEALTHY, 2), (ON_FOUR, 4)], ids=["two", "four"])
def test_ranks_talked_over_nvlink_on_gpus_of_their_own(run_id: str, gpus: int) -> None:
    row = found(judged(run_id), "transport")
    assert row.claim.expect["link"] == "nvlink"
    assert all(way.startswith("P2P/") for rank in row.evidence["ranks"] for way in rank["connections"])
    assert len({rank["device"]["uuid"] for rank in row.evidence["ranks"]}) == gpus


def test_four_ranks_replicate_across_pairs_that_shard() -> None:
    for rank in found(judged(ON_FOUR), "hsdp").evidence["ranks"]:
        assert rank["facts"] == {"mesh": [2, 2], "placements": ["(Replicate(), Shard(dim=0))"]}


def test_nvlinks_multicast_stayed_off_as_the_host_asks() -> None:
    injected = recorded.evidence(HEALTHY).host["attached"]["environment"]
    assert injected == {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }


def test_what_failed_on_the_given_base_of_four_gpus_is_called_a_fault_no_longer() -> None:
    """The toolkit's debugger for other Pythons: judged by the claims of then, and by today's."""
    evidence = recorded.evidence(ON_FOUR)
    verdict = judge(evidence.claim_set, evidence, [Tier.STATIC])
    (row,) = verdict.of(Status.FAIL)
    assert (row.claim.id, row.claim.subject) == ("S3", "toolkit")
    exceptions = [*row.claim.expect["exceptions"], *TOOLKIT_EXCEPTIONS]
    today = replace(row.claim, expect={**row.claim.expect, "exceptions": exceptions})
    assert judge_claim(today, row.evidence).status is Status.PASS


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_image_fails_where_it_is_broken_and_nowhere_else(name: str) -> None:
    verdict = judged(name)
    assert {(row.claim.id, row.claim.subject) for row in verdict.of(Status.FAIL)} == FAULTS[name]
    assert any(CULPRITS[name] in row.reason for row in verdict.of(Status.FAIL))
