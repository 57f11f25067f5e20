"""How this code is installed, because messages name the commands that their reader has.

A checkout has nox sessions and the programs of tools/. The installed package has the command
`truetag` only, and so has the copy of this suite in an image.
"""

from pathlib import Path

IS_CHECKOUT = (Path(__file__).resolve().parents[1] / "noxfile.py").is_file()
"""Whether the code runs from a checkout of this project."""


def command(verb: str, *arguments: str) -> str:
    """Return a command line of ours, as this installation spells it.

    `nox -s lock -- NAME` in a checkout, `truetag lock NAME` with the installed package.
    """
    if not IS_CHECKOUT:
        return " ".join(["truetag", verb, *arguments])
    if not arguments:
        return f"nox -s {verb}"
    return f"nox -s {verb} -- {' '.join(arguments)}"


def by_installation(*, checkout: str, installed: str) -> str:
    """Return the first text if the code runs from a checkout, else the second.

    A text that names a program of tools/ is only for a checkout (tests/repository/test_style.py).
    """
    return checkout if IS_CHECKOUT else installed
