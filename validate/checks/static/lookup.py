"""lookup: check that no file hides one of ours on PATH, PYTHONPATH or the loader's search path.

A file that is found first is run in place of ours, without a word: conda's Python, `nvcc` or
libcudart of Debian's nvidia-cuda-toolkit, a `random.py` in the working directory. Plugins such as
libnccl-net.so are reported, too: a program loads them because they are there.
"""

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from validate.binaries.loader import machine_named
from validate.checks import RunAs, Settings
from validate.checks.static.toolkit import configured_folders
from validate.claims import Claim, ImageKind
from validate.environment import debian, installed
from validate.environment.image_paths import is_link, is_plain_file, read_image_paths
from validate.environment.installed import Distribution
from validate.environment.user_environment import Start, UserEnvironment
from validate.judging import Finding, conclude, listed
from validate.next_steps import BUILD_ANEW, take_out

SETTINGS = Settings(
    reads_files_only=True,
    shared_reads=(debian.read_package_files, read_image_paths),
    run_as=RunAs.ROOT,
)

_MOST_LISTED = 40
_PLUGINS = {
    "libnccl-net*.so*": "NCCL (its network plugin)",
    "libnccl-tuner*.so*": "NCCL (its tuner plugin)",
    "libnccl-profiler*.so*": "NCCL (its profiler plugin)",
    "libnccl-env*.so*": "NCCL (its environment plugin)",
    "/usr/lib/*/ossl-modules/*": "OpenSSL (a provider)",
    "/usr/lib/*/engines-*/*": "OpenSSL (an engine)",
}
"""Pattern of a library's name or path -> the program that loads it because it is there (NCCL's user
guide; openssl-env(7))."""
_NO_OWNER = ""
_STANDARD = "the standard library"
_IN_EVERY_PROJECT = frozenset(
    {"tests", "test", "docs", "examples", "scripts", "tools", "benchmarks"}
)
"""Folders of people's projects. Packages install folders of these names, too, and import none."""
_MODULE = re.compile(r"(?P<name>[A-Za-z_]\w*)(\.py|(\.cpython-\d+-[\w-]+|\.abi3)?\.so)")


class _Expected(TypedDict):
    path: list[str]
    """Folders of the PATH that our build sets."""
    image_kind: ImageKind


class Expected(_Expected, total=False):
    """What a claim about search paths says."""

    packages: list[str]
    """Of a derived image: the packages of its base image, which nothing may hide."""


class Hidden(TypedDict):
    """A file that is found in place of another one of its name."""

    path: str
    """The file that is found."""
    owner: str
    """Its Debian package (`Debian's python3`) or distribution; empty: none."""
    hides: str
    """The other file."""
    hidden_owner: str


class Measured(TypedDict):
    """What the shell, Python and the loader find first. Lists are cut."""

    path: list[str]
    """The folders of the PATH."""
    programs: list[Hidden]
    modules: list[Hidden]
    libraries: list[Hidden]
    plugins: dict[str, str]
    """Library of no package -> the program that loads it."""


class Owners(NamedTuple):
    """Path without links in its folders -> the Debian package, or distribution, that lists it."""

    of_debian: Mapping[str, str]
    of_wheels: Mapping[str, str]

    def of(self, path: str) -> str:
        """Return the owner of a file: `Debian's python3`, or a distribution; empty: none."""
        real = debian.real_path(path)
        package = self.of_debian.get(real)
        return f"Debian's {package}" if package else self.of_wheels.get(real, _NO_OWNER)

    def is_debians(self, path: str) -> bool:
        """Return whether a file belongs to a Debian package."""
        return debian.real_path(path) in self.of_debian


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Find programs, Python modules and libraries of the image that others of their name hide.

    Of two files of the same name, the image's user gets the one that is found first. Nothing of the
    image is run. Yields the subject of each claim, with the same evidence for all.
    """
    # `start` says how the user's Python starts, and so where it looks for modules. `owners` says
    # which Debian package or distribution brought a file.
    user, start, distributions = installed.read_user_python()
    owners = read_owners(distributions)

    # Programs that a shell finds on the PATH.
    path = user.environ.get("PATH", "").split(":")
    programs = find_hidden_programs(path, owners, start)

    # What `import` finds. Only folders that Python searches before its standard library can hide
    # something.
    folders_searched_first = folders_before_standard(user)
    modules = find_hidden_modules(folders_searched_first, start.standard_library, distributions)

    # Libraries that the dynamic loader finds, and plugins that a library loads by their names.
    libraries = find_hidden_libraries(user, owners)
    plugins = find_plugins(loader_folders(user), owners)

    evidence: Measured = {
        "path": path,
        "programs": programs[:_MOST_LISTED],
        "modules": modules[:_MOST_LISTED],
        "libraries": libraries[:_MOST_LISTED],
        "plugins": plugins,
    }
    for claim in claims:
        yield claim.subject, evidence


def read_owners(distributions: Sequence[Distribution]) -> Owners:
    """Return which Debian package or installed distribution has brought each file of the image."""
    of_wheels: dict[str, str] = {}
    for distribution in distributions:
        for entry in distribution.entries or ():
            of_wheels[debian.real_path(entry.path)] = distribution.name
    return Owners(debian.read_package_files().packages, of_wheels)


def folder_of(path: str) -> str:
    """Return the folder in which a file lies, without a slash at its end."""
    return str(Path(path).parent)


def folders_before_standard(user: UserEnvironment) -> list[str]:
    """Return the folders in which Python looks for a module before its standard library."""
    folders = [folder for folder in user.environ.get("PYTHONPATH", "").split(":") if folder]
    # Python looks in the folder in which it starts, too, unless PYTHONSAFEPATH is set.
    if not user.environ.get("PYTHONSAFEPATH") and user.directory:
        folders.append(user.directory)
    return folders


def find_hidden_programs(folders: Sequence[str], owners: Owners, start: Start) -> list[Hidden]:
    """Return each program on the PATH that a shell does not run, because another is found before.

    The result names both programs, and the packages that brought them. `folders` are those of the
    PATH, in its order. `start` describes the Python that the image's user gets as `python`.
    """
    first_found: dict[str, str] = {}
    hidden: list[Hidden] = []
    for program in list_programs(folders):
        name = program.rpartition("/")[2]
        first = first_found.setdefault(name, program)
        # Nothing is hidden by a link to the same program, nor by the `python` of the virtual
        # environment that the user works in.
        if is_same_program(first, program, start) or is_users_copy(first, program, start):
            continue
        hidden.append(describe_pair(first, program, owners))
    return hidden


def list_programs(folders: Sequence[str]) -> Iterator[str]:
    """Yield the path of each executable file in these folders. Relative folders are left out."""
    for folder in folders:
        if not folder.startswith("/"):
            continue
        for name in list_folder(folder):
            # Path leaves out the second slash of `/own/bin//python`, where PATH has `/own/bin/`.
            path = str(Path(folder, name))
            if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113
                yield path


def is_same_program(first: str, later: str, start: Start) -> bool:
    """Return whether two files on the PATH are one program: `first`, and `later` on the PATH.

    They are if both lead to one file: /bin/sh and /usr/bin/sh, where /bin is a link. The exception
    is a `later` that is the Python of a virtual environment. That Python is a link to another one,
    but has packages of its own. It is the same program only if these packages are on the search
    path of `start`, the Python that the user starts, as well.
    """
    if os.path.realpath(first) != os.path.realpath(later):
        return False
    later_environment = prefix_of_environment(later)
    if not later_environment or later_environment == prefix_of_environment(first):
        return True
    search_path = start.path
    return any(folder.startswith(f"{later_environment}/") for folder in search_path)


def prefix_of_environment(path: str) -> str:
    """Return the folder of the virtual environment whose Python this is; empty if it is none."""
    folder, _, name = path.rpartition("/bin/")
    if not name.startswith("python"):
        return ""
    # A folder with this file is a virtual environment (PEP 405).
    is_environment = Path(folder, "pyvenv.cfg").is_file()
    return folder if is_environment else ""


def is_users_copy(first: str, later: str, start: Start) -> bool:
    """Return whether `first` is the copy of the script `later` in the user's own environment.

    Users add packages to an environment of their own. It has a copy of each command of the image,
    which differs from the original only in its first line: that names the environment's Python.
    `start` describes this Python.
    """
    if folder_of(first) != f"{start.prefix}/bin":
        return False
    first_interpreter, _, first_text = Path(first).read_bytes().partition(b"\n")
    later_interpreter, _, later_text = Path(later).read_bytes().partition(b"\n")
    are_scripts = first_interpreter.startswith(b"#!") and later_interpreter.startswith(b"#!")
    return are_scripts and first_text == later_text


class KnownModule(NamedTuple):
    """A module of the standard library or of an installed distribution."""

    folder: str
    owner: str


def find_hidden_modules(
    folders: Sequence[str], standard: Sequence[str], distributions: Sequence[Distribution]
) -> list[Hidden]:
    """Return what hides modules of the standard library or of packages from `import`.

    A `random.py` in one of `folders`, which Python searches first, hides the standard library's
    `random`. `standard` are the folders of the standard library. Each row of the result has the
    file that hides a module (`path`), and the module that is hidden (`hides`) with its owner.
    """
    known = list_known_modules(standard, distributions)
    hidden: list[Hidden] = []
    for folder in map(os.path.realpath, folders):
        for name, path in list_modules(folder):
            # Most projects have a folder `tests`, and nobody imports a package's `tests`.
            if name in _IN_EVERY_PROJECT:
                continue
            for module in known.get(name, ()):
                # The folder on PYTHONPATH is the one that this module is installed in.
                if os.path.realpath(module.folder) == folder:
                    continue
                hidden.append(
                    {
                        "path": path,
                        # These folders are the user's, so no package owns the file.
                        "owner": _NO_OWNER,
                        "hides": f"{module.folder}/{name}",
                        "hidden_owner": module.owner,
                    }
                )
    return hidden


def list_known_modules(
    standard: Sequence[str], distributions: Sequence[Distribution]
) -> dict[str, list[KnownModule]]:
    """Return the modules of the standard library and of all distributions, by name.

    A name may belong to several. `standard` are the folders of the standard library.
    """
    known: dict[str, list[KnownModule]] = {}
    for folder in standard:
        for name, _ in list_modules(folder):
            known.setdefault(name, []).append(KnownModule(folder, _STANDARD))
    for distribution in distributions:
        for name in distribution.modules():
            module = KnownModule(distribution.location, distribution.name)
            known.setdefault(name, []).append(module)
    return known


def list_modules(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the name and path of each module in a folder: `random`, `/app/random.py`.

    A subfolder is one if it has an `__init__.py`. Without it, it hides nothing (PEP 420).
    """
    for entry in list_folder(folder):
        path = f"{folder}/{entry}"
        module = _MODULE.fullmatch(entry)
        if module:
            yield module["name"], path
        elif entry.isidentifier() and os.path.isfile(f"{path}/__init__.py"):  # noqa: PTH113
            yield entry, path


def loader_folders(user: UserEnvironment) -> list[str]:
    """Return the folders that the dynamic loader searches, in its order and without links.

    Those in ld.so.conf count, although ldconfig(8) may not have run since a file was added there.
    """
    named = [folder for folder, _ in configured_folders("/etc/ld.so.conf")]
    without_links = [os.path.realpath(folder) for folder in [*library_path(user), *named]]
    # Each folder once, where it is searched first.
    return list(dict.fromkeys([*without_links, *default_folders(user)]))


def default_folders(user: UserEnvironment) -> list[str]:
    """Return the folders that the loader searches at last, without links: those of the system."""
    return [os.path.realpath(folder) for folder in machine_named(user.machine).folders]


def library_path(user: UserEnvironment) -> list[str]:
    """Return the folders of LD_LIBRARY_PATH. The loader searches them before all others."""
    return [folder for folder in user.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]


def find_hidden_libraries(user: UserEnvironment, owners: Owners) -> list[Hidden]:
    """Return libraries of which the dynamic loader finds another one of that name first.

    Both are in the result: the hidden library and the other one. Two kinds are looked for:

    - A library of the system is hidden by one in any folder that the loader searches before.
    - A library of a wheel is hidden by one in a folder of LD_LIBRARY_PATH, and by no other: the
      files of a wheel state in which folder their libraries lie, and the loader looks there next.
    """
    of_wheels = list_libraries_of_wheels(owners)
    folders_before_wheels = [os.path.realpath(folder) for folder in library_path(user)]
    # Name of a library -> the path that the loader takes.
    first_found: dict[str, str] = {}
    hidden: list[Hidden] = []
    # The folders are in the order in which the loader searches them.
    for folder in loader_folders(user):
        for name in list_folder(folder):
            if ".so" not in name:
                continue
            path = f"{folder}/{name}"
            first = first_found.setdefault(name, path)
            if hides_systems_library(first, path, user, owners):
                hidden.append(describe_pair(first, path, owners))

            path_in_wheel = of_wheels.get(name)
            if path_in_wheel and path_in_wheel != path and folder in folders_before_wheels:
                hidden.append(describe_pair(path, path_in_wheel, owners))
    return hidden


def list_libraries_of_wheels(owners: Owners) -> dict[str, str]:
    """Return the libraries that wheels brought: `libcudnn.so.9` -> its path."""
    libraries: dict[str, str] = {}
    for path in owners.of_wheels:
        name = path.rpartition("/")[2]
        if ".so" in name:
            libraries.setdefault(name, path)
    return libraries


def hides_systems_library(first: str, later: str, user: UserEnvironment, owners: Owners) -> bool:
    """Return whether the library `later` is the system's, and the loader takes `first` instead.

    Both have the same name, and the loader finds `first` before. `owners` says which files are of
    Debian packages.
    """
    # A library and a link to it do not hide each other.
    if os.path.realpath(first) == os.path.realpath(later):
        return False
    if owners.of_debian:
        return owners.is_debians(later)

    # A base image without Debian's dpkg has no list of the system's files. There, the system's
    # libraries are those in the loader's default folders.
    system_folders = default_folders(user)
    return folder_of(later) in system_folders and folder_of(first) not in system_folders


def find_plugins(folders: Sequence[str], owners: Owners) -> dict[str, str]:
    """Return the plugins in the image that no package brought: path -> the program that loads it.

    Plugins are libraries that a program looks for by name (_PLUGINS), such as libnccl-net.so. Some
    must lie in one of `folders`, which the dynamic loader searches.
    """
    plugins = {}
    for path, facts in read_image_paths().facts.items():
        if not (is_plain_file(facts) or is_link(facts)):
            continue
        name = path.rpartition("/")[2]
        for pattern, program in _PLUGINS.items():
            if pattern.startswith("/"):
                is_plugin = fnmatch.fnmatchcase(path, pattern)
            else:
                is_plugin = fnmatch.fnmatchcase(name, pattern) and folder_of(path) in folders
            if is_plugin and owners.of(path) == _NO_OWNER:
                plugins[path] = program
    return plugins


def list_folder(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none if it can't be listed."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  names, and not paths
    except OSError:
        return []


def describe_pair(path: str, hides: str, owners: Owners) -> Hidden:
    """Return a file, the file that it hides, and the owners of both, as evidence."""
    return {
        "path": path,
        "owner": owners.of(path),
        "hides": hides,
        "hidden_owner": owners.of(hides),
    }


def judge(_subject: str, expect: Expected, evidence: Measured) -> Finding:
    """Fail if users of the image get another program, Python module or library than they should.

    A file hides another one of its name if it is found first: on PATH, PYTHONPATH or the loader's
    search path. `evidence` lists the files that do. What is a fault depends on who made the image:

    - In an image of this project, every program and module that hides another one is a fault, and
      so is every plugin that no package brought.
    - In an image with parts of a user's, a program may hide one that is not in our folders, a
      module may hide that of a package which the user added, and plugins may be there. These are
      named in the reason of a Finding that passes.
    - A library that hides another one is always a fault, and so is a wrong folder on the PATH.
    """
    is_ours = expect["image_kind"] == ImageKind.OURS
    faults = list(find_path_faults(expect, evidence["path"]))
    allowed = []
    for program in evidence["programs"]:
        if is_ours or hides_ours(program, expect["path"]):
            faults.append(describe(program))
        else:
            allowed.append(describe(program))

    for module in evidence["modules"]:
        if may_hide_module(module, expect):
            allowed.append(describe(module))
        else:
            faults.append(describe(module))

    faults += [describe(library) for library in evidence["libraries"]]

    for path, program_name in evidence["plugins"].items():
        sentence = f"{path} is loaded by {program_name} because it is there"
        if is_ours:
            faults.append(f"{sentence}, and belongs to no package")
        else:
            allowed.append(sentence)

    # The reason if there are no faults.
    good = "nothing of ours is hidden on PATH, PYTHONPATH and the loader's path"
    if allowed:
        good += f"; reported: {listed(allowed)}"
    return conclude(faults, good)


def describe(hidden: Hidden) -> str:
    """Return `/opt/conda/bin/python3 is found before /opt/venv/bin/python3 of virtualenv`.

    Each path is followed by its owner, if it has one.
    """
    path = hidden["path"]
    if hidden["owner"]:
        path += f" of {hidden['owner']}"
    hides = hidden["hides"]
    if hidden["hidden_owner"]:
        hides += f" of {hidden['hidden_owner']}"
    return f"{path} is found before {hides}"


def hides_ours(program: Hidden, our_folders: Sequence[str]) -> bool:
    """Return whether a program hides one in `our_folders`, those of the PATH that our build sets.

    Two packages may bring the same program to these folders, as cmake's wheel and Debian's cmake
    do. So a program in them hides another one only if no package owns it.
    """
    if folder_of(program["hides"]) not in our_folders:
        return False
    if folder_of(program["path"]) not in our_folders:
        return True
    return program["owner"] == _NO_OWNER


def may_hide_module(module: Hidden, expect: Expected) -> bool:
    """Return whether an image may have a Python module in place of the one that it hides.

    Only a derived image may, and only modules of packages that it added itself: the source of such
    a package may lie beside its installed copy.
    """
    if "packages" not in expect:
        return False
    packages_of_base = expect["packages"]
    return module["hidden_owner"] not in (_STANDARD, *packages_of_base)


def find_path_faults(expect: Expected, path: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with the folders of the PATH.

    `path` are these folders, in their order; `expect["path"]` are those that our build sets. An
    image that we build must have just these. Other images may add folders, even in front of ours,
    but no relative ones. A slash at the end of a folder and a folder that is repeated change
    nothing.
    """
    our_folders = [without_last_slash(folder) for folder in expect["path"]]
    # A dict has each folder once, at its first place: there, programs look for it.
    folders = list(dict.fromkeys(without_last_slash(folder) for folder in path))
    relative = [folder for folder in folders if not folder.startswith("/")]
    if relative:
        yield (
            f"the PATH has the relative folder {relative[0]!r}, so which program runs depends on "
            "the folder where it is started"
        )

    differences = []
    lacking = [folder for folder in our_folders if folder not in folders]
    if lacking:
        differences.append(f"it lacks {listed(lacking)}")
    added = [folder for folder in folders if folder not in (*our_folders, *relative)]
    if added and expect["image_kind"] == ImageKind.OURS:
        differences.append(f"truetag's build does not set {listed(added)}")
    ours_in_its_order = [folder for folder in folders if folder in our_folders]
    if ours_in_its_order != [folder for folder in our_folders if folder in folders]:
        differences.append(f"truetag's build sets another order, {':'.join(our_folders)}")
    if differences:
        yield f"the PATH is {':'.join(path)}: {'; '.join(differences)}"


def without_last_slash(folder: str) -> str:
    """Return the path of a folder without slashes at its end; `/` stays as it is."""
    return folder.rstrip("/") or folder[:1]


CLAIMS = {"lookup": judge}
NEXT_STEPS = {
    "lookup": {
        "the PATH ": take_out("the ENV PATH line that changes it so"),
        " because it is there": take_out("the step that brings this file"),
        "": "remove the file that the reason names first, or the package that brings it, or move "
        "its folder behind that of the other (`ENV PATH=$PATH:/mine`, not `/mine:$PATH`; the same "
        "for PYTHONPATH and LD_LIBRARY_PATH), and build the image again; if your Dockerfile and "
        f"your base image add none of these, {BUILD_ANEW}",
    }
}
