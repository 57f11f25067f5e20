"""For which Python and processor a wheel was built, by its tags.

https://packaging.python.org/specifications/platform-compatibility-tags: `cp311-cp311-manylinux_2_28_x86_64`.
"""

import re
from typing import NamedTuple

_NEVER = 1000
"""A minor version of Python 3 that no interpreter has."""


class Target(NamedTuple):
    """What wheels of an image must run on."""

    python: str
    """`3.11`."""
    machine: str
    """In the kernel's words: `x86_64`."""


def fits(tag: str, target: Target) -> bool:
    """Return whether a wheel with this tag runs on CPython, glibc Linux and the target's machine."""
    parts = tag.split("-")
    if len(parts) != 3:
        return False
    interpreters, abis, platforms = (part.split(".") for part in parts)
    minor = int(target.python.partition(".")[2])
    exact = f"cp3{minor}"

    is_for_this_python = exact in interpreters and not {exact, "abi3", "none"}.isdisjoint(abis)
    is_stable_abi = "abi3" in abis and any(
        _oldest_minor(name, "cp3") <= minor for name in interpreters
    )
    is_pure_python = "none" in abis and any(
        _oldest_minor(name, "py3") <= minor for name in interpreters
    )
    if not (is_for_this_python or is_stable_abi or is_pure_python):
        return False
    return any(_platform_fits(platform, target) for platform in platforms)


def _oldest_minor(interpreter: str, prefix: str) -> int:
    """Return the lowest minor version of Python 3 that `py3`, `py310` or `cp39` names; out of reach for others."""
    found = re.fullmatch(rf"{prefix}(\d*)", interpreter)
    return int(found[1] or 0) if found else _NEVER


def _platform_fits(platform: str, target: Target) -> bool:
    if platform in ("any", f"linux_{target.machine}"):
        return True
    # Of any glibc: `symbols` looks up the versions that each library needs.
    return bool(re.fullmatch(rf"manylinux(1|2010|2014|_\d+_\d+)_{target.machine}", platform))
