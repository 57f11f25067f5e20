"""What an image has beside Python: CUDA toolkits, and files that stand in the host's place."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from validate.binaries.loader import SearchPath
from validate.survey import environments
from validate.survey.environments import text_of

_LARGEST = 32 << 20
_DRIVER = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
_DRIVER_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control")


def survey(environ: Mapping[str, str], directory: str) -> dict[str, Any]:
    """Facts of the whole image. Raises nothing: what can't be read is left out."""
    return {
        "system": _release(),
        "toolkits": list(_toolkits()),
        "driver_files": sorted(set(_driver_files(environ, directory))),
        "preload": _lines("/etc/ld.so.preload"),
        "interpreters": list(_pythons(environ)),
    }


def _lines(path: str) -> list[str]:
    return [
        line.strip() for line in text_of(Path(path), _LARGEST).splitlines() if line.strip() and not line.startswith("#")
    ]


def _release() -> str:
    fields = dict(line.partition("=")[::2] for line in _lines("/etc/os-release"))
    return (fields.get("PRETTY_NAME") or fields.get("NAME") or "").strip("\"'")[:80]


def _toolkits() -> Iterator[dict[str, str]]:
    """Folders with a CUDA toolkit, by the version that its own header says (1000 x major + 10 x minor)."""
    homes = {os.path.realpath(path) for path in glob.glob("/usr/local/cuda*") if os.path.isdir(path)}  # noqa: PTH112, PTH207
    for home in sorted(homes):
        found = re.search(
            r"^#define\s+CUDA_VERSION\s+(\d+)", text_of(Path(home, "include/cuda.h"), _LARGEST), re.MULTILINE
        )
        number = int(found[1]) if found else 0
        version = f"{number // 1000}.{number % 1000 // 10}" if number else ""
        yield {"home": home, "version": version, "nvcc": str(os.path.isfile(f"{home}/bin/nvcc")).lower()}  # noqa: PTH113


def _driver_files(environ: Mapping[str, str], directory: str) -> Iterator[str]:
    """The driver's libraries and programs where the loader or PATH would take them: the host brings the right ones."""
    try:
        search = SearchPath.of(environ, directory)
    except (OSError, ValueError):
        search = SearchPath()
    for name in _DRIVER:
        yield from (path for path in search.everywhere(name) if os.path.isfile(path))  # noqa: PTH113
    for name in _DRIVER_PROGRAMS:
        if found := environments.program((name,), environ.get("PATH", "")):
            yield found


def _pythons(environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Each program named python on PATH: machine code or not, and as its Debian package brought it or not."""
    for folder in dict.fromkeys(environ.get("PATH", "").split(":")):
        for name in ("python3", "python"):
            path = f"{folder}/{name}"
            if folder and os.path.isfile(path):  # noqa: PTH113
                real = os.path.realpath(path)
                is_elf = environments.is_elf(real)
                yield {"path": path, "real": real, "elf": is_elf, "as_packaged": _as_packaged(real)}


def _as_packaged(path: str) -> bool | None:
    """Whether a file has the MD5 that dpkg recorded. None: no package of Debian lists it."""
    line = path.lstrip("/")
    for file in glob.glob("/var/lib/dpkg/info/python3*.md5sums"):  # noqa: PTH207
        for entry in _lines(file):
            digest, _, name = entry.partition("  ")
            if name == line:
                # Not a matter of security: dpkg records nothing stronger.
                return hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest() == digest
    return None
