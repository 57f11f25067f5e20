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
    """Find files that hide others of their name on the search paths of the image's user.

    A program, Python module or library hides another one if it is found before it. Nothing is run.
    The evidence is the same for all claims.
    """
    user, start, distributions = installed.read_user_python()
    # Path of a file -> the wheel that brought it.
    of_wheels: dict[str, str] = {}
    for distribution in distributions:
        for entry in distribution.entries or ():
            of_wheels[debian.real_path(entry.path)] = distribution.name
    owners = Owners(debian.read_package_files().packages, of_wheels)

    # What a shell finds.
    path = user.environ.get("PATH", "").split(":")
    programs = find_hidden_programs(path, owners, start)

    # What Python finds: it searches the working directory and PYTHONPATH before its standard
    # library, and all other folders after it. `start.path` is sys.path.
    modules = find_hidden_modules(
        folders_before_standard(user), start.standard_library, distributions
    )

    # What the dynamic loader finds.
    libraries = find_hidden_libraries(user, owners)
    evidence: Measured = {
        "path": path,
        "programs": programs[:_MOST_LISTED],
        "modules": modules[:_MOST_LISTED],
        "libraries": libraries[:_MOST_LISTED],
        "plugins": find_plugins(loader_folders(user), owners),
    }
    for claim in claims:
        yield claim.subject, evidence


def folders_before_standard(user: UserEnvironment) -> list[str]:
    """Return the folders in which Python looks for a module before its standard library."""
    folders = [folder for folder in user.environ.get("PYTHONPATH", "").split(":") if folder]
    # Python looks in the folder in which it starts, too, unless PYTHONSAFEPATH is set.
    if not user.environ.get("PYTHONSAFEPATH") and user.directory:
        folders.append(user.directory)
    return folders


def find_hidden_programs(folders: Sequence[str], owners: Owners, start: Start) -> list[Hidden]:
    """Return programs that a shell finds in place of others of the same name on the PATH.

    `folders` are those of the PATH, in its order; a relative one is left out. `owners` says which
    package brought a file. `start` describes the Python that the image's user gets as `python`.
    """
    # Users add packages to an environment of their own. For each command of the image's packages it
    # has a copy that starts the user's Python. Such a copy is not reported as hiding the original.
    own_folder = f"{start.prefix}/bin"
    first_found: dict[str, str] = {}
    hidden: list[Hidden] = []
    for folder in folders:
        if not folder.startswith("/"):
            continue
        for name in list_folder(folder):
            path = f"{folder}/{name}"
            if not os.access(path, os.X_OK) or not os.path.isfile(path):  # noqa: PTH113
                continue
            # A program is hidden by the first one of its name, unless both are the same.
            first = first_found.setdefault(name, path)
            if is_same_program(first, path, start):
                continue
            if os.path.dirname(first) == own_folder and is_same_script(first, path):  # noqa: PTH120
                continue
            hidden.append(describe_pair(first, path, owners))
    return hidden


def is_same_program(first: str, later: str, start: Start) -> bool:
    """Return whether a program on PATH can stand for one of its name in a later folder of PATH.

    It can if both are one file (/bin is a link to /usr/bin), with one exception. The Python of a
    virtual environment is a link to its base's Python, but finds other packages. So if the later
    one is such a Python, the one that users start must find the packages of its environment, too.

    `first` and `later` are paths. `start` says how the Python starts that users start.
    """
    if os.path.realpath(first) != os.path.realpath(later):
        return False
    # Most programs are no environment's Python.
    later_environment = prefix_of_environment(later)
    if not later_environment or later_environment == prefix_of_environment(first):
        return True
    # `start.path` is its sys.path.
    return any(entry.startswith(f"{later_environment}/") for entry in start.path)


def prefix_of_environment(path: str) -> str:
    """Return the folder of the virtual environment whose Python this is; empty if it is none."""
    folder, _, name = path.rpartition("/bin/")
    if not name.startswith("python"):
        return ""
    # What makes a folder a virtual environment (PEP 405).
    is_environment = Path(folder, "pyvenv.cfg").is_file()
    return folder if is_environment else ""


def is_same_script(path: str, other_path: str) -> bool:
    """Return whether two files are the same script, but for the interpreter in the first line."""
    texts = []
    for script in (path, other_path):
        content = Path(script).read_bytes()
        # A program that is no script has no such line, and is another one if its path is.
        first_line, _, text = content.partition(b"\n")
        if not first_line.startswith(b"#!"):
            return False
        texts.append(text)
    return texts[0] == texts[1]


def find_hidden_modules(
    folders: Sequence[str], standard: Sequence[str], distributions: Sequence[Distribution]
) -> list[Hidden]:
    """Return modules that are imported in place of the standard library's or a distribution's.

    `folders` are those that Python searches before all others (see folders_before_standard),
    `standard` are those of the standard library. A folder in them without `__init__.py` hides
    nothing (PEP 420), and neither does a name that most projects have (`tests`).
    """
    # Module name -> the folders that should provide it, each with the module's owner.
    known: dict[str, list[tuple[str, str]]] = {}
    for folder in standard:
        for name, _ in list_modules(folder):
            known.setdefault(name, []).append((folder, _STANDARD))
    for distribution in distributions:
        for name in distribution.modules():
            known.setdefault(name, []).append((distribution.location, distribution.name))

    hidden: list[Hidden] = []
    for folder in map(os.path.realpath, folders):
        for name, path in list_modules(folder):
            if name in _IN_EVERY_PROJECT:
                continue
            for other_folder, owner in known.get(name, ()):
                # It is the module itself, found through PYTHONPATH.
                if os.path.realpath(other_folder) == folder:
                    continue
                hidden.append(
                    {
                        "path": path,
                        # Not looked up: these folders are the user's, not a package's.
                        "owner": _NO_OWNER,
                        "hides": f"{other_folder}/{name}",
                        "hidden_owner": owner,
                    }
                )
    return hidden


def list_modules(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the name and path of each module and regular package in a folder."""
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
    """Return libraries that the loader takes in place of a Debian package's, or of a wheel's.

    It looks for a library in all folders of its search path, so a Debian package's is hidden by a
    file of its name in any folder before. A wheel's library names the folder of each library that
    it needs. Only LD_LIBRARY_PATH is searched before that folder, so only a file in one of its
    folders hides a wheel's library.

    On a base without dpkg, nothing says which library a package brought. There, a library in one of
    the loader's default folders is hidden by one in any other folder.
    """
    system_folders = [] if owners.of_debian else default_folders(user)
    # Name of a library of a wheel -> its path.
    of_wheels: dict[str, str] = {}
    for path in owners.of_wheels:
        name = path.rpartition("/")[2]
        if ".so" in name:
            of_wheels.setdefault(name, path)
    # The folders of LD_LIBRARY_PATH.
    searched_before_wheels = [os.path.realpath(folder) for folder in library_path(user)]

    # Name of a library -> the path at which the loader finds it first.
    first_found: dict[str, str] = {}
    hidden: list[Hidden] = []
    for folder in loader_folders(user):
        for name in list_folder(folder):
            if ".so" not in name:
                continue
            path = f"{folder}/{name}"
            # A file and a link to it, in another folder, do not hide each other.
            first = first_found.setdefault(name, path)
            first_folder = first.rpartition("/")[0]
            is_hidden = os.path.realpath(first) != os.path.realpath(path)
            is_systems = folder in system_folders and first_folder not in system_folders
            if is_hidden and (owners.is_debians(path) or is_systems):
                hidden.append(describe_pair(first, path, owners))
            # If no wheel has a library of this name, this is `path` itself.
            path_in_wheel = of_wheels.get(name, path)
            if folder in searched_before_wheels and path_in_wheel != path:
                hidden.append(describe_pair(path, path_in_wheel, owners))
    return hidden


def find_plugins(folders: Sequence[str], owners: Owners) -> dict[str, str]:
    """Return plugins that no package owns, by path, each with the program that loads it.

    A plugin is a file that matches a pattern of _PLUGINS. `folders` are those that the dynamic
    loader searches.
    """
    plugins = {}
    for path, facts in read_image_paths().facts.items():
        if not (is_plain_file(facts) or is_link(facts)):
            continue
        folder, _, name = path.rpartition("/")
        for pattern, loaded_by in _PLUGINS.items():
            # A pattern is of a path, or of the name of a library that the loader looks for.
            if pattern.startswith("/"):
                is_plugin = fnmatch.fnmatchcase(path, pattern)
            else:
                is_plugin = fnmatch.fnmatchcase(name, pattern) and folder in folders
            if is_plugin and owners.of(path) == _NO_OWNER:
                plugins[path] = loaded_by
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
    """Fail if a file of an image hides another one on a search path.

    Search paths are PATH for programs, sys.path for Python modules and the loader's path for
    libraries. NCCL and others also load plugins by their name, wherever they come from. In an image
    of ours, each hidden file and each plugin is a fault. In an image with parts of a user's, hidden
    programs outside of our folders (`expect["path"]`) and plugins are only named in the reason.
    """
    is_ours = expect["image_kind"] == ImageKind.OURS
    faults = list(find_path_faults(expect, evidence["path"]))
    reported = []
    for program in evidence["programs"]:
        sentence = describe(program)
        if is_ours or hides_ours(program, expect["path"]):
            faults.append(sentence)
        else:
            reported.append(sentence)

    # These hide a module or library that some package brought: in no image is that right. But the
    # source of an own package may lie beside its installed copy in a derived image.
    ours = (_STANDARD, *expect.get("packages", ()))
    for module in evidence["modules"]:
        if "packages" in expect and module["hidden_owner"] not in ours:
            reported.append(describe(module))
        else:
            faults.append(describe(module))
    faults += [describe(library) for library in evidence["libraries"]]

    for path, loaded_by in evidence["plugins"].items():
        sentence = f"{path} is loaded by {loaded_by} because it is there"
        if is_ours:
            faults.append(f"{sentence}, and no package has it")
        else:
            reported.append(sentence)

    good = "nothing of ours is hidden on PATH, PYTHONPATH and the loader's path"
    if reported:
        good += f"; reported: {listed(reported)}"
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
    """Return whether a program hides one in our own folders of the PATH.

    If it lies outside of our folders, it does. If it lies in one of them itself, it does so only if
    no package owns it: two packages may bring the same program (cmake's wheel and Debian's cmake).
    """
    if os.path.dirname(program["hides"]) not in our_folders:  # noqa: PTH120
        return False
    stands_outside = os.path.dirname(program["path"]) not in our_folders  # noqa: PTH120
    return stands_outside or program["owner"] == _NO_OWNER


def find_path_faults(expect: Expected, path: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with the folders of the PATH.

    `path` are these folders, in their order; `expect["path"]` are those that our build sets. An
    image that we build must have just these. Other images may add folders, even in front of ours,
    but not relative ones.
    """
    if list(path) == expect["path"]:
        return
    relative = [folder for folder in path if not folder.startswith("/")]
    if relative:
        yield f"the PATH has {relative[0]!r}: what runs depends on the folder to start it in"

    whole = ":".join(path)
    ours = [folder for folder in path if folder in expect["path"]]
    if expect["image_kind"] == ImageKind.OURS:
        strange = [folder for folder in path if folder not in expect["path"]]
        difference = listed(strange) or "the order of its folders"
        yield f"the PATH is {whole}; {difference} is not as expected"
    elif ours != expect["path"]:
        yield f"the PATH is {whole}: folders of ours are missing or in another order"


CLAIMS = {"lookup": judge}
