"""Judges of the cpu tier, on evidence recorded in a healthy cu126-torch27 image and on what faults make of it."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.judging import spoiled
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


def claim_of(key: str) -> Claim:
    return next(claim for claim in CLAIMS.claims if f"{claim.id} {claim.subject}" == key)


def evidence_of(claim: Claim) -> dict[str, Any]:
    record = next(record for record in RECORDS if record.probe == claim.probe)
    return copy.deepcopy(dict(next(found for found in record.measurements if found.subject == claim.subject).evidence))


def judged(claim: Claim, evidence: dict[str, Any]) -> Finding:
    """Through judge(), so that evidence a judge can't read is seen as the runner's user sees it."""
    found = Measurement(subject=claim.subject, seconds=1.0, evidence=evidence)
    record = Record(probe=claim.probe, outcome=Outcome.COMPLETED, seconds=1.0, measurements=(found,))
    verdict = judged_set(ClaimSet(image=CLAIMS.image, claims=(claim,)), (record,)).claims[0]
    return Finding(verdict.status, verdict.reason)


def judged_set(claims: ClaimSet, records: tuple[Record, ...]) -> Verdict:
    return judge(claims, Evidence(image=claims.image, digest="sha256:0", records=records), tiers=[Tier.CPU])


def raised(kind: str, message: str, log: str = "") -> dict[str, str]:
    return {"kind": kind, "message": message, "log": log}


ADAPTER = next(iter(evidence_of(claim_of("C10 lora-step"))["adapters"]))

FAULTS: dict[str, list[tuple[str, Any]]] = {
    "C2 bitsandbytes": [
        (f"{BNB} is missing", {f"files|{BNB}": False, "libraries": {}}),
        ("lacks 2 of 6 symbols: cquantize", {f"libraries|{BNB}|missing_symbols": ["cquantize_nf4", "cget_ptr"]}),
        ("can't be loaded: libcudart.so.13", {f"libraries|{BNB}|load_error": "libcudart.so.13: cannot open"}),
        (
            "take libbnb.so (BNB_CUDA_VERSION=130), not libb",
            {"selection|file": "libbnb.so", "selection|override": "130"},
        ),
        ("CUDA 12.4, not 12.6", {"selection|torch_cuda": "12.4"}),
        ("lookup can't be asked: AttributeError", {"selection": {"error": raised("AttributeError", "no attribute")}}),
        ("bitsandbytes is not installed", None),
    ],
    "C2 xformers": [
        ("no file matches xformers/", {"files": {}, "libraries": {}}),
        (f"importing xformers.ops does not load {XFORMERS}", {f"libraries|{XFORMERS}|mapped_by_import": False}),
        ("torch does not know xformers::swiglu_packedw", {"operators": {}}),
        ("no CUDA kernel is registered for xformers::swiglu_packedw", {"operators|xformers::swiglu_packedw": False}),
        (
            "crash: killed by SIGBUS (importing x.ops)",
            {"error": raised("crash", "killed by SIGBUS", "importing x.ops\n")},
        ),
        ("import xformers.ops: ImportError: none", {"imports|xformers.ops": raised("ImportError", "none")}),
        ("2 CUDA runtimes are loaded", {"cuda_runtimes": [{"file": "a", "major": 12, "version": 12060}] * 2}),
        ("libcudart.so.12 is 13.0", {"cuda_runtimes|0|major": 13, "cuda_runtimes|0|version": 13000}),
    ],
    "C3 c-extension": [
        ("neither gcc nor clang is on PATH", {"compiler|path": None}),
        ("Python.h is not in /usr/include/python3.11", {"python_h": False}),
        ("fatal error: stdlib.h", {"build|exit_code": 1, "build|stderr": "In file\nfatal error: stdlib.h: none"}),
        ("status 0 and made nothing", {"build|bytes": 0}),
        ("control", {"control|refused": False}),
        ("answers 1, its source says", {"import|answer": 1}),
    ],
    "C3 triton-launcher": [
        ("CC=icx is no program", {"compiler": {"from": "CC", "command": "icx", "path": None}}),
        ("no compiled module", {"made": []}),
        ("lacks load_binary", {"functions": []}),
    ],
    "C4 sm_90": [
        ("of JITFunction (TRITON_INTERPRET=1)", {"jit": "Interpreted", "environment|TRITON_INTERPRET": "1"}),
        ("matmul for sm_90: E: codegen (ptxas fatal)", {"kernels|matmul|error": raised("E", "codegen\nptxas fatal")}),
        ("0 bytes that are no CUDA binary", {"kernels|softmax|bytes": 0, "kernels|softmax|machine": None}),
        ("the binary is for sm_80", {"kernels|softmax|arch": 80}),
        ("does not hold the kernel", {"kernels|softmax|entry": False}),
        ("softmax was not compiled", {"kernels": {}}),
        ("sm_999 does not exist", {"control": {"arch": 999, "bytes": 9}}),
        ("control", {"control|arch": 90}),
    ],
    "C10 nf4-weights": [
        ("Linear4bit in 14 of 14 projections, found torch.nn.Linear in", {"projections|*|class": "torch.nn.Linear"}),
        (f"found bfloat16 at 0.50 in {Q_PROJ}", {f"projections|{Q_PROJ}|dtype": "bfloat16"}),
        ("found fp4 in blocks of 64", {"projections|*|quant_type": "fp4"}),
        ("found 0.00e+00", {"projections|*|mean_error": 0.0}),
        ("found 9.65e-02", {"projections|*|mean_error": 0.0965}),
        ("decode its own codes", {"projections|*|decoder_difference": 0.1}),
        ("bytes of scales", {"projections|*|scale_bytes": 4}),
        ("RuntimeError: shape", {f"projections|{Q_PROJ}|error": raised("RuntimeError", "shape")}),
        ("no projection was looked at", {"projections": {}}),
    ],
    "C10 fp32": [
        ("off by 1.00e-02", {"comparisons|float32|error": 0.01}),
        ("float32 has no control", {"comparisons|float32|controls": {}}),
    ],
    "C10 nf4-logits": [
        ("bfloat16 logits are off by nan", {"comparisons|bfloat16|error": "nan"}),
        ("control: float32 scaled by 1.01 is off by", {"comparisons|float32|plain_error": 0.2}),
        ("TypeError: q_proj holds no 4-bit weights", {"error": raised("TypeError", "q_proj holds no 4-bit weights")}),
    ],
    "C10 lora-step": [
        ("B did not move in 1 of 14 adapters", {f"adapters|{ADAPTER}|after": 0.0}),
        ("B is off by 2.00e-02", {f"adapters|{ADAPTER}|error": 0.02}),
        ("was not zero before", {f"adapters|{ADAPTER}|before": 0.1}),
        ("control: ", {f"adapters|{ADAPTER}|control": 0.0}),
        ("no adapter was attached", {"adapters": {}}),
        ("the loss is inf", {"loss": "inf"}),
        ("the loss is 6.00000", {"loss": 6.0}),
        ("changed frozen weights", {"base_changed": ["model.norm.weight"]}),
        ("no base weight", {"base_count": 0}),
    ],
    "C1 xformers": [
        ("undefined symbol: _ZN3c10", {"orders|first|error": raised("status 1", "undefined symbol: _ZN3c10")}),
        (
            "after torch it says: WARNING[",
            {"orders|after torch|said": ["WARNING[XFORMERS]: xFormers can't load C++/CUDA"]},
        ),
    ],
    "C1 all": [
        ("nothing was imported", {"orders": {}}),
    ],
    "C5 torch.compile": [
        ("nothing (TORCHDYNAMO_DISABLE=1)", {"captured": 0, "graphs": 0, "environment": {"TORCHDYNAMO_DISABLE": "1"}}),
        ("generated no kernel", {"generated": 0}),
        ("is not loaded", {"mapped": []}),
        ("2 graph breaks", {"breaks": 2}),
        ("off by 1.00e-02", {"found_error": 0.01}),
        ("control: ", {"control_error": 0.0}),
        ("No working C++ compiler", {"error": raised("InvalidCxxCompiler", "No working C++ compiler found")}),
    ],
    "C6 numpy": [
        ("share memory for float16", {"shared|float16": False}),
        ("sums up to 14.0", {"copied_sum": 14.0}),
    ],
    "C7 threads": [
        ("2 OpenMP runtimes in one process: /a/libgomp.so.1, /b/li", {"openmp": ["/a/libgomp.so.1", "/b/libiomp5.so"]}),
        ("1 thread on 8 cores (OMP_N=1)", {"cores": 8, "torch_threads": 1, "environment": {"OMP_N": "1"}}),
        ("threads, 1 has worked", {"cores": 8, "busy_threads": 1}),
    ],
    "C8 arbitrary UID": [
        ("user name: KeyError", {"steps|user name": {"error": raised("KeyError", "uid not found")}}),
        ("checkpoint False", {"steps|training|answer|checkpoint": False}),
    ],
    "C11 pip": [
        ("torch where a package asks for another; torch was", {"mover|code": 0, "after|version": "99.0"}),
        ("not for the constraints: ERROR: No space left", {"mover": {"code": 1, "said": "ERROR: No space left on /"}}),
        ("pip can't add a package: ERROR: denied", {"plain": {"code": 1, "said": "ERROR: denied: /opt/venv"}}),
        ("imported from /opt/x.py", {"imported": "/opt/x.py"}),
        ("the constraints hold", {"constraints": {}}),
        ("control: without constraints", {"control": {"code": 1, "said": "ERROR: no"}}),
    ],
    "C9 avx512": [
        (
            "ds/a.so of ds holds 9 AVX-512",
            {"not_asking": [{"path": "/site-packages/ds/a.so", "owners": ["ds"], "avx512": 9}]},
        ),
        ("no native code", {"files": 0}),
    ],
}
"""Claim -> what the reason of a fault says, and what the fault makes of the evidence; None: nothing is left."""


def test_healthy_image_is_green() -> None:
    verdict = judged_set(CLAIMS, RECORDS)
    assert {c.claim.subject: c.reason for c in verdict.claims if c.status is not Status.PASS} == {}
    assert verdict.overall is Status.PASS
    assert {claim.id for claim in CLAIMS.claims} == {f"C{number}" for number in range(1, 13)}


ROWS = [(key, *fault) for key, faults in FAULTS.items() for fault in faults]


@pytest.mark.parametrize(("key", "culprit", "changes"), ROWS, ids=[f"{key} {culprit}" for key, culprit, _ in ROWS])
def test_fault_is_caught_and_named(key: str, culprit: str, changes: dict[str, Any] | None) -> None:
    claim = claim_of(key)
    evidence = {} if changes is None else evidence_of(claim)
    for path, value in (changes or {}).items():
        evidence = spoiled(evidence, path, value)
    status, reason = judged(claim, evidence)
    assert status is Status.FAIL
    assert culprit in reason


UNREAD = {"C2": {"mapped", "root", "version", "warnings"}, "C4": {"environment", "ptxas"}, "C6": {"torch"}}
UNREAD |= {"C7": {"environment"}, "C9": {"bytes"}, "C10": {"versions"}}
"""What a verdict does not rest on."""


@pytest.mark.parametrize("claim", CLAIMS.claims, ids=lambda claim: f"{claim.id}-{claim.subject}")
def test_evidence_with_a_part_missing_is_never_green(claim: Claim) -> None:
    assert judged(claim, {}).status is not Status.PASS
    for key in evidence_of(claim).keys() - UNREAD.get(claim.id, set()):
        assert judged(claim, spoiled(evidence_of(claim), key, KeyError)).status is not Status.PASS, key


@given(st.floats(min_value=0, max_value=1), st.integers(min_value=64, max_value=1 << 22))
def test_quantiser_bound_is_two_sided_and_shrinks_with_the_sample(error: float, blocks: int) -> None:
    claim = claim_of("C10 nf4-weights")
    values = blocks * 64
    facts = evidence_of(claim)["projections"][Q_PROJ]
    facts |= {"values": values, "bytes": values // 2, "scale_bytes": blocks * 4, "mean_error": error}
    bound = 7 * claim.expect["mean_error_sigma"] * math.sqrt(1024 * 1024 / values)
    inside = abs(error - claim.expect["mean_error"]) <= bound
    assert (judged(claim, {"projections": {Q_PROJ: facts}}).status is Status.PASS) == inside
