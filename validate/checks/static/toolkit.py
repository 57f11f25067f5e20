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
from typing import Any

from validate.binaries import elf
from validate.binaries.elf import ElfError
from validate.binaries.loader import SearchPath, machine_named
from validate.checks import Settings
from validate.checks.static.libraries import soname_major
from validate.checks.static.pins import torch_version
from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, failed, listed

SETTINGS = Settings(reads_files_only=True)

_RELEASE = re.compile(rb"release (\d+\.\d+), V([\d.]+)")
_DRIVER = ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    given, _, everything = installed.of_user()
    search = SearchPath.of(given.environ, given.directory, machine_named(given.machine))
    of_torch = [one for one in everything if one.name == "torch"]
    for claim in claims:
        expect = claim.expect
        home = Path(expect["home"])
        default = home.parent / "cuda"
        found = {name: shutil.which(name, path=given.environ.get("PATH", "")) for name in ("nvcc", "ptxas")}
        evidence = {
            "home_exists": home.is_dir(),
            "real_home": os.path.realpath(home),
            "parts": {part: _PARTS[part](home) for part in expect["parts"]},
            "variables": {name: given.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")},
            "default_link": os.path.realpath(default) if os.path.lexists(default) else None,
            "programs_on_path": {name: os.path.realpath(path) if path else None for name, path in found.items()},
            "torch": torch_version(installed.locations(of_torch)),
            "loader_folders": _loader_folders(search),
            "driver_libraries": driver_libraries(search),
        }
        yield claim.subject, evidence


def _program(relative: str, home: Path) -> Mapping[str, Any]:
    """A program that holds what it prints of its version, `release 12.6, V12.6.85`."""
    path = home / relative
    if not path.is_file():
        return {"files": []}
    found = _RELEASE.search(path.read_bytes())
    version, minor = (found[2].decode(), found[1].decode()) if found else (None, None)
    return {"files": [str(path)], "version": version, "minor": minor}


def _header(relative: str, macro: str, home: Path) -> Mapping[str, Any]:
    """A header that defines its version as 12060 for 12.6 (1000 x major + 10 x minor)."""
    path = home / relative
    if not path.is_file():
        return {"files": []}
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", text, re.MULTILINE)
    number = int(found[1]) if found else 0
    minor = f"{number // 1000}.{number % 1000 // 10}" if number else None
    return {"files": [str(path)], "version": str(number), "minor": minor}


def _library(stem: str, home: Path) -> Mapping[str, Any]:
    """A shared library by its SONAME."""
    sonames: dict[str, str | None] = dict.fromkeys(_files(stem, home))
    for path in sonames:
        with contextlib.suppress(ElfError, OSError):
            sonames[path] = elf.read(path).soname
    return {"files": list(sonames), "sonames": sonames, "links": [str(path) for path in home.glob(f"lib*/{stem}.so")]}


def _versioned_library(stem: str, companion: str, home: Path) -> Mapping[str, Any]:
    """One whose minor version the name of another tells."""
    versions = (Path(path).name.partition(".so.")[2].split(".") for path in _files(companion, home))
    minors = {".".join(version[:2]) for version in versions if len(version) > 1}
    return {**_library(stem, home), "minor": "/".join(sorted(minors)) or None}


def _files(stem: str, home: Path) -> list[str]:
    folders = ("lib64", "lib", "nvvm/lib64", "nvvm/lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    return sorted({os.path.realpath(path) for folder in folders for path in home.glob(f"{folder}/{stem}.so*")})


def _present(relative: Sequence[str], home: Path) -> Mapping[str, Any]:
    """Files that state no version of their own."""
    found = [str(home / path) for path in relative if (home / path).is_file() and (home / path).stat().st_size]
    return {"files": found, "absent": [path for path in relative if str(home / path) not in found]}


_PARTS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    "ptxas": partial(_program, "bin/ptxas"),
    "nvcc": partial(_program, "bin/nvcc"),
    "cudart": partial(_library, "libcudart"),
    "cudart headers": partial(_header, "include/cuda_runtime_api.h", "CUDART_VERSION"),
    "driver headers": partial(_header, "include/cuda.h", "CUDA_VERSION"),
    "nvrtc": partial(_versioned_library, "libnvrtc", "libnvrtc-builtins"),
    "nvrtc headers": partial(_present, ["include/nvrtc.h"]),
    "nvvm": partial(_library, "libnvvm"),
    "libdevice": partial(_present, ["nvvm/libdevice/libdevice.10.bc"]),
    "crt headers": partial(_present, ["include/crt/host_config.h", "include/crt/device_functions.h"]),
    "half-precision headers": partial(
        _present, [f"include/cuda_{name}" for name in ("fp16.h", "fp16.hpp", "bf16.h", "bf16.hpp")]
    ),
    "compiler passes": partial(_present, ["nvvm/bin/cicc", "bin/cudafe++", "bin/fatbinary", "bin/nvlink"]),
}
"""What a toolkit is made of, and how each part is looked at."""


def _loader_folders(search: SearchPath) -> list[Mapping[str, Any]]:
    """Every folder that the environment or the system adds to the loader's path, and what says so."""
    sources = [(folder, "LD_LIBRARY_PATH") for folder in search.library_path]
    sources += [(folder, file) for folder, file in configured("/etc/ld.so.conf")]
    in_cache = {str(Path(path).parent) for paths in search.cache.values() for path in paths}
    sources += [(folder, "ld.so.cache") for folder in sorted(in_cache)]
    return [
        {"folder": folder, "real": os.path.realpath(folder), "from": source, "exists": Path(folder).is_dir()}
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


def driver_libraries(search: SearchPath) -> list[Mapping[str, Any]]:
    """Files of the host's driver on the loader's path that lie in the image itself, not mounted into the container."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    mounted = frozenset(line.split()[4] for line in lines)
    found = {path for name in _DRIVER for path in search.everywhere(name) if Path(path).exists()}
    return [
        {"path": path, "real": os.path.realpath(path)}
        for path in sorted(found)
        if not any(point in (path, os.path.realpath(path)) for point in mounted)
    ]


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """toolkit. expect: {home, version, parts: [names]}.

    evidence: {home_exists, real_home, parts: {name: {files, absent?, version?, minor?, sonames?: {file: SONAME},
    links?: names without a version, by which compilers link, error?}}, variables, default_link, programs_on_path,
    torch: its version and CUDA's, loader_folders: [{folder, real, from: what says so, exists}], driver_libraries:
    [{path, real}]}.
    """
    home, version = expect["home"], expect["version"]
    if not evidence["home_exists"]:
        return failed(f"{home} does not exist")
    faults = [fault for part in expect["parts"] for fault in _part_faults(part, evidence["parts"][part], version)]
    if evidence["variables"]["CUDA_HOME"] != home:
        faults.append(f"CUDA_HOME is {evidence['variables']['CUDA_HOME']!r}, the toolkit is {home}")
    if evidence["variables"]["CUDA_PATH"] not in (None, home):
        faults.append(f"CUDA_PATH is {evidence['variables']['CUDA_PATH']}, the toolkit is {home}")
    if evidence["default_link"] not in (None, evidence["real_home"]):
        faults.append(f"the unversioned cuda link is {evidence['default_link']}, the toolkit is {home}")
    for name, path in evidence["programs_on_path"].items():
        if path and not path.startswith(f"{evidence['real_home']}/"):
            faults.append(f"PATH finds {name} at {path}, outside of {home}")
    faults += [
        f"{one['folder']} is on the loader's path ({one['from']}): {why}"
        for one in evidence["loader_folders"]
        if (why := _bad_folder(one, evidence["real_home"]))
    ]
    faults += [f"the image brings the host driver's {one['path']} itself" for one in evidence["driver_libraries"]]
    of_torch = str(evidence["torch"]["cuda"])
    if of_torch.partition(".")[0] != version.partition(".")[0]:
        faults.append(f"the toolkit is CUDA {version}, torch is built for CUDA {of_torch}: majors must be equal")
    warning = f"; WARNING: torch is built for {of_torch}, another minor" if of_torch != version else ""
    return conclude(faults, f"CUDA {version} in {home}, {len(expect['parts'])} parts{warning}")


def _part_faults(part: str, found: Mapping[str, Any], version: str) -> Iterator[str]:
    if not found["files"]:
        yield f"the toolkit lacks {part}"
        return
    if found.get("absent"):
        yield f"the toolkit's {part} lack {listed(found['absent'])}"
    if "error" in found:
        yield f"{found['files'][0]} does not run: {found['error']}"
    elif "minor" in found and found["minor"] != version:
        yield f"{found['files'][0]} is of CUDA {found['minor']}, {version} is expected"
    if part == "cudart" and not found.get("links", True):
        yield "the toolkit's cudart has no libcudart.so, by which compilers link it"
    for path, soname in found.get("sonames", {}).items():
        stem, major = soname_major(soname or "")
        if not stem:
            yield f"{path} is no shared library"
        elif stem == "libcudart" and major != version.partition(".")[0]:
            yield f"{path} is {soname}, CUDA {version} is expected"


def _bad_folder(one: Mapping[str, Any], real_home: str) -> str:
    for folder in (one["folder"], one["real"]):
        parts = PurePosixPath(folder).parts
        if "stubs" in parts:
            return "stubs stand in for the driver and do nothing"
        if "compat" in parts or any(part.startswith("cuda-compat") for part in parts):
            return "a forward-compatibility driver hides the host's"
        if folder == real_home or folder.startswith(f"{real_home}/"):
            return "the toolkit's libraries would shadow torch's"
    return ""


CLAIMS = {"toolkit": judge}
