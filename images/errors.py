"""What a person is told when something they can change is wrong."""

import errno
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

IS_CHECKOUT = (Path(__file__).resolve().parents[1] / "noxfile.py").is_file()
"""Whether the code runs from a checkout, whose verbs are nox sessions, and not from an installed package."""


def command(verb: str, *arguments: str) -> str:
    """A command line of ours, as this installation spells it: `nox -s lock -- NAME` or `truetag lock NAME`."""
    if IS_CHECKOUT:
        return " ".join([f"nox -s {verb}", *(["--", *arguments] if arguments else ())])
    return " ".join(["truetag", verb, *arguments])


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: where it is, why, and what to do next."""

    where: str
    cause: str
    then: str = ""

    def __str__(self) -> str:
        head = f"{self.where}: {self.cause}" if self.where else self.cause
        return f"{head}\n    next: {self.then}" if self.then else head


def problem_of(error: OSError, where: str = "") -> Problem:
    """What the system refused, as a problem: a folder that can't be written, a full disk, a connection that broke."""
    place = str(error.filename or where)
    cause = error.strerror or str(error) or type(error).__name__
    if (
        error.errno in (errno.ENOSPC, errno.EDQUOT) and not error.filename
    ):  # a write does not say where it was
        folders = (
            Path.cwd(),
            Path(tempfile.gettempdir()),
            Path.home(),
            *filter(Path.is_dir, map(Path, sys.argv[1:])),
        )
        free = {folder: shutil.disk_usage(folder).free / 1e9 for folder in folders}
        cause += (
            f" (free: {', '.join(f'{room:.1f} GB in {folder}' for folder, room in free.items())})"
        )
    return Problem(
        where=place,
        cause=cause,
        then="check permissions, free space and file type, or name another place",
    )


def root_of(error: BaseException) -> BaseException:
    """The innermost error: the SDK and requests wrap an OSError four times over."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return error


def root_cause(error: BaseException) -> str:
    """What the innermost error says."""
    error = root_of(error)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__


class UserError(Exception):
    """Problems a person can solve: the CLI prints each one and exits with `code`, never with a traceback.

    Codes: 2 for wrong input (matrix, names, options), 1 for a step that failed (build, network, verdict).
    """

    def __init__(self, problems: Problem | Sequence[Problem], *, code: int = 2) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.code = code
        super().__init__("\n".join(map(str, self.problems)))


def wrong(where: str, cause: str, then: str = "") -> UserError:
    """Wrong input, as the error to raise."""
    return UserError(Problem(where=where, cause=cause, then=then))


def failed(where: str, cause: str, then: str = "") -> UserError:
    """A step that failed, as the error to raise."""
    return UserError(Problem(where=where, cause=cause, then=then), code=1)
