"""modes/users: who can read and change what. More, in a real image: tests/integration/faults.yaml."""

import os
import stat
from pathlib import Path

import pytest

from validate.checks.static import modes
from validate.checks.static.modes import User
from validate.environment.user_environment import UserEnvironment
from validate.judging import Status

TRAINER = User(uid=1001, gid=1001)


def facts(mode: int, uid: int = 0, gid: int = 0, mtime: int = 0) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, mtime, 0))


def file(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return facts(stat.S_IFREG | mode, uid, gid)


def folder(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return facts(stat.S_IFDIR | mode, uid, gid)


@pytest.mark.parametrize(
    ("path", "found", "fault"),
    [
        ("/opt/venv/a.py", file(0o644), ""),
        ("/opt/venv/a.py", file(0o644, uid=1001), "belongs to uid 1001"),
        ("/opt/venv/a.py", file(0o664, gid=7), "may be changed by group 7"),
        ("/opt/venv/a.py", file(0o664), ""),  # OpenShift's users of any number are of root's group
        ("/opt/venv/a.py", file(0o666), "may be changed by every user"),
        ("/opt/venv/bin", folder(0o1777), "is a folder for everybody to put files into"),
        ("/opt/venv/.lock", file(0o666), ""),
        ("/opt/venv/a", facts(stat.S_IFLNK | 0o777), ""),
        ("/var/lib/apt", folder(0o700, uid=42), ""),  # a service's
        ("/var/lib/dpkg", folder(0o755, uid=1001), "belongs to uid 1001"),
        ("/workspace/x", file(0o666, uid=1001), ""),
    ],
)
def test_what_others_than_root_can_change_is_told(
    path: str, found: os.stat_result, fault: str
) -> None:
    assert dict(modes.find_changeable({path: found}, {path})) == ({path: fault} if fault else {})


def test_programs_that_a_shell_finds_first_are_no_users_to_change() -> None:
    paths = {
        "/usr/local/bin": folder(0o777),
        "/usr/local/bin/entrypoint": file(0o777),
        "/usr/local/bin/tool": file(0o755, uid=1000),
        "/usr/local/share/x": file(0o777),
    }
    assert modes.find_open_programs(paths) == {"/usr/local/bin", "/usr/local/bin/entrypoint"}
    assert len(dict(modes.find_changeable(paths, modes.find_open_programs(paths)))) == 2


@pytest.mark.parametrize(
    ("found", "is_fault"),
    [
        (file(0o600), True),
        (file(0o640), True),
        (folder(0o700), True),
        (folder(0o754), True),
        (file(0o644), False),
    ],
)
def test_what_every_user_needs_is_for_every_user(found: os.stat_result, is_fault: bool) -> None:
    paths = {"/opt": folder(0o755), "/opt/venv": folder(0o755), "/opt/venv/x": found}
    told = dict(modes.find_unreadable_for_all(paths, {"/opt/venv/x"}))
    assert bool(told) is is_fault and all("users can't use it" in text for text in told.values())


def test_a_closed_folder_above_is_told_and_what_lies_below_it_is_not() -> None:
    paths = {"/opt": folder(0o700), "/opt/venv": folder(0o700), "/opt/venv/x": file(0o600)}
    assert list(
        modes.only_topmost(dict(modes.find_unreadable_for_all(paths, {"/opt/venv/x"})))
    ) == ["/opt"]


@pytest.mark.parametrize(
    ("path", "found", "is_fault"),
    [
        ("/workspace/train.py", file(0o600), True),
        ("/workspace/train.py", file(0o600, uid=1001), False),
        ("/workspace/train.py", file(0o640, gid=1001), False),
        ("/home/trainer/.config/x", file(0o600), True),
        ("/code/x.py", file(0o600), True),
        ("/lib/own/x.py", folder(0o700), True),
        ("/var/lib/private/x", file(0o600), False),
        ("/code", folder(0o700), True),
        ("/home", folder(0o700), True),
        ("/opt", folder(0o700), True),
        ("/lib/own", folder(0o711), True),
        ("/code", folder(0o700, uid=1001), False),
        ("/root", folder(0o700), False),
    ],
)
def test_what_the_images_own_user_cannot_read_where_files_for_it_are_is_told(
    path: str, found: os.stat_result, is_fault: bool
) -> None:
    environ = {
        "HOME": "/home/trainer",
        "PATH": "/root/.local/bin:/usr/bin",
        "PYTHONPATH": "/lib/own",
    }
    environment = UserEnvironment(environ=environ, directory="/code", python="")
    assert bool(dict(modes.find_unreadable_for(TRAINER, environment, {path: found}))) is is_fault
    assert not dict(modes.find_unreadable_for(User(uid=0, gid=0), environment, {path: found})), (
        "root reads all"
    )


@pytest.mark.parametrize(
    ("user", "uid", "gid"),
    [
        ("", 0, 0),
        ("1001", 1001, 7),
        ("trainer", 1001, 7),
        ("trainer:users", 1001, 9),
        ("5:6", 5, 6),
        ("nobody-here", 0, 0),
    ],
)
def test_the_images_user_is_found_by_number_and_name(
    tmp_path: Path, user: str, uid: int, gid: int
) -> None:
    (tmp_path / "passwd").write_text(
        "root:x:0:0::/root:/bin/sh\ntrainer:x:1001:7::/home/trainer:/bin/sh\n"
    )
    (tmp_path / "group").write_text("users:x:9:\n")
    assert modes.read_user(user, str(tmp_path / "passwd"), str(tmp_path / "group")) == User(
        uid=uid, gid=gid
    )


def test_folders_for_everybody_stay_so_and_nothing_is_of_the_future() -> None:
    closed = modes.find_closed_folders(
        {"/tmp": folder(0o1777), "/workspace": folder(0o755)}, ["/tmp", "/workspace"]
    )
    assert list(dict(closed)) == ["/workspace"]
    future = {
        "/usr/include/a.h": facts(stat.S_IFREG, mtime=1 << 40),
        "/tmp/a": facts(stat.S_IFREG, mtime=1 << 40),
    }
    assert list(dict(modes.find_future(future))) == ["/usr/include/a.h"]


def test_programs_with_more_rights_of_no_package_fail_and_faults_are_counted() -> None:
    good = modes.Measured(files=9, privileged=[], packaged=13, faults={}, faults_count=0)
    expect = modes.Expected(image_kind="ours")  # type: ignore[typeddict-item]
    assert modes.judge("", expect, good).status is Status.PASS
    for changed, words in (
        ({"privileged": ["/x has mode 4755"]}, "/x has mode 4755: it runs with more rights"),
        (
            {"faults": {"/x": "belongs to uid 7"}, "faults_count": 3},
            "/x belongs to uid 7; 2 more paths have wrong",
        ),
        ({"files": 0}, "no file was looked at"),
    ):
        finding = modes.judge("", expect, {**good, **changed})  # type: ignore[typeddict-item]
        assert finding.status is Status.FAIL and words in finding.reason
