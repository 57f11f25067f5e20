"""What an H100 and an H200 said of images with a sliced torch, also with NVIDIA's libraries sliced: the gpu tier, the
same bits, the clear error of another GPU."""

from typing import Any

import pytest

from tests.support import recorded
from validate.claims import Tier
from validate.judge import judge
from validate.judging import Status

IMAGE = "cu130-torch211-py312-sm90"
NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"
FOLDERS = pytest.mark.parametrize("folder", ["h100-pruned", "h100-pruned-nvidia", "h200-pruned"])


@FOLDERS
def test_every_required_claim_of_the_gpu_tier_passes(folder: str) -> None:
    evidence = recorded.evidence(f"{IMAGE}/{folder}")
    verdict = judge(evidence.claim_set, evidence, [Tier.GPU])
    assert verdict.overall is Status.PASS
    assert {row.claim.subject for row in verdict.claims if row.status is not Status.PASS} == {
        "flash-attn-dense",
        "flash-attn-varlen",
    }


@FOLDERS
def test_it_holds_code_for_its_arch_alone_and_every_file_is_as_recorded(folder: str) -> None:
    evidence = recorded.evidence(f"{IMAGE}/{folder}-static")
    verdict = judge(evidence.claim_set, evidence, [Tier.STATIC])
    assert {(row.claim.id, row.claim.subject): row.status for row in verdict.claims} == {
        ("S2", "files"): Status.PASS,
        ("S5", "torch"): Status.PASS,
        ("S5", "cuda-libraries"): Status.PASS,
        ("S5", "pruned"): Status.PASS,
    }


def test_with_nvidias_libraries_sliced_none_of_theirs_may_hold_other_code() -> None:
    nvidia = recorded.evidence(f"{IMAGE}/h100-pruned-nvidia-static")
    untouched = recorded.evidence(f"{IMAGE}/h100-pruned-static")
    (strict,) = (claim for claim in nvidia.claim_set.claims if claim.subject == "pruned")
    (mild,) = (claim for claim in untouched.claim_set.claims if claim.subject == "pruned")
    assert (strict.expect["nvidia"], mild.expect["nvidia"]) == (True, False)


@FOLDERS
def test_both_tiers_were_measured_in_one_image(folder: str) -> None:
    runs = (f"{IMAGE}/{folder}", f"{IMAGE}/{folder}-static")
    assert len({recorded.evidence(run_id).digest for run_id in runs}) == 1


@pytest.mark.parametrize(
    ("folder", "column", "different"),
    [
        ("h100-pruned", "sliced", set()),
        ("h100-pruned", "nvidias_too", set()),
        ("h100-pruned-nvidia", "nvidias_too", set()),
        ("h100-pruned-nvidia", "sliced", {"compile backward"}),
    ],
)
def test_the_same_bits_come_out(folder: str, column: str, different: set[str]) -> None:
    found = _bitwise(folder)
    rows = {name: row for name, row in found["hashes"].items() if row["unsliced"] == row["again"]}
    assert len(rows) == found["deterministic"] > 100
    assert not [name for name, row in rows.items() if row["unsliced"].startswith("error")]
    assert {name for name, row in rows.items() if row[column] != row["unsliced"]} == different
    assert set(found[column]["different"]) == different


def test_the_one_that_differed_was_the_same_when_it_was_run_again() -> None:
    found = _bitwise("h100-pruned-nvidia")
    assert {row["of"] for row in found["repeated"]} == {"unsliced", "sliced", "nvidias_too"}
    expected = found["hashes"]["compile backward"]["unsliced"]
    assert {row["compile backward"] for row in found["repeated"]} == {expected}


@pytest.mark.parametrize(
    ("column", "different"), [("sliced", {"compile backward"}), ("nvidias_too", {"compile", "compile backward"})]
)
def test_all_but_compiled_functions_give_the_same_bits_on_an_h200(column: str, different: set[str]) -> None:
    found = _bitwise("h200-pruned")
    assert len(found["hashes"]) == found["operations"] == 130
    assert not [name for name, row in found["hashes"].items() if row["unsliced"].startswith("error")]
    assert {name for name, row in found["hashes"].items() if row[column] != row["unsliced"]} == different
    assert set(found[column]["different"]) == different


def test_the_two_results_of_the_one_that_differs_come_from_both_gpus_the_other_way_round() -> None:
    on_h100 = _bitwise("h100-pruned-nvidia")["hashes"]["compile backward"]
    on_h200 = _bitwise("h200-pruned")["hashes"]["compile backward"]
    assert on_h100["sliced"] != on_h100["unsliced"]
    assert (on_h200["unsliced"], on_h200["sliced"]) == (on_h100["sliced"], on_h100["unsliced"])


@pytest.mark.parametrize(("folder", "torch"), [("h100-pruned", "marked"), ("h100-pruned-nvidia", "torch")])
def test_a_missing_arch_is_named(folder: str, torch: str) -> None:
    assert set(_bitwise(folder)["for_another_gpu"][torch].values()) == {"ran", NO_IMAGE}


def test_with_nvidias_libraries_sliced_nothing_runs_on_another_gpu_and_cublas_and_cudnn_say_it_their_way() -> None:
    said = _bitwise("h100-pruned-nvidia")["for_another_gpu"]["nvidias_too"]
    assert {name: words for name, words in said.items() if words != NO_IMAGE} == {
        "matmul float32": "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
        "solve": "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
        "magma": "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
        "conv2d float16": "GET was unable to find an engine to execute this computation",
    }


def _bitwise(folder: str) -> dict[str, Any]:
    return recorded.beside(f"{IMAGE}/{folder}.bitwise")
