"""flash-attn-4's judge on what cu130-torch213 showed, and on each way in which the compiler can be wrong."""

from typing import Any

import pytest

from tests.support.claims import bare_claims
from tests.support.judging import fails, spoiled
from validate.checks.cpu.flash_attn_4 import judge
from validate.checks.cpu.triton import EM_CUDA
from validate.judging import Status

EXPECT: Any = {"arch": 90, "bogus": 999, "kernels": ["flash_fwd", "flash_bwd"]}
HEALTHY: Any = {
    "compiled": {
        "cubins": {
            "cutlass_flash_attncuteflash_fwd_sm90.sm_90a.cubin": {
                "bytes": 43592,
                "machine": EM_CUDA,
                "arch": 90,
            },
            "cutlass_flash_attncuteflash_bwd_sm90.sm_90a.cubin": {
                "bytes": 29384,
                "machine": EM_CUDA,
                "arch": 90,
            },
        },
        "compile_seconds": 3.4,
    },
    "control": {"error": {"kind": "KeyError", "message": "'sm_999a'"}},
}
CUBINS = HEALTHY["compiled"]["cubins"]
FORWARD = next(iter(CUBINS))


def test_both_kernels_for_the_arch_pass() -> None:
    reason = "compiled flash_fwd and flash_bwd for sm_90 (72976 bytes, 3.4 s), and refused sm_999"
    assert judge("sm_90", EXPECT, HEALTHY) == (Status.PASS, reason)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("compiled|cubins", {FORWARD: CUBINS[FORWARD]}, "flash_bwd was not compiled"),
        (f"compiled|cubins|{FORWARD}|arch", 80, "made is 43592 bytes for sm_80"),
        (f"compiled|cubins|{FORWARD}|machine", None, "made is 43592 bytes for sm_90"),
        ("compiled|cubins", {}, "flash_fwd was not compiled; flash_bwd was not compiled"),
        ("control", {"cubins": CUBINS}, "sm_999 does not exist, and compiled all the same"),
        (
            "compiled",
            {"error": {"kind": "E", "message": "No CTK"}},
            "nothing compiled for sm_90: E: No CTK",
        ),
    ],
)
def test_each_fault_is_named(path: str, value: object, reason: str) -> None:
    fails(judge("sm_90", EXPECT, spoiled(HEALTHY, path, value)), reason)


def test_an_image_claims_it_for_each_arch_that_the_package_supports() -> None:
    claims = bare_claims("cu130-torch213").claims
    kernels = {
        claim.subject: claim.expect["kernels"] for claim in claims if claim.check == "flash-attn-4"
    }
    assert kernels["sm_80"] == ["flash_fwd"]  # the backward begins with Hopper
    assert kernels["sm_90"] == ["flash_fwd", "flash_bwd"]
    assert "sm_75" not in kernels
    assert not any(claim.check == "flash-attn-4" for claim in bare_claims("cu126-torch25").claims)
