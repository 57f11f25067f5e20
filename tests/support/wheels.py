"""Make small wheels, as the binary distribution format asks, and install them."""

import base64
import hashlib
import io
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from uv import find_uv_bin

_METADATA = "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n"
_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
FILES: Mapping[str, bytes] = {
    "small/__init__.py": b"def main() -> None: ...\n",
    "small/data.txt": b"a file\n",
    "small-1.0.data/scripts/tool": b"#!python\nprint('a tool')\n",
    "small-1.0.data/scripts/shell-tool": b"#!/bin/sh\necho\n",
    "small-1.0.data/purelib/beside.py": b"x = 1\n",
    "small-1.0.data/data/share/man/small.1": b"a page\n",
    "small-1.0.data/headers/small.h": b"#define SMALL\n",
    "small-1.0.dist-info/METADATA": _METADATA.encode(),
    "small-1.0.dist-info/WHEEL": _WHEEL.encode(),
    "small-1.0.dist-info/entry_points.txt": (
        b"[console_scripts]\nsmall = small:main\nother = small:main.__call__\n"
    ),
}


def record_hash(content: bytes) -> str:
    """Return the hash of a file's content as RECORD has it."""
    encoded = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + encoded.rstrip(b"=").decode()


def make(
    folder: Path, files: Mapping[str, bytes] = FILES, name: str = "small", version: str = "1.0"
) -> Path:
    """Write a wheel of these files, with their RECORD, and return its path."""
    wheel_path = folder / f"{name}-{version}-py3-none-any.whl"
    record = f"{name}-{version}.dist-info/RECORD"
    rows = [f"{path},{record_hash(content)},{len(content)}" for path, content in files.items()]
    with zipfile.ZipFile(wheel_path, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(record, "\n".join([*rows, f"{record},,", ""]))
    return wheel_path


def with_damaged_record(damage: str) -> bytes:
    """Return a wheel whose RECORD has a damaged stream, or is compressed in an unknown way."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("small-1.0.dist-info/RECORD", "small/__init__.py,sha256=x,0\n" * 20)
        (record,) = archive.infolist()
    content = bytearray(wheel.getvalue())
    if damage == "stream":
        # Behind the header of 30 bytes and the name.
        content[record.header_offset + 30 + len(record.filename)] ^= 0xFF
    else:
        # The method stands 10 bytes into the file's entry in the directory at the end. 97 is none.
        entry = content.rindex(record.filename.encode()) - 46
        content[entry + 10] = 97
    return bytes(content)


def module(
    folder: Path, name: str, version: str, needs: str = "", files: Mapping[str, bytes] | None = None
) -> Path:
    """Write a wheel with one module, or with these files, and return its path.

    `needs`: a requirement; empty: none.
    """
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    own = {f"{name}.py": b"answer = 42\n"} if files is None else files
    return make(
        folder,
        {**own, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": _WHEEL.encode()},
        name,
        version,
    )


def environment(folder: Path) -> Path:
    """Make an empty virtual environment, as an image has one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


def install(wheel: Path, target: Path, *, by: str) -> Path:
    """Install a wheel into an environment with `uv` or `pip`, and return its site-packages."""
    python = str(target / "bin" / "python")
    uv = [find_uv_bin(), "pip", "install", "--quiet", "--offline", "--no-cache", "--python", python]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    subprocess.run([*(uv if by == "uv" else pip), "--no-deps", str(wheel)], check=True)
    return next((target / "lib").glob("python*/site-packages"))
