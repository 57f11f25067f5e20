"""The tags of wheels that can be installed in an image, in the order in which installers prefer."""

from functools import cache

from packaging.tags import Tag, compatible_tags, cpython_tags

from images.config.names import Minor
from images.config.platforms import Platform

_OLDEST_GLIBC = 5
"""The minor version of glibc 2.5, the oldest for which there is a manylinux platform."""
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", _OLDEST_GLIBC: "manylinux1"}
"""Minor version of glibc -> the older name of its platform (PEP 600)."""


@cache
def supported_tags(
    python: Minor, glibc: Minor, platform: Platform = Platform.AMD64
) -> tuple[Tag, ...]:
    """Return every tag of a wheel that can be installed on this Python, glibc and processor.

    A tag (`cp311-cp311-manylinux_2_28_x86_64`) says for which Python and platform a wheel is. The
    best tag comes first: compiled for this Python and the newest glibc, as pip and uv choose.
    """
    # A manylinux tag names the oldest glibc that the wheel runs on, so all up to this glibc fit.
    platforms = []
    for minor in range(glibc.minor, _OLDEST_GLIBC - 1, -1):
        platforms.append(f"manylinux_{glibc.major}_{minor}_{platform.machine}")
        # An older name for the same: manylinux2014 is manylinux_2_17.
        if minor in _LEGACY:
            platforms.append(f"{_LEGACY[minor]}_{platform.machine}")
    platforms.append(f"linux_{platform.machine}")

    version = (python.major, python.minor)
    interpreter = f"cp{python.digits}"
    compiled_tags = cpython_tags(version, [interpreter], platforms)
    pure_tags = compatible_tags(version, interpreter, platforms)
    return (*compiled_tags, *pure_tags)
