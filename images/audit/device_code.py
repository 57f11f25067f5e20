"""Which GPUs the libraries of an environment have code for. Pure.

Device code is machine code for one architecture (`sm_90`), or PTX (`compute_90`), which the driver
compiles for newer GPUs.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.config import yamlfile
from images.config.facts import nearest
from images.config.names import Minor
from validate.binaries import fatbin
from validate.compute_capability import target_runs_on
from validate.judging import matches

_LEAST_BYTES = 64 << 10
"""Libraries with less device code than this are left out. One of cuFFT holds only a kernel of 320
bytes that nobody calls; its other kernels lie elsewhere."""
_KINDS = ("machine code", "PTX", "no")
"""What code a package may have for a GPU, best first."""
_NEEDED_LIBRARIES: Mapping[str, Sequence[str]] = yamlfile.table("audit.yaml")["needed_libraries"]
"""Package -> patterns of those of its libraries that must have code for a GPU."""
_OPTIONAL_CODE: Mapping[str, str] = yamlfile.table("audit.yaml")["optional_code"]
"""Package that works where its own libraries have no code for a GPU -> why."""
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
    """Return the name of the package or CUDA toolkit that a library belongs to; empty if of none.

        .../site-packages/torch/lib/libc10.so                -> torch
        .../site-packages/nvidia/cublas/lib/libcublas.so.12  -> nvidia-cublas
        /usr/local/cuda-12.6/lib64/libcudart.so.12           -> toolkit 12.6

    `path` is the library's. `toolkits` are the CUDA toolkits of the image: their folders (`home`)
    and versions.
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


def kinds_by_package(
    code: Sequence[LibraryCode], cuda: str, archs: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return which kind of code each package has for each of these GPUs.

    For example `{"torch": {"90": "machine code", "120": "PTX"}}`. The kinds are those of _KINDS. A
    library that belongs to no package stands under its path. Packages that work without their code
    (_OPTIONAL_CODE) are left out.

    code: the libraries of an environment, each with the code that it has.
    cuda: the version that torch was built for; empty if unknown.
    archs: the GPUs, as `90` for sm_90.
    """
    kinds = {}
    for package, libraries in _libraries_in_use(code, cuda).items():
        if package in _OPTIONAL_CODE:
            continue
        kinds[package] = {arch: _kind_of_package(libraries, arch) for arch in archs}
    return kinds


def _kind_of_package(libraries: Sequence[LibraryCode], arch: str) -> str:
    """Return which kind of code a package with these libraries has for a GPU: one of _KINDS.

    `arch`: the GPU, as `90` for sm_90.
    """
    # torch for sm_70 can't use a GPU of sm_60, though its library of linear algebra has code for
    # it. So the worst of the libraries that a package is known to need decides.
    needed = [library for library in libraries if _is_needed(library)]
    if needed:
        return max((_kind_of_code(library.archs, arch) for library in needed), key=_KINDS.index)

    # Of other packages nobody knows which libraries they can do without: the best decides. A
    # package may have variants for other CUDA versions only: then no library is left.
    kinds = [_kind_of_code(library.archs, arch) for library in libraries]
    return min(kinds, key=_KINDS.index, default="no")


def lacking_libraries(code: Sequence[LibraryCode], cuda: str, archs: Sequence[str]) -> list[str]:
    """Return the paths of libraries that lack code for a GPU for which their package has code.

    That need not be a fault: vllm has libraries that are only for an sm_90, and does not load them
    elsewhere. A package that works without any code of its own (_OPTIONAL_CODE) counts as one that
    has code for all GPUs.

    `code`: what each library has. `cuda`: the CUDA that torch was built for. `archs`: the GPUs, as
    `90` for sm_90.
    """
    kinds = kinds_by_package(code, cuda, archs)
    paths = []
    for package, libraries in _libraries_in_use(code, cuda).items():
        for library in libraries:
            for arch in archs:
                is_served = _kind_of_code(library.archs, arch) != "no"
                is_optional = package in _OPTIONAL_CODE
                is_package_served = is_optional or kinds[package][arch] != "no"
                if is_package_served and not is_served and library.path not in paths:
                    paths.append(library.path)
    return paths


def _libraries_in_use(code: Sequence[LibraryCode], cuda: str) -> dict[str, list[LibraryCode]]:
    """Return the libraries by which packages are judged, by package, sorted by its name.

    Left out are libraries with hardly any code for GPUs, NVIDIA's libraries inside other packages,
    and variants for another CUDA than torch's. `cuda`: torch's version; empty if unknown.
    """
    libraries_of: defaultdict[str, list[LibraryCode]] = defaultdict(list)
    for library in code:
        # Bundled: cuDNN in the folder of another package, say. Which GPUs it supports is NVIDIA's
        # matter, and says nothing about the package.
        is_nvidias_package = library.owner.startswith(("nvidia", "toolkit"))
        is_bundled = library.nvidia and not is_nvidias_package
        # `archs`: target, such as `sm_90` -> bytes of code for it.
        has_code = sum(library.archs.values()) >= _LEAST_BYTES
        if has_code and not is_bundled:
            libraries_of[library.owner or library.path].append(library)

    in_use = {}
    for package, libraries in sorted(libraries_of.items()):
        in_use[package] = _without_unused_variants(libraries, cuda)
    return in_use


def _is_needed(library: LibraryCode) -> bool:
    """Return whether its package is known not to work on a GPU that this library has no code for.

    The table is `needed_libraries` in audit.yaml.
    """
    patterns = _NEEDED_LIBRARIES.get(library.owner, ())
    return matches(library.path, [f"*/{pattern}" for pattern in patterns])


def _kind_of_code(targets: Iterable[str], arch: str) -> str:
    """Return how a GPU runs code for these targets: one of _KINDS.

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
