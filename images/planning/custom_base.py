"""What a custom base must have: an image of the user's own that images are built on. Pure.

Nothing of such a base stands in a table: a program that runs in it (templates/base/read_base.sh)
says what it has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from images.config.names import Minor
from images.planning import user_overlay
from images.planning.image import Base

MODULES = ("bz2", "ctypes", "lzma", "ssl")
"""Modules of the standard library that training needs and that a Python may lack.

Debian's python3-minimal has none of them. A Python that pyenv compiled without the headers of a
library lacks the module of it (pyenv's wiki, "Common build problems"). pip needs ssl, torch needs
ctypes, and datasets imports the other two.
"""
_COMPILERS = ("gcc", "g++")
"""Compilers that a build installs with apt-get if a base lacks them."""
_PARTS_OF_PYTHON = ("Python.h", "venv", *(f"module {name}" for name in MODULES))
"""Parts that a build installs with apt-get if Debian's or Ubuntu's own Python lacks them.

templates/scripts/compilers.sh does both."""
_FOLDER_OF_SYSTEM = "/usr/bin/"
"""Where the Python of Debian and Ubuntu lies."""


@dataclass(frozen=True, kw_only=True)
class BaseFacts:
    """What was read in a custom base."""

    system: str
    """As its os-release calls it: `Debian GNU/Linux 12 (bookworm)`."""
    glibc: Minor | None
    """None: it has another C library."""
    has_apt: bool
    python: str
    """The path of its interpreter; empty: it has none."""
    python_version: str
    """`3.11.7`."""
    missing: tuple[str, ...]
    """What a build needs and was not found, in the words of templates/base/read_base.sh."""

    @property
    def modules(self) -> list[str]:
        """Return the modules that its Python has, of those that training needs."""
        return [name for name in MODULES if f"module {name}" not in self.missing]

    def __str__(self) -> str:
        """Return `Debian GNU/Linux 12 (bookworm), glibc 2.36, Python 3.11.2 (PATH), apt-get`."""
        system = self.system or "unknown system"
        python = "no Python"
        if self.python:
            python = f"Python {self.python_version} ({self.python})"
        manager = "apt-get" if self.has_apt else "no apt-get"
        return f"{system}, glibc {self.glibc}, {python}, {manager}"


def parse_facts(text: str) -> BaseFacts:
    """Return the facts in the lines `NAME=VALUE` that templates/base/read_base.sh printed.

    A fact without a line, or with an empty value, is one that the base does not have. There is a
    line `missing=` for each thing that a build needs and that was not found. Raises ValueError if
    the version of glibc can't be read.
    """
    values: dict[str, str] = {}
    missing = []
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name == "missing":
            missing.append(value)
        else:
            values[name] = value
    glibc = None
    if values.get("glibc"):
        glibc = Minor.parse(values["glibc"])
    return BaseFacts(
        system=values.get("os", ""),
        glibc=glibc,
        # `apt` is the path of apt-get, and empty if the base has none.
        has_apt=bool(values.get("apt")),
        python=values.get("python", ""),
        python_version=values.get("python_version", ""),
        missing=tuple(missing),
    )


def find_obstacles(base: Base, facts: BaseFacts) -> Iterator[str]:
    """Yield why no image can be built on a custom base, an image of the user's own.

    Nothing is yielded if one can. `base` has what the matrix says of it: the Python and the oldest
    glibc of its images. `facts` were read in the base itself.
    """
    if facts.glibc is None:
        yield "it has no glibc, for which the wheels are made"
    elif facts.glibc < base.glibc:
        yield f"it has glibc {facts.glibc}, and the wheels are locked for {base.glibc} or newer"
    # The base's Python reads 3.11.9, the image's 3.11.
    if facts.python and not facts.python_version.startswith(f"{base.python}."):
        yield f"it has Python {facts.python_version}, and the image needs {base.python}"

    lacking = list(facts.missing)
    if not facts.python:
        lacking.append(f"Python {base.python}")
    if facts.has_apt:
        # The build installs these with apt-get, so they are no lack.
        installed_later = {*_COMPILERS, f"Python {base.python}"}
        if facts.python.startswith(_FOLDER_OF_SYSTEM):
            installed_later.update(_PARTS_OF_PYTHON)
        lacking = [name for name in lacking if name not in installed_later]
    if not lacking:
        return
    yield f"it lacks {', '.join(lacking)}"
    if not facts.has_apt:
        yield "it has no apt-get, with which a build installs compilers and Python"
    elif any(name in _PARTS_OF_PYTHON for name in lacking):
        yield f"apt-get has these parts for the system's own Python, and not for {facts.python}"


def describe_needs(base: Base) -> str:
    """Return a sentence on what a custom base must have, for somebody who has not built on it."""
    return (
        f"{base.reference} is your own base, which is read when an image is built on it. It must "
        f"have glibc {base.glibc} or newer; Python {base.python} with its headers (Python.h), "
        "venv and the whole standard library, which every user can start, gcc and g++, or else "
        "apt-get, which installs them; bash, GNU's coreutils, findutils, grep and sed; useradd, "
        f"or a user with the number {user_overlay.USER}; and the folder /etc/profile.d"
    )
