"""S10: a file of unknown origin can replace what users call: each file of the image has an owner, or is excused.

Root walks the image's own file system. A file is explained by a Debian package, by the RECORD of a distribution (S10
wheels holds that to the wheel), by a wheel of the toolkit, by what our build steps write, or by a rule of the claim.
What is explained by content is hashed.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from validate.binaries.elf import ElfError
from validate.binaries.loader import SearchPath, machine_named
from validate.claims import Claim
from validate.environment import debian, installed, user_environment, wheel_contents
from validate.harness.forked import on_all_cores
from validate.judging import Finding, conclude, matches

RUN_AS = "root"


class Toolkit(TypedDict):
    home: str
    files: str
    """Long tags of paths below `home`, and of licences."""


class OwnersExpect(TypedDict):
    toolkit: Toolkit
    steps: dict[str, str]
    """Path -> sha256, of what our build steps write."""
    copies: dict[str, str]
    """Path -> the file of a package that it is a copy of."""
    links: dict[str, str]
    """Pattern -> why links to other files stand there that no package lists."""
    generated: dict[str, str]
    """Pattern -> why files stand there that nobody lists."""
    path: list[str]
    """Folders of the PATH, in their order."""
    plugins: dict[str, str]
    """Pattern of a file's name, or of a path -> who loads it if it is there."""
    free: bool
    """It is a child: files of its own may lie there."""
    privileged: dict[str, str]
    """Path -> mode, of programs that Debian brings with more rights than their caller's."""


class AlteredFile(TypedDict):
    path: str
    owner: str


class Privileged(TypedDict):
    path: str
    mode: str
    capabilities: bool


class OwnersEvidence(TypedDict):
    files: int
    unowned: list[str]
    unowned_count: int
    excused: dict[str, int]
    altered: list[AlteredFile]
    altered_count: int
    path: list[str]
    in_front: list[str]
    """Programs of no owner that are found before another of their name."""
    loadable: list[str]
    """Libraries of no owner where the loader looks."""
    plugins: dict[str, str]
    """Files of no owner that something loads if they are there -> who does."""
    privileged: list[Privileged]
    writable: list[str]
    """What every user may change."""
    authorities: int
    """Certificates that are trusted and in no package."""
    accounts: list[str]


_NEVER = ("/proc", "/sys", "/dev", "/judge")
_OF_ENGINE = frozenset(
    {"/.dockerenv", "/run/.containerenv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab"}
)
"""What an engine puts into each container."""
_LED_TO = ("/etc/ssl/certs/ca-certificates.crt",)
"""Generated, and led to by a link of openssl's package: S10 privileges reads what it holds."""
_MOST_LISTED = 60
_READ_BYTES = 1 << 20
_FILES_A_TASK = 400
_BYTECODE = re.compile(r"(?P<folder>.*)/__pycache__/(?P<name>[^/]+)\.[a-z]+-\d+(\.opt-\w+)?\.pyc")
_VENV_LINKS = {"bin/python": "python3", "bin/python3": "/usr/bin/python3", "lib64": "lib"}
_VENV_SETTINGS = (b"home = /usr/bin", b"include-system-site-packages = false")
_SPECIAL = stat.S_ISUID | stat.S_ISGID


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, OwnersEvidence]]:
    expect = cast(OwnersExpect, next(claim.expect for claim in claims))
    evidence = look(expect)
    for claim in claims:
        yield claim.subject, evidence


def look(expect: OwnersExpect) -> OwnersEvidence:
    """Everything that is asked of the image's files."""
    given = user_environment.recorded()
    start = user_environment.start(given)
    environment = os.path.realpath(start.prefix)
    distributions = installed.distributions([entry or given.directory for entry in start.path])
    packages, found = debian.owned(), {**dict(_walk("/")), **dict.fromkeys(given.hidden, os.lstat(__file__))}
    listed = {debian.real(entry.path) for one in distributions for entry in one.entries or ()}
    # A RECORD may list any path: what lies outside the environment is explained by others.
    listed = {path for path in listed if path.startswith(f"{environment}/")}
    places = {path: facts for path, facts in found.items() if not stat.S_ISDIR(facts.st_mode)}
    altered, explained = _of_debian(packages, places)
    explained |= listed & places.keys()
    explained |= {path for path in places if _is_bytecode_of(path, explained)}
    by_content: list[tuple[set[str], list[AlteredFile]]] = [
        _of_toolkit(expect, places, explained),
        _of_steps(expect, places),
        _of_venv(environment, start.version, places),
        _copies(expect, places),
    ]
    for more, wrong in by_content:
        explained |= more
        altered += wrong
    altered += _redirected(packages, places, explained)
    links = {path for path, facts in places.items() if stat.S_ISLNK(facts.st_mode)}
    explained |= {path for path in links - explained if _is_link_of(path, expect, explained)}
    excused, unowned = _excused(sorted(places.keys() - explained - _OF_ENGINE), expect["generated"])
    first = [path for path in unowned if _is_executable(places[path])]
    return {
        "files": len(places),
        "unowned": unowned[:_MOST_LISTED],
        "unowned_count": len(unowned),
        "excused": excused,
        "altered": altered[:_MOST_LISTED],
        "altered_count": len(altered),
        "path": given.environ.get("PATH", "").split(":"),
        "in_front": list(_in_front(first, given.environ.get("PATH", ""))),
        "loadable": list(_loadable(unowned, given)),
        "plugins": _plugins(unowned, expect["plugins"]),
        "privileged": list(_privileged(found)),
        "writable": [path for path, facts in found.items() if not path.startswith("/tmp/") and _is_writable(facts)][
            :_MOST_LISTED
        ],
        "authorities": debian.unknown_authorities(),
        "accounts": debian.accounts(),
    }


# ---- the files


def _walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every path below `top`, folders too: those of declared volumes, and no single file that an engine mounts."""
    root = os.lstat(top).st_dev
    folders = [(top, root)]
    while folders:
        folder, device = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            path = f"{'' if folder == '/' else folder}/{entry.name}"
            if path in _NEVER:
                continue
            facts = entry.stat(follow_symlinks=False)
            is_folder = stat.S_ISDIR(facts.st_mode)
            if not is_folder and facts.st_dev not in (root, device):
                continue
            yield path, facts
            if is_folder:
                folders.append((path, facts.st_dev))


def _is_executable(facts: os.stat_result) -> bool:
    return stat.S_ISLNK(facts.st_mode) or (stat.S_ISREG(facts.st_mode) and bool(facts.st_mode & 0o111))


def _is_writable(facts: os.stat_result) -> bool:
    """Whether every user may change it; folders with the sticky bit are for everybody on purpose."""
    if stat.S_ISLNK(facts.st_mode) or not facts.st_mode & stat.S_IWOTH:
        return False
    return not (stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX)


def _is_bytecode_of(path: str, explained: set[str]) -> bool:
    """Whether it is bytecode of a source that is explained; C12 holds it to that source."""
    found = _BYTECODE.fullmatch(path)
    return bool(found) and f"{found['folder']}/{found['name']}.py" in explained if found else False


def _excused(paths: Sequence[str], generated: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    """Pattern -> how many of the paths it has, and the rest."""
    patterns = {pattern: re.compile(fnmatch.translate(pattern)) for pattern in generated}
    counts: dict[str, int] = {}
    rest = []
    for path in paths:
        pattern = next((text for text, match in patterns.items() if match.match(path)), None)
        if pattern is None:
            rest.append(path)
        else:
            counts[pattern] = counts.get(pattern, 0) + 1
    return counts, rest


# ---- by content


def _of_debian(packages: debian.Owned, places: Mapping[str, os.stat_result]) -> tuple[list[AlteredFile], set[str]]:
    """What packages have, and what of it is not as they have it: a link in place of a file, too."""
    owned = packages.packages.keys() & places.keys()
    hashed = owned & packages.md5.keys()
    found = hashes([path for path in hashed if stat.S_ISREG(places[path].st_mode)], "md5")
    return [_altered(packages, path) for path in sorted(hashed) if found.get(path) != packages.md5[path]], owned


def _altered(packages: debian.Owned, path: str) -> AlteredFile:
    return {"path": path, "owner": f"Debian's {packages.packages[path]}"}


def _redirected(
    packages: debian.Owned, places: Mapping[str, os.stat_result], explained: set[str]
) -> Iterator[AlteredFile]:
    """Links of Debian's packages that lead to a file of no owner. dpkg does not record where a link leads."""
    for path in sorted(packages.packages.keys() & places.keys() - packages.md5.keys()):
        if stat.S_ISLNK(places[path].st_mode):
            target = os.path.realpath(path)
            if target in places and target not in explained and target not in _LED_TO:
                yield _altered(packages, path)


def _of_toolkit(
    expect: OwnersExpect, places: Mapping[str, os.stat_result], explained: set[str]
) -> tuple[set[str], list[AlteredFile]]:
    """Files below the toolkit's folder that its wheels brought, and links to those or to files that have an owner."""
    home = expect["toolkit"]["home"]
    inside = [path for path in places if path.startswith(f"{home}/")]
    known = wheel_contents.knows(expect["toolkit"]["files"])
    regular = [path for path in inside if stat.S_ISREG(places[path].st_mode)]
    found = {path: _as_record(digest) for path, digest in hashes(regular, "sha256").items()}
    ours = {path for path in regular if known(_toolkit_path(path, home), found[path])}
    known_files = ours | explained
    return ours | {path for path in inside if _leads_to(path, places, known_files)}, []


def _toolkit_path(path: str, home: str) -> str:
    inside = path[len(home) + 1 :]
    return "licenses" if inside.startswith("licenses/") else inside


def _leads_to(path: str, places: Mapping[str, os.stat_result], known: set[str]) -> bool:
    """Whether it is a link to a known file, or to a folder that holds some."""
    if not stat.S_ISLNK(places[path].st_mode):
        return False
    target = os.path.realpath(path)
    return target in known or (Path(target).is_dir() and any(one.startswith(f"{target}/") for one in known))


def _of_steps(expect: OwnersExpect, places: Mapping[str, os.stat_result]) -> tuple[set[str], list[AlteredFile]]:
    """What our build steps write: their content is known."""
    there = [path for path in expect["steps"] if path in places and stat.S_ISREG(places[path].st_mode)]
    found = hashes(there, "sha256")
    wrong: list[AlteredFile] = [
        {"path": path, "owner": "our build step"} for path in there if found[path] != expect["steps"][path]
    ]
    return set(there), wrong


def _of_venv(
    environment: str, version: str, places: Mapping[str, os.stat_result]
) -> tuple[set[str], list[AlteredFile]]:
    """What `python3 -m venv` writes, made again of the system's own templates (venv, `install_scripts`)."""
    ours, wrong = set[str](), list[AlteredFile]()
    name = Path(environment).name
    values = {"DIR": environment, "NAME": name, "PROMPT": f"({name}) ", "BIN_NAME": "bin"}
    values["PYTHON"] = f"{environment}/bin/python3"
    for template in sorted(Path(f"/usr/lib/python{version}/venv/scripts").glob("*/*")):
        path = f"{environment}/bin/{template.name}"
        if path not in places:
            continue
        ours.add(path)
        # Templates before 3.11.11, 3.12.8 and 3.13.1 hold the quotes; values are quoted for later ones (gh-124651).
        filled = []
        for quoted in (str, shlex.quote):
            text = template.read_bytes().decode()
            for key, value in values.items():
                text = text.replace(f"__VENV_{key}__", quoted(value))
            filled.append(text.encode())
        wrong += [] if _content(path) in filled else [{"path": path, "owner": "venv"}]
    for link, target in {**_VENV_LINKS, f"bin/python{version}": "python3"}.items():
        path = f"{environment}/{link}"
        if path in places and stat.S_ISLNK(places[path].st_mode):
            ours.add(path)
            wrong += [{"path": path, "owner": "venv"}] if str(Path(path).readlink()) != target else []
    settings = f"{environment}/pyvenv.cfg"
    if settings in places:
        ours.add(settings)
        lines = _content(settings).splitlines()
        wrong += [] if all(line in lines for line in _VENV_SETTINGS) else [{"path": settings, "owner": "venv"}]
    return ours, wrong


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _copies(expect: OwnersExpect, places: Mapping[str, os.stat_result]) -> tuple[set[str], list[AlteredFile]]:
    """Files that a package's installation copies from one of its own."""
    ours, wrong = set[str](), list[AlteredFile]()
    for path, source in expect["copies"].items():
        if path in places:
            ours.add(path)
            if _content(path) != _content(source):
                wrong.append({"path": path, "owner": source})
    return ours, wrong


def _is_link_of(path: str, expect: OwnersExpect, explained: set[str]) -> bool:
    """Whether a link that nobody lists stands where such links are made, and leads to a file that is explained."""
    if not matches(path, expect["links"]):
        return False
    target = os.path.realpath(path)
    return target in explained or not Path(target).exists() or Path(target).is_dir()


# ---- what is found first


def _in_front(executable: Sequence[str], path: str) -> Iterator[str]:
    """Programs of no owner that stand in a folder of the PATH before one of the same name."""
    folders = [os.path.realpath(folder) for folder in path.split(":") if folder]
    for file in executable:
        folder, _, name = file.rpartition("/")
        if folder in folders:
            later = folders[folders.index(folder) + 1 :]
            if any(Path(one, name).exists() for one in later if one != folder):
                yield file


def _loadable(unowned: Sequence[str], given: user_environment.UserEnvironment) -> Iterator[str]:
    """Libraries of no owner in folders that the loader searches."""
    machine = machine_named(given.machine)
    try:
        search = SearchPath.of(given.environ, given.directory, machine)
    except ElfError:
        search = SearchPath(defaults=machine.folders)
    folders = {os.path.realpath(folder) for folder in (*search.library_path, *search.defaults, *_configured())}
    cached = {os.path.realpath(path) for paths in search.cache.values() for path in paths}
    for path in unowned:
        folder, _, name = path.rpartition("/")
        if ".so" in name and (folder in folders or os.path.realpath(path) in cached):
            yield path


def _plugins(unowned: Sequence[str], patterns: Mapping[str, str]) -> dict[str, str]:
    """Path -> who loads a file of no owner if it is there."""
    found = {}
    for path in unowned:
        name = path.rpartition("/")[2]
        fitting = [one for one in patterns if fnmatch.fnmatchcase(path if "/" in one else name, one)]
        if fitting:
            found[path] = patterns[max(fitting, key=len)]
    return found


def _configured() -> Iterator[str]:
    """Folders of /etc/ld.so.conf.d, whether ldconfig has run since or not."""
    for file in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        yield from (line.strip() for line in file.read_text(errors="replace").splitlines() if line.startswith("/"))


# ---- what has rights


def _privileged(found: Mapping[str, os.stat_result]) -> Iterator[Privileged]:
    for path, facts in found.items():
        if not stat.S_ISREG(facts.st_mode):
            continue
        capable = _has_capabilities(path)
        if facts.st_mode & _SPECIAL or capable:
            yield {"path": path, "mode": f"{stat.S_IMODE(facts.st_mode):o}", "capabilities": capable}


def _has_capabilities(path: str) -> bool:
    try:
        return bool(os.getxattr(path, "security.capability", follow_symlinks=False))
    except OSError:
        return False


# ---- hashing


def hashes(paths: Sequence[str], kind: str) -> dict[str, str]:
    """Path -> hexadecimal hash; empty where a file can't be read. By as many processes as there are cores."""
    tasks = [(kind, paths[start : start + _FILES_A_TASK]) for start in range(0, len(paths), _FILES_A_TASK)]
    results: dict[str, str] = {}
    for part in on_all_cores(_hash_some, tasks):
        results.update(part)
    return results


def _hash_some(task: tuple[str, Sequence[str]]) -> dict[str, str]:
    kind, paths = task
    make: Callable[[], hashlib._Hash] = lambda: hashlib.new(kind, usedforsecurity=False)  # noqa: E731
    results = {}
    for path in paths:
        digest = make()
        try:
            with open(path, "rb", buffering=0) as stream:  # noqa: PTH123  thousands of times
                while chunk := stream.read(_READ_BYTES):
                    digest.update(chunk)
            results[path] = digest.hexdigest()
        except OSError:
            results[path] = ""
    return results


def _as_record(digest: str) -> str:
    """RECORD's form of a hexadecimal hash."""
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()


def judge_files(_subject: str, expect: OwnersExpect, evidence: OwnersEvidence) -> Finding:
    """S10 files. A child may have files of its own; none may change what its parent has."""
    faults = [f"{one['path']} is not as {one['owner']} has it" for one in evidence["altered"]]
    if hidden := evidence["altered_count"] - len(evidence["altered"]):
        faults.append(f"{hidden} more files are not as their owners have them")
    if not expect["free"]:
        faults += [f"{path} belongs to nobody" for path in evidence["unowned"]]
        if hidden := evidence["unowned_count"] - len(evidence["unowned"]):
            faults.append(f"{hidden} more files belong to nobody")
    generated = sum(evidence["excused"].values())
    return conclude(faults, f"{evidence['files']} files have owners, {generated} of them are generated")


def judge_lookup(_subject: str, expect: OwnersExpect, evidence: OwnersEvidence) -> Finding:
    """S10 lookup."""
    faults = [*_path(expect, evidence["path"])]
    faults += [f"{path} is found before the image's own" for path in evidence["in_front"]]
    faults += [f"{path} is loaded by {who} if it is there" for path, who in evidence["plugins"].items()]
    faults += [
        f"{path} stands where the loader looks, and belongs to nobody"
        for path in evidence["loadable"]
        if path not in evidence["plugins"]
    ]
    return conclude(faults, f"{len(expect['path'])} folders on the PATH, and nothing of unknown owner is found first")


def _path(expect: OwnersExpect, found: Sequence[str]) -> Iterator[str]:
    if list(found) == expect["path"]:
        return
    before = [folder for folder in found if folder not in expect["path"]]
    if not expect["free"]:
        yield f"the PATH is {':'.join(found)}; {', '.join(before) or 'the order of its folders'} is not as expected"
    elif [folder for folder in found if folder in expect["path"]] != expect["path"]:
        yield f"the PATH is {':'.join(found)}: folders of the parent's are missing or in another order"


def judge_privileges(_subject: str, expect: OwnersExpect, evidence: OwnersEvidence) -> Finding:
    """S10 privileges."""
    faults = [
        f"{one['path']} has mode {one['mode']}{' and capabilities' if one['capabilities'] else ''}: "
        "it runs with more rights than its caller's, and Debian does not bring it so"
        for one in evidence["privileged"]
        if one["capabilities"] or not _is_brought(one["path"], one["mode"], expect["privileged"])
    ]
    faults += [f"every user may change {path}" for path in evidence["writable"]]
    faults += [f"{account}" for account in evidence["accounts"]]
    if evidence["authorities"]:
        faults.append(f"{evidence['authorities']} certificate authorities are trusted that Debian does not bring")
    return conclude(faults, f"{len(evidence['privileged'])} programs run with more rights, all as Debian brings them")


def _is_brought(path: str, mode: str, privileged: Mapping[str, str]) -> bool:
    return privileged.get(path) == mode


CLAIMS = {"S10 files": judge_files, "S10 lookup": judge_lookup, "S10 privileges": judge_privileges}
