"""Claims about the device code of the distribution `xformers`, and their judging."""

from typing import Any

from tests.support.site_packages import measure_and_judge, static_claim
from validate.checks.static import devicecode
from validate.claims import Claim
from validate.judging import Finding


def code_claim(archs: dict[str, str], *, kind: str = "kernels", **more: Any) -> Claim:
    """Return a claim that xformers/_C.so has code for these architectures.

    `archs`: `90` for sm_90 -> `cubin` or `jit`, the least that must be there. `kind`: whether each
    kernel is looked at (`kernels`) or the file as a whole (`files`). `more` is what else the claim
    expects.
    """
    expect: dict[str, Any] = {
        "files": ["xformers/_C.so"],
        "also": [],
        "archs": archs,
        "known_gaps": [],
        "kind": kind,
    }
    if kind == "kernels":
        expect["by_design"] = []
    return static_claim("device-code", "xformers", "devicecode", **{**expect, **more})


def pruned_claim(*, nvidia: bool = False, by_design: Any = (), **more: Any) -> Claim:
    """Return a claim that all libraries were pruned for sm_90.

    `nvidia`: NVIDIA's own, too. `by_design` is distribution -> its rows of kernels that need not be
    real everywhere.
    """
    expect = {
        "also": ["**/*.so", "**/*.so.*"],
        "nvidia": nvidia,
        "by_design_of": dict(by_design),
        **more,
    }
    return code_claim({"90": "cubin"}, kind="pruned", **expect)


def judged(claim: Claim) -> Finding:
    """Measure the libraries of the test's environment for a claim, and judge what was measured."""
    return measure_and_judge(devicecode, claim)
