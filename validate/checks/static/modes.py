"""modes: check that users can read the image's files, and that only root can change them.

Files that the image's user can't read are reported more often than any other fault: after a build
under umask 077, `COPY` of a file that is 0600 on the author's machine, or `chown` of a whole
folder. What others than root can change may be changed after it was validated.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypedDict

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
from validate.next_steps import CHECK_FAILED

SETTINGS = Settings(
    reads_files_only=True,
    shared_reads=(debian.read_package_files, read_image_paths),
    run_as=RunAs.ROOT,
)

_MOST_LISTED = 60
_PRIVILEGES = stat.S_ISUID | stat.S_ISGID
_FOR_EVERYBODY = ("/tmp", "/var/tmp")
_OUR_FOLDERS_FOR_EVERYBODY = ("/workspace", "/home/trainer", "/home/trainer/.cache")
"""Folders that our build makes for every user to write to (templates/scripts/user.sh)."""
_OPEN_AND_STICKY = 0o1777
"""The mode of /tmp: everybody may make files, and only remove their own."""
_FIRST_USER = 1000
"""Lower numbers are those of Debian's services (Debian policy, 9.2.2)."""
_SERVICES = ("/var/", "/run/")
"""Folders in which packages make files that belong to their services' users."""
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
"""Folders in which people put files that the image's user is to read."""
_FIRST_ON_PATH = ("/usr/local/bin", "/usr/local/sbin")
"""Folders that a shell searches before Debian's own. No package has files there: an entry point
lies there."""
_PROGRAM_HEADERS = (b"\x7fELF", b"#!")


class Part(str, Enum):
    """Which files a claim is about. On a custom base there is a claim about each part."""

    NEEDED = "needed"
    """What the image's users need: its Python, the packages, the toolkit, and the folders named by
    their variables."""
    OTHERS = "others"
    """All other files. The base brought them."""

    __str__ = str.__str__


class _Expected(TypedDict):
    image_kind: ImageKind


class Expected(_Expected, total=False):
    """What a claim about modes says."""

    part: Part
    """Absent: the claim is about all files."""


class Measured(TypedDict):
    """Paths of an image whose modes or owners are wrong."""

    files: int
    """How many paths were looked at, folders too."""
    privileged: list[str]
    """Programs with setuid, setgid or capabilities that no Debian package brought."""
    packaged: int
    """How many such programs Debian packages brought."""
    faults: dict[str, str]
    """Path -> what is wrong. The list is cut."""
    faults_count: int


@dataclass(frozen=True, kw_only=True)
class User:
    """The user whom an image starts as. Supplementary groups are left out."""

    uid: int
    gid: int

    def may_read(self, facts: os.stat_result) -> bool:
        """Return whether this user may read a file of this mode and owner, or enter a folder."""
        if self.uid == 0:
            return True
        # 4 is the right to read, 5 the right to read and enter.
        needed = 0o5 if stat.S_ISDIR(facts.st_mode) else 0o4
        # The mode has three bits each for the owner, the group, and all others. The first of these
        # that a user belongs to counts alone, even if it is granted less than a later one.
        if facts.st_uid == self.uid:
            granted = facts.st_mode >> 6
        elif facts.st_gid == self.gid:
            granted = facts.st_mode >> 3
        else:
            granted = facts.st_mode
        return granted & needed == needed


class NeededPaths(NamedTuple):
    """What the image's users need, whoever put it there."""

    paths: AbstractSet[str]
    below: tuple[str, ...]
    """Folders, each with a slash at its end: all that lies below them is needed, too."""

    def choose(self, part: Part, candidates: Iterable[str]) -> list[str]:
        """Return the candidates, paths of the image, that belong to a part of it."""
        chosen = []
        for path in candidates:
            is_needed = path in self.paths or path.startswith(self.below)
            if is_needed == (part == Part.NEEDED):
                chosen.append(path)
        return chosen


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Find files with a wrong mode or owner, and programs that give their caller more rights.

    Yields the subject of each claim, and the paths that were found for it.
    """
    # Path -> its mode and owner, for everything in the image. This is read once, for all claims.
    paths = read_image_paths().facts
    common_faults = find_faults(paths)

    # Programs that run with other rights than their caller's (setuid and the like). Those that
    # Debian packages brought are expected.
    privileged = sorted(path for path, facts in paths.items() if has_privileges(path, facts))
    files_of_debian = debian.read_package_files().md5
    unexpected = [path for path in privileged if path not in files_of_debian]

    for claim in claims:
        # Which folders must be open to everybody depends on the claim.
        open_folders = [*_FOR_EVERYBODY]
        if claim.expect["image_kind"] == ImageKind.OURS:
            open_folders += _OUR_FOLDERS_FOR_EVERYBODY
        faults = {**common_faults, **dict(find_closed_folders(paths, open_folders))}

        unexpected_of_claim = unexpected
        if "part" in claim.expect:
            # On a user's own base image there are two claims: about the files that our packages
            # need, and about all others.
            needed = list_needed(paths)
            part = claim.expect["part"]
            faults = {path: faults[path] for path in needed.choose(part, faults)}
            unexpected_of_claim = needed.choose(part, unexpected)

        first_faults = sorted(faults.items())[:_MOST_LISTED]
        evidence: Measured = {
            "files": len(paths),
            "privileged": [describe_privileges(path, paths[path]) for path in unexpected_of_claim],
            "packaged": len(privileged) - len(unexpected),
            "faults": dict(first_faults),
            "faults_count": len(faults),
        }
        yield claim.subject, evidence


def list_needed(paths: Mapping[str, os.stat_result]) -> NeededPaths:
    """Return the paths that the image's users need: single ones, and all that some folders have.

    `paths` is all of the image: path -> what lstat says of it.
    """
    user, start, _ = installed.read_user_python()
    # Files of packages, of the CUDA toolkit and our own; folders that sys.path or variables of the
    # user name; /tmp and the like. To reach a path, users must enter all folders above it.
    single = [*list_validated(paths), *start.path, *list_named_folders(user), *_FOR_EVERYBODY]
    # All files in the folders of sys.path, which include Python's standard library, and in the
    # working directory, where a derived image has its programs.
    below = [f"{os.path.realpath(folder)}/" for folder in start.path]
    if user.directory.strip("/"):
        below.append(f"{user.directory}/")
    return NeededPaths(with_folders_above(single), tuple(below))


def find_faults(paths: Mapping[str, os.stat_result]) -> dict[str, str]:
    """Return the paths of an image that have a wrong mode or owner -> what is wrong.

    `paths` is all of the image: path -> what lstat says of it. If a folder has a fault, the paths
    below it are left out.
    """
    user, start, _ = installed.read_user_python()
    image_user = read_user(user.user)
    files_of_debian = debian.read_package_files()
    validated = list_validated(paths)

    # Files that only root may change, and the folders above them: whoever can change a folder can
    # replace the files in it.
    for_root_only = with_folders_above(
        validated | files_of_debian.packages.keys() | find_open_programs(paths)
    )
    # Files that every user must be able to read. Debian's programs that run with more rights than
    # their caller's (setuid) may be closed to some users.
    for_all = set(validated)
    for path in files_of_debian.md5.keys() & paths.keys():
        if path.startswith(_DEBIANS_FOR_ALL) and not paths[path].st_mode & _PRIVILEGES:
            for_all.add(path)
    # No Debian package lists Python's standard library if Python was compiled, as by pyenv.
    for_all |= list_below(start.standard_library, paths)

    # If a path has several faults, the last one stays.
    faults: dict[str, str] = {}
    for faults_of_kind in (
        find_changeable(paths, for_root_only),
        find_unreadable_for(image_user, user, paths),
        find_unreadable_for_all(paths, for_all),
    ):
        faults.update(only_topmost(dict(faults_of_kind)))
    return faults


def list_validated(paths: Mapping[str, os.stat_result]) -> set[str]:
    """Return the paths of an image's files that every user must be able to read.

    These are files of Python packages and their bytecode, the Python environment, the CUDA toolkit,
    our own files, and some that every program reads. `paths` are all files of the image: what is
    not among them is left out.
    """
    user, start, distributions = installed.read_user_python()
    validated = files_of_distributions(distributions)
    validated |= {path for path in paths if source_of_bytecode(path) in validated}
    toolkit = user.environ.get("CUDA_HOME", "/usr/local/cuda")
    own_folders = (f"{start.prefix}/", f"{toolkit}/", "/opt/truetag/")
    validated |= {path for path in paths if path.startswith(own_folders)}
    validated |= set(_READ_BY_EVERY_PROGRAM)
    # A RECORD may list files that are not there: the check `files` reports these.
    return validated & paths.keys()


def list_below(folders: Iterable[str], paths: Iterable[str]) -> set[str]:
    """Return the paths that lie below one of the folders. Links in the folders are followed."""
    beginnings = tuple(f"{os.path.realpath(folder)}/" for folder in folders)
    return {path for path in paths if path.startswith(beginnings)}


def only_topmost(faults: Mapping[str, str]) -> dict[str, str]:
    """Leave out the faults of paths below a folder that has a fault itself.

    `faults` is path -> what is wrong. `chmod -R` of a folder is one fault, not ten thousand.
    """
    topmost: dict[str, str] = {}
    for path in sorted(faults):
        folders_above = [str(folder) for folder in PurePosixPath(path).parents]
        if faults.keys().isdisjoint(folders_above):
            topmost[path] = faults[path]
    return topmost


def files_of_distributions(distributions: Iterable[Distribution]) -> set[str]:
    """Return every file that a RECORD lists, without links in its folders."""
    files = set()
    for distribution in distributions:
        for entry in distribution.entries or ():
            files.add(debian.real_path(entry.path))
    return files


def find_changeable(
    paths: Mapping[str, os.stat_result], for_root_only: AbstractSet[str]
) -> Iterator[tuple[str, str]]:
    """Yield each path that others than root can change although they must not, and why.

    `paths` is all of the image: path -> what lstat says. `for_root_only` are the paths to look at.
    Links are left out, and so are paths that everybody may write to by design, such as /tmp.
    """
    for path in for_root_only & paths.keys():
        facts = paths[path]
        if is_link(facts) or is_everybodys(path):
            continue
        # Root has the number 0, as user and as group. Below /var and /run, files may also belong to
        # services, which have lower numbers than people.
        lowest_wrong_id = _FIRST_USER if path.startswith(_SERVICES) else 1
        if facts.st_uid >= lowest_wrong_id:
            yield path, f"belongs to uid {facts.st_uid}, not to root: `chown 0:0`"
        elif facts.st_mode & stat.S_IWGRP and facts.st_gid >= lowest_wrong_id:
            yield path, f"may be changed by group {facts.st_gid}: `chmod g-w`"
        elif facts.st_mode & stat.S_IWOTH and stat.S_ISDIR(facts.st_mode):
            yield path, "is a folder for everybody to put files into: `chmod o-w`"
        elif facts.st_mode & stat.S_IWOTH:
            yield path, "may be changed by every user: `chmod o-w`"


def find_open_programs(paths: Mapping[str, os.stat_result]) -> set[str]:
    """Return the paths that every user may change, in the folders that a shell searches first.

    A user could put a program there that all others run.
    """
    open_programs = set()
    for path, facts in paths.items():
        if path.startswith(_FIRST_ON_PATH) and facts.st_mode & stat.S_IWOTH:
            open_programs.add(path)
    return open_programs


def is_everybodys(path: str) -> bool:
    """Return whether everybody may write to a path by design: /tmp, say, and what is below."""
    folders = (*_FOR_EVERYBODY, *_OUR_FOLDERS_FOR_EVERYBODY, "/run/lock", "/dev/shm")
    # uv leaves a lock file in an environment that it changed, for everybody to take.
    if path.endswith("/.lock") or path in folders:
        return True
    return path.startswith(tuple(f"{folder}/" for folder in folders))


def find_closed_folders(
    paths: Mapping[str, os.stat_result], folders: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield each of these folders that is not open to everybody as /tmp is, and its mode and owner.

    /tmp is root's and has mode 1777: everybody may make files, and remove only their own. `paths`
    is path -> what lstat says of it. Folders that the image does not have are left out.
    """
    for folder in folders:
        facts = paths.get(folder)
        if facts and (facts.st_uid or stat.S_IMODE(facts.st_mode) != _OPEN_AND_STICKY):
            state = f"has mode {stat.S_IMODE(facts.st_mode):o} and uid {facts.st_uid}"
            yield folder, f"{state}, and must be root's, for everybody: `chown 0:0`, `chmod 1777`"


def find_unreadable_for_all(
    paths: Mapping[str, os.stat_result], for_all: AbstractSet[str]
) -> Iterator[tuple[str, str]]:
    """Yield files that some users can't read or start although all need them, with the mode.

    `for_all` are the files that all users need. Users must also be able to enter the folders above
    these. `paths` is all of the image: path -> what lstat says. Files in the home of root are left
    out, because only root needs them.
    """
    for path in with_folders_above(for_all) & paths.keys():
        facts = paths[path]
        if is_link(facts) or f"{path}/".startswith("/root/"):
            continue
        # Folders must be entered and programs started (5: read and execute), files only read (4).
        is_entered_or_started = stat.S_ISDIR(facts.st_mode) or is_program(path, facts)
        needed, rights = (0o5, "rx") if is_entered_or_started else (0o4, "r")
        # The last three bits of a mode are for those who are neither the owner nor in the group.
        if facts.st_mode & needed != needed:
            state = f"has mode {stat.S_IMODE(facts.st_mode):o}: users can't use it"
            yield path, f"{state}: `chmod a+{rights}`"


def find_unreadable_for(
    user: User, environment: UserEnvironment, paths: Mapping[str, os.stat_result]
) -> Iterator[tuple[str, str]]:
    """Yield each path that the image's own user can't read although it needs to, with the mode.

    Such paths lie in folders in which people put files for the user: /opt and the like, and those
    that the user's `environment` names (PATH, HOME). `paths` is path -> what lstat says of it.
    """
    named_folders = list_named_folders(environment)
    # The user must be able to read everything below these folders.
    below = (*_OF_USERS, *(f"{folder}/" for folder in named_folders))

    # And to enter them, with all folders above. The home of root may be closed, even if PATH names
    # a folder in it (/root/.local/bin).
    to_enter = [folder.rstrip("/") for folder in _OF_USERS]
    for folder in named_folders:
        if not f"{folder}/".startswith("/root/"):
            to_enter.append(folder)
    entered = with_folders_above(to_enter)

    for path, facts in paths.items():
        is_users = path in entered or path.startswith(below)
        if not is_users or is_link(facts) or user.may_read(facts):
            continue
        state = f"has mode {stat.S_IMODE(facts.st_mode):o} and is of uid {facts.st_uid}"
        yield path, f"{state}: the image's user (uid {user.uid}) can't read it: `chmod a+rX`"


def list_named_folders(environment: UserEnvironment) -> list[str]:
    """Return the working directory, the home, and the folders on PATH and PYTHONPATH of a user.

    Relative entries are left out, and so is the root folder.
    """
    entries = [environment.directory, environment.environ.get("HOME", "")]
    for variable in ("PATH", "PYTHONPATH"):
        entries += environment.environ.get(variable, "").split(":")
    folders = []
    for entry in entries:
        # `strip` leaves nothing of the root folder, `/`.
        if entry.startswith("/") and entry.strip("/"):
            folders.append(entry.rstrip("/"))
    return folders


def is_program(path: str, facts: os.stat_result) -> bool:
    """Return whether a file is a program: it lies in a bin or sbin folder, and begins like one."""
    folder = path.rpartition("/")[0]
    if not folder.endswith(("/bin", "/sbin")) or not is_plain_file(facts):
        return False
    with contextlib.suppress(OSError), open(path, "rb") as stream:  # noqa: PTH123
        return stream.read(4).startswith(_PROGRAM_HEADERS)
    return False


def has_privileges(path: str, facts: os.stat_result) -> bool:
    """Return whether a path is a file with setuid, setgid or capabilities.

    Such a program runs with more rights than its caller's.
    """
    if not is_plain_file(facts):
        return False
    return bool(facts.st_mode & _PRIVILEGES) or has_capabilities(path)


def has_capabilities(path: str) -> bool:
    """Return whether a file has capabilities (capabilities(7)). False if it can't be asked."""
    try:
        return bool(os.getxattr(path, "security.capability", follow_symlinks=False))
    except OSError:  # a file without capabilities has no such attribute
        return False


def describe_privileges(path: str, facts: os.stat_result) -> str:
    """Return `/usr/bin/helper has mode 4755`, with `and capabilities` if it has some."""
    capabilities = " and capabilities" if has_capabilities(path) else ""
    return f"{path} has mode {stat.S_IMODE(facts.st_mode):o}{capabilities}"


def read_user(user: str, passwd: str = "/etc/passwd", group: str = "/etc/group") -> User:
    """Return user ID and group ID of an image's USER: `1001`, `trainer` or `trainer:users`.

    `passwd` and `group` are the files in which names are looked up. An empty USER is root. So is a
    name that is not in `passwd`: root may read everything, so nothing is reported. A group that is
    not in `group` is ignored.
    """
    name, _, group_name = user.partition(":")
    uid = int(name) if name.isdigit() else 0
    gid = 0
    for line in debian.read_lines(Path(passwd)):
        # NAME:PASSWORD:UID:GID:...
        account = line.split(":")
        # USER may have the name of the account or its number.
        if len(account) > 3 and name in (account[0], account[2]):
            uid = int(account[2])
            gid = int(account[3])
            break

    # A group in USER replaces the user's own.
    if group_name.isdigit():
        gid = int(group_name)
    elif group_name:
        for line in debian.read_lines(Path(group)):
            # NAME:PASSWORD:GID:...
            entry = line.split(":")
            if len(entry) > 2 and entry[0] == group_name:
                gid = int(entry[2])
    return User(uid=uid, gid=gid)


def judge(_subject: str, _expect: Expected, evidence: Measured) -> Finding:
    """Pass if users can read the files that they need, and only root can change them.

    Also fails with programs that run with more rights than their caller's (setuid, setgid,
    capabilities), unless a Debian package brought them.
    """
    if not evidence["files"]:
        return failed("no file of the image could be looked at", CHECK_FAILED)
    faults = []
    for program in evidence["privileged"]:
        faults.append(
            f"{program}: it runs with more rights than its caller's (setuid, setgid or "
            "capabilities), and no Debian package brought it: `chmod a-s`, or `setcap -r`"
        )
    for path, fault in evidence["faults"].items():
        faults.append(f"{path} {fault}")
    # Evidence lists only the first faults. If there are more, add their number.
    faults += count_unlisted(evidence, "faults", "paths have wrong modes or owners")
    good = f"{evidence['files']} paths can be read by users and changed by root alone"
    good += f"; {evidence['packaged']} programs of Debian's run with more rights"
    return conclude(faults, good)


CLAIMS = {"modes": judge, "base/modes": judge}
_NEXT_STEP = (
    "in the step that brings the file, of your Dockerfile or of the base image's, run what the "
    "reason says behind its path (`RUN chown 0:0 PATH`, for example), or set owner and mode by "
    "`COPY --chown=0:0 --chmod=644` (755 for programs and folders); then build the image again, "
    "under `umask 022`"
)
NEXT_STEPS = {
    "modes": _NEXT_STEP,
    "base/modes": _NEXT_STEP,
}
