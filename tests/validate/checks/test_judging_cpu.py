"""Judges of the cpu tier, on evidence recorded in a healthy cu126-torch27 image and on what faults make of it."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import Verdict, judge
from validate.judging import Finding, Status

_RECORDED = json.loads((Path(__file__).parents[2] / "support" / "recorded_cpu.json").read_text(encoding="utf-8"))
CLAIMS = ClaimSet.loads(json.dumps(_RECORDED["claims"]))
RECORDS = tuple(Record.from_json(record) for record in _RECORDED["records"])
BNB = "bitsandbytes/libbitsandbytes_cuda126.so"
XFORMERS = "xformers/_C.so"
Q_PROJ = "model.layers.0.self_attn.q_proj"


def claim_of(claim_id: str, subject: str) -> Claim:
    return next(claim for claim in CLAIMS.claims if (claim.id, claim.subject) == (claim_id, subject))


def evidence_of(claim: Claim) -> dict[str, Any]:
    record = next(record for record in RECORDS if record.probe == claim.probe)
    return copy.deepcopy(dict(next(found for found in record.measurements if found.subject == claim.subject).evidence))


def judged(claim: Claim, evidence: dict[str, Any]) -> Finding:
    """Through judge(), so that evidence a judge can't read is seen as the runner's user sees it."""
    record = Record(
        probe=claim.probe,
        outcome=Outcome.COMPLETED,
        seconds=1.0,
        measurements=(Measurement(subject=claim.subject, seconds=1.0, evidence=evidence),),
    )
    verdict = judged_set(ClaimSet(image=CLAIMS.image, claims=(claim,)), (record,)).claims[0]
    return Finding(verdict.status, verdict.reason)


def judged_set(claims: ClaimSet, records: tuple[Record, ...]) -> Verdict:
    return judge(claims, Evidence(image=claims.image, digest="sha256:0", records=records), tiers=[Tier.CPU])


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """A fault: the last of `path` becomes the value at the place that the others name."""
    *way, last, value = path

    def mutate(evidence: dict[str, Any]) -> None:
        place = evidence
        for step in way:
            place = place[step]
        place[last] = value

    return mutate


def all_projections(**values: Any) -> Callable[[dict[str, Any]], None]:
    def mutate(evidence: dict[str, Any]) -> None:
        for facts in evidence["projections"].values():
            facts.update(values)

    return mutate


def crash(evidence: dict[str, Any]) -> None:
    """What is left when the process dies while a library is being loaded."""
    kept = {key: evidence[key] for key in ("version", "root", "files")}
    evidence.clear()
    error = {"kind": "crash", "message": "killed by SIGBUS", "log": "importing xformers.ops\n"}
    evidence.update(kept, error=error)


def remove_adapters(evidence: dict[str, Any]) -> None:
    evidence["adapters"] = {}


ADAPTER = next(iter(evidence_of(claim_of("C10", "lora-step"))["adapters"]))

FAULTS = {
    "bitsandbytes' CUDA library deleted": (
        ("C2", "bitsandbytes"),
        [put("files", BNB, False), put("libraries", {})],
        f"{BNB} is missing",
    ),
    "the CPU library under the CUDA library's name": (
        ("C2", "bitsandbytes"),
        [put("libraries", BNB, "missing_symbols", ["cquantize_blockwise_fp16_nf4", "cget_managed_ptr"])],
        "lacks 2 of 6 symbols: cquantize_blockwise_fp16_nf4",
    ),
    "another CUDA's library under that name": (
        ("C2", "bitsandbytes"),
        [put("libraries", BNB, "load_error", "libcudart.so.13: cannot open shared object file")],
        "can't be loaded: libcudart.so.13",
    ),
    "BNB_CUDA_VERSION": (
        ("C2", "bitsandbytes"),
        [put("selection", "file", "libbitsandbytes_cuda130.so"), put("selection", "override", "130")],
        "would take libbitsandbytes_cuda130.so (BNB_CUDA_VERSION=130), not libbitsandbytes_cuda126.so",
    ),
    "a torch for another CUDA": (
        ("C2", "bitsandbytes"),
        [put("selection", "torch_cuda", "12.4")],
        "CUDA 12.4, not 12.6",
    ),
    "bitsandbytes without its lookup": (
        ("C2", "bitsandbytes"),
        [put("selection", {"error": {"kind": "AttributeError", "message": "no attribute"}})],
        "lookup can't be asked: AttributeError",
    ),
    "not installed": (("C2", "bitsandbytes"), [dict.clear], "bitsandbytes is not installed"),
    "no kernels in the wheel": (
        ("C2", "xformers"),
        [put("files", {}), put("libraries", {})],
        "no file matches xformers/",
    ),
    "xformers went on without its library": (
        ("C2", "xformers"),
        [put("libraries", XFORMERS, "mapped_by_import", False)],
        f"importing xformers.ops does not load {XFORMERS}",
    ),
    "operators not registered": (
        ("C2", "xformers"),
        [put("operators", {})],
        "torch does not know xformers::swiglu_packedw",
    ),
    "operators without CUDA": (
        ("C2", "xformers"),
        [put("operators", "xformers::swiglu_packedw", False)],
        "no CUDA kernel is registered for xformers::swiglu_packedw",
    ),
    "a crash while loading": (("C2", "xformers"), [crash], "crash: killed by SIGBUS (importing xformers.ops)"),
    "a failing import": (
        ("C2", "xformers"),
        [put("imports", "xformers.ops", {"kind": "ImportError", "message": "no flash_attn_interface"})],
        "import xformers.ops: ImportError: no flash_attn_interface",
    ),
    "two CUDA runtimes": (
        ("C2", "xformers"),
        [lambda e: e["cuda_runtimes"].append({**e["cuda_runtimes"][0], "file": "/usr/local/cuda/lib/libcudart.so.12"})],
        "2 CUDA runtimes are loaded",
    ),
    "a runtime of another major": (
        ("C2", "xformers"),
        [put("cuda_runtimes", 0, "major", 13), put("cuda_runtimes", 0, "version", 13000)],
        "libcudart.so.12 is 13.0",
    ),
    "no gcc": (("C3", "c-extension"), [put("compiler", "path", None)], "neither gcc nor clang is on PATH"),
    "CC names nothing": (
        ("C3", "triton-launcher"),
        [put("compiler", {"from": "CC", "command": "icx", "path": None})],
        "CC=icx is no program",
    ),
    "no Python.h": (("C3", "c-extension"), [put("python_h", False)], "Python.h is not in /usr/include/python3.11"),
    "no libc headers": (
        ("C3", "c-extension"),
        [put("build", "exit_code", 1), put("build", "stderr", "In file included\nfatal error: stdlib.h: No such file")],
        "fatal error: stdlib.h",
    ),
    "gcc that does nothing": (("C3", "c-extension"), [put("build", "bytes", 0)], "status 0 and made nothing"),
    "gcc that accepts all": (("C3", "c-extension"), [put("control", "refused", False)], "control"),
    "an older extension": (("C3", "c-extension"), [put("import", "answer", 1)], "answers 1, its source says"),
    "no launcher": (("C3", "triton-launcher"), [put("made", [])], "no compiled module"),
    "a launcher of something else": (("C3", "triton-launcher"), [put("functions", [])], "lacks load_binary"),
    "TRITON_INTERPRET": (
        ("C4", "sm_90"),
        [put("jit", "InterpretedFunction"), put("environment", "TRITON_INTERPRET", "1")],
        "InterpretedFunction instead of JITFunction (TRITON_INTERPRET=1)",
    ),
    "ptxas too old": (
        ("C4", "sm_90"),
        [put("kernels", "matmul", {"error": {"kind": "PTXASError", "message": "codegen error\nptxas fatal : sm_90a"}})],
        "matmul for sm_90: PTXASError: codegen error (ptxas fatal : sm_90a)",
    ),
    "ptxas that makes nothing": (
        ("C4", "sm_90"),
        [put("kernels", "softmax", {"bytes": 0, "machine": None, "arch": None, "entry": False})],
        "0 bytes that are no CUDA binary",
    ),
    "ptxas for another arch": (("C4", "sm_90"), [put("kernels", "softmax", "arch", 80)], "the binary is for sm_80"),
    "another kernel's binary": (
        ("C4", "sm_90"),
        [put("kernels", "softmax", "entry", False)],
        "does not hold the kernel",
    ),
    "a kernel left out": (("C4", "sm_90"), [put("kernels", {})], "softmax was not compiled"),
    "the bogus arch compiles": (("C4", "sm_90"), [put("control", {"arch": 999, "bytes": 9})], "sm_999 does not exist"),
    "the bogus arch was not tried": (("C4", "sm_90"), [put("control", "arch", 90)], "control"),
    "4-bit loading made a no-op": (
        ("C10", "nf4-weights"),
        [all_projections(**{"class": "torch.nn.modules.linear.Linear"})],
        "expected Linear4bit in 14 of 14 projections, found torch.nn.modules.linear.Linear in model.layers.0.",
    ),
    "one projection left alone": (
        ("C10", "nf4-weights"),
        [put("projections", Q_PROJ, "dtype", "bfloat16"), put("projections", Q_PROJ, "bytes", 73728)],
        f"found bfloat16 at 2.00 in {Q_PROJ}",
    ),
    "FP4 in place of NF4": (("C10", "nf4-weights"), [all_projections(quant_type="fp4")], "found fp4 in blocks of 64"),
    "quantised without error": (("C10", "nf4-weights"), [all_projections(mean_error=0.0)], "found 0.00e+00"),
    "a quantiser that is off": (("C10", "nf4-weights"), [all_projections(mean_error=0.0965)], "found 9.65e-02"),
    "a decoder that is off": (
        ("C10", "nf4-weights"),
        [all_projections(decoder_difference=0.1)],
        "decode its own codes",
    ),
    "scales left out": (("C10", "nf4-weights"), [all_projections(scale_bytes=4)], "bytes of scales"),
    "codes that can't be read": (
        ("C10", "nf4-weights"),
        [put("projections", Q_PROJ, "error", {"kind": "RuntimeError", "message": "shape"})],
        "RuntimeError: shape",
    ),
    "no projection": (("C10", "nf4-weights"), [put("projections", {})], "no projection was looked at"),
    "wrong arithmetic": (("C10", "fp32"), [put("comparisons", "float32", "error", 0.01)], "off by 1.00e-02"),
    "not a number": (
        ("C10", "nf4-logits"),
        [put("comparisons", "bfloat16", "error", "nan")],
        "bfloat16 logits are off by nan",
    ),
    "tolerance without meaning": (
        ("C10", "nf4-logits"),
        [put("comparisons", "float32", "plain_error", 0.2)],
        "control: float32 scaled by 1.01 is off by",
    ),
    "no control": (("C10", "fp32"), [put("comparisons", "float32", "controls", {})], "float32 has no control"),
    "the stack raised": (
        ("C10", "nf4-logits"),
        [put("error", {"kind": "TypeError", "message": "q_proj holds no 4-bit weights"})],
        "TypeError: q_proj holds no 4-bit weights",
    ),
    "no gradient": (
        ("C10", "lora-step"),
        [put("adapters", ADAPTER, "after", 0.0)],
        "B did not move in 1 of 14 adapters",
    ),
    "a wrong gradient": (("C10", "lora-step"), [put("adapters", ADAPTER, "error", 0.02)], "B is off by 2.00e-02"),
    "B began elsewhere": (("C10", "lora-step"), [put("adapters", ADAPTER, "before", 0.1)], "was not zero before"),
    "a control within": (("C10", "lora-step"), [put("adapters", ADAPTER, "control", 0.0)], "control: "),
    "no adapter": (("C10", "lora-step"), [remove_adapters], "no adapter was attached"),
    "infinite loss": (("C10", "lora-step"), [put("loss", "inf")], "the loss is inf"),
    "another loss": (("C10", "lora-step"), [put("loss", 6.0)], "the loss is 6.00000"),
    "a base that moved": (("C10", "lora-step"), [put("base_changed", ["model.norm.weight"])], "changed frozen weights"),
    "no base": (("C10", "lora-step"), [put("base_count", 0)], "no base weight"),
    "an import that raises": (
        ("C1", "xformers"),
        [put("orders", "first", "error", {"kind": "status 1", "message": "ImportError: undefined symbol: _ZN3c10"})],
        "undefined symbol: _ZN3c10",
    ),
    "an import that complains": (
        ("C1", "xformers"),
        [put("orders", "after torch", "said", ["WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions."])],
        "after torch it says: WARNING[XFORMERS]: xFormers can't load",
    ),
    "nothing imported": (("C1", "all"), [put("orders", {})], "nothing was imported"),
    "compile switched off": (
        ("C5", "torch.compile"),
        [put("captured", 0), put("graphs", 0), put("environment", {"TORCHDYNAMO_DISABLE": "1"})],
        "captured nothing (TORCHDYNAMO_DISABLE=1)",
    ),
    "compile without kernels": (("C5", "torch.compile"), [put("generated", 0)], "generated no kernel"),
    "a kernel that never ran": (("C5", "torch.compile"), [put("mapped", [])], "is not loaded"),
    "a graph break": (("C5", "torch.compile"), [put("breaks", 2)], "2 graph breaks"),
    "compiled to wrong numbers": (("C5", "torch.compile"), [put("found_error", 0.01)], "off by 1.00e-02"),
    "compile without a control": (("C5", "torch.compile"), [put("control_error", 0.0)], "control: "),
    "no compiler for torch.compile": (
        ("C5", "torch.compile"),
        [put("error", {"kind": "InvalidCxxCompiler", "message": "No working C++ compiler found"})],
        "No working C++ compiler",
    ),
    "numpy of another ABI": (("C6", "numpy"), [put("shared", "float16", False)], "share memory for float16"),
    "a copy that is wrong": (("C6", "numpy"), [put("copied_sum", 14.0)], "sums up to 14.0"),
    "a second OpenMP": (
        ("C7", "threads"),
        [put("openmp", ["/a/libgomp.so.1", "/b/libiomp5.so"])],
        "2 OpenMP runtimes in one process: /a/libgomp.so.1, /b/libiomp5.so",
    ),
    "one thread by a variable": (
        ("C7", "threads"),
        [put("cores", 8), put("torch_threads", 1), put("environment", {"OMP_NUM_THREADS": "1"})],
        "torch takes 1 thread on 8 cores (OMP_NUM_THREADS=1)",
    ),
    "threads that idle": (("C7", "threads"), [put("cores", 8), put("busy_threads", 1)], "threads, 1 has worked"),
    "a user without a name": (
        ("C8", "arbitrary UID"),
        [put("steps", "user name", {"error": {"kind": "KeyError", "message": "getpwuid(): uid not found: 61234"}})],
        "user name: KeyError",
    ),
    "a checkpoint that differs": (
        ("C8", "arbitrary UID"),
        [put("steps", "training", "answer", "checkpoint", False)],
        "checkpoint False",
    ),
    "torch that moved": (
        ("C11", "pip"),
        [put("mover", {"code": 0, "said": "Successfully installed torch-99.0"}), put("after", "version", "99.0")],
        "pip replaces torch where a package asks for another; torch was",
    ),
    "a refusal for another reason": (
        ("C11", "pip"),
        [put("mover", {"code": 1, "said": "ERROR: No space left on device"})],
        "not for the constraints: ERROR: No space left",
    ),
    "a package that is not added": (
        ("C11", "pip"),
        [put("plain", {"code": 1, "said": "ERROR: Permission denied: /opt/venv"})],
        "pip can't add a package: ERROR: Permission denied",
    ),
    "a package that is added elsewhere": (("C11", "pip"), [put("imported", "/opt/x.py")], "imported from /opt/x.py"),
    "constraints without torch": (("C11", "pip"), [put("constraints", {})], "the constraints hold"),
    "refused without constraints too": (
        ("C11", "pip"),
        [put("control", {"code": 1, "said": "ERROR: no"})],
        "control: without constraints",
    ),
    "AVX-512 unasked": (
        ("C9", "avx512"),
        [
            put(
                "not_asking",
                [
                    {
                        "path": "/v/site-packages/ds/cpu_adam.so",
                        "owners": ["ds"],
                        "avx512": 421,
                        "code": 9,
                        "asks": False,
                    }
                ],
            )
        ],
        "ds/cpu_adam.so of ds holds 421 AVX-512",
    ),
    "no native code": (("C9", "avx512"), [put("files", 0)], "no native code"),
}


def test_healthy_image_is_green() -> None:
    verdict = judged_set(CLAIMS, RECORDS)
    assert {c.claim.subject: c.reason for c in verdict.claims if c.status is not Status.PASS} == {}
    assert verdict.overall is Status.PASS
    assert {claim.id for claim in CLAIMS.claims} == {f"C{number}" for number in range(1, 13)}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught_and_named(fault: str) -> None:
    (claim_id, subject), mutations, culprit = FAULTS[fault]
    claim = claim_of(claim_id, subject)
    evidence = evidence_of(claim)
    for mutate in mutations:
        mutate(evidence)
    status, reason = judged(claim, evidence)
    assert status is Status.FAIL
    assert culprit in reason


JUDGED = {
    "C1": ("orders",),
    "C5": ("captured", "graphs", "breaks", "generated", "libraries", "mapped", "found_error", "control_error"),
    "C6": ("shared", "copied_sum"),
    "C7": ("cores", "torch_threads", "busy_threads", "openmp", "not_imported"),
    "C8": (),
    "C11": (),
    "C9": ("files", "asking", "not_asking"),
    "C2": ("files", "libraries", "operators", "cuda_runtimes", "imports"),
    "C3": ("compiler",),
    "C4": ("jit", "kernels", "control"),
    "C10": (),
    "C12": (),
}


@pytest.mark.parametrize("claim", CLAIMS.claims, ids=lambda claim: f"{claim.id}-{claim.subject}")
def test_evidence_with_a_part_missing_is_never_green(claim: Claim) -> None:
    whole = evidence_of(claim)
    for key in JUDGED[claim.id] or whole.keys() - {"versions"}:
        if claim.expect.get("cuda_major", 0) is None and key == "cuda_runtimes":
            continue
        partial = {name: value for name, value in whole.items() if name != key}
        if not claim.expect.get("operators", True) and key == "operators":
            continue
        assert judged(claim, partial).status is not Status.PASS, key
    assert judged(claim, {}).status is not Status.PASS


@given(st.floats(min_value=0, max_value=1), st.integers(min_value=64, max_value=1 << 22))
def test_quantiser_bound_is_two_sided_and_shrinks_with_the_sample(error: float, blocks: int) -> None:
    claim = claim_of("C10", "nf4-weights")
    values = blocks * 64
    facts = evidence_of(claim)["projections"][Q_PROJ]
    facts |= {"values": values, "bytes": values // 2, "scale_bytes": blocks * 4, "mean_error": error}
    bound = 7 * claim.expect["mean_error_sigma"] * math.sqrt(1024 * 1024 / values)
    inside = abs(error - claim.expect["mean_error"]) <= bound
    assert (judged(claim, {"projections": {Q_PROJ: facts}}).status is Status.PASS) == inside


@given(st.integers(min_value=50, max_value=130))
def test_only_the_asked_arch_passes(arch: int) -> None:
    claim = claim_of("C4", "sm_90")
    evidence = evidence_of(claim)
    for facts in evidence["kernels"].values():
        facts["arch"] = arch
    assert (judged(claim, evidence).status is Status.PASS) == (arch == 90)


@given(st.floats(min_value=0, max_value=1), st.floats(min_value=0, max_value=1))
def test_logits_follow_rule_t(error: float, plain: float) -> None:
    claim = claim_of("C10", "fp32")
    evidence = evidence_of(claim)
    comparison = evidence["comparisons"]["float32"]
    comparison |= {"error": error, "plain_error": plain}
    tolerance = 2 * plain + 1e-5
    meaningful = all(control > tolerance for control in comparison["controls"].values())
    assert (judged(claim, evidence).status is Status.PASS) == (error <= tolerance and meaningful)
