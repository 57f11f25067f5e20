"""Find the Python environments of an image (system, venv, conda) by reading its files.

Nothing of the image is run. What Python would put on sys.path follows from the folders, pyvenv.cfg
and .pth files (CPython's docs: "site", "venv"; Debian's Python policy for dist-packages).
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from validate.binaries import elf
from validate.environment import installed
from validate.environment.user_environment import UserEnvironment

_FOLDER = re.compile(
    r"(?P<prefix>/.*)?/lib(?:64)?/python(?P<version>\d\.\d+|3)/(?P<kind>site|dist)-packages"
)
_PROGRAM_VERSION = re.compile(r"python(\d\.\d+)")
_ADDED_FOLDER = re.compile(r"import site; site\.addsitedir\('(?P<folder>/[^']+)'\)")
"""The line by which an environment of additions takes in the image's packages
(templates/additions/create.py)."""
_LONGEST_TEXT = 1 << 20
NO_PYTHON = "no Python with packages is there"
"""What the suite prints of an image without one."""
_LONGEST_INSTALLER = 40
"""Characters of the installer's name that are kept: the file may hold anything."""
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
    """Path of the interpreter."""
    version: str
    """`3.11`."""
    path: tuple[str, ...]
    """sys.path: standard library, packages, and what .pth files and PYTHONPATH add."""
    start: Mapping[str, Any]
    """How it would start: the fields of user_environment.Start."""


class InstalledPackage(TypedDict):
    """A distribution, as its metadata describes it."""

    name: str
    version: str
    location: str
    """The folder of sys.path that holds it."""
    installer: str
    """`pip`, `uv`, `conda`; empty: it does not say."""
    requires: list[str]


class _PackageFolder(NamedTuple):
    """A folder `site-packages` or `dist-packages`."""

    path: str
    prefix: str
    """The prefix of the interpreter that it belongs to: /opt/venv for one in /opt/venv/bin. It is
    /usr for both folders of Debian's /usr/bin/python3."""
    written_prefix: str
    """The part of the path before `lib`. It differs from `prefix` for Debian's second folder,
    /usr/local/lib/python3.11/dist-packages, where it is /usr/local."""
    version: str
    """`3.11`. Empty for Debian's /usr/lib/python3, which all its Pythons share."""

    def serves(self, prefix: str, version: str) -> bool:
        """Return whether the interpreter of this prefix and version imports from the folder."""
        return self.version in ("", version) and prefix in (self.prefix, self.written_prefix)


def find_environments(
    package_folders: Iterable[str], environ: Mapping[str, str]
) -> list[Environment]:
    """Return the Python environments of an image, given its folders of packages.

    Those on PATH come first, in its order. `environ` are the variables of the image. A folder whose
    interpreter is not there is left out.
    """
    folders = []
    for path in sorted(package_folders):
        folder = _parse_package_folder(path)
        if folder:
            folders.append(folder)

    # Prefix and version of an interpreter -> its environment. It may import from several of the
    # folders, and is found through each of them.
    environments: dict[tuple[str, str], Environment] = {}
    for folder in folders:
        for python, version in _interpreters(folder):
            key = (folder.prefix, version)
            if key not in environments:
                served_by = [other for other in folders if other.serves(folder.prefix, version)]
                paths = [other.path for other in served_by]
                environments[key] = _environment(folder.prefix, python, version, paths, environ)

    by_prefix_and_version = [environments[key] for key in sorted(environments)]
    return in_order_of_path(by_prefix_and_version, environ.get("PATH", "").split(":"))


def _parse_package_folder(path: str) -> _PackageFolder | None:
    """Return to which Python a folder of packages belongs, by its path.

    For example, /opt/venv/lib/python3.11/site-packages belongs to Python 3.11 of /opt/venv. Returns
    None for a folder where no Python looks for packages.
    """
    match = _FOLDER.fullmatch(path)
    if not match:
        return None
    written_prefix = match["prefix"] or "/"
    prefix = written_prefix
    # Debian's Python has the prefix /usr, and its packages lie in folders `dist-packages` below
    # both /usr and /usr/local.
    if match["kind"] == "dist" and written_prefix in _DEBIAN:
        prefix = "/usr"

    version = match["version"]
    # Debian's /usr/lib/python3/dist-packages is for each of its Python 3.
    if version == "3":
        version = ""
    return _PackageFolder(path=path, prefix=prefix, written_prefix=written_prefix, version=version)


def _interpreters(folder: _PackageFolder) -> Iterator[tuple[str, str]]:
    """Yield path and version of each interpreter that imports from a folder of packages.

    There is at most one, except for a folder that all versions share (its version is empty).
    """
    if folder.version:
        # All three may be names of the interpreter. Take the first that exists.
        for name in (f"python{folder.version}", "python3", "python"):
            path = f"{folder.prefix}/bin/{name}"
            if os.path.isfile(path):  # noqa: PTH113
                yield path, folder.version
                break
        return

    for program in sorted(Path(folder.prefix, "bin").glob("python3.*")):
        # The pattern does not match other programs, such as `python3.11-config`.
        match = _PROGRAM_VERSION.fullmatch(program.name)
        if match and program.is_file():
            yield str(program), match[1]


def _environment(
    prefix: str,
    python: str,
    version: str,
    package_folders: Sequence[str],
    environ: Mapping[str, str],
) -> Environment:
    """Return the environment of an interpreter: where it looks for modules, and how it starts.

    `python` is the path of its program and `version` its release (`3.11`). `package_folders` are
    those of its own prefix; `environ` are the variables of the image.
    """
    # The settings are empty if this is not a virtual environment.
    venv_settings = _read_venv_settings(prefix)
    if venv_settings:
        kind = "venv"
    elif Path(prefix, "conda-meta").is_dir():
        kind = "conda"
    else:
        kind = "system"

    own_folders = _in_debians_order(package_folders, prefix)
    path = _search_path(prefix, version, venv_settings, own_folders, environ)
    # The fields of user_environment.Start.
    start = {
        "path": list(path),
        "optimize": int(bool(environ.get("PYTHONOPTIMIZE"))),
        "modules": dict(_startup_modules(path)),
        "version": version,
        "prefix": prefix,
    }
    return Environment(
        prefix=prefix, kind=kind, python=python, version=version, path=path, start=start
    )


def _search_path(
    prefix: str,
    version: str,
    venv_settings: Mapping[str, str],
    package_folders: Sequence[str],
    environ: Mapping[str, str],
) -> tuple[str, ...]:
    """Return sys.path of an interpreter, in the order in which Python makes it.

    prefix: the folder above its `bin`: /opt/venv.
    version: `3.11`.
    venv_settings: those of pyvenv.cfg; empty if it is not a virtual environment.
    package_folders: those below its own prefix.
    environ: the variables of the image.
    """
    # A virtual environment has the standard library of the Python that it was made with. `home` is
    # the folder of that Python's program, such as /usr/bin.
    base = prefix
    if "home" in venv_settings:
        base = str(Path(venv_settings["home"]).parent)

    folders = list(package_folders)
    if venv_settings.get("include-system-site-packages") == "true":
        folders += _system_folders(base, version)
    # A virtual environment does not look into the folder of `pip install --user`.
    if not venv_settings:
        user_folder = _user_folder(environ, version)
        # Path.is_dir would raise in a home that this user may not enter (HOME=/root).
        is_there = os.path.isdir(user_folder)  # noqa: PTH112
        if is_there and user_folder not in folders:
            folders.insert(0, user_folder)

    from_variable = [entry for entry in environ.get("PYTHONPATH", "").split(":") if entry]
    entries = [
        *from_variable,
        *_standard_library(base, version),
        *_with_folders_of_pth_files(folders),
    ]
    return tuple(dict.fromkeys(entries))


def _in_debians_order(package_folders: Sequence[str], prefix: str) -> list[str]:
    """Return folders of packages in the order of Debian's Python: /usr/local before /usr."""

    def place(folder: str) -> tuple[bool, bool, str]:
        is_local = folder.startswith("/usr/local/")
        is_below_prefix = folder.startswith(f"{prefix}/lib")
        # False sorts before True.
        return not is_local, not is_below_prefix, folder

    return sorted(package_folders, key=place)


def _system_folders(base: str, version: str) -> list[str]:
    """Return the existing folders of packages of the interpreter that a venv was made from.

    base: the prefix of that interpreter.
    """
    candidates = (
        f"{base}/lib/python{version}/site-packages",
        f"{base}/lib/python3/dist-packages",
    )
    return [folder for folder in candidates if Path(folder).is_dir()]


def _user_folder(environ: Mapping[str, str], version: str) -> str:
    """Return the folder into which `pip install --user` installs."""
    home = environ.get("HOME") or "/root"
    return f"{home}/.local/lib/python{version}/site-packages"


def _read_venv_settings(prefix: str) -> dict[str, str]:
    """Return the settings in pyvenv.cfg, by lower-case name; none if this is no venv."""
    settings = {}
    for line in read_text(Path(prefix, "pyvenv.cfg")).splitlines():
        name, equals, value = line.partition("=")
        if equals:
            settings[name.strip().lower()] = value.strip()
    return settings


def _standard_library(base: str, version: str) -> list[str]:
    """Return the folders of the standard library below the prefix `base`; empty if there is none.

    `version` is that of the Python, such as `3.11`.
    """
    for library in ("lib", "lib64"):
        folder = f"{base}/{library}/python{version}"
        if Path(folder).is_dir():
            return [folder, f"{folder}/lib-dynload"]
    return []


def _with_folders_of_pth_files(
    package_folders: Sequence[str], entered: set[str] | None = None
) -> Iterator[str]:
    """Yield each folder of packages, followed by existing folders that its .pth files name.

    site.py reads the files of a folder in the order of their names. `entered`: the folders that
    were yielded already, by default none. They are left out: a folder's .pth file may name the
    folder itself.
    """
    entered = set() if entered is None else entered
    for package_folder in package_folders:
        if package_folder in entered:
            continue
        entered.add(package_folder)
        yield package_folder
        files = Path(package_folder).glob("*.pth")
        for file in sorted(files):
            lines = read_text(file).splitlines()
            for line in lines:
                yield from _folders_of_pth_line(line.strip(), package_folder, entered)


def _folders_of_pth_line(line: str, package_folder: str, entered: set[str]) -> Iterator[str]:
    """Yield the existing folders that a line of a .pth file adds to sys.path (Python's site.py).

    `line` has no blanks around it. `package_folder` is the folder that has the file. `entered`: see
    `_with_folders_of_pth_files`.
    """
    # A line of ours, `import site; site.addsitedir('FOLDER')`, adds a whole folder of packages,
    # with its own .pth files.
    added_by_us = _ADDED_FOLDER.fullmatch(line)
    if added_by_us:
        yield from _with_folders_of_pth_files([added_by_us["folder"]], entered)
        return
    # Other lines that begin with `import` are code, which site.py executes.
    if not line or line.startswith(("#", "import ", "import\t")):
        return
    # A relative path begins at the folder that has the file.
    path = os.path.normpath(Path(package_folder, line))
    if os.path.isdir(path):  # noqa: PTH112
        yield path


def _startup_modules(path: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and file of the modules on this sys.path that site.py imports at every start."""
    for name in ("sitecustomize", "usercustomize"):
        files = []
        for folder in path:
            files += [f"{folder}/{name}.py", f"{folder}/{name}/__init__.py"]
        existing_files = [file for file in files if os.path.isfile(file)]  # noqa: PTH113
        if existing_files:
            yield name, existing_files[0]


def in_order_of_path(
    environments: Iterable[Environment], folders: Iterable[str]
) -> list[Environment]:
    """Sort Python environments by the place of their `bin` among these folders, such as PATH.

    Environments whose `bin` is none of the folders come last. Otherwise the order stays.
    """
    real_folders = [os.path.realpath(folder) for folder in folders if folder]

    def place(environment: Environment) -> int:
        # Compare folders: the interpreter of a virtual environment is a link to another one.
        programs = os.path.realpath(f"{environment.prefix}/bin")
        return real_folders.index(programs) if programs in real_folders else len(real_folders)

    return sorted(environments, key=place)


def package_folders(top: str = "/") -> Iterator[str]:
    """Yield the folders of packages below a folder of the image, without those inside another."""
    for folder, subfolders, _ in os.walk(top):
        to_enter = []
        for name in subfolders:
            if name in PACKAGES:
                yield os.path.join(folder, name)  # noqa: PTH118
            elif folder != "/" or f"/{name}" not in NEVER:
                to_enter.append(name)
        # os.walk enters only folders that are in this list.
        subfolders[:] = to_enter


def with_python_from_files(user: UserEnvironment) -> UserEnvironment:
    """Find the Python that a user would start, and return the user's environment with it.

    It is the one in the folder of `user.python`, if that is set, or else the first on PATH that has
    packages. The result also says how this Python would start, by the image's files. Raises
    LookupError if there is no Python with packages.
    """
    own_folder = os.path.dirname(user.python)  # noqa: PTH120
    folders = [own_folder, *user.environ.get("PATH", "").split(":")]
    # Every environment of the image, also those that are not on PATH.
    environments = find_environments(package_folders(), user.environ)
    if not environments:
        raise LookupError(f"{NO_PYTHON} (PATH: {':'.join(folders)})")
    first = in_order_of_path(environments, folders)[0]
    return replace(user, python=first.python, start=first.start)


def find_program(name: str, search_path: str) -> str | None:
    """Return the first readable file of this name in the folders of a PATH; None if there is none.

    A link is returned as the link.
    """
    for folder in search_path.split(":"):
        path = f"{folder}/{name}"
        if folder and os.path.isfile(path) and os.access(path, os.R_OK):  # noqa: PTH113
            return path
    return None


def read_text(file: Path, longest: int = _LONGEST_TEXT) -> str:
    """Return the text of a file.

    Empty if it is no regular file, can't be read, or has more than `longest` bytes.
    """
    try:
        if not file.is_file() or file.stat().st_size > longest:
            return ""
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def is_elf(path: str) -> bool:
    """Return whether a file begins like an ELF file; False if it can't be read."""
    with contextlib.suppress(OSError), Path(path).open("rb") as stream:
        return stream.read(4) == elf.MAGIC
    return False


def installed_packages(environment: Environment) -> list[InstalledPackage]:
    """Return the packages that an environment can import, in the order of its sys.path.

    For example `{"name": "numpy", "version": "2.2.6", "installer": "uv", ...}`. The installer is
    empty if the package's metadata does not name it.
    """
    packages: list[InstalledPackage] = []
    for distribution in installed.distributions(environment.path):
        installer = read_text(distribution.info / "INSTALLER").strip()
        packages.append(
            {
                "name": distribution.name,
                "version": distribution.version,
                "location": distribution.location,
                "installer": installer[:_LONGEST_INSTALLER],
                "requires": list(distribution.requires),
            }
        )
    return packages
