"""Surveys an image whose programs nobody trusts: prints one JSON document on what it has, and runs nothing of it.

    python3 -I -S FOLDER/validate survey USER.json [PACKAGES...]

USER.json is what `docker inspect` says of the image's environment (environment/user_environment.py); PACKAGES are the
folders to survey instead of all that the image has.
"""

import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from validate.binaries import elf, fatbin, kernel_states
from validate.binaries.elf import ElfError
from validate.binaries.fatbin import FatbinError
from validate.binaries.loader import SearchPath, objects_under
from validate.checks.static.files import size
from validate.checks.static.pins import torch_version
from validate.checks.static.toolkit import driver_libraries
from validate.environment import user_environment
from validate.harness.forked import map_on_all_cores
from validate.survey import environments
from validate.survey.environments import text_of

_LARGEST = 32 << 20
_DRIVER_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
)


def main(arguments: Sequence[str]) -> int:
    """Print the document. The exit status says nothing about the image."""
    print(json.dumps(survey(Path(arguments[0]), arguments[1:])), flush=True)  # noqa: T201  what it is for
    return 0


def survey(user: Path, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Environments with what is installed in each, device code by library, and facts of the system.

    `packages`: folders of packages, if not all are meant; then of no toolkit.
    """
    given = user_environment.read(user)
    found = environments.find(packages or environments.package_folders(), given.environ)
    folders = {
        folder for one in found for folder in one.path if Path(folder).name in environments.PACKAGES
    }
    toolkits = [] if packages else list(_toolkits())
    homes = [toolkit["home"] for toolkit in toolkits]
    libraries = {
        os.path.realpath(path)
        for path in objects_under([*sorted(folders), *homes])
        if ".so" in path
    }
    old = [path for path in map_on_all_cores(_of_numpy_1, sorted(libraries)) if path]
    return {
        "toolkits": toolkits,
        "driver_files": sorted(set(_driver_files(given.environ, given.directory))),
        "environments": [
            {
                **one.__dict__,
                "distributions": environments.distributions(one),
                "torch": _torch(one),
                "numpy_1": [
                    path
                    for path in old
                    if path.startswith(tuple(f"{os.path.realpath(folder)}/" for folder in one.path))
                ],
            }
            for one in found
        ],
        "device_code": device_code(sorted(libraries)),
    }


def _of_numpy_1(path: str) -> str:
    """The path, if it was compiled against NumPy 1's headers: it looks for that core alone, and NumPy 2 refuses it."""
    if not Path(path).is_file() or size(path) >= _LARGEST:  # a pipe would be waited for
        return ""
    with suppress(OSError, ValueError), Path(path).open("rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        is_old = (
            data.find(b"numpy.core._multiarray_umath")
            >= 0
            > data.find(b"numpy._core._multiarray_umath")
        )
        return path if is_old else ""
    return ""


def _torch(one: environments.Environment) -> dict[str, str]:
    """torch/version.py, read as text; empty where there is none. A torch for the CPU has no CUDA."""
    torch = torch_version(one.path)
    if not torch["file"]:
        return {}
    return {
        "file": torch["file"],
        "version": torch["__version__"] or "",
        "cuda": torch["cuda"] or "",
    }


def _toolkits() -> Iterator[dict[str, str]]:
    """Folders with a CUDA toolkit, by the version that its own header says (1000 x major + 10 x minor)."""
    homes = set()
    for folder in Path("/usr/local").glob("cuda*"):
        if folder.is_dir():
            homes.add(os.path.realpath(folder))
    for home in sorted(homes):
        found = re.search(
            r"^#define\s+CUDA_VERSION\s+(\d+)",
            text_of(Path(home, "include/cuda.h"), _LARGEST),
            re.MULTILINE,
        )
        number = int(found[1]) if found else 0
        version = f"{number // 1000}.{number % 1000 // 10}" if number else ""
        yield {"home": home, "version": version}


def _driver_files(environ: Mapping[str, str], directory: str) -> Iterator[str]:
    """The driver's libraries and programs where the loader or PATH would take them: the host brings the right ones."""
    try:
        search = SearchPath.of(environ, directory)
    except (OSError, ValueError):
        search = SearchPath()
    yield from (one["path"] for one in driver_libraries(search))
    for name in _DRIVER_PROGRAMS:
        if found := environments.program((name,), environ.get("PATH", "")):
            yield found


_LEAST = 4096


def device_code(paths: Sequence[str]) -> list[dict[str, Any]]:
    """One row a library with device code, as many processes as cores; files that can't be read say why."""
    weighed = sorted(paths, key=size, reverse=True)
    return sorted(
        (row for row in map_on_all_cores(_row, weighed) if row), key=lambda row: str(row["path"])
    )


def _row(path: str) -> dict[str, Any] | None:
    """`archs`: `sm_90` (machine code) or `compute_90` (PTX) -> bytes in the file."""
    if size(path) < _LEAST:
        return None
    try:
        with (
            Path(path).open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if data[:4] != elf.MAGIC:
                return None
            entries = [
                entry
                for region in fatbin.regions(data, fatbin.ALL)
                for entry in kernel_states.left(data, region)
            ]
    except (FatbinError, ElfError, OSError, ValueError) as error:
        return {"path": path, "error": str(error)}
    sizes: Counter[str] = Counter()
    for entry in entries:
        sizes[f"{'compute' if entry.ptx else 'sm'}_{entry.arch}{entry.variant}"] += entry.room
    return {"path": path, "archs": dict(sorted(sizes.items()))} if entries else None
