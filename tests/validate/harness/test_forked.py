"""What a probe started ends with it."""

import os
import subprocess
import sys
import time
from pathlib import Path

from validate.harness.forked import find_descendants, run_in_own_session

PRINTS_AND_FORKS = """
from validate.harness.forked import measure_in_fork
print("printed before the fork")
print(measure_in_fork(lambda: {"length": 3}))
"""
STARTS_A_SESSION = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """Whether there is such a process that is not just waiting to be reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_process_in_a_session_of_its_own_ends_with_the_command_that_started_it(
    tmp_path: Path,
) -> None:
    """torchrun starts its workers so (torch/distributed/elastic, SubprocessHandler): they kept the GPUs."""
    log = tmp_path / "log"
    assert run_in_own_session([sys.executable, "-c", STARTS_A_SESSION], log, seconds=5) is None
    started = int(log.read_text())
    until = time.monotonic() + 60
    while is_running(started) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(started)


def test_descendants_are_found_through_those_between() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        sleeping = int(shell.stdout.readline())
        try:
            assert find_descendants(shell.pid) == [sleeping]
            assert {shell.pid, sleeping} <= {*find_descendants(os.getpid())}
        finally:
            os.kill(sleeping, 9)


def test_what_was_printed_before_a_fork_is_printed_once() -> None:
    """A fork has a copy of what its parent has not written yet."""
    with_buffers = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    output = subprocess.run(
        [sys.executable, "-c", PRINTS_AND_FORKS],
        env=with_buffers,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert output.splitlines() == ["printed before the fork", "{'length': 3}"]
