"""Which GPUs the libraries of an environment have code for. Pure.

Device code is machine code for one architecture (`sm_90`), or PTX (`compute_90`), which the driver
compiles for newer GPUs.
"""

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
"""Libraries with less device code than this are left out. One of cuFFT holds only a kernel of 320
bytes that nobody calls; its other kernels lie elsewhere."""
_CUDA_IN_NAME = re.compile(r"_cuda(\d\d)(\d)\.so")
"""libbitsandbytes_cuda126.so is for CUDA 12.6."""


@dataclass(frozen=True, kw_only=True)
class LibraryCode:
    """The device code of one library."""

    path: str
    owner: str
    """The package whose folder it lies in, or `toolkit VERSION`. Empty: neither."""
    nvidia: bool
    """Whether it is one of NVIDIA's own libraries."""
    archs: Mapping[str, int]
    """`sm_90` or `compute_90` -> bytes of code for it."""


def library_code(survey: Mapping[str, Any]) -> tuple[LibraryCode, ...]:
    """Return the device code (code for GPUs) of each library that a survey lists.

    `survey`: the document of validate/survey/main.py. It lists the libraries with device code, and
    those that it could not read: they get an empty `archs`. A library's owner is the package or
    CUDA toolkit that it belongs to.
    """
    libraries = []
    for surveyed in survey["device_code"]:
        path = str(surveyed["path"])
        owner = _owner(path, survey["toolkits"])
        libraries.append(
            LibraryCode(
                path=path,
                owner=owner,
                nvidia=fatbin.is_nvidia_library(owner, path),
                archs=surveyed.get("archs", {}),
            )
        )
    return tuple(libraries)


def _owner(path: str, toolkits: Sequence[Mapping[str, str]]) -> str:
    """Return the package or CUDA toolkit that a library belongs to; empty if neither is known.

    `path` is the library's file. A package is named by its folder: `torch`, or `nvidia-cublas` for
    nvidia/cublas. A toolkit is named by its version: `toolkit 12.6`. `toolkits`: those of the
    image, with `home` and `version`.
    """
    # site-packages, or Debian's dist-packages.
    if "-packages/" in path:
        parts = path.partition("-packages/")[2].split("/")
        # NVIDIA's packages share the folder nvidia/, and each has a folder in it.
        depth = 2 if parts[0] == "nvidia" and len(parts) > 2 else 1
        folder = "-".join(parts[:depth])
        # A library right in site-packages has no folder: _cffi.abi3.so becomes _cffi.
        return folder.partition(".")[0]
    for toolkit in toolkits:
        if path.startswith(f"{toolkit['home']}/"):
            # The version is empty if the survey could not tell it.
            return f"toolkit {toolkit['version']}".strip()
    return ""


def support(
    code: Sequence[LibraryCode], cuda: str, archs: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return what code each package has for GPUs: package -> architecture -> kind of code.

    For example `{"torch": {"90": "machine code", "120": "PTX"}}`. The kind is `machine code`, `PTX`
    or `no`, whichever is the best that one of the package's libraries has. A library that belongs
    to no package stands under its path.

    Left out are NVIDIA's libraries inside other packages, and variants for another CUDA, as
    bitsandbytes has them. `cuda`: the version that torch was built for; empty if unknown. `archs`:
    GPUs, as `90` for sm_90.
    """
    libraries_of: defaultdict[str, list[LibraryCode]] = defaultdict(list)
    for library in code:
        # Bundled: cuDNN in the folder of another package, say. NVIDIA's pages say which GPUs it
        # supports.
        is_nvidias_package = library.owner.startswith(("nvidia", "toolkit"))
        is_bundled = library.nvidia and not is_nvidias_package
        # `archs`: target, such as `sm_90` -> bytes of code for it.
        has_code = sum(library.archs.values()) >= _LEAST_BYTES
        if has_code and not is_bundled:
            libraries_of[library.owner or library.path].append(library)

    kinds_by_package = {}
    for package, libraries in sorted(libraries_of.items()):
        targets: set[str] = set()
        for library in _without_unused_variants(libraries, cuda):
            targets.update(library.archs)
        kinds_by_package[package] = {arch: _kind_of_code(targets, arch) for arch in archs}
    return kinds_by_package


def _kind_of_code(targets: set[str], arch: str) -> str:
    """Return how a GPU runs code for these targets: as `machine code`, `PTX`, or `no`.

    `targets`: `sm_90` or `compute_90`. `arch`: the GPU, as `90`.
    """
    gpu = divmod(int(arch), 10)
    usable_targets = [target for target in targets if target_runs_on(target, gpu)]
    if any(target.startswith("sm_") for target in usable_targets):
        return "machine code"
    return "PTX" if usable_targets else "no"


def _without_unused_variants(libraries: Sequence[LibraryCode], cuda: str) -> list[LibraryCode]:
    """Return a package's libraries without its variants for another CUDA than the one it loads.

    bitsandbytes has one variant for each CUDA, and loads the one that is nearest to torch's. All
    libraries are returned if there are no variants, or `cuda`, torch's version, is not known.
    """
    # Only variants have a CUDA in their name. Libraries without one are returned in any case.
    cuda_by_path: dict[str, Minor] = {}
    for library in libraries:
        # `_cuda126.so`: group 1 is 12, group 2 is 6.
        version = _CUDA_IN_NAME.search(library.path)
        if version:
            cuda_by_path[library.path] = Minor(int(version[1]), int(version[2]))
    is_cuda_known = re.fullmatch(r"\d+\.\d+", cuda)
    if not cuda_by_path or not is_cuda_known:
        return list(libraries)

    # None if there is no variant for this major: then no variant is loaded.
    loaded_cuda = nearest(cuda_by_path.values(), Minor.parse(cuda))
    loaded = []
    for library in libraries:
        is_variant = library.path in cuda_by_path
        if not is_variant or cuda_by_path[library.path] == loaded_cuda:
            loaded.append(library)
    return loaded
