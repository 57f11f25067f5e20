"""Official wheels that no index has: which one is for a combination. Pure.

The table is `prebuilt` in images/data/facts.yaml. Each wheel was built for one torch, CUDA major, C++ ABI and Python.
"""

from __future__ import annotations

from functools import cache
from urllib.parse import quote

from images.config.names import Arch
from images.planning.candidate import Candidate
from images.planning.image import Prebuilt


def official_wheel(candidate: Candidate, name: str, version: str) -> Prebuilt | None:
    """The official wheel of a package for this very combination; None: none is known."""
    releases = [row for row in candidate.facts.prebuilt if row.package == name and row.version == version]
    torch, build = str(candidate.name.torch), _build(candidate) if releases else None
    for release in releases:
        for wheel in release.wheels:
            if wheel.torch == torch and (wheel.cuda, wheel.cxx11_abi, wheel.python) == build:
                archs, ptx = tuple(release.archs), tuple(release.ptx)
                return _prebuilt((name, version), release.address, wheel.file, wheel.sha256, archs, ptx)
    return None


def official_wheels(candidate: Candidate) -> tuple[Prebuilt, ...]:
    """Those of all its pins, in their order."""
    released = {release.package for release in candidate.facts.prebuilt}
    pinned = [(name, version) for name, version in candidate.pins.items() if name in released]
    return tuple(wheel for name, version in pinned if (wheel := official_wheel(candidate, name, version)))


def is_released(candidate: Candidate, name: str) -> bool:
    """Whether any official wheel of a package is known, for whatever combination."""
    return any(release.package == name for release in candidate.facts.prebuilt)


def combination(candidate: Candidate) -> str:
    """What an official wheel must have been built for, in words."""
    abi = "new" if candidate.variant.cxx11_abi else "old"
    torch, cuda, python = candidate.name.torch, candidate.wheel_cuda.major, candidate.base.python
    return f"torch {torch}, CUDA {cuda}, Python {python}, {abi} C++ ABI"


def _build(candidate: Candidate) -> tuple[int, bool, str]:
    """What its wheels must have been built for beside torch: CUDA major, C++ ABI, Python."""
    return candidate.wheel_cuda.major, candidate.variant.cxx11_abi, str(candidate.base.python)


@cache
def _prebuilt(
    package: tuple[str, str], address: str, file: str, digest: str, archs: tuple[str, ...], ptx: tuple[str, ...]
) -> Prebuilt:
    """The same wheel stands in many images. `package`: name and version."""
    return Prebuilt(
        name=package[0],
        version=package[1],
        filename=file,
        url=address + quote(file),
        sha256=digest,
        archs=tuple(sorted(map(Arch.parse, archs))),
        ptx=tuple(sorted(map(Arch.parse, ptx))),
    )
