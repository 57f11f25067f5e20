"""Errors that a person can solve: where, why, and what to do next."""

import errno
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from validate.installation import command as command

_NEXT_BY_ERROR = {
    errno.ENOSPC: "free space on this disk, or name a folder on another one",
    errno.EDQUOT: "free space in your quota of this disk, or name a folder on another one",
    errno.EACCES: "let this user read and write there (`ls -ld` shows owner and mode), or name "
    "another place",
    errno.EROFS: "name a place that can be written: this disk is mounted read-only",
    errno.ENOENT: "check the path: a folder in it, or the file itself, does not exist",
    errno.ENOTDIR: "check the path: what should be a folder in it is a file",
    errno.EISDIR: "name a file: this is a folder",
    errno.ENAMETOOLONG: "name a file or a folder by its path: this is too long for one",
}
"""Error number of the system -> what the user can do about it."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong."""

    where: str
    """A file, an image, an option; empty: it is clear."""
    cause: str
    then: str = ""
    """What to do next."""

    def __str__(self) -> str:
        text = f"{self.where}: {self.cause}" if self.where else self.cause
        if self.then:
            text += f"\n    next: {self.then}"
        return text


class UserError(Exception):
    """Problems that a person can solve: the command line prints them, without a traceback.

    `code`: exit status, 2 for wrong input (matrix, names, options), 1 for a step that failed
    (build, network, verdict).
    """

    def __init__(self, problems: Problem | Sequence[Problem], *, code: int = 2) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.code = code
        super().__init__("\n".join(map(str, self.problems)))


def wrong(where: str, cause: str, then: str = "") -> UserError:
    """Return the error to raise for wrong input (exit status 2)."""
    return UserError(Problem(where=where, cause=cause, then=then))


def failed(where: str, cause: str, then: str = "") -> UserError:
    """Return the error to raise for a step that failed (exit status 1)."""
    return UserError(Problem(where=where, cause=cause, then=then), code=1)


def problem_of(error: OSError, where: str = "") -> Problem:
    """Return an error of the operating system as a problem, with what to do next.

    The problem's place is the file that the error names, or else `where`. If a disk is full and the
    error names no file, the cause lists the free space of the folders that may be meant.
    """
    cause = error.strerror or str(error) or type(error).__name__
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    # An error of `write` names no file; one of `open` does.
    if is_full and not error.filename:
        cause += f" (free: {', '.join(free_space())})"
    unknown = "check permissions, free space and file type there, or name another place"
    then = _NEXT_BY_ERROR.get(error.errno or 0, unknown)
    return Problem(where=str(error.filename or where), cause=cause, then=then)


def free_space() -> list[str]:
    """Return the free space of each folder that a command may write to: `1.5 GB in /tmp`."""
    folders = [Path.cwd(), Path(tempfile.gettempdir()), Path.home()]
    for argument in sys.argv[1:]:
        if Path(argument).is_dir():
            folders.append(Path(argument))
    free = []
    for folder in dict.fromkeys(folders):
        gigabytes = shutil.disk_usage(folder).free / 1e9
        free.append(f"{gigabytes:.1f} GB in {folder}")
    return free


def innermost_error(error: BaseException) -> BaseException:
    """Return the error that caused all others: the SDK and requests wrap an OSError four times."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


def root_cause(error: BaseException) -> str:
    """Return the text of the innermost error, or the name of its type if it has none."""
    error = innermost_error(error)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__
