"""modes/users: who can read and change what.

tests/integration/faults.yaml has wrong modes of a real image.
"""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from validate.checks.static import modes
from validate.checks.static.modes import NeededPaths, Part, User
from validate.environment.image_paths import with_folders_above
from validate.environment.user_environment import Start, UserEnvironment
from validate.judging import Finding, Status

ROOT = User(uid=0, gid=0)
TRAINER = User(uid=1001, gid=1001)


def facts(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    """Return what lstat says of a path with this mode (its type included) and owner."""
    return os.stat_result((mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


def file(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return facts(stat.S_IFREG | mode, uid, gid)


def folder(mode: int, uid: int = 0, gid: int = 0) -> os.stat_result:
    return facts(stat.S_IFDIR | mode, uid, gid)


def link() -> os.stat_result:
    return facts(stat.S_IFLNK | 0o777)


@pytest.mark.parametrize(
    ("path", "lstat", "fault"),
    [
        ("/opt/venv/a.py", file(0o644), ""),
        ("/opt/venv/a.py", file(0o644, uid=1001), "belongs to uid 1001, not to root: `chown 0:0`"),
        ("/opt/venv/a.py", file(0o664, gid=7), "may be changed by group 7: `chmod g-w`"),
        # OpenShift's users, of any number, are in root's group.
        ("/opt/venv/a.py", file(0o664), ""),
        ("/opt/venv/a.py", file(0o666), "may be changed by every user: `chmod o-w`"),
        (
            "/opt/venv/bin",
            folder(0o1777),
            "is a folder for everybody to put files into: `chmod o-w`",
        ),
        # uv's lock file, for everybody to take.
        ("/opt/venv/.lock", file(0o666), ""),
        ("/opt/venv/a", link(), ""),
        # A service may own what it keeps in /var, a person may not.
        ("/var/lib/apt", folder(0o700, uid=42), ""),
        ("/var/lib/dpkg", folder(0o755, uid=1001), "belongs to uid 1001, not to root: `chown 0:0`"),
        ("/workspace/x", file(0o666, uid=1001), ""),
    ],
)
def test_what_others_than_root_can_change_is_a_fault(
    path: str, lstat: os.stat_result, fault: str
) -> None:
    faults = dict(modes.find_changeable({path: lstat}, {path}))

    assert faults == ({path: fault} if fault else {})


def test_what_every_user_can_change_where_a_shell_looks_first_is_a_fault() -> None:
    paths = {
        "/usr/local/bin": folder(0o777),
        "/usr/local/bin/entrypoint": file(0o777),
        "/usr/local/bin/tool": file(0o755, uid=1000),
        "/usr/local/share/x": file(0o777),
    }

    open_programs = modes.find_open_programs(paths)

    assert open_programs == {"/usr/local/bin", "/usr/local/bin/entrypoint"}
    assert set(dict(modes.find_changeable(paths, open_programs))) == open_programs


@pytest.mark.parametrize(
    ("lstat", "is_fault"),
    [
        (file(0o600), True),
        (file(0o640), True),
        (folder(0o700), True),
        (folder(0o754), True),
        (file(0o644), False),
    ],
)
def test_what_every_user_needs_must_be_open_to_every_user(
    lstat: os.stat_result, is_fault: bool
) -> None:
    paths = {"/opt": folder(0o755), "/opt/venv": folder(0o755), "/opt/venv/x": lstat}

    faults = dict(modes.find_unreadable_for_all(paths, {"/opt/venv/x"}))

    assert bool(faults) is is_fault
    assert all("users can't use it" in fault for fault in faults.values())


def test_a_closed_folder_is_one_fault_for_all_that_lies_below_it() -> None:
    paths = {"/opt": folder(0o700), "/opt/venv": folder(0o700), "/opt/venv/x": file(0o600)}

    faults = dict(modes.find_unreadable_for_all(paths, {"/opt/venv/x"}))

    assert list(modes.only_topmost(faults)) == ["/opt"]


@pytest.mark.parametrize(
    ("path", "is_fault"), [("/root", False), ("/root/x", False), ("/rootfs", True)]
)
def test_only_the_home_of_root_may_be_closed_to_users(path: str, is_fault: bool) -> None:
    faults = dict(modes.find_unreadable_for_all({path: folder(0o700)}, {path}))

    assert bool(faults) is is_fault


@pytest.mark.parametrize(
    ("path", "lstat", "is_fault"),
    [
        # A folder for users' files.
        ("/workspace/train.py", file(0o600), True),
        ("/workspace/train.py", file(0o600, uid=1001), False),
        ("/workspace/train.py", file(0o640, gid=1001), False),
        # The home, the working directory, and a folder of PYTHONPATH.
        ("/home/trainer/.config/x", file(0o600), True),
        ("/code/x.py", file(0o600), True),
        ("/lib/own/x.py", folder(0o700), True),
        # A folder that is for nobody.
        ("/var/lib/private/x", file(0o600), False),
        # The folders themselves, and those above them.
        ("/code", folder(0o700), True),
        ("/home", folder(0o700), True),
        ("/opt", folder(0o700), True),
        ("/lib/own", folder(0o711), True),
        ("/code", folder(0o700, uid=1001), False),
        # The home of root, although PATH names a folder below it.
        ("/root", folder(0o700), False),
    ],
)
def test_what_the_images_own_user_cannot_read_where_its_files_are_is_a_fault(
    path: str, lstat: os.stat_result, is_fault: bool
) -> None:
    environ = {
        "HOME": "/home/trainer",
        "PATH": "/root/.local/bin:/usr/bin",
        "PYTHONPATH": "/lib/own",
    }
    environment = UserEnvironment(environ=environ, directory="/code", python="")

    faults = dict(modes.find_unreadable_for(TRAINER, environment, {path: lstat}))
    faults_for_root = dict(modes.find_unreadable_for(ROOT, environment, {path: lstat}))

    assert bool(faults) is is_fault
    assert not faults_for_root


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
def test_the_images_user_is_found_by_number_and_by_name(
    tmp_path: Path, user: str, uid: int, gid: int
) -> None:
    passwd, group = tmp_path / "passwd", tmp_path / "group"
    passwd.write_text("root:x:0:0::/root:/bin/sh\ntrainer:x:1001:7::/home/trainer:/bin/sh\n")
    group.write_text("users:x:9:\n")

    assert modes.read_user(user, str(passwd), str(group)) == User(uid=uid, gid=gid)


def test_a_folder_for_everybody_that_is_closed_is_a_fault() -> None:
    paths = {"/tmp": folder(0o1777), "/workspace": folder(0o755)}

    faults = dict(modes.find_closed_folders(paths, ["/tmp", "/workspace"]))

    assert list(faults) == ["/workspace"]


def test_the_standard_library_is_found_through_links(tmp_path: Path) -> None:
    """pyenv and uv link to the folder of a release."""
    (tmp_path / "3.11.7/lib/python3.11").mkdir(parents=True)
    (tmp_path / "current").symlink_to("3.11.7")
    folders = (f"{tmp_path}/current/lib/python3.11", f"{tmp_path}/current/lib/site-packages")
    start = Start(path=folders, optimize=0, modules={}, version="3.11", prefix="/opt/venv")
    paths = [f"{tmp_path}/3.11.7/lib/python3.11/random.py", f"{tmp_path}/3.11.7/lib/other.py"]

    assert modes.list_below(start.standard_library, paths) == {paths[0]}


# ---- Judging.

WELL: dict[str, Any] = {
    "files": 9,
    "privileged": [],
    "packaged": 13,
    "faults": {},
    "faults_count": 0,
}


def judged(**measured: Any) -> Finding:
    """Judge evidence. What is not given is well."""
    expect: Any = {"image_kind": "ours"}
    evidence: Any = {**WELL, **measured}
    return modes.judge("", expect, evidence)


def test_an_image_without_faults_passes() -> None:
    status = judged().status

    assert status is Status.PASS


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        pytest.param(
            {"privileged": ["/usr/local/bin/mount-data has mode 4755"]},
            "/usr/local/bin/mount-data has mode 4755: it runs with more rights",
            id="setuid-program-of-no-package",
        ),
        pytest.param(
            {
                "faults": {"/usr/local/bin": "belongs to uid 7, not to root: `chown 0:0`"},
                "faults_count": 3,
            },
            "/usr/local/bin belongs to uid 7, not to root: `chown 0:0`; 2 paths have wrong modes "
            "or owners, besides those",
            id="more-faults-than-are-listed",
        ),
        pytest.param(
            {"files": 0}, "no file of the image could be looked at", id="nothing-measured"
        ),
    ],
)
def test_a_fault_fails_and_those_that_are_not_listed_are_counted(
    measured: dict[str, Any], words: str
) -> None:
    status, reason, _ = judged(**measured)

    assert status is Status.FAIL
    assert words in reason


# --- on a custom base -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/opt/venv/lib/python3.11/site-packages/torch/__init__.py", Part.NEEDED),
        # A folder above what users need: closed, it would keep them from that.
        ("/opt", Part.NEEDED),
        ("/opt/python/lib/python3.11/ssl.py", Part.NEEDED),
        ("/usr/local/bin", Part.NEEDED),
        ("/usr/local/bin/agent", Part.OTHERS),
        ("/opt/agent", Part.OTHERS),
        ("/etc/agent.key", Part.OTHERS),
    ],
)
def test_on_a_custom_base_each_path_is_of_one_part(path: str, part: Part) -> None:
    environment = "/opt/venv/lib/python3.11/site-packages/torch/__init__.py"
    needed = NeededPaths(
        with_folders_above([environment, "/usr/local/bin"]), ("/opt/python/lib/python3.11/",)
    )

    parts = [each for each in Part if path in needed.choose(each, [path])]

    assert parts == [part]
