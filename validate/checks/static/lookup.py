"""lookup/paths: what stands before ours on a search path is run in its place, and nothing says so.

conda's Python in front of the image's, `nvcc` or libcudart of Debian's nvidia-cuda-toolkit, a `random.py` in the
working directory, a libnccl-net.so that NCCL loads because it is there. All of it is reported; what hides something of
ours fails.
"""

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict

from validate.binaries.loader import machine_named
from validate.checks import RunAs, Settings
from validate.checks.static.toolkit import configured
from validate.claims import Claim, ImageKind
from validate.environment import debian, installed
from validate.environment.image_paths import is_link, is_plain_file, read_image_paths
from validate.environment.installed import Distribution
from validate.environment.user_environment import UserEnvironment
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
"""Pattern of a library's name or path -> who loads it because it is there (NCCL's user guide; openssl-env(7))."""
_OF_NOBODY = ""
_IN_EVERY_PROJECT = frozenset(
    {"tests", "test", "docs", "examples", "scripts", "tools", "benchmarks"}
)
"""Folders of people's projects, by whose names no package imports its own."""
_MODULE = re.compile(r"(?P<name>[A-Za-z_]\w*)(\.py|(\.cpython-\d+-[\w-]+|\.abi3)?\.so)")


class Expected(TypedDict):
    """What a claim about search paths says."""

    path: list[str]
    """Folders of the PATH that our build sets."""
    image_kind: ImageKind


class Hidden(TypedDict):
    """A file that is found in place of another of its name."""

    path: str
    owner: str
    """The Debian package or distribution that has it; empty: none."""
    hides: str
    hidden_owner: str


class Measured(TypedDict):
    """What the shell, Python and the loader find first. Lists are cut."""

    path: list[str]
    programs: list[Hidden]
    modules: list[Hidden]
    libraries: list[Hidden]
    plugins: dict[str, str]
    """Library of no package -> who loads it."""


class Owners(NamedTuple):
    """Who has which files, by real path."""

    of_debian: Mapping[str, str]
    of_wheels: Mapping[str, str]

    def of(self, path: str) -> str:
        """Return the Debian package or distribution that has a file; empty: none."""
        real = debian.real_path(path)
        package = self.of_debian.get(real)
        return f"Debian's {package}" if package else self.of_wheels.get(real, _OF_NOBODY)


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Measured]]:
    """Follow the search paths of the image's user."""
    user, start, distributions = installed.of_user()
    of_wheels: dict[str, str] = {}
    for distribution in distributions:
        for entry in distribution.entries or ():
            of_wheels[debian.real_path(entry.path)] = distribution.name
    owners = Owners(debian.read_package_files().packages, of_wheels)

    path = user.environ.get("PATH", "").split(":")
    added = user.environ.get("PYTHONPATH", "").split(":")
    if not user.environ.get("PYTHONSAFEPATH"):
        added.append(user.directory)
    standard = [
        folder for folder in start.path if re.search(r"/python3\.\d+(/lib-dynload)?$", folder)
    ]
    evidence: Measured = {
        "path": path,
        "programs": find_hidden_programs(path, owners)[:_MOST_LISTED],
        "modules": find_hidden_modules([*filter(None, added)], standard, distributions)[
            :_MOST_LISTED
        ],
        "libraries": find_hidden_libraries(user, owners)[:_MOST_LISTED],
        "plugins": find_plugins(loader_folders(user), owners),
    }
    for claim in claims:
        yield claim.subject, evidence


def find_hidden_programs(folders: Sequence[str], owners: Owners) -> list[Hidden]:
    """Return programs that a shell finds in place of others of their name, in the order of the PATH."""
    first: dict[str, str] = {}
    hidden: list[Hidden] = []
    for folder in folders:
        for name in list_folder(folder) if folder.startswith("/") else ():
            path = f"{folder}/{name}"
            if not os.access(path, os.X_OK) or not os.path.isfile(path):  # noqa: PTH113
                continue
            before = first.setdefault(name, path)
            # /bin is a link to /usr/bin, the environment's python to Debian's.
            if os.path.realpath(before) != os.path.realpath(path):
                hidden.append(_hidden(before, path, owners))
    return hidden


def find_hidden_modules(
    folders: Sequence[str], standard: Sequence[str], distributions: Sequence[Distribution]
) -> list[Hidden]:
    """Return modules in folders before the standard library's that are imported in place of others.

    A folder without `__init__.py` hides nothing (PEP 420).
    """
    # Name -> the folders that have a module of that name, and whose it is there.
    known: dict[str, list[tuple[str, str]]] = {}
    for folder in standard:
        for name, _ in list_modules(folder):
            known.setdefault(name, []).append((folder, "the standard library"))
    for distribution in distributions:
        for name in distribution.modules():
            known.setdefault(name, []).append((distribution.location, distribution.name))

    hidden: list[Hidden] = []
    for folder in map(os.path.realpath, folders):
        for name, path in list_modules(folder):
            if name in _IN_EVERY_PROJECT:
                continue
            for other_folder, owner in known.get(name, ()):
                if os.path.realpath(other_folder) != folder:
                    hides = f"{other_folder}/{name}"
                    hidden.append(
                        {"path": path, "owner": _OF_NOBODY, "hides": hides, "hidden_owner": owner}
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
    """Return the folders that the dynamic loader searches, in its order, once ldconfig(8) has run."""
    library_path = [
        folder for folder in user.environ.get("LD_LIBRARY_PATH", "").split(":") if folder
    ]
    named = [folder for folder, _ in configured("/etc/ld.so.conf")]
    folders = [*library_path, *named, *machine_named(user.machine).folders]
    return list(dict.fromkeys(os.path.realpath(folder) for folder in folders))


def find_hidden_libraries(user: UserEnvironment, owners: Owners) -> list[Hidden]:
    """Return libraries that the loader takes in place of a Debian package's, or of a wheel's.

    Libraries of wheels name the folders of those that they need. Only LD_LIBRARY_PATH is searched before that.
    """
    of_wheels: dict[str, str] = {}
    for path in owners.of_wheels:
        name = path.rpartition("/")[2]
        if ".so" in name:
            of_wheels.setdefault(name, path)
    before_wheels = [
        os.path.realpath(one) for one in user.environ.get("LD_LIBRARY_PATH", "").split(":") if one
    ]

    first: dict[str, str] = {}
    hidden: list[Hidden] = []
    for folder in loader_folders(user):
        for name in list_folder(folder):
            if ".so" not in name:
                continue
            path = f"{folder}/{name}"
            before = first.setdefault(name, path)
            is_debians = owners.of(path).startswith("Debian's ")
            if is_debians and os.path.realpath(before) != os.path.realpath(path):
                hidden.append(_hidden(before, path, owners))
            if folder in before_wheels and name in of_wheels and of_wheels[name] != path:
                hidden.append(_hidden(path, of_wheels[name], owners))
    return hidden


def find_plugins(folders: Sequence[str], owners: Owners) -> dict[str, str]:
    """Return libraries of no package that a program loads because they are there, and that program."""
    plugins = {}
    for path, facts in read_image_paths().facts.items():
        if not (is_plain_file(facts) or is_link(facts)):
            continue
        folder, _, name = path.rpartition("/")
        for pattern, loaded_by in _PLUGINS.items():
            is_path = pattern.startswith("/")
            is_one = fnmatch.fnmatchcase(path if is_path else name, pattern)
            if is_one and (is_path or folder in folders) and owners.of(path) == _OF_NOBODY:
                plugins[path] = loaded_by
    return plugins


def list_folder(folder: str) -> list[str]:
    """Return the names in a folder, in order; none of what can't be listed."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208  names, and not paths
    except OSError:
        return []


def _hidden(path: str, hides: str, owners: Owners) -> Hidden:
    return {
        "path": path,
        "owner": owners.of(path),
        "hides": hides,
        "hidden_owner": owners.of(hides),
    }


def judge(_subject: str, expect: Expected, evidence: Measured) -> Finding:
    """Fail where something of ours is hidden. In an image that we build, nothing hides anything."""
    is_ours = expect["image_kind"] == ImageKind.OURS
    faults = list(find_path_faults(expect, evidence["path"]))
    reported = []
    for program in evidence["programs"]:
        text = describe(program)
        if is_ours or hides_ours(program, expect["path"]):
            faults.append(text)
        else:
            reported.append(text)

    faults += [describe(module) for module in evidence["modules"]]
    faults += [describe(library) for library in evidence["libraries"]]

    for path, loaded_by in evidence["plugins"].items():
        text = f"{path} is loaded by {loaded_by} because it is there"
        if is_ours:
            faults.append(f"{text}, and no package has it")
        else:
            reported.append(text)

    good = "nothing of ours is hidden on PATH, PYTHONPATH and the loader's path"
    return conclude(faults, f"{good}; reported: {listed(reported)}" if reported else good)


def describe(hidden: Hidden) -> str:
    """Return `/opt/conda/bin/python3 is found before /opt/venv/bin/python3`, with their owners."""
    by = f" of {hidden['owner']}" if hidden["owner"] else ""
    of = f" of {hidden['hidden_owner']}" if hidden["hidden_owner"] else ""
    return f"{hidden['path']}{by} is found before {hidden['hides']}{of}"


def hides_ours(program: Hidden, our_folders: Sequence[str]) -> bool:
    """Return whether a program of somebody's image is found before one that our image has.

    A package that is added to our own folders may bring a program that another one has, too: cmake's wheel, say.
    """
    if os.path.dirname(program["hides"]) not in our_folders:  # noqa: PTH120
        return False
    stands_outside = os.path.dirname(program["path"]) not in our_folders  # noqa: PTH120
    return stands_outside or program["owner"] == _OF_NOBODY


def find_path_faults(expect: Expected, path: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the PATH itself: somebody's image may add folders, in front, too."""
    if list(path) == expect["path"]:
        return
    relative = [folder for folder in path if not folder.startswith("/")]
    if relative:
        yield f"the PATH has {relative[0]!r}: what runs depends on the folder to start it in"

    whole = ":".join(path)
    if expect["image_kind"] == ImageKind.OURS:
        strange = [folder for folder in path if folder not in expect["path"]]
        yield f"the PATH is {whole}; {listed(strange) or 'the order of its folders'} is not as expected"
    elif [folder for folder in path if folder in expect["path"]] != expect["path"]:
        yield f"the PATH is {whole}: folders of ours are missing or in another order"


CLAIMS = {"lookup": judge}
