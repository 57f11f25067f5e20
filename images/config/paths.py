"""Where files lie: RESOURCES come with the code, the workspace is the folder of the matrix file.

In a checkout both are the same folder. With an installed package the resources are in site-packages, and the
workspace is wherever the user keeps matrix.yaml, with its locks/, results/ and out/.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from images.errors import Problem, UserError

RESOURCES = Path(__file__).resolve().parents[2]
"""The folder that holds images/ and validate/: a checkout, or site-packages."""
DATA = RESOURCES / "images" / "data"
SUITE = RESOURCES / "validate"
TEMPLATES, EXAMPLES = (
    next(
        (folder for folder in (RESOURCES / "images" / name, RESOURCES / name) if folder.is_dir()),
        RESOURCES / name,
    )
    for name in ("templates", "examples")
)
"""A wheel has them inside images/: a folder named `templates` in site-packages could be anyone's."""
MATRIX_NAME = "matrix.yaml"


@dataclass(frozen=True)
class Workspace:
    """What belongs to one matrix file."""

    matrix: Path

    @property
    def root(self) -> Path:
        return self.matrix.parent

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def results(self) -> Path:
        return self.root / "results"


_current = Workspace(RESOURCES / MATRIX_NAME)


def workspace() -> Workspace:
    """The workspace of this process: the checkout's, unless `use` chose another."""
    return _current


def use(chosen: Workspace) -> None:
    """Make it the workspace of this process. The command line calls this once, before a verb runs."""
    global _current
    _current = chosen


def find(matrix: Path | None, directory: Path) -> Workspace:
    """The workspace of a given matrix file; else of the one in `directory`; else the checkout's.

    Raises UserError for a given file that is missing.
    """
    if matrix is not None:
        if not matrix.is_file():
            raise UserError(Problem(where=f"--matrix {matrix}", cause="is no file", then="name a matrix.yaml"))
        return Workspace(matrix.resolve())
    here = directory / MATRIX_NAME
    return Workspace(here.resolve() if here.is_file() else RESOURCES / MATRIX_NAME)


def in_workspace(path: Path) -> Path:
    """A path below the workspace: as it is where that is the current folder, else absolute."""
    root = _current.root
    return path if root == Path.cwd() else root / path


def shown(path: Path) -> str:
    """A path for messages: relative to the workspace or to the resources if it is below one of them."""
    for root in (_current.root, RESOURCES):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


def is_checkout() -> bool:
    """Whether the code runs from a checkout, and not from an installed package."""
    return (RESOURCES / "noxfile.py").is_file()


def require_checkout(verb: str) -> None:
    """For verbs that renew files of the repository. Raises UserError in an installed package."""
    if not is_checkout():
        raise UserError(Problem(where=verb, cause="renews files of the repository", then="run it in a checkout"))


def as_given(advice: str) -> str:
    """The commands of an advice as they are given here: an installed package comes without the nox sessions."""
    if is_checkout():
        return advice
    return re.sub(r"nox -s (\w+)(?: --(?= ))?|python -m images(?= )", lambda found: _truetag(found[1]), advice)


def _truetag(verb: str | None) -> str:
    return f"truetag {verb}" if verb else "truetag"
