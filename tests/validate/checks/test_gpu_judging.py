"""Judges of the gpu tier on mutated evidence: what a real run recorded, one fault at a time."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.support import recorded
from tests.support.judging import fails, judge_claim
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
    evidence: Facts = copy.deepcopy(found["evidence"])
    return evidence


def judged(subject: str, spoil: Callable[[Facts], object] = lambda evidence: None, **expect: Any) -> Finding:
    evidence = evidence_of(subject)
    spoil(evidence)
    claim = claim_of(subject, **expect)
    return judge_claim(claim, evidence)


def case(evidence: Facts, name: str = "dim 64 causal") -> Facts:
    found: Facts = evidence["cases"][name]
    return found


DENSE = "flash-attn-dense"
KERNEL_FAULTS: dict[str, tuple[str, Callable[[Facts], object], str]] = {
    "an output is off": (DENSE, lambda e: case(e)["outputs"]["output"].update(error=1e-3), "output is off by 1.00e-03"),
    "a gradient is off": (
        DENSE,
        lambda e: case(e)["outputs"]["gradient key"].update(error=1e-2),
        "gradient key is off",
    ),
    "an error is no number": (DENSE, lambda e: case(e)["outputs"]["output"].update(error="nan"), "off by nan"),
    "results are not finite": (DENSE, lambda e: case(e).update(finite=False), "not finite"),
    "a case raised": (
        DENSE,
        lambda e: e["cases"].update({"dim 64 causal": {"error": {"kind": "RuntimeError", "message": "no kernel\nat"}}}),
        "RuntimeError: no kernel",
    ),
    "a case was left out": (DENSE, lambda e: e["cases"].pop("dim 256 cross"), "dim 256 cross was not run"),
    "a dtype was left out": (
        DENSE,
        lambda e: [case.update(dtype="float16") for case in e["cases"].values()],
        "nothing was run in bfloat16",
    ),
    "a case ran in another dtype": (DENSE, lambda e: case(e).update(dtype="float32"), "nothing is claimed"),
    "there is no output": (DENSE, lambda e: case(e).update(outputs={}, controls={"x": {}}), "gave no result"),
    "there is no control": (DENSE, lambda e: case(e).update(controls={}), "no control"),
    "a control passes": (
        DENSE,
        lambda e: case(e)["controls"]["heads rolled"].update(output=1e-5),
        "heads rolled is off by 1.00e-05, which the tolerance lets pass",
    ),
    "torch's own kernel ran instead": (
        DENSE,
        lambda e: e["kernels"]["matching"].update({key: [] for key in e["kernels"]["matching"]}),
        "no CUDA kernel like",
    ),
    "the library is not the one": (
        DENSE,
        lambda e: e["libraries"].update({key: [] for key in e["libraries"]}),
        "no library like",
    ),
    "a quantiser errs too little": (
        "bnb-nf4",
        lambda e: e["observed"]["figures"]["mean error"].update(value=0.0719),
        "mean error is 0.0719, not between",
    ),
    "a quantiser errs too much": (
        "bnb-nf4",
        lambda e: e["observed"]["figures"]["mean error"].update(value=0.0738),
        "mean error is 0.0738",
    ),
    "a figure was not measured": ("bnb-fp4", lambda e: e["observed"].update(figures={}), "was not measured"),
    "a figure's control passes": (
        "bnb-fp4",
        lambda e: e["observed"]["figures"]["mean error"]["controls"].update({"unquantised": 0.0965}),
        "which passes as well",
    ),
    "32-bit states": (
        "bnb-adamw8bit",
        lambda e: e["observed"]["facts"].update(states=["torch.float32", "torch.uint8"]),
        "states: ['torch.float32', 'torch.uint8']",
    ),
    "nothing was paged": ("bnb-paged-adamw8bit", lambda e: e["observed"]["facts"].update(paged=False), "paged: False"),
    "whole numbers off by one bit": (
        "triton-jit",
        lambda e: case(e, "int32")["outputs"]["output"].update(error=1e-9),
        "at most 0.00e+00 is allowed",
    ),
    "compiled graphs break": (
        "compile-fullgraph",
        lambda e: e["observed"]["facts"].update({"graph breaks": 2}),
        "graph breaks: 2, not 0",
    ),
    "an observation raised": (
        "scaled-mm-fp8",
        lambda e: e.update(observed={"error": {"kind": "RuntimeError", "message": "_scaled_mm: cc >= 8.9"}}),
        "_scaled_mm: cc >= 8.9",
    ),
    "FP8 that keeps too much was not FP8": (
        "scaled-mm-fp8",
        lambda e: e["observed"]["figures"]["SQNR in dB"].update(value=60.0),
        "SQNR in dB is 60",
    ),
    "it ran on another GPU": (
        DENSE,
        lambda e: e["device"].update(capability=[8, 6]),
        "capability 8.6, the host has 9.0",
    ),
    "the image says it can't": (DENSE, lambda e: e.update(gated="it needs more"), "the GPU says it needs more"),
}


@pytest.mark.parametrize("name", KERNEL_FAULTS)
def test_one_fault_fails_and_is_named(name: str) -> None:
    subject, spoil, told = KERNEL_FAULTS[name]
    assert judged(subject).status is Status.PASS
    fails(judged(subject, spoil), told)


def test_without_a_profiler_right_numbers_prove_nothing() -> None:
    finding = judged(DENSE, lambda e: e["kernels"].update(works=False))
    assert finding.status is Status.UNPROVEN
    assert "profiler" in finding.reason


def test_a_gate_is_the_hosts_to_open() -> None:
    finding = judged("scaled-mm-fp8", not_applicable="FP8 needs Ada or Hopper: 8.0 is below 8.9")
    assert finding == (Status.NOT_APPLICABLE, "FP8 needs Ada or Hopper: 8.0 is below 8.9")


def test_where_the_host_knows_no_capability_the_gpus_word_decides() -> None:
    finding = judged(DENSE, lambda e: e.update(gated="7.5 is below 8.0"), capability=None)
    assert finding == (Status.NOT_APPLICABLE, "7.5 is below 8.0")


CUTLASS, BFLOAT16 = "xformers-cutlass", "bfloat16 cross"


def gate_bfloat16(evidence: Facts) -> None:
    evidence["cases"][BFLOAT16] = {"gated": "7.5 is below 8.0", "dtype": "bfloat16"}
    evidence["device"]["capability"] = [7, 5]


def test_a_case_that_a_gpu_cannot_do_is_left_out_of_what_is_expected_of_it() -> None:
    expected = {"cases": ["float16 causal"], "tolerance": {"float16": "T"}, "left_out": {BFLOAT16: "7.5 is below 8.0"}}
    finding = judged(CUTLASS, gate_bfloat16, capability=[7, 5], **expected)
    assert finding.status is Status.PASS and "not claimed: 7.5 is below 8.0" in finding.reason
    assert judged(CUTLASS).status is Status.PASS
    assert judged(CUTLASS, lambda e: e["cases"].pop(BFLOAT16)).status is Status.FAIL


def test_where_the_host_knows_no_capability_the_gpus_word_decides_about_a_case() -> None:
    passed = judged(CUTLASS, gate_bfloat16, capability=None)
    assert passed.status is Status.PASS
    assert "of 1 case use" in passed.reason and "not claimed: 7.5 is below 8.0" in passed.reason

    def gate_all(evidence: Facts) -> None:
        evidence["cases"] = {name: {"gated": "5.2 is below 6.0", "dtype": "float16"} for name in evidence["cases"]}

    assert judged(CUTLASS, gate_all, capability=None) == (Status.NOT_APPLICABLE, "5.2 is below 6.0, 5.2 is below 6.0")
    fails(judged(CUTLASS, gate_bfloat16, capability=[7, 5]), f"{BFLOAT16}: the GPU says 7.5 is below 8.0")


def test_of_gpus_that_differ_any_may_have_run_it() -> None:
    ran = lambda e: e["device"].update(capability=[8, 9])  # noqa: E731
    assert judged(DENSE, ran, capability=[8, 6], capabilities=[[8, 6], [8, 9]]).status is Status.PASS
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
    assert judged(DENSE, lambda e: e.update(declined=reasons)).status is status


def test_suspects_stand_beside_what_they_cause() -> None:
    def spoil(evidence: Facts) -> None:
        case(evidence)["outputs"]["output"]["error"] = 1.0
        evidence["environment"] = {"TRITON_INTERPRET": "1"}

    assert "(TRITON_INTERPRET=1 is set)" in judged(DENSE, spoil).reason


DEVICE_FAULTS: dict[str, tuple[Callable[[Facts], object], str]] = {
    "hidden": (
        lambda e: [e[view].update(gpus=[]) for view in ("cuda", "torch")],
        "the host injected 1 GPUs, 0 are seen",
    ),
    "one too many": (lambda e: e["cuda"]["gpus"].append(e["cuda"]["gpus"][0]), "injected 1 GPUs, 2 are seen"),
    "another": (
        lambda e: [e[view]["gpus"][0].update(name="NVIDIA A100", capability=[8, 0]) for view in ("cuda", "torch")],
        "GPU 0 is NVIDIA A100 (8.0), the host says NVIDIA H100 80GB HBM3 (9.0)",
    ),
    "torch sees none": (lambda e: e["torch"].update(gpus=[]), "torch sees nothing"),
    "cuInit fails": (
        lambda e: e.update(cuda={"error": {"kind": "DriverError", "message": "cuInit answers 803"}}),
        "cuInit answers 803",
    ),
    "another driver library": (lambda e: e["nvml"].update(driver="570.86.10"), "the driver's library is 570.86.10"),
    "two driver libraries": (lambda e: e["libcuda"].append("/opt/libcuda.so.1"), "2 driver libraries are loaded"),
}


@pytest.mark.parametrize("name", DEVICE_FAULTS)
def test_the_device_is_the_hosts(name: str) -> None:
    spoil, told = DEVICE_FAULTS[name]
    fails(judged("device", spoil), told)


def as_slice(name: str) -> Callable[[Facts], object]:
    return lambda e: [e[view]["gpus"][0].update(name=name) for view in ("cuda", "torch")]


def test_a_mig_slice_is_its_gpus() -> None:
    two = {
        "driver": "",
        "gpus": [{"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0], "memory": 1, "nvlinks": 0}] * 2,
    }
    assert judged("device", as_slice("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), inventory=two).status is Status.PASS
    fails(
        judged("device", as_slice("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), inventory=two),
        "is a slice of no GPU of the host",
    )


def test_without_an_inventory_libcuda_and_torch_must_agree() -> None:
    assert judged("device", inventory=None).status is Status.PASS
    assert judged("device", lambda e: e["torch"].update(gpus=[]), inventory=None).status is Status.FAIL


def test_another_cudnn_than_torchs_fails() -> None:
    fails(
        judged("cudnn", lambda e: e.update(running=[9, 10, 2])),
        "torch was compiled for cuDNN 9.19.0, cuDNN 9.10.2 runs",
    )


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
    finding = judged("cudnn", lambda e: e.update(compiled=compiled, running=running))
    assert finding.status is status
    assert ".".join(map(str, running)) in finding.reason


LLAMA_FAULTS: dict[str, tuple[str, Callable[[Facts], object], str]] = {
    "the loss stays": ("qlora", lambda e: e.update(losses=[6.0, 5.9, 5.8]), "the loss goes from 6.000 to 5.800"),
    "the loss is no number": ("qlora", lambda e: e.update(losses=[6.0, "nan"]), "losses are 6.0, nan"),
    "nothing is recomputed": (
        "qlora",
        lambda e: e.update(gradient_checkpointing=False),
        "gradient checkpointing is off",
    ),
    "B stays": ("qlora", lambda e: e.update(b_still=["layer.0.lora_B"]), "B did not move in layer.0.lora_B"),
    "B did not begin at zero": ("qlora", lambda e: e.update(b_before=0.1), "B was 0.1"),
    "there is no adapter": ("qlora", lambda e: e.update(adapters=0), "no adapter"),
    "the base moved": ("qlora", lambda e: e.update(base_changed=["model.norm.weight"]), "model.norm.weight"),
    "other bits": ("qlora", lambda e: e["second_run"].update(fingerprint="0"), "ends in other bits"),
    "other losses": ("qlora", lambda e: e["second_run"]["losses"].__setitem__(3, 1.0), "differ from step 4 on"),
    "memory of bfloat16": (
        "nf4-weights",
        lambda e: e["memory"].update(quantised=e["memory"]["bfloat16"]),
        "bytes of GPU memory, at most",
    ),
    "a memory bound that tells nothing": (
        "nf4-weights",
        lambda e: e["memory"].update(bfloat16=e["memory"]["quantised"]),
        "control: bfloat16 takes",
    ),
}


@pytest.mark.parametrize("name", LLAMA_FAULTS)
def test_a_llama_that_does_not_train_fails(name: str) -> None:
    subject, spoil, told = LLAMA_FAULTS[name]
    assert judged(subject).status is Status.PASS
    fails(judged(subject, spoil), told)
