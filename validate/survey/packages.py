"""Prints the packages of an image that its SBOM lists (images/publish/sbom.py), as JSON. Nothing of the image is run.

python3 -I -S FOLDER/validate packages USER.json
"""

import importlib.metadata
import json
import mmap
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
"""Libraries that wheels carry under their own names, beside those that auditwheel puts into NAME.libs."""

LINKED = (
    ("CUTLASS", b"7cutlass", b""),
    ("FBGEMM", b"6fbgemm", b""),
    ("LLVM", b"4llvm", rb"LLVM ?(?:version )?([0-9]+\.[0-9]+\.[0-9]+[a-z]*)"),
    ("oneDNN", b"dnnl_primitive_create", b""),
    ("oneMKL", b"Intel(R) Math Kernel Library", b""),
    ("OpenBLAS", b"OpenBLAS ", rb"OpenBLAS ([0-9]+\.[0-9]+\.[0-9]+)"),
    ("OpenSSL", b"OpenSSL ", rb"OpenSSL ([0-9]+\.[0-9]+\.[0-9]+[a-z]*) "),
    ("Protobuf", b"google/protobuf/", b""),
    ("zlib", b"flate ", rb"(?:de|in)flate ([0-9]+(?:\.[0-9]+)+) Copyright"),
)
"""What is linked into libraries: name, bytes that they then hold (of C++, a namespace in mangled names), and where its
version stands among them, if it does.
"""


def main(arguments: Sequence[str]) -> int:
    """Print them. `arguments`: what `docker inspect` says of the user (environment/user_environment.py)."""
    start = environments.as_files_say(user_environment.read(Path(arguments[0]))).start
    lines = debian.lines(Path("/etc/os-release"))
    system = {key: value.strip("'\"") for key, _, value in (line.partition("=") for line in lines)}
    # Wheels laid out under /usr/local/cuda-X.Y: each left its licence there, named NAME-VERSION.
    toolkit = [
        path.stem.rpartition("-")
        for path in sorted(Path("/usr/local").glob("cuda-*/licenses/*-*.txt"))
    ]
    packages = {
        "python": python_packages(start["path"]),
        "toolkit": [
            {"name": name, "version": version, "licence": ""} for name, _, version in toolkit
        ],
        "debian": debian_packages(),
        "os": {key: system.get(key, "") for key in ("ID", "VERSION_ID", "VERSION_CODENAME")},
    }
    print(json.dumps(packages), flush=True)  # noqa: T201  what it is for
    return 0


def python_packages(folders: Sequence[str]) -> list[dict[str, Any]]:
    """The first of a name on the path is the one that is imported."""
    found: dict[str, dict[str, Any]] = {}
    for one in importlib.metadata.distributions(path=list(folders)):
        name = one.metadata["Name"]
        if name and canonical(name) not in found:
            licence = (one.metadata.get_all("License-Expression") or [""])[0]
            row = {"name": name, "version": one.version, "licence": licence}
            found[canonical(name)] = {**row, "bundled": bundled(one, canonical(name))}
    return list(found.values())


def bundled(one: importlib.metadata.Distribution, name: str) -> list[dict[str, Any]]:
    """Libraries of others that a wheel carries, as files or linked in; each with the files that hold it."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in one.files or ():
        path = Path(str(one.locate_file(file)))
        if ".so" not in path.name or path.is_symlink() or not environments.is_elf(str(path)):
            continue
        own = re.sub(r"(-[0-9a-f]{8})*\.so.*", "", path.name)
        if str(file).split("/")[0].endswith(".libs") or own in RUNTIMES:
            found.setdefault((own, ""), []).append(str(file))
        if not name.startswith("nvidia-"):
            for key in linked(path):
                found.setdefault(key, []).append(str(file))
    return [
        {"name": key[0], "version": key[1], "files": sorted(files)}
        for key, files in sorted(found.items())
    ]


def linked(path: Path) -> Iterator[tuple[str, str]]:
    """Name and version of what is linked into a library."""
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for name, mark, version in LINKED:
            if content.find(mark) >= 0:
                told = re.search(version, content) if version else None
                if told or not version:
                    yield name, told.group(1).decode() if told else ""


def debian_packages() -> list[dict[str, str]]:
    """Return the installed packages of Debian; `source`: empty where it has the package's name."""
    rows = []
    for fields in debian.installed_packages(debian.read_status()):
        rows.append(
            {
                "name": fields["Package"],
                "version": fields["Version"],
                "architecture": fields["Architecture"],
                "source": fields.get("Source", "").partition(" ")[0],
            }
        )
    return rows
