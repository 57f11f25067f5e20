"""What is asked of this machine: locks between processes, apt, and git."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from images.errors import UserError
from images.host import apt, cache, checkout
from tests.support.checkout import ROOT

# --- apt ------------------------------------------------------------------------------------------


def test_only_one_process_of_this_user_runs_apt_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "cache" / "truetag" / "apt.lock"
    log = tmp_path / "log"
    programs = tmp_path / "bin"
    programs.mkdir()
    # An apt-get that logs its arguments, and `free` if nobody holds the lock.
    (programs / "apt-get").write_text(
        f'#!/bin/sh\nflock -n {lock} true && echo free >> {log}\necho "$@" >> {log}\n'
    )
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)

    apt.install("nosuchpackage")

    lines = log.read_text().splitlines()
    assert lines[0] == "-q update"
    assert "DPkg::Lock::Timeout" in lines[1]
    assert "free" not in lines
    # Afterwards the lock is free.
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- locks ----------------------------------------------------------------------------------------

PROGRAM_THAT_HOLDS_A_LOCK = """
import sys
from pathlib import Path
from images.host import cache
with cache.hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(file: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock until its input ends."""
    command = [sys.executable, "-c", PROGRAM_THAT_HOLDS_A_LOCK, str(file)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_of_another_process_is_waited_for_until_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "new" / "x.lock"
    holder = start_holder(file)
    messages: list[str] = []
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            holder.kill()
            holder.communicate()

    with cache.hold_lock(file, on_wait=lambda: messages.append("waits"), pause=pause):
        assert messages == ["waits"], "once, and not at each pause"
        assert len(pauses) == 3


def test_an_exception_that_the_pause_raises_ends_the_waiting(tmp_path: Path) -> None:
    """So does an interrupt: Engine.hold_lock pauses until it is cancelled."""
    file = tmp_path / "x.lock"

    def raise_interrupted(_seconds: float) -> None:
        raise InterruptedError

    with (
        cache.hold_lock(file),
        pytest.raises(InterruptedError),
        # The file is opened a second time, as another thread would.
        cache.hold_lock(file, pause=raise_interrupted),
    ):
        pytest.fail("two hold it")


def test_a_folder_that_can_not_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")

    with (
        pytest.raises(UserError) as raised,
        cache.hold_lock(tmp_path / "cache" / "locks" / "x.lock"),
    ):
        pytest.fail("there is no lock")

    (problem,) = raised.value.problems
    assert str(tmp_path / "cache") in problem.where
    assert "XDG_CACHE_HOME" in problem.then


# --- git ------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert checkout.commit(tmp_path) == ""


def test_a_checkout_has_its_commit_unless_a_file_differs_from_it(tmp_path: Path) -> None:
    author = "-c user.name=a -c user.email=a"
    for arguments in ("init -q", f"{author} commit -q --allow-empty -m a"):
        subprocess.run(["git", "-C", tmp_path, *arguments.split()], check=True)

    commit = checkout.commit(tmp_path)
    (tmp_path / "new").touch()
    commit_beside_new_file = checkout.commit(tmp_path)

    assert commit == checkout.git(tmp_path, "rev-parse", "HEAD") != ""
    assert commit_beside_new_file == ""
