"""What every image is held to: tables of images/data, each row with its reason. What a table means stands above it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.requirements import Requirement

from images.config import yamlfile
from images.config.paths import DATA
from validate.binaries.kernel_states import KernelByDesign

_ROWS: Mapping[str, Any] = {
    **yamlfile.table("expectations.yaml"),
    **yamlfile.table("owners.yaml"),
    **yamlfile.table("device_code.yaml"),
}

DENIED_VARIABLES: Mapping[str, str] = _ROWS["denied_variables"]
START_FILES: Mapping[str, str] = _ROWS["start_files"]
MADE_BY_BUILDS: Mapping[str, Sequence[str]] = _ROWS["made_by_builds"]
HOST_LIBRARIES: Sequence[str] = _ROWS["host_libraries"]
OTHER_PLATFORMS: Mapping[str, str] = _ROWS["other_platforms"]
LINK_EXCEPTIONS: Sequence[Mapping[str, Any]] = _ROWS["link_exceptions"]
TOOLKIT_EXCEPTIONS: Sequence[Mapping[str, Any]] = _ROWS["toolkit_exceptions"]
TOOLKIT_PARTS: Sequence[str] = _ROWS["toolkit_parts"]
DEVEL_TOOLKIT_PARTS: Sequence[str] = _ROWS["devel_toolkit_parts"]
NATIVE: Mapping[str, Mapping[str, Any]] = _ROWS["native"]
HELD: Sequence[str] = _ROWS["held"]
OPERATORS_BEFORE: Mapping[str, tuple[str, Sequence[str]]] = _ROWS["operators_before"]
LABELS_OF_BASES: Mapping[str, str] = _ROWS["labels_of_bases"]
MOST_BYTES: int = _ROWS["most_bytes"]
MORE_BYTES_DEVEL: int = _ROWS["more_bytes_devel"]
MORE_BYTES_PROFILE: int = _ROWS["more_bytes_profile"]
DRIVER_CAPABILITIES: Sequence[str] = _ROWS["driver_capabilities"]
LEFTOVERS: Mapping[str, str] = _ROWS["leftovers"]
IMPORTED: Mapping[str, Sequence[str]] = _ROWS["imported"]
NAMESPACES: Mapping[str, Sequence[str]] = _ROWS["namespaces"]
BUNDLED_OPENMP: Mapping[str, str] = _ROWS["bundled_openmp"]
NOT_IMPORTED: Sequence[str] = _ROWS["not_imported"]
IMPORT_TORCH_FIRST: Sequence[str] = _ROWS["import_torch_first"]
COMPLAINTS: Sequence[str] = _ROWS["complaints"]
HARMLESS: Mapping[str, str] = _ROWS["harmless"]
AVX512_NOISE: Mapping[str, Any] = _ROWS["avx512_noise"]
SVE_NOISE: Mapping[str, Any] = _ROWS["sve_noise"]
EXTENSIONS: Mapping[str, Mapping[str, Sequence[str]]] = _ROWS["extensions"]
DEBIAN_PYTHON: Sequence[str] = _ROWS["debian_python"]
STATE: Mapping[str, Sequence[Any]] = _ROWS["state"]
PROGRAMS: Mapping[str, str] = _ROWS["programs"]
RDMA: Mapping[str, str] = _ROWS["rdma"]
OPENED: Mapping[str, Mapping[str, Any]] = _ROWS["opened"]
RDMA_PROVIDERS: Sequence[str] = _ROWS["rdma_providers"]
HOMES: Mapping[str, Mapping[str, Any]] = _ROWS["homes"]
QUANTISED_LLAMA: Mapping[str, Any] = _ROWS["quantised_llama"]
_UNPROVEN: Mapping[str, Mapping[str, str]] = _ROWS["unproven"]
DEBIAN_TOOLS = (*PROGRAMS.values(), *RDMA.values())

# owners.yaml
COPIES: Mapping[str, str] = _ROWS["copies"]
FOLDERS: Mapping[str, str] = _ROWS["folders"]
LINKS: Mapping[str, str] = _ROWS["links"]
GENERATED: Mapping[str, str] = _ROWS["generated"]
HELD_FILES: Sequence[str] = _ROWS["held_files"]
ABSENT: Mapping[str, str] = _ROWS["absent"]
PLUGINS: Mapping[str, str] = _ROWS["plugins"]
PRIVILEGED: Mapping[str, str] = _ROWS["privileged"]
PRIVILEGED_IN_CHILDREN: Mapping[str, str] = _ROWS["privileged_in_children"]
CHILDRENS: Mapping[str, str] = _ROWS["childrens"]
CHILDRENS_ADDITIONS: Sequence[str] = _ROWS["childrens_additions"]
CHILDRENS_VARIABLES: Sequence[str] = _ROWS["childrens_variables"]
CHILDRENS_SETTINGS: Mapping[str, Sequence[str]] = _ROWS["childrens_settings"]
CHILDRENS_PLUGINS: Sequence[str] = _ROWS["childrens_plugins"]

# device_code.yaml
KERNELS_BY_DESIGN: Mapping[str, Sequence[KernelByDesign]] = _ROWS["kernels_by_design"]
KNOWN_GAPS: Mapping[str, Sequence[Mapping[str, Any]]] = _ROWS["known_gaps"]
CUDA_DEVICE_LIBRARIES: Sequence[str] = _ROWS["cuda_device_libraries"]
NO_CUDA_LIBRARY_FROM: Mapping[str, str] = _ROWS["no_cuda_library_from"]
TORCHAO_DEVICE_CODE: Mapping[str, Sequence[int]] = _ROWS["torchao_device_code"]


@functools.cache
def debian() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """`SUITE/ARCHITECTURE` -> `packages`: package -> version -> digests (validate/checks/static/packages.py), and
    `generated`: file that installations write -> digests. `python -m tools.debian` keeps what images showed."""
    found: Mapping[str, Any] = json.loads((DATA / "debian.json").read_text(encoding="utf-8"))
    return found


def cuda_libraries(major: int) -> dict[str, str | None]:
    """CUDA's libraries by stem, each with the SONAME version of this CUDA major; None: the version says nothing of it.

    Raises KeyError for a major that is not known here.
    """
    return {**dict.fromkeys(_ROWS["any_major"]), **_ROWS["cuda_libraries"][major]}


def modules_of(distribution: str) -> Sequence[str]:
    """The modules to import of a distribution, the most telling first."""
    names: Sequence[str] = _ROWS["import_names"].get(distribution, [distribution.replace("-", "_")])
    return names


def unproven(versions: Mapping[str, str]) -> dict[str, str]:
    """Claims (`C10`, `C10 nf4-logits`) that these distributions put out of reach -> why."""
    found: dict[str, str] = {}
    for text, claims in _UNPROVEN.items():
        asked = Requirement(text)
        if asked.name in versions and asked.specifier.contains(versions[asked.name], prereleases=True):
            found |= claims
    return found
