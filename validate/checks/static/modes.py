"""modes/users: files that the image's user can't read, or that others than root can change.

Reports of the first kind are the most common of all: a build under umask 077, `COPY` of a file that is 0600 on the
author's machine, a `chown` of a whole folder. The second kind lets any program that runs as the image's user change
what was validated.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from validate.checks import RunAs, Settings
from validate.claims import Claim, ImageKind
from validate.environment import debian, installed
from validate.environment.image_paths import (
    is_link,
    is_plain_file,
    read_image_paths,
    source_of_bytecode,
    with_folders_above,
)
from validate.environment.installed import Distribution
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, conclude, count_unlisted, failed

SETTINGS = Settings(
    reads_files_only=True,
    shared_reads=(debian.read_package_files, read_image_paths),
    run_as=RunAs.ROOT,
)

_MOST_LISTED = 60
_DAY = 86400
_PRIVILEGES = stat.S_ISUID | stat.S_ISGID
_FOR_EVERYBODY = ("/tmp", "/var/tmp")
_OUR_FOLDERS_FOR_EVERYBODY = ("/workspace", "/home/trainer", "/home/trainer/.cache")
"""What our build makes for every user (templates/scripts/user.sh)."""
_STICKY = 0o1777
_FIRST_USER = 1000
_SERVICES = ("/var/", "/run/")
"""Debian's packages make files of services' own users there, whose numbers are below that (Debian policy, 9.2.2)."""
_READ_BY_EVERY_PROGRAM = (
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/profile",
    "/etc/ssl/certs/ca-certificates.crt",
)
"""Generated files, which no package lists: a C library, a shell or curl fails without them."""
_DEBIANS_FOR_ALL = ("/usr/bin/", "/usr/sbin/", "/usr/lib/", "/usr/include/")
_OF_USERS = ("/opt/", "/usr/local/", "/srv/", "/workspace/")
"""Folders where people put what the image's user is to read."""
_FIRST_ON_PATH = ("/usr/local/bin", "/usr/local/sbin")
"""Searched before Debian's own folders, and in no package: an entry point lies there."""
_BEGINNINGS_OF_PROGRAMS = (b"\x7fELF", b"#!")


class Expected(TypedDict):
    """What a claim about modes says."""

    image_kind: ImageKind


class Measured(TypedDict):
    """Paths whose modes or owners are wrong. The first lists are cut."""

    files: int
    privileged: list[str]
    """Programs with setuid, setgid or capabilities that no Debian package brought."""
    packaged: int
    """How many Debian packages brought."""
    faults: dict[str, str]
    """Path -> what is wrong."""
    faults_count: int


@dataclass(frozen=True, kw_only=True)
class User:
    """Whom an image starts as. Groups beside the first are left out."""

    uid: int
    gid: int

    def may_read(self, facts: os.stat_result) -> bool:
        """Return whether a file's or folder's mode lets this user read it; of a folder, enter it, too."""
        needed = 0o5 if stat.S_ISDIR(facts.st_mode) else 0o4
        if facts.st_uid == self.uid:
            granted = facts.st_mode >> 6
        elif facts.st_gid == self.gid:
            granted = facts.st_mode >> 3
        else:
            granted = facts.st_mode
        return not self.uid or granted & needed == needed


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Look at the mode and owner of every path."""
    environment, start, distributions = installed.of_user()
    paths = read_image_paths().facts
    owned = debian.read_package_files()

    validated = files_of_distributions(distributions)
    validated |= {path for path in paths if source_of_bytecode(path) in validated}
    toolkit = environment.environ.get("CUDA_HOME", "/usr/local/cuda")
    own_folders = (f"{start.prefix}/", f"{toolkit}/", "/opt/truetag/")
    validated |= {path for path in paths if path.startswith(own_folders)}
    validated |= set(_READ_BY_EVERY_PROGRAM)
    validated &= paths.keys()
    for_all = validated | {
        path for path in owned.md5.keys() & paths.keys() if is_for_all(path, paths[path])
    }

    faults: dict[str, str] = {}
    for found in (
        find_changeable(
            paths, with_folders_above(validated | owned.packages.keys() | open_programs(paths))
        ),
        find_unreadable_for(read_user(environment.user), environment, paths),
        find_unreadable_for_all(paths, for_all),
        find_future(paths),
    ):
        faults.update(only_topmost(dict(found)))

    privileged = sorted(path for path, facts in paths.items() if has_privileges(path, facts))
    strange = [path for path in privileged if path not in owned.md5]
    for claim in claims:
        folders = [*_FOR_EVERYBODY]
        if claim.expect["image_kind"] == ImageKind.OURS:
            folders += _OUR_FOLDERS_FOR_EVERYBODY
        every_fault = {**faults, **dict(find_no_longer_everybodys(paths, folders))}
        yield (
            claim.subject,
            {
                "files": len(paths),
                "privileged": [describe_privileges(path, paths[path]) for path in strange],
                "packaged": len(privileged) - len(strange),
                "faults": dict(sorted(every_fault.items())[:_MOST_LISTED]),
                "faults_count": len(every_fault),
            },
        )


def only_topmost(faults: Mapping[str, str]) -> dict[str, str]:
    """Leave out what lies below a folder with the same kind of fault: `chmod -R` is one fault, not ten thousand."""
    topmost: dict[str, str] = {}
    for path in sorted(faults):
        folder = path.rpartition("/")[0]
        while folder and folder not in faults:
            folder = folder.rpartition("/")[0]
        if not folder:
            topmost[path] = faults[path]
    return topmost


def files_of_distributions(distributions: Iterable[Distribution]) -> set[str]:
    """Return the real path of every file that a RECORD lists."""
    files = set()
    for distribution in distributions:
        for entry in distribution.entries or ():
            files.add(debian.real_path(entry.path))
    return files


def find_changeable(
    paths: Mapping[str, os.stat_result], validated: AbstractSet[str]
) -> Iterator[tuple[str, str]]:
    """Yield what others than root can change of files that were validated and of the folders above them."""
    for path in validated & paths.keys():
        facts = paths[path]
        if is_link(facts) or is_everybodys(path):
            continue
        # Debian's services have users of their own below this number.
        lowest = _FIRST_USER if path.startswith(_SERVICES) else 1
        if facts.st_uid >= lowest:
            yield path, f"belongs to uid {facts.st_uid}"
        elif facts.st_mode & stat.S_IWGRP and facts.st_gid >= lowest:
            yield path, f"may be changed by group {facts.st_gid}"
        elif facts.st_mode & stat.S_IWOTH:
            is_folder = stat.S_ISDIR(facts.st_mode)
            yield (
                path,
                "is a folder for everybody to put files into"
                if is_folder
                else "may be changed by every user",
            )


def open_programs(paths: Mapping[str, os.stat_result]) -> set[str]:
    """Return what every user may change where a shell looks first. Whose it is there does not matter."""
    return {
        path
        for path, facts in paths.items()
        if path.startswith(_FIRST_ON_PATH) and facts.st_mode & stat.S_IWOTH
    }


def is_everybodys(path: str) -> bool:
    """Return whether a path is one for everybody to write to, or below such a folder."""
    folders = (*_FOR_EVERYBODY, *_OUR_FOLDERS_FOR_EVERYBODY, "/run/lock", "/dev/shm")
    # uv leaves the lock of an environment that it changed, for everybody to take.
    is_lock = path.endswith("/.lock")
    return is_lock or path in folders or path.startswith(tuple(f"{folder}/" for folder in folders))


def find_no_longer_everybodys(
    paths: Mapping[str, os.stat_result], folders: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield folders that must be root's and open to all, and are not."""
    for folder in folders:
        facts = paths.get(folder)
        if facts and (facts.st_uid or stat.S_IMODE(facts.st_mode) != _STICKY):
            mode = f"{stat.S_IMODE(facts.st_mode):o}"
            yield (
                folder,
                f"has mode {mode} and uid {facts.st_uid}: it must be root's, for everybody (1777)",
            )


def find_unreadable_for_all(
    paths: Mapping[str, os.stat_result], validated: AbstractSet[str]
) -> Iterator[tuple[str, str]]:
    """Yield what some user can't read, or start, of files that every user needs, and of the folders above them."""
    for path in with_folders_above(validated) & paths.keys():
        facts = paths[path]
        if is_link(facts) or path.startswith("/root"):
            continue
        needed = 0o5 if stat.S_ISDIR(facts.st_mode) or is_program(path, facts) else 0o4
        if facts.st_mode & needed != needed:
            yield path, f"has mode {stat.S_IMODE(facts.st_mode):o}: users can't use it"


def find_unreadable_for(
    user: User, environment: UserEnvironment, paths: Mapping[str, os.stat_result]
) -> Iterator[tuple[str, str]]:
    """Yield what the image's own user can't read where people put files for it."""
    own_folders = [environment.directory, environment.environ.get("HOME", "")]
    for variable in ("PATH", "PYTHONPATH"):
        own_folders += environment.environ.get(variable, "").split(":")
    own_folders = [
        folder.rstrip("/") for folder in own_folders if folder.startswith("/") and folder.strip("/")
    ]
    below = tuple(f"{folder}/" for folder in own_folders)
    # Who can't enter a folder reaches nothing in it. Tools that root installed for itself are nobody else's.
    entered = [folder for folder in own_folders if not f"{folder}/".startswith("/root/")]
    on_the_way = with_folders_above([*entered, *(folder.rstrip("/") for folder in _OF_USERS)])

    for path, facts in paths.items():
        is_where_files_are = path in on_the_way or path.startswith((*_OF_USERS, *below))
        if not is_where_files_are or is_link(facts):
            continue
        if not user.may_read(facts):
            mode = f"{stat.S_IMODE(facts.st_mode):o}"
            yield (
                path,
                f"has mode {mode} and is of uid {facts.st_uid}: the image's user (uid {user.uid}) can't read it",
            )


def find_future(paths: Mapping[str, os.stat_result]) -> Iterator[tuple[str, str]]:
    """Yield files from the future, which a wrong clock makes: make and ninja build what depends on them for ever."""
    tomorrow = time.time() + _DAY
    for path, facts in paths.items():
        if facts.st_mtime > tomorrow and not is_link(facts) and not is_everybodys(path):
            yield (
                path,
                f"is dated {time.strftime('%Y-%m-%d', time.gmtime(facts.st_mtime))}, in the future",
            )


def is_for_all(path: str, facts: os.stat_result) -> bool:
    """Return whether every user needs a file of a Debian package. What runs with more rights may be closed to some."""
    return path.startswith(_DEBIANS_FOR_ALL) and not facts.st_mode & _PRIVILEGES


def is_program(path: str, facts: os.stat_result) -> bool:
    """Return whether a file in a folder of programs is one, by its first bytes."""
    folder = path.rpartition("/")[0]
    if not folder.endswith(("/bin", "/sbin")) or not is_plain_file(facts):
        return False
    with contextlib.suppress(OSError), open(path, "rb") as stream:  # noqa: PTH123
        return stream.read(4).startswith(_BEGINNINGS_OF_PROGRAMS)
    return False


def has_privileges(path: str, facts: os.stat_result) -> bool:
    """Return whether a program runs with more rights than its caller's."""
    if not is_plain_file(facts):
        return False
    return bool(facts.st_mode & _PRIVILEGES) or has_capabilities(path)


def has_capabilities(path: str) -> bool:
    """Return whether a file has capabilities (capabilities(7))."""
    try:
        return bool(os.getxattr(path, "security.capability", follow_symlinks=False))
    except OSError:  # it has none
        return False


def describe_privileges(path: str, facts: os.stat_result) -> str:
    """Return `/usr/bin/helper has mode 4755`."""
    capabilities = " and capabilities" if has_capabilities(path) else ""
    return f"{path} has mode {stat.S_IMODE(facts.st_mode):o}{capabilities}"


def read_user(user: str, passwd: str = "/etc/passwd", group: str = "/etc/group") -> User:
    """Return whom USER names: `1001`, `trainer` or `trainer:users`. Root where it names nobody."""
    name, _, group_name = user.partition(":")
    accounts = [line.split(":") for line in debian.read_lines(Path(passwd))]
    uid = int(name) if name.isdigit() else 0
    gid = 0
    for account in accounts:
        # NAME:PASSWORD:UID:GID:...
        if len(account) > 3 and name in (account[0], account[2]):
            uid, gid = int(account[2]), int(account[3])
            break

    if group_name.isdigit():
        gid = int(group_name)
    for row in (line.split(":") for line in debian.read_lines(Path(group)) if group_name):
        if len(row) > 2 and row[0] == group_name:
            gid = int(row[2])
    return User(uid=uid, gid=gid)


def judge(_subject: str, _expect: Expected, evidence: Measured) -> Finding:
    """Name what users can't read, what others than root can change, and programs with more rights."""
    if not evidence["files"]:
        return failed("no file was looked at")
    faults = [
        f"{program}: it runs with more rights than its caller's, and no Debian package brought it"
        for program in evidence["privileged"]
    ]
    faults += [f"{path} {fault}" for path, fault in evidence["faults"].items()]
    faults += count_unlisted(evidence, "faults", "paths have wrong modes or owners")
    good = f"{evidence['files']} paths can be read by users and changed by root alone"
    return conclude(
        faults, f"{good}; {evidence['packaged']} programs of Debian's run with more rights"
    )


CLAIMS = {"modes": judge}
