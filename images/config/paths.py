"""Where files lie: RESOURCES come with the code, the workspace is the folder of the matrix file.

In a checkout both are the same folder. With an installed package the resources are in site-packages, and the
workspace is wherever the user keeps matrix.yaml, with its locks/, results/ and out/.
"""

from pathlib import Path

from images.errors import wrong

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


class Workspace:
    """What belongs to one matrix file."""

    def __init__(self, matrix: Path) -> None:
        self.matrix, self.root = matrix, matrix.parent
        self.locks, self.results = self.root / "locks", self.root / "results"

    @property
    def out(self) -> Path:
        """Where builds leave files, relative where the user stands in the workspace: messages stay short."""
        return Path("out") if self.root == Path.cwd() else self.root / "out"


CHECKOUT = Workspace(RESOURCES / MATRIX_NAME)


def find(matrix: Path | None, directory: Path) -> Workspace:
    """The workspace of a given matrix file; else of the one in `directory`; else the checkout's.

    Raises UserError for a given file that is missing.
    """
    if matrix is not None:
        if not matrix.is_file():
            raise wrong(f"--matrix {matrix}", "is no file", "name a matrix.yaml")
        return Workspace(matrix.resolve())
    here = directory / MATRIX_NAME
    return Workspace(here.resolve()) if here.is_file() else CHECKOUT


def shown(path: Path) -> str:
    """A path for messages: relative to the current folder or to the resources if it is below one of them."""
    for root in (Path.cwd(), RESOURCES):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)
