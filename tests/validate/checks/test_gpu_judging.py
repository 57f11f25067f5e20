"""Judges of the gpu tier on mutated evidence: what a real run recorded, one fault at a time."""

from functools import cache
from typing import Any

import pytest

from tests.support import recorded
from tests.support.judging import fails, judge_claim, spoiled
from validate.claims import Claim
from validate.judging import Finding, Status

Facts = dict[str, Any]


@cache
def run_of(name: str) -> Facts:
    return recorded.data(name)


def h100(subject: str = "") -> Facts:
    """The run that has the subject: one image's, but for xformers, whose wheels are for CUDA 12."""
    return run_of("cu126-torch27/h100" if subject.startswith("xformers") else "cu130-torch211-py312-sm90/h100")


def claim_of(subject: str, **expect: Any) -> Claim:
    (data,) = (claim for claim in h100(subject)["claims"] if claim["subject"] == subject and claim["tier"] == "gpu")
    claim = Claim.from_json(data)
    return Claim.from_json({**data, "expect": {**claim.expect, **expect}})


def evidence_of(subject: str) -> Facts:
    claim = claim_of(subject)
    (record,) = (record for record in h100(subject)["records"] if record["probe"] == claim.probe)
    (found,) = (found for found in record["measurements"] if found["subject"] == subject)
    evidence: Facts = found["evidence"]
    return evidence


def judged(subject: str, path: str = "", value: Any = dict, **expect: Any) -> Finding:
    return judge_claim(claim_of(subject, **expect), spoiled(evidence_of(subject), path, value))


DENSE = "flash-attn-dense"
CASE = "cases|dim 64 causal"
FIGURE = "observed|figures|mean error"
A100 = [{"name": "NVIDIA A100", "capability": [8, 0], "memory": 1}]
WRONG: list[tuple[str, str, Any, str]] = [
    (DENSE, f"{CASE}|outputs|output|error", 1e-3, "output is off by 1.00e-03"),
    (DENSE, f"{CASE}|outputs|gradient key|error", 1e-2, "gradient key is off"),
    (DENSE, f"{CASE}|outputs|output|error", "nan", "off by nan"),
    (DENSE, f"{CASE}|finite", False, "not finite"),
    (DENSE, CASE, {"error": {"kind": "RuntimeError", "message": "no kernel\nat"}}, "RuntimeError: no kernel"),
    (DENSE, "cases|dim 256 cross", KeyError, "dim 256 cross was not run"),
    (DENSE, "cases", lambda all_: {n: {**one, "dtype": "float16"} for n, one in all_.items()}, "was run in bfloat16"),
    (DENSE, f"{CASE}|dtype", "float32", "nothing is claimed"),
    (DENSE, CASE, lambda case: {**case, "outputs": {}, "controls": {"x": {}}}, "gave no result"),
    (DENSE, f"{CASE}|controls", {}, "no control"),
    (DENSE, f"{CASE}|controls|heads rolled|output", 1e-5, "heads rolled is off by 1.00e-05, which the tolerance lets"),
    # torch's own kernel or library in its place
    (DENSE, "kernels|matching", lambda seen: dict.fromkeys(seen), "no CUDA kernel like"),
    (DENSE, "libraries", lambda mapped: dict.fromkeys(mapped), "no library like"),
    (DENSE, "device|capability", [8, 6], "capability 8.6, the host has 9.0"),
    (DENSE, "gated", "it needs more", "the GPU says it needs more"),
    # a quantiser that errs too little has not quantised
    ("bnb-nf4", f"{FIGURE}|value", 0.0719, "mean error is 0.0719, not between"),
    ("bnb-nf4", f"{FIGURE}|value", 0.0738, "mean error is 0.0738"),
    ("bnb-fp4", "observed|figures", {}, "was not measured"),
    ("bnb-fp4", f"{FIGURE}|controls|unquantised", 0.0965, "which passes as well"),
    ("bnb-adamw8bit", "observed|facts|states", ["torch.float32", "torch.uint8"], "states: ['torch.float32', 'torch.u"),
    ("bnb-paged-adamw8bit", "observed|facts|paged", False, "paged: False"),
    ("triton-jit", "cases|int32|outputs|output|error", 1e-9, "at most 0.00e+00 is allowed"),
    ("compile-fullgraph", "observed|facts|graph breaks", 2, "graph breaks: 2, not 0"),
    ("scaled-mm-fp8", "observed", {"error": {"kind": "RuntimeError", "message": "_scaled_mm: cc"}}, "_scaled_mm: cc"),
    # FP8 that keeps too much was none
    ("scaled-mm-fp8", "observed|figures|SQNR in dB|value", 60.0, "SQNR in dB is 60"),
    ("device", "", lambda e: {**e, "cuda": {"gpus": []}, "torch": {"gpus": []}}, "host injected 1 GPUs, 0 are seen"),
    ("device", "cuda|gpus", lambda gpus: gpus * 2, "injected 1 GPUs, 2 are seen"),
    (
        "device",
        "",
        lambda e: {**e, "cuda": {"gpus": A100}, "torch": {"gpus": A100}},
        "GPU 0 is NVIDIA A100 (8.0), the host says NVIDIA H100 80GB HBM3 (9.0)",
    ),
    ("device", "torch|gpus", [], "torch sees nothing"),
    ("device", "cuda", {"error": {"kind": "DriverError", "message": "cuInit answers 803"}}, "cuInit answers 803"),
    ("device", "nvml|driver", "570.86.10", "the driver's library is 570.86.10"),
    ("device", "libcuda", lambda files: [*files, "/opt/libcuda.so.1"], "2 driver libraries are loaded"),
    ("cudnn", "running", [9, 10, 2], "torch was compiled for cuDNN 9.19.0, cuDNN 9.10.2 runs"),
    ("qlora", "losses", [6.0, 5.9, 5.8], "the loss goes from 6.000 to 5.800"),
    ("qlora", "losses", [6.0, "nan"], "losses are 6.0, nan"),
    ("qlora", "gradient_checkpointing", False, "gradient checkpointing is off"),
    ("qlora", "b_still", ["layer.0.lora_B"], "B did not move in layer.0.lora_B"),
    ("qlora", "b_before", 0.1, "B was 0.1"),
    ("qlora", "adapters", 0, "no adapter"),
    ("qlora", "base_changed", ["model.norm.weight"], "model.norm.weight"),
    ("qlora", "second_run|fingerprint", "0", "ends in other bits"),
    ("qlora", "second_run|losses|3", 1.0, "differ from step 4 on"),
    # memory of bfloat16, and a bound that tells nothing
    ("nf4-weights", "memory", lambda m: {**m, "quantised": m["bfloat16"]}, "bytes of GPU memory, at most"),
    ("nf4-weights", "memory", lambda m: {**m, "bfloat16": m["quantised"]}, "control: bfloat16 takes"),
]


@pytest.mark.parametrize("subject", sorted({row[0] for row in WRONG}))
def test_what_was_recorded_passes(subject: str) -> None:
    assert judged(subject).status is Status.PASS


@pytest.mark.parametrize(("subject", "path", "value", "told"), WRONG, ids=[f"{row[0]}-{row[3]}" for row in WRONG])
def test_one_fault_fails_and_is_named(subject: str, path: str, value: Any, told: str) -> None:
    fails(judged(subject, path, value), told)


def test_without_a_profiler_right_numbers_prove_nothing() -> None:
    finding = judged(DENSE, "kernels|works", False)
    assert finding.status is Status.UNPROVEN
    assert "profiler" in finding.reason


def test_a_gate_is_the_hosts_to_open() -> None:
    finding = judged("scaled-mm-fp8", not_applicable="FP8 needs Ada or Hopper: 8.0 is below 8.9")
    assert finding == (Status.NOT_APPLICABLE, "FP8 needs Ada or Hopper: 8.0 is below 8.9")


def test_where_the_host_knows_no_capability_the_gpus_word_decides() -> None:
    finding = judged(DENSE, "gated", "7.5 is below 8.0", capability=None)
    assert finding == (Status.NOT_APPLICABLE, "7.5 is below 8.0")


CUTLASS, BFLOAT16 = "xformers-cutlass", "bfloat16 cross"


def turing(evidence: Facts) -> Facts:
    cases = {**evidence["cases"], BFLOAT16: {"gated": "7.5 is below 8.0", "dtype": "bfloat16"}}
    return {**evidence, "cases": cases, "device": {**evidence["device"], "capability": [7, 5]}}


def test_a_case_that_a_gpu_cannot_do_is_left_out_of_what_is_expected_of_it() -> None:
    expected = {"cases": ["float16 causal"], "tolerance": {"float16": "T"}, "left_out": {BFLOAT16: "7.5 is below 8.0"}}
    finding = judged(CUTLASS, "", turing, capability=[7, 5], **expected)
    assert finding.status is Status.PASS and "not claimed: 7.5 is below 8.0" in finding.reason
    assert judged(CUTLASS).status is Status.PASS
    assert judged(CUTLASS, f"cases|{BFLOAT16}", KeyError).status is Status.FAIL


def test_where_the_host_knows_no_capability_the_gpus_word_decides_about_a_case() -> None:
    passed = judged(CUTLASS, "", turing, capability=None)
    assert passed.status is Status.PASS
    assert "of 1 case use" in passed.reason and "not claimed: 7.5 is below 8.0" in passed.reason
    none = judged(CUTLASS, "cases", lambda old: {name: {"gated": "5.2 is below 6.0"} for name in old}, capability=None)
    assert none == (Status.NOT_APPLICABLE, "5.2 is below 6.0, 5.2 is below 6.0")
    fails(judged(CUTLASS, "", turing, capability=[7, 5]), f"{BFLOAT16}: the GPU says 7.5 is below 8.0")


def test_of_gpus_that_differ_any_may_have_run_it() -> None:
    ran = judged(DENSE, "device|capability", [8, 9], capability=[8, 6], capabilities=[[8, 6], [8, 9]])
    assert ran.status is Status.PASS
    fails(judged(DENSE, capability=[8, 6], capabilities=[[8, 6], [8, 9]]), "capability 9.0, the host has 8.6, 8.9")


@pytest.mark.parametrize(
    ("reasons", "status"),
    [
        (["cutlassF: requires device with capability > (7, 0)"], Status.NOT_APPLICABLE),
        (["cutlassF: xFormers wasn't build with CUDA support"], Status.FAIL),
        (["a: requires device with capability > (7, 0)", "b: operator wasn't built"], Status.FAIL),
    ],
)
def test_a_librarys_own_reasons_are_a_gate_only_where_they_are_about_the_gpu(
    reasons: list[str], status: Status
) -> None:
    assert judged(DENSE, "declined", reasons).status is status


def test_suspects_stand_beside_what_they_cause() -> None:
    wrong = spoiled(evidence_of(DENSE), f"{CASE}|finite", False)
    finding = judge_claim(claim_of(DENSE), {**wrong, "environment": {"TRITON_INTERPRET": "1"}})
    assert "(TRITON_INTERPRET=1 is set)" in finding.reason


@pytest.mark.parametrize(("gpu", "fits"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-40GB", False)])
def test_a_mig_slice_is_its_gpus(gpu: str, fits: bool) -> None:
    host = {"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory": 1, "nvlinks": 0}
    seen = {"gpus": [{"name": f"{gpu} MIG 1g.10gb", "capability": [9, 0], "memory": 1}]}
    inventory = {"driver": "", "gpus": [host, host]}
    found = judged("device", "", lambda e: {**e, "cuda": seen, "torch": seen}, inventory=inventory)
    assert (found.status is Status.PASS) is fits and ("is a slice of no GPU" in found.reason) is not fits


def test_without_an_inventory_libcuda_and_torch_must_agree() -> None:
    assert judged("device", inventory=None).status is Status.PASS
    assert judged("device", "torch|gpus", [], inventory=None).status is Status.FAIL


@pytest.mark.parametrize(
    ("compiled", "running", "status"),
    [
        ([9, 8, 0], [9, 8, 0], Status.PASS),
        ([9, 8, 0], [9, 10, 2], Status.PASS),
        ([9, 10, 2], [9, 10, 1], Status.PASS),
        ([9, 10, 2], [9, 8, 0], Status.FAIL),
        ([9, 1, 0], [8, 9, 7], Status.FAIL),
        ([9, 1, 0], [10, 0, 0], Status.FAIL),
    ],
)
def test_cudnn_is_compatible_backward_within_a_major_version(
    compiled: list[int], running: list[int], status: Status
) -> None:
    """torch 2.8 is compiled for 9.8.0 and pins 9.10.2: an H100 failed it here, which was a false alarm."""
    finding = judged("cudnn", "", lambda e: {**e, "compiled": compiled, "running": running})
    assert finding.status is status
    assert ".".join(map(str, running)) in finding.reason
