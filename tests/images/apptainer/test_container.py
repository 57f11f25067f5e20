"""A container's process: what it prints, how it ends, and that nothing is left of it. The processes are real."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from images.apptainer.runtime import ApptainerContainer
from images.engine import TimedOut
from images.engine.runtime import KILLED
from tests.support.checkout import ROOT


def container(tmp_path: Path, *command: str) -> ApptainerContainer:
    return ApptainerContainer("x", list(command), {"/judge": tmp_path})


def test_it_prints_two_streams_and_has_a_status_as_with_docker(tmp_path: Path) -> None:
    found = container(tmp_path, "sh", "-c", "echo out; echo err >&2; printf last; exit 3")
    found.start()
    printed = sorted((line.stream, line.text) for line in found.lines())
    assert printed == [("stderr", "err"), ("stdout", "last"), ("stdout", "out")] and found.wait().code == 3
    killed = container(tmp_path, "sh", "-c", "kill -9 $$")
    killed.start()
    assert list(killed.lines()) == [] and killed.wait().code == KILLED == 128 + signal.SIGKILL


def test_files_are_there_before_it_starts_and_a_sites_options_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_BIND", "/scratch")
    monkeypatch.setenv("APPTAINER_CACHEDIR", "/cache")
    found = container(tmp_path, "sh", "-c", f"cat {tmp_path}/validate/x.py; echo $APPTAINER_BIND $APPTAINER_CACHEDIR")
    found.put({"validate/x.py": b"content\n"}, "/judge")
    found.start()
    assert [line.text for line in found.lines()] == ["content", "/cache"]


def test_past_its_time_it_is_ended(tmp_path: Path) -> None:
    found = container(tmp_path, "sleep", "600")
    found.start()
    with pytest.raises(TimedOut):
        list(found.lines(timeout=0.1))
    assert found.wait().code == KILLED


def test_it_ends_with_the_worker_that_is_killed(tmp_path: Path) -> None:
    """Where Apptainer makes its user namespace, the kernel forgets that it was to end with its parent."""
    program = "import os, sys; from images.apptainer.runtime import ApptainerContainer as C; "
    program += "c = C('x', ['sh', '-c', 'echo $$; exec sleep 600'], {}); c.start(); "
    program += "print(next(c.lines()).text, flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    process = Path("/proc") / done.stdout.strip()
    assert done.returncode == -signal.SIGKILL and process.name.isdigit()
    deadline = time.monotonic() + 60
    while process.exists() and "Z" not in (process / "stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)
