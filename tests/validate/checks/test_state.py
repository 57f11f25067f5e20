"""state: what a start of Python or torch leaves behind, asked of a new process and judged."""

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
backends = _Read(cpu=_Read(get_cpu_capability=lambda: os.environ.get("ATEN_CPU_CAPABILITY", "AVX2")),
                 cuda=_Read(matmul=_Read(allow_tf32=False)))
"""


def measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, more: str, asked: dict[str, Any]
) -> Finding:
    (folder / "torch.py").write_text(TORCH + more)
    monkeypatch.chdir(folder)
    claim = Claim(
        check="state",
        subject="after-import",
        tier=Tier.CPU,
        probe="cpu.state",
        statement="",
        expect={"state": asked},
    )
    ((_, evidence),) = state.measure([claim])
    return state.judge("state", claim.expect, evidence)


@pytest.mark.parametrize(("more", "told"), cases(__file__, "changes"))
def test_what_a_start_changes_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, told: str
) -> None:
    asked = {
        key: values
        for key, values in expectations.STATE.items()
        if "matmul" in key or "torch." not in key
    }
    asked = {
        key: values
        for key, values in asked.items()
        if not key.startswith("b.") or "allow_tf32" in key
    }
    monkeypatch.setenv("PYTHONUTF8", "1")
    found = measured(
        tmp_path,
        monkeypatch,
        more,
        {key: values for key, values in asked.items() if "cudnn" not in key},
    )
    assert (found.status is Status.PASS) is (not told) and told in found.reason, found.reason


def test_a_switch_that_this_torch_lacks_is_not_held_against_it() -> None:
    seen: Any = {
        CAPABILITY: "AVX512",
        **{key: values[0] for key, values in expectations.STATE.items()},
    }
    seen["b.cuda.matmul.fp32_precision"] = None
    evidence: Any = {"state": seen, "error": "", "bare": "AVX512"}
    assert state.judge("state", {"state": expectations.STATE}, evidence).status is Status.PASS
    evidence["state"]["b.cuda.flash_sdp_enabled()"] = False
    reason = state.judge("state", {"state": expectations.STATE}, evidence).reason
    assert reason.startswith(
        "torch.backends.cuda.flash_sdp_enabled() is False after `import torch`, True is expected"
    )
