"""What is asked of this machine: apt by one process of ours at a time, locks, an emulator that containers find."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from images.config.platforms import Platform
from images.errors import UserError
from images.host import apt, cache, checkout, emulation
from tests.support.checkout import ROOT


def test_the_lock_is_held_while_apt_runs_and_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
with cache.alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(file: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(file)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    return process


def test_another_process_is_waited_for_until_it_is_killed_and_it_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "new" / "x.lock"
    process, told, pauses = holder(file), [], []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            process.kill()
            process.communicate()

    with cache.alone(file, waiting=lambda: told.append("waits"), pause=pause):
        assert told == ["waits"] and len(pauses) == 3


def test_what_a_pause_raises_ends_the_waiting(tmp_path: Path) -> None:
    """So an interrupt does: Engine.alone pauses until it is cancelled."""

    def cancelled(_: float) -> None:
        raise InterruptedError

    with (
        cache.alone(tmp_path / "x.lock"),
        pytest.raises(InterruptedError),
        cache.alone(tmp_path / "x.lock", pause=cancelled),  # a second opening of the file: as another thread's
    ):
        pytest.fail("two hold it")


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(UserError) as caught, cache.alone(tmp_path / "cache" / "locks" / "x.lock"):
        pytest.fail("there is no lock")
    (problem,) = caught.value.problems
    assert str(tmp_path / "cache") in problem.where and "XDG_CACHE_HOME" in problem.then


PROGRAM = "/usr/libexec/qemu-binfmt/aarch64-binfmt-P"
ENTRY = "{state}\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: {flags}\noffset 0\nmagic 7f454c46\n"
RULE = ":qemu-aarch64:M::\\x7f\\x45:\\xff\\xff:/usr/libexec/qemu-binfmt/aarch64-binfmt-P:OPF"


def registry(folder: Path, state: str = "enabled", flags: str = "POF") -> Path:
    (folder / "qemu-aarch64").write_text(ENTRY.format(state=state, flags=flags))
    return folder


@pytest.mark.parametrize(
    ("state", "flags", "found"),
    [("enabled", "POF", PROGRAM), *((*off, "") for off in (("disabled", "POF"), ("enabled", "PO"), ("enabled", "")))],
)
def test_an_emulator_counts_that_the_kernel_holds_open(tmp_path: Path, state: str, flags: str, found: str) -> None:
    assert emulation.registered(Platform.ARM64, registry(tmp_path, state, flags)) == found
    if found:  # one that is there is taken without a word
        emulation.require(Platform.ARM64, lambda said: pytest.fail(said), registry=tmp_path)


def test_the_packages_rule_is_handed_to_the_kernel_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation.os, "geteuid", lambda: 0)
    (tmp_path / "register").write_text("")
    (tmp_path / "qemu-aarch64.conf").write_text(f"# a comment\n{RULE}\n")
    said: list[str] = []
    with pytest.raises(UserError, match="the kernel did not take the emulator's registration"):  # as no kernel is there
        emulation.require(Platform.ARM64, said.append, registry=tmp_path, rules=tmp_path)
    assert (tmp_path / "register").read_text() == RULE
    assert said == ["registering qemu for aarch64 programs with the kernel"]


def test_a_user_who_may_not_register_is_told_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation.os, "geteuid", lambda: 1000)
    with pytest.raises(UserError) as told:
        emulation.require(Platform.ARM64, print, registry=tmp_path)
    (problem,) = told.value.problems
    assert problem.where == "linux/arm64" and "apt-get install qemu-user-static" in problem.then


def test_a_commit_is_named_where_the_checkout_is_that_commit_alone(tmp_path: Path) -> None:
    assert checkout.commit(tmp_path) == "", "no checkout"
    for arguments in ("init -q", "-c user.name=a -c user.email=a commit -q --allow-empty -m a"):
        subprocess.run(["git", "-C", tmp_path, *arguments.split()], check=True)
    assert checkout.commit(tmp_path) == checkout.git(tmp_path, "rev-parse", "HEAD") != ""
    (tmp_path / "new").touch()
    assert checkout.commit(tmp_path) == "", "a file that no commit has"
