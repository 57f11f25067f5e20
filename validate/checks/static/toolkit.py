"""toolkit: check that the CUDA toolkit is whole, and of one version that fits torch's CUDA.

Otherwise, code that is compiled in the image gets another CUDA than torch's. The libraries of the
toolkit must not be on the loader's path: programs would get them in place of torch's. Nothing is
run: versions are read as the toolkit's own files state them.
"""

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
from validate.checks.static.pins import TorchVersion, read_torch_version
from validate.claims import Claim
from validate.environment import installed
from validate.judging import Finding, conclude, failed, listed
from validate.next_steps import BUILD_ANEW, take_out

SETTINGS = Settings(reads_files_only=True)

_RELEASE = re.compile(rb"release (\d+\.\d+), V[\d.]+")
"""What nvcc and ptxas hold to print as their version: `release 12.6, V12.6.85`."""
_DRIVER_LIBRARIES = (
    "libcuda.so",
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
)


class ToolkitExpect(TypedDict):
    """What a claim about the toolkit says."""

    home: str
    """Its folder."""
    version: str
    """`12.6`."""
    parts: list[str]
    """Names of the parts that it must have: keys of _READERS."""


class _Part(TypedDict):
    files: list[str]


class Part(_Part, total=False):
    """The files of a part of the toolkit, none if it is missing.

    Of the fields below, a part has those that its function in _READERS can tell.
    """

    minor: str | None
    """The CUDA version that the part itself states: `12.6`. None: it states none."""
    sonames: dict[str, str | None]
    """File -> its SONAME. None: it is no library that can be read."""
    links: list[str]
    """Paths without a version (`libcudart.so`), which compilers link with."""
    absent: list[str]
    """Files of the part that are missing or empty."""


LoaderFolder = TypedDict("LoaderFolder", {"folder": str, "real": str, "from": str})
"""A folder on the loader's path, the same without links (`real`), and what adds it (`from`)."""


class DriverLibrary(TypedDict):
    """A file of the image with the name of a library of the host's driver."""

    path: str
    real: str
    """The path without links."""


class ToolkitEvidence(TypedDict):
    """A toolkit, and what leads to it or to another one."""

    home_exists: bool
    real_home: str
    """Its folder without links."""
    parts: dict[str, Part]
    variables: dict[str, str | None]
    """CUDA_HOME and CUDA_PATH."""
    default_link: str | None
    """What the `cuda` beside its folder leads to; None: there is no such link."""
    programs_on_path: dict[str, str | None]
    """`nvcc` and `ptxas` -> what PATH finds, without links."""
    torch: TorchVersion
    loader_folders: list[LoaderFolder]
    driver_libraries: list[DriverLibrary]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ToolkitEvidence]]:
    """Look at the CUDA toolkit that each claim names, and at the ways in which programs find it.

    They find it by PATH, CUDA_HOME, CUDA_PATH, the link /usr/local/cuda, or the loader's search
    path. Nothing is run. Yields the subject of each claim and the evidence.
    """
    user, _, distributions = installed.read_user_python()
    variables = {name: user.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")}
    programs: dict[str, str | None] = {}
    for name in ("nvcc", "ptxas"):
        path = shutil.which(name, path=user.environ.get("PATH", ""))
        programs[name] = os.path.realpath(path) if path else None
    copies_of_torch = [copy for copy in distributions if copy.name == "torch"]
    torch = read_torch_version(installed.locations(copies_of_torch))
    # `search` says where the dynamic loader looks for libraries of this user's programs.
    search = SearchPath.of(user.environ, user.directory, machine_named(user.machine))

    for claim in claims:
        home = Path(claim.expect["home"])
        parts: dict[str, Part] = {}
        for name in claim.expect["parts"]:
            read_part = _READERS[name]
            parts[name] = read_part(home)
        # For a toolkit in /usr/local/cuda-12.6 this is /usr/local/cuda, where build systems look
        # for CUDA. It may lead to another toolkit.
        default_link = home.parent / "cuda"
        has_default_link = os.path.lexists(default_link)
        evidence: ToolkitEvidence = {
            "home_exists": home.is_dir(),
            "real_home": os.path.realpath(home),
            "parts": parts,
            "variables": variables,
            "default_link": os.path.realpath(default_link) if has_default_link else None,
            "programs_on_path": programs,
            "torch": torch,
            "loader_folders": list_loader_folders(search),
            "driver_libraries": find_driver_libraries(search),
        }
        yield claim.subject, evidence


def read_program(relative: str, home: Path) -> Part:
    """Return a program of the toolkit in `home`, with the CUDA version that is written in its code.

    The program, `bin/nvcc` for example, is not run.
    """
    path = home / relative
    if not path.is_file():
        return {"files": []}
    release = _RELEASE.search(path.read_bytes())
    return {"files": [str(path)], "minor": release[1].decode() if release else None}


def read_header(relative: str, macro: str, home: Path) -> Part:
    """Return the path of a header of the CUDA toolkit, and the CUDA version that it defines.

    home: the folder of the toolkit.
    relative: the header's path below it. The result has no files if the header is not there.
    macro: the name of the version in the header: CUDA_VERSION in `#define CUDA_VERSION 12060`. That
        is CUDA `12.6`. The version is None if the header does not define this name.
    """
    path = home / relative
    if not path.is_file():
        return {"files": []}
    text = path.read_text(encoding="utf-8", errors="replace")
    definition = re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", text, re.MULTILINE)
    number = int(definition[1]) if definition else 0
    # 12060 is 1000 * 12 + 10 * 6.
    minor = f"{number // 1000}.{number % 1000 // 10}" if number else None
    return {"files": [str(path)], "minor": minor}


def read_library(stem: str, home: Path) -> Part:
    """Return the files of a library (`libcudart`) of the CUDA toolkit in the folder `home`.

    Each comes with its SONAME, the name by which programs ask for it. `links` are the files that a
    linker opens.
    """
    sonames: dict[str, str | None] = dict.fromkeys(list_library_files(stem, home))
    for path in sonames:
        # A file that can't be read keeps None. The judge reports it.
        with contextlib.suppress(ElfError, OSError):
            sonames[path] = elf.read(path).soname
    return {
        "files": list(sonames),
        "sonames": sonames,
        # `gcc -lcudart` opens libcudart.so.
        "links": [str(path) for path in home.glob(f"lib*/{stem}.so")],
    }


def read_versioned_library(stem: str, companion: str, home: Path) -> Part:
    """Return the files of a library, and its CUDA version by the file name of its companion.

    The file name of `stem` has only the major of CUDA: libnvrtc.so.12. That of `companion` has the
    minor, too: libnvrtc-builtins.so.12.6. If there are several, `minor` has all: `12.4/12.6`.
    """
    minors = set()
    for path in list_library_files(companion, home):
        # `12.6.85` of libnvrtc-builtins.so.12.6.85
        numbers = Path(path).name.partition(".so.")[2].split(".")
        if len(numbers) > 1:
            minors.add(".".join(numbers[:2]))
    part = read_library(stem, home)
    part["minor"] = "/".join(sorted(minors)) or None
    return part


def list_library_files(stem: str, home: Path) -> list[str]:
    """Return the real paths, sorted, of a library's files in all folders of a toolkit.

    `stem` is the library's name up to `.so`: `libcudart`. `home` is the toolkit's folder. Links are
    followed, so that each file is there once.
    """
    folders = (
        "lib64",
        "lib",
        "nvvm/lib64",
        "nvvm/lib",
        "targets/x86_64-linux/lib",
        "targets/sbsa-linux/lib",
    )
    files = set()
    for folder in folders:
        for path in home.glob(f"{folder}/{stem}.so*"):
            files.add(os.path.realpath(path))
    return sorted(files)


def find_files(relative: Sequence[str], home: Path) -> Part:
    """Return which of these files the toolkit in `home` has, for files that state no version.

    `relative` are their paths below `home`. An empty file counts as absent.
    """
    part: Part = {"files": [], "absent": []}
    for name in relative:
        path = home / name
        if path.is_file() and path.stat().st_size:
            part["files"].append(str(path))
        else:
            part["absent"].append(name)
    return part


_READERS: Mapping[str, Callable[[Path], Part]] = {
    "ptxas": partial(read_program, "bin/ptxas"),
    "nvcc": partial(read_program, "bin/nvcc"),
    "cudart": partial(read_library, "libcudart"),
    "cudart headers": partial(read_header, "include/cuda_runtime_api.h", "CUDART_VERSION"),
    "driver headers": partial(read_header, "include/cuda.h", "CUDA_VERSION"),
    "nvrtc": partial(read_versioned_library, "libnvrtc", "libnvrtc-builtins"),
    "nvrtc headers": partial(find_files, ["include/nvrtc.h"]),
    "nvvm": partial(read_library, "libnvvm"),
    "libdevice": partial(find_files, ["nvvm/libdevice/libdevice.10.bc"]),
    "crt headers": partial(
        find_files, ["include/crt/host_config.h", "include/crt/device_functions.h"]
    ),
    "half-precision headers": partial(
        find_files,
        [f"include/cuda_{name}" for name in ("fp16.h", "fp16.hpp", "bf16.h", "bf16.hpp")],
    ),
    "compiler passes": partial(
        find_files, ["nvvm/bin/cicc", "bin/cudafe++", "bin/fatbinary", "bin/nvlink"]
    ),
}
"""Part of a toolkit -> the function that looks at it, given the folder of the toolkit."""


def list_loader_folders(search: SearchPath) -> list[LoaderFolder]:
    """Return every folder that the environment or the system adds to the loader's path.

    Each comes with what adds it: LD_LIBRARY_PATH, a file of ld.so.conf, or ld.so.cache. A folder
    that several of these add is returned once for each.
    """
    folders_with_source = [(folder, "LD_LIBRARY_PATH") for folder in search.library_path]
    folders_with_source += configured_folders("/etc/ld.so.conf")
    cached_folders = set()
    for paths in search.cache.values():
        for path in paths:
            cached_folders.add(str(Path(path).parent))
    folders_with_source += [(folder, "ld.so.cache") for folder in sorted(cached_folders)]

    folders: list[LoaderFolder] = []
    for folder, source in dict.fromkeys(folders_with_source):
        folders.append({"folder": folder, "real": os.path.realpath(folder), "from": source})
    return folders


def configured_folders(file: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the folders in a file like /etc/ld.so.conf, each with the file that names it.

    Files that it includes are read, too, up to five deep: a file may include itself. `depth` is how
    deep this one is. A file that does not exist has no folders.
    """
    if depth > 5 or not Path(file).is_file():
        return
    for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
        text = line.partition("#")[0].strip()
        include = re.fullmatch(r"include\s+(.+)", text)
        if include:
            # A relative pattern begins in the folder of this file. An absolute one stays as it is.
            pattern = str(Path(file).parent / include[1])
            for included in sorted(glob.glob(pattern)):  # noqa: PTH207
                yield from configured_folders(included, depth + 1)
        elif text:
            # The whole line is one folder: its name may hold blanks.
            yield text, file


def find_driver_libraries(search: SearchPath) -> list[DriverLibrary]:
    """Return files on the loader's path that have names of the host driver's libraries.

    Those that the container runtime has mounted from the host are left out: only what lies in the
    image itself is returned.
    """
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    # The fifth field is the mount point (proc(5)).
    mount_points = {line.split()[4] for line in lines}
    paths: set[str] = set()
    for name in _DRIVER_LIBRARIES:
        # Every place in which the loader looks for this name, in all folders of its path.
        paths.update(path for path in search.everywhere(name) if Path(path).exists())

    libraries: list[DriverLibrary] = []
    for path in sorted(paths):
        real = os.path.realpath(path)
        if path not in mount_points and real not in mount_points:
            libraries.append({"path": path, "real": real})
    return libraries


def judge(_subject: str, expect: ToolkitExpect, evidence: ToolkitEvidence) -> Finding:
    """Pass if the CUDA toolkit is whole, of one version, found by compilers, and not by the loader.

    Its folders must not be on the loader's path, where they would hide torch's own CUDA libraries.
    Its CUDA major must be torch's; another minor is only a warning in the reason.
    """
    home = expect["home"]
    version = expect["version"]
    if not evidence["home_exists"]:
        return failed(
            f"the folder of the CUDA toolkit, {home}, does not exist",
            "if a step of your Dockerfile removes this folder, take that step out and build the "
            f"image again; if none does, {BUILD_ANEW}",
        )
    faults: list[str] = []
    for part in expect["parts"]:
        faults += find_part_faults(part, evidence["parts"][part], version)
    faults += describe_misleading_settings(home, evidence)
    for folder in evidence["loader_folders"]:
        reason = reason_against(folder, evidence["real_home"])
        if reason:
            faults.append(
                f"{folder['folder']} is on the loader's path ({folder['from']}): {reason}"
            )
    for library in evidence["driver_libraries"]:
        faults.append(
            f"the image brings the host driver's {library['path']} itself, and the container "
            "runtime has to bring it from the host"
        )

    good = f"CUDA {version} in {home}, {len(expect['parts'])} parts"
    # The text is `None` if torch is built without CUDA, or is not there. That is a fault, because
    # it differs from every version.
    torch_cuda = str(evidence["torch"]["cuda"])
    if torch_cuda.partition(".")[0] != version.partition(".")[0]:
        faults.append(
            f"the toolkit is CUDA {version}, and torch is built for CUDA {torch_cuda}, but their "
            "majors must be equal"
        )
    elif torch_cuda != version:
        good += f"; WARNING: torch is built for {torch_cuda}, another minor"
    return conclude(faults, good)


def describe_misleading_settings(home: str, evidence: ToolkitEvidence) -> Iterator[str]:
    """Yield a sentence for each thing that leads compilers to another toolkit than that in `home`.

    That is a variable, the `cuda` link without a version, or a program on the PATH.
    """
    variables = evidence["variables"]
    real_home = evidence["real_home"]
    # An image of ours sets CUDA_HOME. The others need not be there, but must not lead elsewhere.
    if variables["CUDA_HOME"] != home:
        cuda_home = variables["CUDA_HOME"] or "not set"
        yield f"the variable CUDA_HOME is {cuda_home}, and the toolkit is in {home}"
    if variables["CUDA_PATH"] not in (None, home):
        yield f"CUDA_PATH is {variables['CUDA_PATH']}, and the toolkit is {home}"
    if evidence["default_link"] not in (None, real_home):
        yield f"the link `cuda` leads to {evidence['default_link']}, and the toolkit is {home}"
    for name, path in evidence["programs_on_path"].items():
        if path and not path.startswith(f"{real_home}/"):
            yield f"PATH finds {name} at {path}, outside of {home}"


def find_part_faults(name: str, part: Part, version: str) -> Iterator[str]:
    """Yield what of a part of the toolkit is missing, or of another CUDA version than `version`.

    `name` is that of the part, such as `cudart`. What is known of a part depends on its kind (see
    Part): a field that it does not have is not judged.
    """
    if not part["files"]:
        yield f"the toolkit lacks {name}"
        return
    if part.get("absent"):
        yield f"the toolkit's {name} lack {listed(part['absent'])}"
    # `minor` is None for a part that should state a version and does not. That is a fault as well.
    if "minor" in part and part["minor"] != version:
        yield f"{part['files'][0]} is of CUDA {part['minor']}, and {version} is expected"
    if name == "cudart" and part.get("links") == []:
        yield "the toolkit's cudart has no libcudart.so, by which compilers link it"
    for path, soname in part.get("sonames", {}).items():
        # `libcudart` and `12` of libcudart.so.12
        stem, major = split_soname(soname or "")
        if not stem:
            yield f"{path} is no shared library"
        # The number in other libraries' names, such as libnvvm.so.4, is not CUDA's.
        elif stem == "libcudart" and major != version.partition(".")[0]:
            yield f"{path} is {soname}, and CUDA {version} is expected"


def reason_against(loader_folder: LoaderFolder, real_home: str) -> str:
    """Return why a folder must not be on the dynamic loader's search path; empty if it may.

    `real_home` is the toolkit's folder, without links.
    """
    # A folder with a harmless name may be a link to one that must not be there.
    for folder in (loader_folder["folder"], loader_folder["real"]):
        parts = PurePosixPath(folder).parts
        if "stubs" in parts:
            return "stubs stand in for the driver and do nothing"
        if "compat" in parts or any(part.startswith("cuda-compat") for part in parts):
            return "a forward-compatibility driver hides the host's"
        if folder == real_home or folder.startswith(f"{real_home}/"):
            return "the toolkit's libraries would shadow torch's"
    return ""


CLAIMS = {"toolkit": judge}
NEXT_STEPS = {
    "toolkit": {
        "loader's path": take_out(
            "the LD_LIBRARY_PATH line or /etc/ld.so.conf.d file that adds it"
        ),
        "CUDA_": take_out("the line that sets or empties this variable"),
        "driver's": take_out("the step that brings this library (`cuda-compat-*`, `libnvidia-*`)"),
        "majors": "name an image of the same CUDA major as torch's, or take the step that installs "
        "another torch out of your Dockerfile, and build the image again",
        "": take_out("the step that installs another CUDA toolkit or changes this one"),
    }
}
