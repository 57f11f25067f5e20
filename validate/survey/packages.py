"""Print the packages of an image that its SBOM lists, as JSON, without running anything of it.

    python3 -I -S FOLDER/validate packages USER.json [--versions]

USER.json is what `docker inspect` says of the image's environment
(environment/user_environment.py). The SBOM is written by images/publish/sbom.py.
"""

import importlib.metadata
import json
import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from validate.environment import debian, user_environment
from validate.environment.installed import canonical
from validate.survey import environments

RUNTIMES = {
    "libgomp",
    "libiomp5",
    "libomp",
    "libgfortran",
    "libquadmath",
    "libopenblas",
    "libstdc++",
    "libtbb",
}
"""Libraries that wheels carry under their own names, beside those that auditwheel puts into
NAME.libs."""


class LinkedLibrary(NamedTuple):
    """How a library is recognised that is linked into others."""

    name: str
    mark: bytes
    """Bytes that a file with the library holds. Of C++, a namespace in mangled names."""
    version: bytes = b""
    """A regular expression for its version among those bytes. Empty: it has none there."""


LINKED = (
    LinkedLibrary("CUTLASS", b"7cutlass"),
    LinkedLibrary("FBGEMM", b"6fbgemm"),
    LinkedLibrary("LLVM", b"4llvm", rb"LLVM ?(?:version )?([0-9]+\.[0-9]+\.[0-9]+[a-z]*)"),
    LinkedLibrary("oneDNN", b"dnnl_primitive_create"),
    LinkedLibrary("oneMKL", b"Intel(R) Math Kernel Library"),
    LinkedLibrary("OpenBLAS", b"OpenBLAS ", rb"OpenBLAS ([0-9]+\.[0-9]+\.[0-9]+)"),
    LinkedLibrary("OpenSSL", b"OpenSSL ", rb"OpenSSL ([0-9]+\.[0-9]+\.[0-9]+[a-z]*) "),
    LinkedLibrary("Protobuf", b"google/protobuf/"),
    LinkedLibrary("zlib", b"flate ", rb"(?:de|in)flate ([0-9]+(?:\.[0-9]+)+) Copyright"),
)


class BundledLibrary(TypedDict):
    """A library of somebody else that a wheel carries."""

    name: str
    version: str
    """Empty: not known."""
    files: list[str]
    """The files of the wheel that are it or hold it."""


class PythonPackage(TypedDict):
    """A distribution of Python."""

    name: str
    version: str
    licence: str
    """An SPDX expression; empty: its metadata has none."""
    bundled: list[BundledLibrary]


def main(arguments: Sequence[str]) -> int:
    """Print the packages of Python, of the CUDA toolkit and of Debian, as JSON.

    The first argument is the path of USER.json, which describes the image's user
    (user_environment.read). With `--versions` as the second one, the libraries that wheels bundle
    are left out: to find them, every library is read. Returns 0. Raises LookupError if no Python
    has packages.
    """
    # `user.start` says how the user's Python would start. Its `path` is sys.path.
    user = environments.with_python_from_files(user_environment.read(Path(arguments[0])))
    packages = {
        "python": python_packages(user.start["path"], bundled="--versions" not in arguments),
        "toolkit": toolkit_packages(),
        "debian": debian_packages(),
        "os": os_release(),
    }
    print(json.dumps(packages), flush=True)  # noqa: T201  what it is for
    return 0


def python_packages(folders: Sequence[str], *, bundled: bool = True) -> list[PythonPackage]:
    """Return the distributions in these folders of sys.path.

    If there are several of the same name, only the first is returned, which Python imports. The
    licence is empty if the metadata has no License-Expression. Without `bundled`, the list of
    bundled libraries is empty.
    """
    packages: dict[str, PythonPackage] = {}
    for distribution in importlib.metadata.distributions(path=list(folders)):
        name = distribution.metadata["Name"]
        if not name or canonical(name) in packages:
            continue
        licences = distribution.metadata.get_all("License-Expression") or [""]
        libraries: list[BundledLibrary] = []
        if bundled:
            libraries = bundled_libraries(distribution, canonical(name))
        packages[canonical(name)] = {
            "name": name,
            "version": distribution.version,
            "licence": licences[0],
            "bundled": libraries,
        }
    return list(packages.values())


def bundled_libraries(
    distribution: importlib.metadata.Distribution, name: str
) -> list[BundledLibrary]:
    """Return the third-party libraries that an installed package brings inside its wheel.

    They are files of their own (libgomp), or linked into the package's own libraries. Each has its
    name, its version if that is known, and the files that hold it. `name` is the canonical name of
    the package.
    """
    # Name and version of a library -> the files that hold it. The version may be empty: not known.
    files_of: dict[tuple[str, str], list[str]] = {}
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if ".so" not in path.name or path.is_symlink() or not environments.is_elf(str(path)):
            continue

        # Libraries that are files of their own: auditwheel puts them into the folder NAME.libs and
        # adds a hash to each name. torch.libs/libgomp-a34b3233.so.1 is `libgomp`.
        library = re.sub(r"(-[0-9a-f]{8})*\.so.*", "", path.name)
        is_in_libs = str(file).split("/")[0].endswith(".libs")
        if is_in_libs or library in RUNTIMES:
            files_of.setdefault((library, ""), []).append(str(file))

        # Libraries that are linked into the package's own files. NVIDIA's packages are left out.
        if not name.startswith("nvidia-"):
            for name_and_version in linked_libraries(path):
                files_of.setdefault(name_and_version, []).append(str(file))

    libraries: list[BundledLibrary] = []
    for (library, version), files in sorted(files_of.items()):
        libraries.append({"name": library, "version": version, "files": sorted(files)})
    return libraries


def linked_libraries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and version of each library of LINKED that was compiled into a file.

    A library is recognised by its mark, bytes that it brings into any file: `OpenSSL `. Some also
    bring their version: `OpenSSL 3.0.13 `. A file that has the mark of such a library and no
    version only mentions it, and it is left out. For other libraries the version is empty.

    `path` must not be that of an empty file, which can't be mapped.
    """
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for library in LINKED:
            is_linked = content.find(library.mark) >= 0
            if not is_linked:
                continue
            if not library.version:
                yield library.name, ""
                continue
            version = re.search(library.version, content)
            if version:
                yield library.name, version.group(1).decode()


def toolkit_packages() -> list[dict[str, str]]:
    """Return the packages of the CUDA toolkit.

    They are wheels that were unpacked to /usr/local/cuda-X.Y. The folder has the licence of each,
    in a file named NAME-VERSION.txt.
    """
    packages = []
    for licence in sorted(Path("/usr/local").glob("cuda-*/licenses/*-*.txt")):
        name, _, version = licence.stem.rpartition("-")
        packages.append({"name": name, "version": version, "licence": ""})
    return packages


def debian_packages() -> list[dict[str, str]]:
    """Return name, version, architecture and source package of each installed Debian package.

    `source` is empty if the source package has the package's own name.
    """
    packages = []
    for fields in debian.installed_packages(debian.read_status()):
        packages.append(
            {
                "name": fields["Package"],
                "version": fields["Version"],
                "architecture": fields["Architecture"],
                "source": fields.get("Source", "").partition(" ")[0],
            }
        )
    return packages


def os_release() -> dict[str, str]:
    """Return the operating system's name and version, from /etc/os-release.

    Fields that are missing there are empty.
    """
    fields = {}
    for line in debian.read_lines(Path("/etc/os-release")):
        name, _, value = line.partition("=")
        fields[name] = value.strip("'\"")
    return {name: fields.get(name, "") for name in ("ID", "VERSION_ID", "VERSION_CODENAME")}
