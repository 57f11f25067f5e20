"""What is asked of this machine: apt by one process of ours at a time, locks."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from images.errors import UserError
from images.host import apt, cache, checkout
from tests.support.checkout import ROOT


def test_the_lock_is_held_while_apt_runs_and_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    programs = tmp_path / "bin"
    programs.mkdir()
    lock = tmp_path / "cache" / "truetag" / "apt.lock"
    (programs / "apt-get").write_text(
        f'#!/bin/sh\nflock -n {lock} true && echo free >> {tmp_path}/seen\necho "$@" >> {tmp_path}/seen\n'
    )
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    apt.install("nosuchpackage")
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen[0] == "-q update" and "DPkg::Lock::Timeout" in seen[1] and "free" not in seen
    with lock.open() as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


HOLDER = """
import sys
from pathlib import Path
from images.host import cache
with cache.hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(file: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(file)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_another_process_is_waited_for_until_it_is_killed_and_it_is_said_once(
    tmp_path: Path,
) -> None:
    file = tmp_path / "new" / "x.lock"
    process, told, pauses = holder(file), [], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            process.kill()
            process.communicate()

    with cache.hold_lock(file, on_wait=lambda: told.append("waits"), pause=pause):
        assert told == ["waits"] and len(pauses) == 3


def test_what_a_pause_raises_ends_the_waiting(tmp_path: Path) -> None:
    """So an interrupt does: Engine.alone pauses until it is cancelled."""

    def cancelled(_: float) -> None:
        raise InterruptedError

    with (
        cache.hold_lock(tmp_path / "x.lock"),
        pytest.raises(InterruptedError),
        cache.hold_lock(
            tmp_path / "x.lock", pause=cancelled
        ),  # a second opening of the file: as another thread's
    ):
        pytest.fail("two hold it")


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with (
        pytest.raises(UserError) as caught,
        cache.hold_lock(tmp_path / "cache" / "locks" / "x.lock"),
    ):
        pytest.fail("there is no lock")
    (problem,) = caught.value.problems
    assert str(tmp_path / "cache") in problem.where and "XDG_CACHE_HOME" in problem.then


def test_a_commit_is_named_where_the_checkout_is_that_commit_alone(tmp_path: Path) -> None:
    assert checkout.commit(tmp_path) == "", "no checkout"
    for arguments in ("init -q", "-c user.name=a -c user.email=a commit -q --allow-empty -m a"):
        subprocess.run(["git", "-C", tmp_path, *arguments.split()], check=True)
    assert checkout.commit(tmp_path) == checkout.git(tmp_path, "rev-parse", "HEAD") != ""
    (tmp_path / "new").touch()
    assert checkout.commit(tmp_path) == "", "a file that no commit has"
