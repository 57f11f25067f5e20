"""Python environments of an image, found by reading its files: system, venv, conda. Nothing of the image is run.

What `site.py` would put on sys.path is worked out from folders, pyvenv.cfg and .pth files (CPython's docs: "site",
"venv"; Debian's Python policy for dist-packages).
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from validate.binaries import elf
from validate.environment import installed
from validate.environment.user_environment import UserEnvironment

_FOLDER = re.compile(
    r"(?P<prefix>/.*)?/lib(?:64)?/python(?P<version>\d\.\d+|3)/(?P<kind>site|dist)-packages"
)
_PROGRAM_VERSION = re.compile(r"python(\d\.\d+)")
_LONGEST_TEXT = 1 << 20
PACKAGES = ("site-packages", "dist-packages")
NEVER = ("/proc", "/sys", "/dev", "/judge")
"""Top folders that are not the image's."""
_DEBIAN = ("/usr", "/usr/local")
"""Debian's /usr/bin/python3 has packages below both."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One interpreter with the folders that it imports from."""

    prefix: str
    kind: str
    """`venv`, `conda` or `system`."""
    python: str
    version: str
    path: tuple[str, ...]
    """sys.path: standard library, packages, and what .pth files and PYTHONPATH add."""
    start: Mapping[str, Any]
    """How it would start: the fields of user_environment.Start."""


@dataclass(frozen=True)
class _Folder:
    path: str
    prefix: str
    """Of the interpreter that it belongs to: /usr of both folders that Debian's /usr/bin/python3 has."""
    own: str
    """The prefix by its place."""
    version: str
    """Empty for Debian's /usr/lib/python3, which all its Pythons share."""


def find(packages: Iterable[str], environ: Mapping[str, str]) -> list[Environment]:
    """Return the environments among all folders of packages in an image, the first on PATH at the front."""
    folders = []
    for path in sorted(packages):
        if found := _FOLDER.fullmatch(path):
            own, version = (
                found["prefix"] or "/",
                found["version"] if "." in found["version"] else "",
            )
            debians = found["kind"] == "dist" and own in _DEBIAN
            folders.append(_Folder(path, "/usr" if debians else own, own, version))
    made: dict[tuple[str, str], Environment] = {}
    for folder in folders:
        for python, version in _interpreters(folder):
            served = [
                one.path
                for one in folders
                if one.version in ("", version) and folder.prefix in (one.prefix, one.own)
            ]
            key = (folder.prefix, version)
            made.setdefault(key, _environment(folder.prefix, python, version, served, environ))
    environments = sorted(
        made.values(), key=lambda environment: (environment.prefix, environment.version)
    )
    return in_order_of_path(environments, environ.get("PATH", "").split(":"))


def in_order_of_path(
    environments: Iterable[Environment], folders: Iterable[str]
) -> list[Environment]:
    """Return the environments whose programs are in these folders, in the order of the folders, and then the others.

    A virtual environment's interpreter is a link to its base's: the folder tells them apart.
    """
    real_folders = [os.path.realpath(folder) for folder in folders if folder]

    def place(environment: Environment) -> int:
        programs = os.path.realpath(f"{environment.prefix}/bin")
        return real_folders.index(programs) if programs in real_folders else len(real_folders)

    return sorted(environments, key=place)


def package_folders(top: str = "/") -> Iterator[str]:
    """Folders of packages, none inside another, on the image's own file system."""
    for folder, folders, _ in os.walk(top):
        for name in [name for name in folders if name in PACKAGES]:
            yield os.path.join(folder, name)  # noqa: PTH118
        folders[:] = [
            name
            for name in folders
            if name not in PACKAGES and (folder != "/" or f"/{name}" not in NEVER)
        ]


def as_files_say(given: UserEnvironment) -> UserEnvironment:
    """How its Python would start, or the first on PATH that has packages, by the image's files.

    Raises LookupError: there is none.
    A program of that name without any, which stands in front of it, is for `lookup` to find.
    """
    folders = [os.path.dirname(given.python), *given.environ.get("PATH", "").split(":")]  # noqa: PTH120
    environments = in_order_of_path(find(package_folders(), given.environ), folders)
    if not environments:
        raise LookupError(f"no Python with packages is there (PATH: {':'.join(folders)})")
    return replace(given, python=environments[0].python, start=environments[0].start)


def program(names: Sequence[str], search: str) -> str | None:
    """The first executable of these names on a PATH, links not followed."""
    for folder in search.split(":"):
        for name in names:
            path = f"{folder}/{name}"
            if folder and os.path.isfile(path) and os.access(path, os.R_OK):  # noqa: PTH113
                return path
    return None


def text_of(file: Path, longest: int = _LONGEST_TEXT) -> str:
    """Empty for what is no file, can't be read, or is too long."""
    try:
        if not file.is_file() or file.stat().st_size > longest:
            return ""
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def is_elf(path: str) -> bool:
    with contextlib.suppress(OSError), Path(path).open("rb") as stream:
        return stream.read(4) == elf.MAGIC
    return False


def _interpreters(folder: _Folder) -> Iterator[tuple[str, str]]:
    """Programs of a folder's Python, with its version: one, or every one that shares the folder."""
    if folder.version:
        names = [f"python{folder.version}", "python3", "python"]
        paths = [f"{folder.prefix}/bin/{name}" for name in names]
        yield from [(path, folder.version) for path in paths if os.path.isfile(path)][:1]  # noqa: PTH113
        return
    for path in sorted(Path(folder.prefix, "bin").glob("python3.*")):
        if path.is_file() and (found := _PROGRAM_VERSION.fullmatch(path.name)):
            yield str(path), found[1]


def _environment(
    prefix: str, python: str, version: str, own: Sequence[str], environ: Mapping[str, str]
) -> Environment:
    pairs = (
        line.partition("=")
        for line in text_of(Path(prefix, "pyvenv.cfg")).splitlines()
        if "=" in line
    )
    settings = {name.strip().lower(): value.strip() for name, _, value in pairs}
    base = str(Path(settings["home"]).parent) if "home" in settings else prefix
    kind = "venv" if settings else "conda" if Path(prefix, "conda-meta").is_dir() else "system"
    folders = sorted(own, key=lambda path: (not path.startswith(f"{prefix}/lib"), path))
    folders.sort(key=lambda path: not path.startswith("/usr/local/"))
    if settings.get("include-system-site-packages") == "true":
        below = (f"{base}/lib/python{version}/site-packages", f"{base}/lib/python3/dist-packages")
        folders += [path for path in below if Path(path).is_dir()]
    user = f"{environ.get('HOME') or '/root'}/.local/lib/python{version}/site-packages"
    if kind != "venv" and Path(user).is_dir() and user not in folders:
        folders.insert(0, user)
    added = [path for path in environ.get("PYTHONPATH", "").split(":") if path]
    standards = (f"{base}/{lib}/python{version}" for lib in ("lib", "lib64"))
    standard = next((path for path in standards if Path(path).is_dir()), "")
    standard_library = [standard, f"{standard}/lib-dynload"] if standard else []
    path = tuple(dict.fromkeys([*added, *standard_library, *_with_links(folders)]))
    start = {
        "path": list(path),
        "optimize": int(bool(environ.get("PYTHONOPTIMIZE"))),
        "modules": dict(_customisations(path)),
        "version": version,
        "prefix": prefix,
    }
    return Environment(
        prefix=prefix, kind=kind, python=python, version=version, path=path, start=start
    )


def _with_links(folders: Sequence[str]) -> Iterator[str]:
    """Each folder of packages, and the folders that its .pth files add."""
    for folder in folders:
        yield folder
        for file in sorted(Path(folder).glob("*.pth")):
            for line in text_of(file).splitlines():
                entry = line.strip()
                if entry and not entry.startswith(("#", "import ", "import\t")):
                    path = os.path.normpath(
                        f"{folder}/{entry}" if not entry.startswith("/") else entry
                    )
                    if os.path.isdir(path):  # noqa: PTH112
                        yield path


def _customisations(path: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Modules that site.py imports if they are there."""
    for name in ("sitecustomize", "usercustomize"):
        candidates = (
            f"{folder}/{name}{suffix}" for folder in path for suffix in (".py", "/__init__.py")
        )
        if file := next((one for one in candidates if os.path.isfile(one)), None):  # noqa: PTH113
            yield name, file


def distributions(one: Environment) -> list[dict[str, Any]]:
    """What is installed, as metadata says: name, version, place, who installed it, requirements."""
    return [
        {
            "name": found.name,
            "version": found.version,
            "location": found.location,
            "installer": text_of(found.info / "INSTALLER").strip()[:40],
            "requires": list(found.requires),
        }
        for found in installed.distributions(one.path)
    ]
