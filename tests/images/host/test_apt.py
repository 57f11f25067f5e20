"""Debian packages for this machine: one process of ours asks apt at a time."""

import fcntl
import os
from pathlib import Path

import pytest

from images.host import apt


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
