"""added: check that the user of a derived image can write where its programs write.

A Dockerfile's WORKDIR makes a folder of root, and so do `RUN mkdir` and COPY. A program of another
user then ends with "Permission denied": triton-inference-server/server#6488 (working folder),
dphnAI/sonar#458 (Triton's cache), PaddlePaddle/Paddle#10196 (HOME). The claim is `added/folders`.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import TypedDict

from validate.checks import Settings
from validate.checks.static.modes import User, read_user
from validate.claims import Claim
from validate.environment import user_environment
from validate.environment.user_environment import UserEnvironment
from validate.judging import Finding, failed, joined, passed

SETTINGS = Settings(reads_files_only=True)

WORKING_FOLDER = "the working folder"
_WRITE_AND_ENTER = 0o3
"""The rights that making a file in a folder takes, as three bits of a mode."""


class FoldersExpect(TypedDict):
    """What the claim about folders says."""

    variables: list[str]
    """Variables that name folders to write to: HOME, and those of caches."""


class Folder(TypedDict):
    """A folder that programs write to."""

    path: str
    exists: bool
    """If it does not, it can be made in the folder of which mode and owner are given."""
    owner: int
    mode: str
    """In octal digits."""
    writable: bool


class FoldersEvidence(TypedDict):
    """The folders that programs of the image's user write to."""

    user: str
    """`1001:1001`"""
    folders: dict[str, Folder]
    """What names the folder (`HOME`, or WORKING_FOLDER) -> the folder."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, FoldersEvidence]]:
    """Yield the folders that the image's user writes to, and whether their modes allow it.

    A claim is one promise about the image. Its subject is yielded with the folders of its user: the
    working folder, and those to which the variables lead that the claim names (such as HF_HOME).
    """
    environment = user_environment.recorded()
    user = read_user(environment.user)
    for claim in claims:
        variables = claim.expect["variables"]
        # Variable, or WORKING_FOLDER -> the path of the folder that it names.
        paths = list_folders(environment, variables)
        folders = {}
        for name, path in paths.items():
            folders[name] = inspect_folder(path, user)

        evidence: FoldersEvidence = {
            "user": f"{user.uid}:{user.gid}",
            "folders": folders,
        }
        yield claim.subject, evidence


def list_folders(environment: UserEnvironment, variables: Sequence[str]) -> dict[str, str]:
    """Return the working folder, and the folders that these variables name, if they are set.

    The result is the name of the variable (or WORKING_FOLDER) -> the folder's path.
    """
    folders = {WORKING_FOLDER: environment.directory}
    for name in variables:
        path = environment.environ.get(name)
        # A variable that is set to nothing names no folder.
        if path:
            folders[name] = path
    return folders


def inspect_folder(path: str, user: User) -> Folder:
    """Return whether a user may make files in a folder, by its mode and owner.

    Libraries make a cache that does not exist: then the nearest folder above it that exists counts.
    `owner` (a uid), `mode` (in octal digits) and `writable` of the result are of that folder.
    """
    nearest = PurePosixPath(os.path.realpath(path))
    while not os.path.isdir(nearest):  # noqa: PTH112
        nearest = nearest.parent
    facts = os.stat(nearest)  # noqa: PTH116
    return {
        "path": path,
        "exists": str(nearest) == os.path.realpath(path),
        "owner": facts.st_uid,
        "mode": f"{stat.S_IMODE(facts.st_mode):o}",
        "writable": may_write(user, facts),
    }


def may_write(user: User, facts: os.stat_result) -> bool:
    """Return whether a user may make files in a folder of this mode and owner.

    `facts` is what os.stat says of the folder. Access control lists are not looked at.
    """
    # Root may write everywhere.
    if user.uid == 0:
        return True
    # The mode has three bits each for the owner, the group, and all others.
    if facts.st_uid == user.uid:
        granted = facts.st_mode >> 6
    elif facts.st_gid == user.gid:
        granted = facts.st_mode >> 3
    else:
        granted = facts.st_mode
    # Both rights are needed: to write to the folder, and to enter it.
    return granted & _WRITE_AND_ENTER == _WRITE_AND_ENTER


def judge(_subject: str, _expect: FoldersExpect, evidence: FoldersEvidence) -> Finding:
    """Fail where the image's user may not write to a folder that its programs write to.

    `evidence["folders"]` is what names a folder (a variable, or the working folder) -> what
    `inspect_folder` returned.
    """
    user = evidence["user"]
    folders = evidence["folders"]
    faults = []
    commands = []
    for name, folder in folders.items():
        if folder["writable"]:
            continue
        path = folder["path"]
        owner = folder["owner"]
        mode = folder["mode"]
        state = f"uid {owner}'s, mode {mode}"
        # Owner and mode of a folder that does not exist are those of the nearest one above it.
        if not folder["exists"]:
            state = f"it can't be made: the folder above is {state}"

        faults.append(f"user {user} can't write to {name}, {path} ({state})")
        commands.append(f"mkdir -p {path} && chown {user} {path}")

    if faults:
        return failed(joined(faults), f"add `RUN {' && '.join(commands)}` {_AS_ROOT}")
    # All folders but the working folder are named by variables.
    named_by_variables = len(folders) - 1
    working_folder = folders[WORKING_FOLDER]["path"]
    good = f"user {user} can write to {working_folder}"
    good += f" and {named_by_variables} folders that variables name"
    return passed(good)


CLAIMS = {"added/folders": judge}
_AS_ROOT = (
    "to your Dockerfile, above its last USER line (so that root runs it), then build the image "
    "again and validate it"
)
NEXT_STEPS = {"added/folders": f"add `RUN mkdir -p FOLDER && chown USER FOLDER` {_AS_ROOT}"}
