"""Tell by a wheel's tag for which Python and processor it was built.

https://packaging.python.org/specifications/platform-compatibility-tags:
`cp311-cp311-manylinux_2_28_x86_64`.
"""

import re
from typing import NamedTuple


class Target(NamedTuple):
    """What wheels of an image must run on."""

    python: str
    """`3.11`."""
    machine: str
    """What `uname -m` calls it: `x86_64`."""


def fits(tag: str, target: Target) -> bool:
    """Return whether a wheel with this tag runs on the target's CPython, machine and glibc Linux.

    A tag is INTERPRETER-ABI-PLATFORM, and each part may name several values: `py2.py3-none-any`. A
    text without three parts fits nothing.
    """
    parts = tag.split("-")
    if len(parts) != 3:
        return False
    interpreters, abis, platforms = (part.split(".") for part in parts)
    minor = int(target.python.partition(".")[2])
    if not _fits_python(interpreters, abis, minor):
        return False
    return any(_fits_machine(platform, target.machine) for platform in platforms)


def _fits_python(interpreters: list[str], abis: list[str], minor: int) -> bool:
    """Return whether a wheel for these interpreters and ABIs runs on CPython 3.`minor`.

    Both are parts of a tag: `["py2", "py3"]` and `["none"]`, or `["cp39"]` and `["abi3"]`.
    """
    # For this release itself: built against its own ABI, against the stable one, or against none.
    exact = f"cp3{minor}"
    if exact in interpreters and not {exact, "abi3", "none"}.isdisjoint(abis):
        return True
    # For an earlier release: the stable ABI, and pure Python, also run on every later one.
    for interpreter in interpreters:
        if "abi3" in abis and _names_version_up_to(interpreter, "cp3", minor):
            return True
        if "none" in abis and _names_version_up_to(interpreter, "py3", minor):
            return True
    return False


def _names_version_up_to(interpreter: str, prefix: str, minor: int) -> bool:
    """Return whether an interpreter such as `cp39` or `py3` is at most version 3.`minor`.

    `prefix`: `cp3` or `py3`, the only kind that counts. `py3` is version 3.0.
    """
    match = re.fullmatch(rf"{prefix}(\d*)", interpreter)
    return match is not None and int(match[1] or 0) <= minor


def _fits_machine(platform: str, machine: str) -> bool:
    """Return whether a wheel for this platform runs on glibc Linux and this machine.

    The version of glibc is not compared: the check `symbols` looks up the versions that each
    library needs.
    """
    if platform in ("any", f"linux_{machine}"):
        return True
    return bool(re.fullmatch(rf"manylinux(1|2010|2014|_\d+_\d+)_{machine}", platform))
