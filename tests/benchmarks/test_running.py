"""What the benchmark starts ends with it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks import running

TIDIES_UP = "trap '' INT; trap 'touch tidied; exit 1' TERM; touch begun; while :; do sleep 0.05; done"
"""As a command that was started in the background: it ignores SIGINT."""


def test_an_interrupted_command_tidies_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_process: int, _options: int) -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "wait4", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.run(["sh", "-c", TIDIES_UP], cwd=tmp_path, env={"PATH": os.environ["PATH"]})
    assert (tmp_path / "tidied").exists()
