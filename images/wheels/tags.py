"""Which wheels an image can install, whatever machine asks: tags of its Python on Linux, its platform and its glibc."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from packaging.tags import Tag, compatible_tags, cpython_tags

from images.config.names import Minor
from images.config.platforms import Platform

_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
"""Minor version of glibc -> the older name of its platform (PEP 600)."""


@cache
def supported_tags(python: Minor, glibc: Minor, platform: Platform = Platform.AMD64) -> frozenset[Tag]:
    """Every tag of a wheel that installs on this Python and this glibc."""
    version, platforms = (python.major, python.minor), [*_platforms(glibc, platform.machine)]
    interpreter = f"cp{python.digits}"
    return frozenset(
        [*cpython_tags(version, [interpreter], platforms), *compatible_tags(version, interpreter, platforms)]
    )


def _platforms(glibc: Minor, machine: str) -> Iterator[str]:
    """A manylinux tag names the oldest glibc that will do."""
    for minor in range(glibc.minor, min(_LEGACY) - 1, -1):
        yield f"manylinux_{glibc.major}_{minor}_{machine}"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_{machine}"
    yield f"linux_{machine}"
