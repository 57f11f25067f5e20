"""A fork brings its evidence back, and ends with all that it started and nothing else."""

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from validate.harness.forked import (
    Work,
    find_descendants,
    fork_each,
    map_on_all_cores,
    measure_in_fork,
    measure_in_forks,
    run_in_own_session,
)

LONG = 300_000
"""More characters than a pipe holds."""


# ---- one fork


def test_a_fork_brings_evidence_back_and_leaves_its_parent_alone() -> None:
    seen: list[int] = []

    evidence = measure_in_fork(
        lambda: {"process": os.getpid(), "seen": seen.append(1), "long": "x" * LONG}
    )

    assert evidence["process"] != os.getpid()
    assert len(evidence["long"]) == LONG
    assert seen == []


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_fork_that_a_signal_kills_is_an_error_with_its_log(number: signal.Signals) -> None:
    def measure() -> dict[str, str]:
        # pytest's would fill the tests' output with the stack of this intended crash.
        faulthandler.disable()
        print("loading the library", flush=True)  # noqa: T201
        os.kill(os.getpid(), number)
        return {}

    error = measure_in_fork(measure)["error"]

    assert error["message"] == f"killed by {number.name}"
    assert error["log"].endswith("loading the library\n")


def test_what_a_fork_raises_is_an_error() -> None:
    error = measure_in_fork(lambda: {"is": 1 // 0})["error"]

    assert error["kind"] == "ZeroDivisionError"


def test_a_fork_that_exits_cleanly_without_evidence_is_an_error() -> None:
    left_at_once = measure_in_fork(lambda: os._exit(0))["error"]
    left_by_exception = measure_in_fork(lambda: sys.exit(0))["error"]

    assert left_at_once["message"] == "ended with status 0 before it was done"
    assert left_by_exception["kind"] == "crash"


PRINTS_AND_FORKS = """
from validate.harness.forked import measure_in_fork
print("printed before the fork")
print(measure_in_fork(lambda: {"length": 3}))
"""


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


# ---- several forks


def test_forks_run_side_by_side_and_one_that_dies_takes_no_other_with_it() -> None:
    barrier = multiprocessing.get_context("fork").Barrier(3)

    def wait_for_the_others() -> dict[str, int]:
        # Alone it would wait in vain.
        return {"place": barrier.wait(60)}

    def die() -> dict[str, int]:
        os._exit(3)

    evidence = dict(
        measure_in_forks(
            [wait_for_the_others, die, wait_for_the_others, wait_for_the_others], at_once=4
        )
    )

    assert "error" in evidence[1]
    assert {evidence[number]["place"] for number in (0, 2, 3)} == {0, 1, 2}


def test_one_fork_at_a_time_is_the_default() -> None:
    numbers = [number for number, _ in measure_in_forks([dict, dict, dict])]

    assert numbers == [0, 1, 2]


def test_forks_leave_other_children_to_who_started_them() -> None:
    other = multiprocessing.get_context("fork").Process(target=os._exit, args=(3,))
    other.start()
    # It has ended, and nobody has asked for its exit status yet.
    os.waitid(os.P_PID, other.pid or 0, os.WEXITED | os.WNOWAIT)

    evidence = dict(measure_in_forks([dict, dict], at_once=2))

    assert len(evidence) == 2
    other.join()
    assert other.exitcode == 3


def hang() -> None:
    time.sleep(600)


def test_a_fork_past_its_deadline_is_killed_and_others_are_not(tmp_path: Path) -> None:
    works = [
        Work(hang, log=tmp_path / "late", seconds=0.5),
        Work(lambda: None, log=tmp_path / "in time", seconds=600),
    ]

    ends = {end.number: end for end in fork_each(works, 2, own_sessions=True)}

    assert ends[0].exit_code is None
    assert ends[0].seconds >= 0.5
    assert ends[1].exit_code == 0


def test_what_a_fork_leaves_running_in_its_session_ends_with_it(tmp_path: Path) -> None:
    def leave_a_process_behind() -> None:
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(sleeper.pid, flush=True)  # noqa: T201

    log = tmp_path / "log"

    (end,) = fork_each([Work(leave_a_process_behind, log=log)], 1, own_sessions=True)

    assert end.exit_code == 0
    sleeper = int(log.read_text())
    until = time.monotonic() + 60
    while is_running(sleeper) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(sleeper)


# ---- sessions

STARTS_A_SESSION = """
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleeper, start_new_session=True)
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
    """torchrun starts its workers so, which kept the GPUs.

    torch/distributed/elastic, SubprocessHandler.
    """
    log = tmp_path / "log"

    exit_status = run_in_own_session([sys.executable, "-c", STARTS_A_SESSION], log, seconds=5)

    assert exit_status is None
    child = int(log.read_text())
    until = time.monotonic() + 60
    while is_running(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(child)


def test_descendants_are_found_through_those_between() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        sleeper = int(shell.stdout.readline())
        try:
            assert find_descendants(shell.pid) == [sleeper]
            assert {shell.pid, sleeper} <= {*find_descendants(os.getpid())}
        finally:
            os.kill(sleeper, signal.SIGKILL)


# ---- a pool of processes


def test_processes_of_a_pool_obey_sigterm_whatever_their_parent_does() -> None:
    """A pool ends them by it, and would wait for ever for one that ignores it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    handlers = list(map_on_all_cores(signal.getsignal, [signal.SIGTERM, signal.SIGTERM]))

    assert handlers == [signal.SIG_DFL, signal.SIG_DFL]
