"""flash-attn-4's judge, on evidence of cu130-torch213 and on each way to compile wrongly."""

from typing import Any

import pytest

from tests.support.claims import bare_claims
from tests.support.judging import fails, spoiled
from validate.checks.cpu.flash_attn_4 import judge
from validate.checks.cpu.triton import EM_CUDA
from validate.judging import Status

ARCH = 90
EXPECT: Any = {"arch": ARCH, "bogus": 999, "kernels": ["flash_fwd", "flash_bwd"]}
FORWARD = "cutlass_flash_attncuteflash_fwd_sm90.sm_90a.cubin"
BACKWARD = "cutlass_flash_attncuteflash_bwd_sm90.sm_90a.cubin"
CUBINS: Any = {
    FORWARD: {"bytes": 43592, "machine": EM_CUDA, "arch": ARCH},
    BACKWARD: {"bytes": 29384, "machine": EM_CUDA, "arch": ARCH},
}
HEALTHY: Any = {
    "compiled": {"cubins": CUBINS, "compile_seconds": 3.4},
    "control": {"error": {"kind": "KeyError", "message": "'sm_999a'"}},
}


def test_both_kernels_for_the_arch_pass() -> None:
    finding = judge("sm_90", EXPECT, HEALTHY)

    reason = "compiled flash_fwd and flash_bwd for sm_90 (72976 bytes, 3.4 s), and refused sm_999"
    assert finding[:2] == (Status.PASS, reason)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        pytest.param(
            "compiled|cubins",
            {FORWARD: CUBINS[FORWARD]},
            "flash_bwd was not compiled",
            id="no backward kernel",
        ),
        pytest.param(
            f"compiled|cubins|{FORWARD}|arch",
            80,
            "and is 43592 bytes for sm_80",
            id="another architecture",
        ),
        pytest.param(
            f"compiled|cubins|{FORWARD}|machine",
            None,
            "and is 43592 bytes for sm_90",
            id="no cubin",
        ),
        pytest.param(
            "compiled|cubins",
            {},
            "flash_fwd was not compiled; the kernel flash_bwd was not compiled",
            id="no kernel",
        ),
        pytest.param(
            "control",
            {"cubins": CUBINS},
            "compiled a kernel for sm_999, which does not exist",
            id="the control compiles",
        ),
        pytest.param(
            "compiled",
            {"error": {"kind": "E", "message": "No CTK"}},
            "can't be compiled for sm_90: E: No CTK",
            id="the compiler raises",
        ),
    ],
)
def test_each_fault_fails_by_its_name(path: str, value: object, reason: str) -> None:
    evidence = spoiled(HEALTHY, path, value)

    fails(judge("sm_90", EXPECT, evidence), reason)


def kernels_claimed_by(image: str) -> dict[str, list[str]]:
    """Architecture -> the kernels that the image claims to compile for it."""
    kernels = {}
    for claim in bare_claims(image).claims:
        if claim.check == "flash-attn-4":
            kernels[claim.subject] = claim.expect["kernels"]
    return kernels


def test_an_image_claims_it_for_each_architecture_that_the_package_supports() -> None:
    kernels = kernels_claimed_by("cu130-torch213")

    assert "sm_75" not in kernels
    # The backward kernel begins with Hopper.
    assert kernels["sm_80"] == ["flash_fwd"]
    assert kernels["sm_90"] == ["flash_fwd", "flash_bwd"]


def test_an_image_without_the_package_claims_nothing_of_it() -> None:
    assert kernels_claimed_by("cu126-torch25") == {}
