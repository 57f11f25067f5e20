"""state: what a start of Python or torch changes is found in a new process, and judged."""

from pathlib import Path
from typing import Any

import pytest

from images.planning import expectations
from tests.support.cases import cases
from validate.checks.cpu import state
from validate.claims import Claim, Tier
from validate.judging import Finding, Status

CAPABILITY = "b.cpu.get_cpu_capability()"
TORCH = """
import os, signal
class _Read(dict):
    def __getattr__(self, name):
        return self[name]
backends = _Read(
    cpu=_Read(get_cpu_capability=lambda: os.environ.get("ATEN_CPU_CAPABILITY", "AVX2")),
    cuda=_Read(matmul=_Read(allow_tf32=False)),
)
"""
"""A stand-in for torch: it has one setting, and the name of its processor's kernels."""
SETTINGS_OF_TORCH = {
    "b.cuda.matmul.allow_tf32",
    # The stand-in does not have this one.
    "torch.get_float32_matmul_precision()",
}


def settings_of_the_stand_in() -> dict[str, Any]:
    """The expected settings of Python itself, and those of torch that are looked at here."""
    return {
        expression: allowed
        for expression, allowed in expectations.STATE.items()
        if expression in SETTINGS_OF_TORCH or not is_of_torch(expression)
    }


def is_of_torch(expression: str) -> bool:
    return expression.startswith("b.") or "torch." in expression


def measure_and_judge(folder: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> Finding:
    """Import the stand-in for torch and this source after it, and judge the state."""
    (folder / "torch.py").write_text(TORCH + change)
    monkeypatch.chdir(folder)
    claim = Claim(
        check="state",
        subject="after-import",
        tier=Tier.CPU,
        probe="cpu.state",
        statement="",
        expect={"state": settings_of_the_stand_in()},
    )
    ((_, evidence),) = state.measure([claim])
    return state.judge("state", claim.expect, evidence)


@pytest.mark.parametrize(("change", "words"), cases(__file__, "changes"))
def test_what_a_start_changes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, words: str
) -> None:
    monkeypatch.setenv("PYTHONUTF8", "1")

    finding = measure_and_judge(tmp_path, monkeypatch, change)

    assert (finding.status is Status.PASS) is (not words), finding.reason
    assert words in finding.reason


def healthy_evidence() -> Any:
    """What an image measures in which all settings are as expected."""
    usual_values = {key: allowed[0] for key, allowed in expectations.STATE.items()}
    return {"state": {CAPABILITY: "AVX512", **usual_values}, "error": "", "bare": "AVX512"}


def test_a_setting_that_this_torch_lacks_is_no_fault() -> None:
    evidence = healthy_evidence()
    evidence["state"]["b.cuda.matmul.fp32_precision"] = None

    finding = state.judge("state", {"state": expectations.STATE}, evidence)

    assert finding.status is Status.PASS


def test_a_setting_of_torchs_backends_is_named_in_full() -> None:
    evidence = healthy_evidence()
    evidence["state"]["b.cuda.flash_sdp_enabled()"] = False

    reason = state.judge("state", {"state": expectations.STATE}, evidence).reason

    assert reason.startswith(
        "torch.backends.cuda.flash_sdp_enabled() is False after `import torch`, and True is "
    )
