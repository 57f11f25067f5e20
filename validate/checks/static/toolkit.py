"""toolkit: code that is compiled in the image gets another CUDA than torch's where the toolkit's parts differ from it,
or where the loader's path holds a second one. Parts and versions are read as the toolkit's own files state them."""

import contextlib
import glob
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypedDict

from validate.binaries import elf
from validate.binaries.elf import ElfError
from validate.binaries.loader import SearchPath, machine_named
from validate.checks import Settings
from validate.checks.static.libraries import split_soname
from validate.checks.static.pins import TorchVersion, torch_version
from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, failed, listed

SETTINGS = Settings(reads_files_only=True)

_RELEASE = re.compile(rb"release (\d+\.\d+), V[\d.]+")
_DRIVER = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")


class ToolkitExpect(TypedDict):
    """A toolkit, its CUDA version (`12.6`), and names of the parts that it must have."""

    home: str
    version: str
    parts: list[str]


class _Part(TypedDict):
    files: list[str]


class Part(_Part, total=False):
    """What was found of a part; each kind of part has some of these."""

    minor: str | None
    """`12.6`, as the part itself says."""
    sonames: dict[str, str | None]
    """File -> its SONAME."""
    links: list[str]
    """Names without a version, by which compilers link."""
    absent: list[str]


LoaderFolder = TypedDict("LoaderFolder", {"folder": str, "real": str, "from": str})
"""A folder on the loader's path, without links (`real`), and what adds it (`from`)."""


class DriverLibrary(TypedDict):
    """A file of the host's driver that lies in the image."""

    path: str
    real: str


class ToolkitEvidence(TypedDict):
    """A toolkit, and what leads to it or away from it."""

    home_exists: bool
    real_home: str
    parts: dict[str, Part]
    variables: dict[str, str | None]
    default_link: str | None
    """Where the `cuda` beside it leads to."""
    programs_on_path: dict[str, str | None]
    torch: TorchVersion
    loader_folders: list[LoaderFolder]
    driver_libraries: list[DriverLibrary]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ToolkitEvidence]]:
    """Look at each part of a toolkit, and at what PATH and the loader find."""
    user, _, distributions = installed.of_user()
    search = SearchPath.of(user.environ, user.directory, machine_named(user.machine))
    torch = [distribution for distribution in distributions if distribution.name == "torch"]
    programs: dict[str, str | None] = {}
    for name in ("nvcc", "ptxas"):
        path = shutil.which(name, path=user.environ.get("PATH", ""))
        programs[name] = os.path.realpath(path) if path else None

    for claim in claims:
        home = Path(claim.expect["home"])
        default = home.parent / "cuda"
        yield (
            claim.subject,
            {
                "home_exists": home.is_dir(),
                "real_home": os.path.realpath(home),
                "parts": {part: _PARTS[part](home) for part in claim.expect["parts"]},
                "variables": {name: user.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")},
                "default_link": os.path.realpath(default) if os.path.lexists(default) else None,
                "programs_on_path": programs,
                "torch": torch_version(installed.locations(torch)),
                "loader_folders": _loader_folders(search),
                "driver_libraries": driver_libraries(search),
            },
        )


def _program(relative: str, home: Path) -> Part:
    """A program that holds what it prints of its version, `release 12.6, V12.6.85`."""
    path = home / relative
    if not path.is_file():
        return {"files": []}
    release = _RELEASE.search(path.read_bytes())
    return {"files": [str(path)], "minor": release[1].decode() if release else None}


def _header(relative: str, macro: str, home: Path) -> Part:
    """A header that defines its version as 12060 for 12.6 (1000 x major + 10 x minor)."""
    path = home / relative
    if not path.is_file():
        return {"files": []}
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", text, re.MULTILINE)
    number = int(found[1]) if found else 0
    minor = f"{number // 1000}.{number % 1000 // 10}" if number else None
    return {"files": [str(path)], "minor": minor}


def _library(stem: str, home: Path) -> Part:
    """A shared library by its SONAME."""
    sonames: dict[str, str | None] = dict.fromkeys(_files(stem, home))
    for path in sonames:
        with contextlib.suppress(ElfError, OSError):
            sonames[path] = elf.read(path).soname
    return {
        "files": list(sonames),
        "sonames": sonames,
        "links": [str(path) for path in home.glob(f"lib*/{stem}.so")],
    }


def _versioned_library(stem: str, companion: str, home: Path) -> Part:
    """One whose minor version the name of another tells."""
    versions = (Path(path).name.partition(".so.")[2].split(".") for path in _files(companion, home))
    minors = {".".join(version[:2]) for version in versions if len(version) > 1}
    return {**_library(stem, home), "minor": "/".join(sorted(minors)) or None}


def _files(stem: str, home: Path) -> list[str]:
    folders = (
        "lib64",
        "lib",
        "nvvm/lib64",
        "nvvm/lib",
        "targets/x86_64-linux/lib",
        "targets/sbsa-linux/lib",
    )
    return sorted(
        {os.path.realpath(path) for folder in folders for path in home.glob(f"{folder}/{stem}.so*")}
    )


def _present(relative: Sequence[str], home: Path) -> Part:
    """Files that state no version of their own."""
    found = [
        str(home / path)
        for path in relative
        if (home / path).is_file() and (home / path).stat().st_size
    ]
    return {"files": found, "absent": [path for path in relative if str(home / path) not in found]}


_PARTS: Mapping[str, Callable[[Path], Part]] = {
    "ptxas": partial(_program, "bin/ptxas"),
    "nvcc": partial(_program, "bin/nvcc"),
    "cudart": partial(_library, "libcudart"),
    "cudart headers": partial(_header, "include/cuda_runtime_api.h", "CUDART_VERSION"),
    "driver headers": partial(_header, "include/cuda.h", "CUDA_VERSION"),
    "nvrtc": partial(_versioned_library, "libnvrtc", "libnvrtc-builtins"),
    "nvrtc headers": partial(_present, ["include/nvrtc.h"]),
    "nvvm": partial(_library, "libnvvm"),
    "libdevice": partial(_present, ["nvvm/libdevice/libdevice.10.bc"]),
    "crt headers": partial(
        _present, ["include/crt/host_config.h", "include/crt/device_functions.h"]
    ),
    "half-precision headers": partial(
        _present, [f"include/cuda_{name}" for name in ("fp16.h", "fp16.hpp", "bf16.h", "bf16.hpp")]
    ),
    "compiler passes": partial(
        _present, ["nvvm/bin/cicc", "bin/cudafe++", "bin/fatbinary", "bin/nvlink"]
    ),
}
"""What a toolkit is made of, and how each part is looked at."""


def _loader_folders(search: SearchPath) -> list[LoaderFolder]:
    """Return every folder that the environment or the system adds to the loader's path, and what says so."""
    sources = [(folder, "LD_LIBRARY_PATH") for folder in search.library_path]
    sources += [(folder, file) for folder, file in configured("/etc/ld.so.conf")]
    in_cache = {str(Path(path).parent) for paths in search.cache.values() for path in paths}
    sources += [(folder, "ld.so.cache") for folder in sorted(in_cache)]
    return [
        {"folder": folder, "real": os.path.realpath(folder), "from": source}
        for folder, source in dict.fromkeys(sources)
    ]


def configured(file: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Folders of ld.so.conf and what it includes, each with the file that names it."""
    if depth > 5 or not Path(file).is_file():
        return
    for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
        told = line.partition("#")[0].strip()
        if include := re.fullmatch(r"include\s+(.+)", told):
            for included in sorted(glob.glob(str(Path(file).parent / include[1]))):  # noqa: PTH207
                yield from configured(included, depth + 1)
        elif told:  # a folder's name may hold blanks
            yield told, file


def driver_libraries(search: SearchPath) -> list[DriverLibrary]:
    """Return files of the host's driver on the loader's path that lie in the image, and are not mounted into it."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    mounted = frozenset(line.split()[4] for line in lines)
    found = {path for name in _DRIVER for path in search.everywhere(name) if Path(path).exists()}
    return [
        {"path": path, "real": os.path.realpath(path)}
        for path in sorted(found)
        if not any(point in (path, os.path.realpath(path)) for point in mounted)
    ]


def judge(_subject: str, expect: ToolkitExpect, evidence: ToolkitEvidence) -> Finding:
    """Judge whether a toolkit is whole, of one version that fits torch's, and found by compilers only."""
    home, version = expect["home"], expect["version"]
    if not evidence["home_exists"]:
        return failed(f"{home} does not exist")
    faults: list[str] = []
    for part in expect["parts"]:
        faults += find_part_faults(part, evidence["parts"][part], version)
    faults += find_faults_of_way(home, evidence)
    for folder in evidence["loader_folders"]:
        reason = _bad_folder(folder, evidence["real_home"])
        if reason:
            faults.append(
                f"{folder['folder']} is on the loader's path ({folder['from']}): {reason}"
            )
    for library in evidence["driver_libraries"]:
        faults.append(f"the image brings the host driver's {library['path']} itself")

    of_torch = str(evidence["torch"]["cuda"])
    if of_torch.partition(".")[0] != version.partition(".")[0]:
        faults.append(
            f"the toolkit is CUDA {version}, torch is built for CUDA {of_torch}: majors must be equal"
        )
    warning = (
        f"; WARNING: torch is built for {of_torch}, another minor" if of_torch != version else ""
    )
    return conclude(faults, f"CUDA {version} in {home}, {len(expect['parts'])} parts{warning}")


def find_faults_of_way(home: str, evidence: ToolkitEvidence) -> Iterator[str]:
    """Yield what leads compilers to another toolkit: variables, the unversioned link, programs on the PATH."""
    variables, real_home = evidence["variables"], evidence["real_home"]
    if variables["CUDA_HOME"] != home:
        yield f"CUDA_HOME is {variables['CUDA_HOME']!r}, the toolkit is {home}"
    if variables["CUDA_PATH"] not in (None, home):
        yield f"CUDA_PATH is {variables['CUDA_PATH']}, the toolkit is {home}"
    if evidence["default_link"] not in (None, real_home):
        yield f"the unversioned cuda link is {evidence['default_link']}, the toolkit is {home}"
    for name, path in evidence["programs_on_path"].items():
        if path and not path.startswith(f"{real_home}/"):
            yield f"PATH finds {name} at {path}, outside of {home}"


def find_part_faults(name: str, part: Part, version: str) -> Iterator[str]:
    """Yield what of a part is missing, or of another version."""
    if not part["files"]:
        yield f"the toolkit lacks {name}"
        return
    if part.get("absent"):
        yield f"the toolkit's {name} lack {listed(part['absent'])}"
    if "minor" in part and part["minor"] != version:
        yield f"{part['files'][0]} is of CUDA {part['minor']}, {version} is expected"
    if name == "cudart" and not part.get("links", True):
        yield "the toolkit's cudart has no libcudart.so, by which compilers link it"
    for path, soname in part.get("sonames", {}).items():
        stem, major = split_soname(soname or "")
        if not stem:
            yield f"{path} is no shared library"
        elif stem == "libcudart" and major != version.partition(".")[0]:
            yield f"{path} is {soname}, CUDA {version} is expected"


def _bad_folder(row: LoaderFolder, real_home: str) -> str:
    """Return why a folder must not be on the loader's path; empty: it may."""
    for folder in (row["folder"], row["real"]):
        parts = PurePosixPath(folder).parts
        if "stubs" in parts:
            return "stubs stand in for the driver and do nothing"
        if "compat" in parts or any(part.startswith("cuda-compat") for part in parts):
            return "a forward-compatibility driver hides the host's"
        if folder == real_home or folder.startswith(f"{real_home}/"):
            return "the toolkit's libraries would shadow torch's"
    return ""


CLAIMS = {"toolkit": judge}
