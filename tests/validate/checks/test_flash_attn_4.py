"""C13's judge on what cu130-torch213 showed, and on each way in which the compiler can be wrong."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.support.claims import bare_claims
from validate.checks.cpu.flash_attn_4 import judge
from validate.checks.cpu.triton import EM_CUDA
from validate.judging import Status

EXPECT: Any = {"arch": 90, "bogus": 999, "kernels": ["flash_fwd", "flash_bwd"]}
HEALTHY: Any = {
    "compiled": {
        "cubins": {
            "cutlass_flash_attncuteflash_fwd_sm90.sm_90a.cubin": {"bytes": 43592, "machine": EM_CUDA, "arch": 90},
            "cutlass_flash_attncuteflash_bwd_sm90.sm_90a.cubin": {"bytes": 29384, "machine": EM_CUDA, "arch": 90},
        },
        "compile_seconds": 3.4,
    },
    "control": {"error": {"kind": "KeyError", "message": "'sm_999a'"}},
}
FORWARD, BACKWARD = HEALTHY["compiled"]["cubins"]


def test_both_kernels_for_the_arch_pass() -> None:
    finding = judge("flash-attn-4 sm_90", EXPECT, HEALTHY)
    assert (finding.status, finding.reason) == (
        Status.PASS,
        "compiled flash_fwd and flash_bwd for sm_90 (72976 bytes, 3.4 s), and refused sm_999",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: e["compiled"]["cubins"].pop(BACKWARD), "flash_bwd was not compiled"),
        (lambda e: e["compiled"]["cubins"][FORWARD].update(arch=80), "made is 43592 bytes for sm_80"),
        (lambda e: e["compiled"]["cubins"][FORWARD].update(machine=None, arch=None), "for sm_None"),
        (lambda e: e["compiled"].update(cubins={}), "flash_fwd was not compiled; flash_bwd was not compiled"),
        (lambda e: e.update(control=e["compiled"]), "sm_999 does not exist, and compiled all the same"),
        (
            lambda e: e.update(compiled={"error": {"kind": "RuntimeError", "message": "No CTK flavor installed"}}),
            "nothing compiled for sm_90: RuntimeError: No CTK flavor installed",
        ),
    ],
)
def test_each_fault_is_named(change: Callable[[Any], object], reason: str) -> None:
    evidence = deepcopy(HEALTHY)
    change(evidence)
    finding = judge("flash-attn-4 sm_90", EXPECT, evidence)
    assert finding.status is Status.FAIL
    assert reason in finding.reason


def test_an_image_claims_it_for_each_arch_that_the_package_supports() -> None:
    claims = bare_claims("cu130-torch213").claims
    kernels = {claim.subject: claim.expect["kernels"] for claim in claims if claim.id == "C13"}
    assert kernels["flash-attn-4 sm_80"] == ["flash_fwd"]  # the backward begins with Hopper
    assert kernels["flash-attn-4 sm_90"] == ["flash_fwd", "flash_bwd"]
    assert "flash-attn-4 sm_75" not in kernels
    assert not any(claim.id == "C13" for claim in bare_claims("cu126-torch25").claims)
