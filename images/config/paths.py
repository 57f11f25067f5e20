"""Where files lie: resources come with the code, and the workspace is the user's.

In a checkout both are the same folder. With an installed package, the resources are in
site-packages. The workspace is the folder of matrix.yaml, with its locks/, results/ and out/.
"""

from pathlib import Path

from images.errors import wrong

RESOURCES = Path(__file__).resolve().parents[2]
"""The folder that holds images/ and validate/: a checkout, or site-packages."""
DATA = RESOURCES / "images" / "data"
SUITE = RESOURCES / "validate"


def _resource(name: str) -> Path:
    """Return a folder of the resources: of a checkout, or inside images/ of an installed package.

    A wheel has it there because a folder named `templates` in site-packages could be anyone's.
    """
    installed = RESOURCES / "images" / name
    return installed if installed.is_dir() else RESOURCES / name


TEMPLATES = _resource("templates")
EXAMPLES = _resource("examples")
MATRIX_NAME = "matrix.yaml"


class Workspace:
    """The files of one matrix: its locks, results and builds."""

    def __init__(self, matrix: Path) -> None:
        self.matrix, self.root = matrix, matrix.parent
        self.locks, self.results = self.root / "locks", self.root / "results"

    @property
    def out(self) -> Path:
        """The folder that builds write to.

        It is relative if the workspace is the current folder, so that messages stay short.
        """
        return Path("out") if self.root == Path.cwd() else self.root / "out"


CHECKOUT = Workspace(RESOURCES / MATRIX_NAME)


def find(matrix: Path | None, directory: Path) -> Workspace:
    """Return the workspace of a matrix file, or else of the one in `directory`, or the checkout's.

    A workspace is the folder of a matrix.yaml, with its locks, results and builds. Raises UserError
    if `matrix` is given and is no file.
    """
    if matrix is not None:
        if not matrix.is_file():
            then = (
                "give --matrix the path of a matrix.yaml, or leave it out in a folder that has one"
            )
            cause = "this is a folder" if matrix.is_dir() else "there is no such file"
            raise wrong(f"--matrix {matrix}", cause, then)
        return Workspace(matrix.resolve())
    here = directory / MATRIX_NAME
    return Workspace(here.resolve()) if here.is_file() else CHECKOUT


def shown(path: Path) -> str:
    """Return a path for messages: relative, if it is in the current folder or the resources."""
    for root in (Path.cwd(), RESOURCES):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)
