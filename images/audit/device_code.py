"""Which GPUs the libraries of an environment have code for. Pure."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.config.facts import nearest
from images.config.names import Minor
from validate.binaries import fatbin
from validate.compute_capability import target_runs_on

_LEAST_BYTES = 64 << 10
"""cuFFT's libraries hold a kernel of 320 bytes that nobody calls, and keep the others elsewhere."""
_FOR_CUDA = re.compile(r"_cuda(\d\d)(\d)\.so")


@dataclass(frozen=True, kw_only=True)
class LibraryCode:
    """The device code of one library."""

    path: str
    owner: str
    """The package whose folder it lies in; `toolkit VERSION`; or empty."""
    nvidia: bool
    archs: Mapping[str, int]
    """`sm_90` or `compute_90` -> bytes."""


def library_code(survey: Mapping[str, Any]) -> tuple[LibraryCode, ...]:
    """Return each library with device code that the survey found."""
    libraries = []
    for row in survey["device_code"]:
        path = str(row["path"])
        owner = _owner(path, survey["toolkits"])
        libraries.append(
            LibraryCode(
                path=path,
                owner=owner,
                nvidia=fatbin.is_nvidias(owner, path),
                archs=row.get("archs", {}),
            )
        )
    return tuple(libraries)


def _owner(path: str, toolkits: Sequence[Mapping[str, str]]) -> str:
    """Return the name to show for a library."""
    if "-packages/" in path:
        # The first folder below site-packages; of an nvidia- package, the first two.
        parts = path.partition("-packages/")[2].split("/")
        length = 2 if parts[0] == "nvidia" and len(parts) > 2 else 1
        return "-".join(parts[:length]).partition(".")[0]
    for toolkit in toolkits:
        if path.startswith(f"{toolkit['home']}/"):
            return f"toolkit {toolkit['version']}".strip()
    return ""


def support(
    code: Sequence[LibraryCode], cuda: str, archs: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return package -> architecture (`90`) -> `machine code`, `PTX` or `no`, by its best served library.

    `cuda`: what torch was built for. Left out: NVIDIA's libraries inside other packages, whose own pages say what they
    support, and alternatives for another CUDA, as bitsandbytes has them.
    """
    by_package: defaultdict[str, list[LibraryCode]] = defaultdict(list)
    for library in code:
        is_bundled = library.nvidia and not library.owner.startswith(("nvidia", "toolkit"))
        if sum(library.archs.values()) >= _LEAST_BYTES and not is_bundled:
            by_package[library.owner or library.path].append(library)

    packages = {}
    for package, libraries in sorted(by_package.items()):
        loaded = _of_loaded_alternative(libraries, cuda)
        targets = {target for library in loaded for target in library.archs}
        packages[package] = {arch: _kind_of_code(targets, arch) for arch in archs}
    return packages


def _kind_of_code(targets: set[str], arch: str) -> str:
    gpu = divmod(int(arch), 10)
    fitting = [target for target in targets if target_runs_on(target, gpu)]
    if any(target.startswith("sm_") for target in fitting):
        return "machine code"
    return "PTX" if fitting else "no"


def _of_loaded_alternative(libraries: Sequence[LibraryCode], cuda: str) -> list[LibraryCode]:
    """Return the libraries without those for another CUDA: bitsandbytes loads the one that is nearest to torch's."""
    alternatives: dict[str, Minor] = {}
    for library in libraries:
        version = _FOR_CUDA.search(library.path)
        if version:
            alternatives[library.path] = Minor(int(version[1]), int(version[2]))
    if not alternatives or not re.fullmatch(r"\d+\.\d+", cuda):
        return list(libraries)
    loaded = nearest(alternatives.values(), Minor.parse(cuda))
    return [library for library in libraries if alternatives.get(library.path, loaded) == loaded]
