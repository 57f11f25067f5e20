"""Which wheels an image can install, whatever machine asks: tags of its Python on x86-64 Linux with its glibc."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from packaging.tags import Tag, compatible_tags, cpython_tags

from images.config.names import Minor

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Minor version of glibc -> the older name of its platform (PEP 600)."""


@cache
def supported_tags(python: Minor, glibc: Minor) -> frozenset[Tag]:
    """Every tag of a wheel that installs on this Python and this glibc."""
    version, platforms = (python.major, python.minor), [*_platforms(glibc)]
    interpreter = f"cp{python.digits}"
    return frozenset(
        [*cpython_tags(version, [interpreter], platforms), *compatible_tags(version, interpreter, platforms)]
    )


def _platforms(glibc: Minor) -> Iterator[str]:
    """A manylinux tag names the oldest glibc that will do."""
    for minor in range(glibc.minor, min(_LEGACY) - 1, -1):
        yield f"manylinux_{glibc.major}_{minor}_x86_64"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_x86_64"
    yield "linux_x86_64"
