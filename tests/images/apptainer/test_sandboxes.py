"""Unpacked images go with their process; those of a killed one at the next sweep, and no other."""

import subprocess
import sys
from pathlib import Path

import pytest

from images.apptainer import sandboxes
from tests.support.checkout import ROOT

KILLED = """
import os
from images.apptainer import sandboxes
with sandboxes.folder():
    os.kill(os.getpid(), 9)
"""


def test_a_sweep_takes_what_a_killed_process_left_and_nothing_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, check=False)
    (left,) = tmp_path.iterdir()
    (left / "root").mkdir()
    (left / "root" / "closed").mkdir(mode=0o500)
    with sandboxes.folder() as used:
        assert sandboxes.sweep() == (left.name,)
        assert list(tmp_path.iterdir()) == [used]
    assert list(tmp_path.iterdir()) == []
