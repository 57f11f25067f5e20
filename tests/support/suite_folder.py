"""The suite as it is in an image: its files in a folder, with what only containers have of them."""

from pathlib import Path

from images.validation.containers import suite_files
from validate.claims import ClaimSet


def lay_out(folder: Path) -> Path:
    """Write the suite's files into a folder, and return the program in it."""
    for name, content in suite_files(ClaimSet(image="", claims=())).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / "validate"
