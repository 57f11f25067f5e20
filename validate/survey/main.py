"""Survey an image: print one JSON document on what it has, without running anything of it.

    python3 -I -S FOLDER/validate survey USER.json [PACKAGES...]

USER.json is what `docker inspect` says of the image's environment
(environment/user_environment.py). PACKAGES are folders of packages to survey, in place of
everything that the image has.
"""

import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from validate.binaries import elf, fatbin, kernel_states
from validate.binaries.elf import ElfError
from validate.binaries.fatbin import FatbinError
from validate.binaries.loader import (
    AARCH64,
    X86_64,
    SearchPath,
    find_binaries_under,
    machine_named,
)
from validate.checks.static.files import file_size
from validate.checks.static.pins import read_torch_version
from validate.checks.static.toolkit import find_driver_libraries
from validate.environment import user_environment
from validate.environment.user_environment import UserEnvironment
from validate.harness.forked import map_on_all_cores
from validate.survey import environments
from validate.survey.environments import Environment, read_text

_LARGEST_FILE = 32 << 20
_LEAST_WITH_DEVICE_CODE = 4096
_DRIVER_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
)


class Toolkit(TypedDict):
    """A CUDA toolkit."""

    home: str
    version: str
    """`12.8`; empty: its header cuda.h is missing."""


class DeviceCode(TypedDict, total=False):
    """A library with code for GPUs, or one that can't be read."""

    path: str
    archs: dict[str, int]
    """`sm_90` (machine code) or `compute_90` (PTX) -> bytes in the file."""
    error: str
    """Why the file can't be read. `archs` is then left out."""


def main(arguments: Sequence[str]) -> int:
    """Print the document for the arguments USER.json and PACKAGES. Always returns 0."""
    document = survey(Path(arguments[0]), arguments[1:])
    print(json.dumps(document), flush=True)  # noqa: T201  what it is for
    return 0


def survey(user_file: Path, package_folders: Sequence[str] = ()) -> dict[str, Any]:
    """Return the document: environments with packages, device code, and facts of the system.

    `user_file` is a JSON file that describes the image's user, with the variables.
    `package_folders` are folders of packages to survey. By default these are all of the image, and
    its CUDA toolkits are looked at, too.
    """
    user = user_environment.read(user_file)
    found_environments = environments.find_environments(
        package_folders or environments.package_folders(), user.environ
    )
    # If folders were asked for, leave out the image's toolkits.
    toolkits = [] if package_folders else list(_find_toolkits())
    libraries = _find_libraries(found_environments, toolkits)

    # Each result is the path of a library, or empty. They come in any order.
    results = map_on_all_cores(_path_if_for_numpy_1, libraries)
    for_numpy_1 = sorted(path for path in results if path)
    descriptions = []
    for environment in found_environments:
        descriptions.append(_describe_environment(environment, libraries, for_numpy_1))
    return {
        "toolkits": toolkits,
        "driver_files": sorted(set(_driver_files(user))),
        "environments": descriptions,
        "device_code": device_code(libraries),
    }


def _find_libraries(
    found_environments: Sequence[Environment], toolkits: Sequence[Toolkit]
) -> list[str]:
    """Return the real paths of all libraries of these environments and toolkits, sorted."""
    folders = set()
    for environment in found_environments:
        # sys.path also has the standard library, which is left out.
        for folder in environment.path:
            if Path(folder).name in environments.PACKAGES:
                folders.add(folder)
    homes = [toolkit["home"] for toolkit in toolkits]

    libraries = set()
    # find_binaries_under also returns programs, from folders named `bin`: they are left out.
    for path in find_binaries_under([*sorted(folders), *homes]):
        if ".so" in path:
            libraries.add(os.path.realpath(path))
    return sorted(libraries)


def _describe_environment(
    environment: Environment, libraries: Sequence[str], for_numpy_1: Collection[str]
) -> dict[str, Any]:
    """Return what the document says of an environment: packages, torch, and kinds of libraries.

    `libraries`: all libraries of the image, and `for_numpy_1` those that were compiled against
    NumPy 1. Those below the environment's sys.path are its own.
    """
    folders = tuple(f"{os.path.realpath(folder)}/" for folder in environment.path)
    processors = Counter(_processor_of(path) for path in libraries if path.startswith(folders))
    # A file that is not ELF, such as a linker script, has no processor.
    processors.pop("", None)
    return {
        **asdict(environment),
        "distributions": environments.installed_packages(environment),
        "torch": describe_torch(environment),
        # Processor, as `uname -m` calls it -> number of libraries.
        "processors": dict(processors),
        "numpy_1": [path for path in for_numpy_1 if path.startswith(folders)],
    }


def _processor_of(path: str) -> str:
    """Return the processor that a library is built for, as `uname -m` calls it: `aarch64`.

    It is `machine 243`, by the number in its header, if no image is made for that processor. Empty
    if the file can't be read or is no ELF file.
    """
    header = b""
    # To open a pipe would wait for its writer.
    if Path(path).is_file():
        with suppress(OSError), Path(path).open("rb") as stream:
            header = stream.read(elf.HEADER_BYTES)
    if not header.startswith(elf.MAGIC) or len(header) < elf.HEADER_BYTES:
        return ""
    # e_machine (System V ABI): two bytes, the lower one first on every processor that we know.
    number = int.from_bytes(header[18:20], "little")
    for machine in (X86_64, AARCH64):
        if machine.number == number:
            return machine.name
    return f"machine {number}"


def _path_if_for_numpy_1(path: str) -> str:
    """Return the path of a library if it was compiled against NumPy 1, else an empty string.

    Such a library names only the core of NumPy 1, so NumPy 2 refuses to load it.
    """
    # To open a pipe would wait for its writer.
    if not Path(path).is_file() or file_size(path) >= _LARGEST_FILE:
        return ""
    with suppress(OSError, ValueError), Path(path).open("rb") as stream:
        content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        names_core_of_1 = content.find(b"numpy.core._multiarray_umath") >= 0
        names_core_of_2 = content.find(b"numpy._core._multiarray_umath") >= 0
        if names_core_of_1 and not names_core_of_2:
            return path
    return ""


def describe_torch(environment: Environment) -> dict[str, str]:
    """Return file, version and CUDA version of an environment's torch, without importing it.

    The text of torch/version.py is read. Empty if there is no torch. The CUDA version of a torch
    for the CPU is empty.
    """
    torch = read_torch_version(environment.path)
    if not torch["file"]:
        return {}
    return {
        "file": torch["file"],
        "version": torch["__version__"] or "",
        "cuda": torch["cuda"] or "",
    }


def _find_toolkits() -> Iterator[Toolkit]:
    """Yield the CUDA toolkits below /usr/local, with the version that their cuda.h defines."""
    # /usr/local/cuda is usually a link to one of the others.
    homes = set()
    for folder in Path("/usr/local").glob("cuda*"):
        if folder.is_dir():
            homes.add(os.path.realpath(folder))

    for home in sorted(homes):
        header = read_text(Path(home, "include/cuda.h"), _LARGEST_FILE)
        definition = re.search(r"^#define\s+CUDA_VERSION\s+(\d+)", header, re.MULTILINE)
        version = ""
        if definition:
            # 12080 is CUDA 12.8.
            number = int(definition[1])
            version = f"{number // 1000}.{number % 1000 // 10}" if number else ""
        yield {"home": home, "version": version}


def _driver_files(user: UserEnvironment) -> Iterator[str]:
    """Yield libraries and programs of NVIDIA's driver that processes of the image would find.

    An image should have none: the host brings those of its own driver. `user` is how a user's
    process would start in the image.
    """
    try:
        machine = machine_named(user.machine)
    except KeyError:
        # No image is made for this processor. Its loader has /lib and /lib64 in common with others.
        machine = X86_64
    try:
        search = SearchPath.of(user.environ, user.directory, machine)
    except (OSError, ValueError):
        # ld.so.cache is damaged. The other folders are still searched.
        search = SearchPath.of(user.environ, user.directory, machine, cache=None)
    for library in find_driver_libraries(search):
        yield library["path"]
    for name in _DRIVER_PROGRAMS:
        program = environments.find_program(name, user.environ.get("PATH", ""))
        if program:
            yield program


def device_code(paths: Sequence[str]) -> list[DeviceCode]:
    """Return a row about each of these files that has code for GPUs or can't be read, by path.

    The files are read by as many processes as there are cores.
    """
    # The largest first, so that none is left over at the end.
    largest_first = sorted(paths, key=file_size, reverse=True)
    rows = [row for row in map_on_all_cores(_read_device_code, largest_first) if row]
    return sorted(rows, key=lambda row: row["path"])


def _read_device_code(path: str) -> DeviceCode | None:
    """Return how many bytes of GPU code a file has for each architecture, or `error`.

    None if it has none or is no ELF file; `error` if its GPU code can't be read.

    A fat binary has regions, one for each source. A region has an entry for each architecture.
    """
    # A smaller file has no room for device code; an empty one could not even be mapped.
    if file_size(path) < _LEAST_WITH_DEVICE_CODE:
        return None

    # Architecture -> bytes that its code takes in the file.
    sizes: Counter[str] = Counter()
    try:
        with (
            Path(path).open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if content[:4] != elf.MAGIC:
                return None
            # Include sections that only the device linker reads.
            for region in fatbin.read_regions(content, fatbin.ALL_SECTIONS):
                # Entries whose code a pruner has erased are left out.
                for entry in kernel_states.entries_with_code(content, region):
                    kind = "compute" if entry.is_ptx else "sm"
                    sizes[f"{kind}_{entry.arch}{entry.variant}"] += entry.room
    except (FatbinError, ElfError, OSError, ValueError) as error:
        return {"path": path, "error": str(error)}

    if not sizes:
        return None
    return {"path": path, "archs": dict(sorted(sizes.items()))}
