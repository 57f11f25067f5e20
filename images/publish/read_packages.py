"""Runs inside an image, under whatever Python 3 it has: prints the packages that `sbom.py` lists, as JSON."""

import importlib.metadata
import json
import mmap
import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple  # noqa: UP035  # a base may bring a Python older than ours

RUNTIMES = {"libgomp", "libiomp5", "libomp", "libgfortran", "libquadmath", "libopenblas", "libstdc++", "libtbb"}
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


def python_packages() -> List[Dict[str, Any]]:  # noqa: UP006
    """The first of a name on the path is the one that is imported."""
    found: Dict[str, Dict[str, Any]] = {}  # noqa: UP006
    for one in importlib.metadata.distributions():
        name = one.metadata["Name"]
        if name:
            row = {
                "name": name,
                "version": one.version,
                "licence": (one.metadata.get_all("License-Expression") or [""])[0],
            }
            canonical = re.sub(r"[-_.]+", "-", name).lower()
            if canonical not in found:
                found[canonical] = {**row, "bundled": bundled(one, canonical)}
    return list(found.values())


def bundled(one: importlib.metadata.Distribution, name: str) -> List[Dict[str, Any]]:  # noqa: UP006
    """Libraries of others that a wheel carries, as files or linked in; each with the files that hold it."""
    found: Dict[Tuple[str, str], List[str]] = {}  # noqa: UP006
    for file in one.files or ():
        path = Path(str(one.locate_file(file)))
        if ".so" not in path.name or path.is_symlink() or not is_library(path):
            continue
        own = re.sub(r"(-[0-9a-f]{8})*\.so.*", "", path.name)
        if str(file).split("/")[0].endswith(".libs") or own in RUNTIMES:
            found.setdefault((own, ""), []).append(str(file))
        if not name.startswith("nvidia-"):
            for key in linked(path):
                found.setdefault(key, []).append(str(file))
    return [{"name": key[0], "version": key[1], "files": sorted(files)} for key, files in sorted(found.items())]


def is_library(path: Path) -> bool:
    """Whether it is an ELF file."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == b"\x7fELF"
    except OSError:
        return False


def linked(path: Path) -> Iterator[Tuple[str, str]]:  # noqa: UP006
    """Name and version of what is linked into a library."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for name, mark, version in LINKED:
            if content.find(mark) >= 0:
                told = re.search(version, content) if version else None
                if told or not version:
                    yield name, told.group(1).decode() if told else ""


def debian_packages() -> List[Dict[str, str]]:  # noqa: UP006
    """deb822 stanzas; a package that was removed but left its configuration is not installed (dpkg-query(1))."""
    status = Path("/var/lib/dpkg/status")
    rows = []
    for stanza in status.read_text(errors="replace").split("\n\n") if status.exists() else ():
        pairs = [line.partition(":") for line in stanza.splitlines() if not line.startswith((" ", "\t"))]
        fields = {key: value.strip() for key, _, value in pairs}
        if fields.get("Status", "").endswith(" installed"):
            source = fields.get("Source", "")
            row = {"name": fields["Package"], "version": fields["Version"], "architecture": fields["Architecture"]}
            rows.append({**row, "source": source.split()[0] if source else ""})
    return rows


if __name__ == "__main__":
    release = Path("/etc/os-release")
    lines = release.read_text().splitlines() if release.exists() else []
    system = {key: value.strip("'\"") for key, _, value in (line.partition("=") for line in lines)}
    # Wheels laid out under /usr/local/cuda-X.Y: each left its licence there, named NAME-VERSION.
    toolkit = [path.stem.rpartition("-") for path in sorted(Path("/usr/local").glob("cuda-*/licenses/*-*.txt"))]
    packages = {
        "python": python_packages(),
        "toolkit": [{"name": name, "version": version, "licence": ""} for name, _, version in toolkit],
        "debian": debian_packages(),
        "os": {key: system.get(key, "") for key in ("ID", "VERSION_ID", "VERSION_CODENAME")},
    }
    json.dump(packages, sys.stdout)
