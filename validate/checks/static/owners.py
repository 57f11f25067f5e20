"""origin: a file of unknown origin can replace what users call: each file of the image has an owner, or is excused.

Root walks the image's own file system. A file is explained by a Debian package, by the RECORD of a distribution
(`origin` wheels holds that to the wheel), by a wheel of the toolkit, by what our build steps write, or by a rule of
the claim. What is explained by content is hashed."""

import ast
import contextlib
import fnmatch
import os
import re
import shlex
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from validate.binaries.elf import ElfError
from validate.binaries.loader import Files, SearchPath, machine_named
from validate.checks import RunAs, Settings
from validate.checks.static.files import as_record, hashes
from validate.checks.static.toolkit import configured
from validate.claims import Claim
from validate.environment import debian, installed, rights, user_environment, wheel_contents
from validate.environment.patterns import first_of
from validate.judging import Finding, conclude, cut, matches

_NEVER = ("/proc", "/sys", "/dev", "/judge")
_Found = Iterator[tuple[str, str]]
"""A path that is explained by its content, and its owner where the content is another; empty: it is as it should be."""
_OF_ENGINE = frozenset(
    {"/.dockerenv", "/run/.containerenv", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab"}
)
"""What an engine puts into each container."""
_LED_TO = ("/etc/ssl/certs/ca-certificates.crt", "/etc/environment")
"""Generated, and led to by links of openssl's and systemd's packages: origin/privileges and `environment` read what
they hold."""
_MOST_LISTED = 60
_BYTECODE = re.compile(r"(?P<folder>.*)/__pycache__/(?P<name>[^/]+)\.[a-z]+-\d+(\.opt-\w+)?\.pyc")
_VENV_LINKS = {"bin/python": "python3", "bin/python3": "/usr/bin/python3", "lib64": "lib"}
_VENV_SETTINGS = (b"home = /usr/bin", b"include-system-site-packages = false")
_VENV_KEYS = [line.partition(b" ")[0] for line in _VENV_SETTINGS]
_VENV_SCRIPTS = "/usr/lib/python{}/venv/scripts"
_VENV_IGNORED = b"# Created by venv; see https://docs.python.org/3/library/venv.html\n*\n"
"""Since 3.13."""
_OF_NVIDIA = re.compile(r".*/site-packages/nvidia/[^/]+/(include|lib)")
_PLAIN = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_SPECIAL = stat.S_ISUID | stat.S_ISGID
_SHARED = ("/workspace", "/home/trainer", "/home/trainer/.cache")
"""What our build step makes for everybody (templates/scripts/user.sh)."""
_SECRET = re.compile(r"/etc/(g?shadow-?|\.pwd\.lock|security/opasswd)")
"""What installations write for root alone to read."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, dict[str, Any]]]:
    expect = claims[0].expect
    given, start, distributions = installed.of_user()
    environment = os.path.realpath(start.prefix)
    packages = debian.owned()
    found = {**walked()[0], **dict.fromkeys(given.hidden, os.lstat(__file__))}
    entries = [entry for one in distributions for entry in one.entries or () if wheel_contents.explains(entry)]
    # A RECORD may list any path: what lies outside the environment is explained by others.
    listed = {path for entry in entries if (path := debian.real(entry.path)).startswith(f"{environment}/")}
    places = {path: facts for path, facts in found.items() if not stat.S_ISDIR(facts.st_mode)}
    altered, explained = _of_debian(packages, places)
    explained |= listed & places.keys()
    explained |= set(map(debian.real, debian.kept_of_packages())) & places.keys()
    bytecode = {path: source for path in places if (source := source_of(path)) in explained}
    explained |= bytecode.keys()
    if not expect["free"]:
        homes = (f"/usr/lib/python{start.version}/", f"{environment}/lib/")  # programs are never compiled
        bytecode.update(_lacking(explained, homes, places, start.version))
    by_content = [
        *_of_toolkit(expect["toolkit"], places, explained),
        *_of_steps(expect["steps"], places),
        *_of_venv(environment, start.version, places),
        *_of_alternatives(places, any_choice=expect["free"]),
        # What a package's installation copies from a file of its own; an image may go without the list of info pages.
        *(
            (path, "" if _content(path) == _content(source) else source)
            for path, source in expect["copies"].items()
            if path in places or not path.startswith("/usr/share/")
        ),
    ]
    explained |= {path for path, _ in by_content if path in places}
    altered += [(path, owner) for path, owner in by_content if owner]
    altered += _redirected(packages, places, explained)
    links = {path for path, facts in places.items() if stat.S_ISLNK(facts.st_mode)}
    explained |= {path for path in links - explained if _is_link_of(path, expect["links"], explained)}
    kept = rights.guarded(explained)
    rest = places.keys() - explained - _OF_ENGINE
    links = {path for path in rest & links if not path.startswith(f"{expect['toolkit']['home']}/")}
    filled = {path for path in rest - links if path.startswith("/tmp/") and places[path].st_size}
    excused, unowned = _excused(sorted(rest - links - filled), expect["generated"])
    unowned = sorted([*unowned, *links, *filled])
    folders = found.keys() - places.keys() - kept - packages.packages.keys() - rights.guarded(rest)
    special = (path for path, facts in found.items() if stat.S_IFMT(facts.st_mode) not in _PLAIN)
    of_nobody = [*(f"{path} (a device, pipe or socket)" for path in special), *unowned]
    of_nobody += [f"{path}/" for path in sorted(folders) if not _is_made(path, expect)]
    # What installations write (accounts, lists of servers, dpkg's database) is theirs to write, and no user's.
    written = {path for path in rest - set(unowned) if path.startswith(("/etc/", "/var/lib/"))}
    kept |= written if expect["free"] else {*written, *packages.packages, *(found.keys() - places.keys())}
    used = rights.guarded({path for path in explained - packages.packages.keys() if not path.startswith("/root/")})
    used |= {path for path in written if path.startswith("/etc/") and not _SECRET.fullmatch(path)}
    if not expect["free"]:  # of a child, origin/parent compares modes, and packages that it adds may have private ones
        packaged = (path for path in packages.packages if path in found and stat.S_ISDIR(found[path].st_mode))
        used |= {path for path in packaged if path.startswith(("/usr/", "/etc/")) and not path.endswith("/private")}
    shared = rights.OPEN if expect["free"] else (*rights.OPEN, *_SHARED)
    loose = dict(rights.loose(found, kept, used, shared, 0 if expect["free"] else expect["made"]))
    void = sorted(rights.void(bytecode, found))
    writable = [path for path, facts in found.items() if not path.startswith("/tmp/") and _is_writable(facts)]
    authorities, distrusted = debian.authorities(packages)
    evidence = {
        "files": len(places),
        "unowned": of_nobody[:_MOST_LISTED],
        "unowned_count": len(of_nobody),
        "excused": excused,
        "altered": [{"path": path, "owner": owner} for path, owner in altered[:_MOST_LISTED]],
        "altered_count": len(altered),
        "path": given.environ.get("PATH", "").split(":"),
        "in_front": list(_in_front(sorted(rest if expect["free"] else places), places, given)),
        "loadable": list(_loadable(unowned, given)),
        "plugins": _plugins(unowned, expect["plugins"]),
        "privileged": list(_privileged(found, packages)),
        "writable": writable[:_MOST_LISTED],
        "loose": dict(sorted(loose.items())[:_MOST_LISTED]),
        "loose_count": len(loose),
        "void": void[:_MOST_LISTED],
        "void_count": len(void),
        "of_cache": list(_of_cache(given)),
        "authorities": authorities,
        "distrusted": distrusted,
        "accounts": debian.accounts(),
    }
    for claim in claims:
        yield claim.subject, evidence


@cache
def walked() -> tuple[Mapping[str, os.stat_result], Sequence[str]]:
    """Every path of the image, and its folders that can't be listed."""
    unreadable: list[str] = []
    return dict(walk("/", unreadable)), unreadable


SETTINGS = Settings(reads_files_only=True, run_as=RunAs.ROOT, shared_reads=(debian.owned, walked))


def walk(top: str, unreadable: list[str] | None = None) -> Iterator[tuple[str, os.stat_result]]:
    """Every path below `top`, folders too: those of declared volumes, and no single file that an engine mounts.

    `unreadable` gets the folders of the image itself that can't be listed.
    """
    root = os.lstat(top).st_dev
    folders = [(top, root)]
    while folders:
        folder, device = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            if unreadable is not None and device == root:
                unreadable.append(folder)
            continue
        for entry in entries:
            path = f"{'' if folder == '/' else folder}/{entry.name}"
            if path in _NEVER:
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:  # it went while its folder was read
                continue
            is_folder = stat.S_ISDIR(facts.st_mode)
            if not is_folder and facts.st_dev not in (root, device):
                continue
            yield path, facts
            if is_folder:
                folders.append((path, facts.st_dev))


def _is_writable(facts: os.stat_result) -> bool:
    """Whether every user may change it; folders with the sticky bit are for everybody on purpose."""
    if stat.S_ISLNK(facts.st_mode) or not facts.st_mode & stat.S_IWOTH:
        return False
    return not (stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX)


def source_of(path: str) -> str:
    """The source that a file is the bytecode of, by its name; `bytecode` holds it to that source."""
    found = _BYTECODE.fullmatch(path)
    return f"{found['folder']}/{found['name']}.py" if found else ""


def _is_made(path: str, expect: Mapping[str, Any]) -> bool:
    """Whether a folder without a file of a known owner is one that installations make.

    auditwheel gives each wheel that it repairs a NAME.libs, empty where no library is needed. No module is called so.
    """
    made = path.endswith("/__pycache__") or re.search(r"/site-packages/\w+\.libs$", path)
    return bool(made) or matches(path, (*expect["generated"], *expect["folders"]))


def _excused(paths: Sequence[str], generated: Mapping[str, str]) -> tuple[dict[str, int], list[str]]:
    """Pattern -> how many of the paths it has, and the rest."""
    pattern_of = first_of(generated)
    counts: dict[str, int] = {}
    rest = []
    for path in paths:
        pattern = pattern_of(path)
        if pattern is None:
            rest.append(path)
        else:
            counts[pattern] = counts.get(pattern, 0) + 1
    return counts, rest


def _lacking(
    paths: Iterable[str], homes: tuple[str, ...], places: Mapping[str, os.stat_result], version: str
) -> Iterator[tuple[str, str]]:
    """Bytecode that Debian's packages and templates/scripts/install.sh make and that is not there, and its source."""
    for source in (path for path in paths if path.endswith(".py") and path.startswith(homes)):
        folder, _, name = source.rpartition("/")
        path = f"{folder}/__pycache__/{name[:-3]}.cpython-{version.replace('.', '')}.pyc"
        if path in places or not name[:-3].isidentifier() or "/test/" in source or "/tests/" in source:
            continue
        with contextlib.suppress(SyntaxError, ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read = ast.parse(_content(source), feature_version=(3, int(version.partition(".")[2])))  # not a later one's
            compile(read, source, "exec", dont_inherit=True)
            yield path, source


def _of_debian(packages: debian.Owned, places: Mapping[str, os.stat_result]) -> tuple[list[tuple[str, str]], set[str]]:
    """What of the packages is not as they have it, a link in place of a file, too, and its owner; what they have."""
    owned = packages.packages.keys() & places.keys()
    hashed = owned & packages.md5.keys()
    found = hashes([path for path in hashed if stat.S_ISREG(places[path].st_mode)], "md5")
    wrong = [path for path in sorted(hashed) if found.get(path) != packages.md5[path]]
    return [(path, f"Debian's {packages.packages[path]}") for path in wrong], owned


def _redirected(packages: debian.Owned, places: Mapping[str, os.stat_result], explained: set[str]) -> _Found:
    """Links of Debian's packages that lead to a file of no owner. dpkg does not record where a link leads."""
    for path in sorted(packages.packages.keys() & places.keys() - packages.md5.keys()):
        if stat.S_ISLNK(places[path].st_mode):
            target = os.path.realpath(path)
            if target in places and target not in explained and target not in _LED_TO:
                yield path, f"Debian's {packages.packages[path]}"


def _of_toolkit(toolkit: Mapping[str, Any], places: Mapping[str, os.stat_result], explained: set[str]) -> _Found:
    """Files below the toolkit's folder that its wheels brought, all of them, and links that build steps make."""
    inside = {path[len(toolkit["home"]) + 1 :]: path for path in places if path.startswith(f"{toolkit['home']}/")}
    known = wheel_contents.knows(toolkit["files"])
    found = hashes([path for path in inside.values() if stat.S_ISREG(places[path].st_mode)], "sha256")
    ours = set[str]()
    for name, path in inside.items():
        named = "licenses" if name.startswith("licenses/") else name
        if path in found and known(named, as_record(found[path])):
            ours.add(path)
    owned, due = ours | explained, {f"{toolkit['home']}/{name}" for name in toolkit["paths"]}
    yield from ((path, "the toolkit's wheel") for path in sorted(due - ours))
    libraries = (f"{name.partition('.so.')[0]}.so" for name in inside if name.startswith("lib64/") and ".so." in name)
    links = {*libraries, "lib", "nvvm/lib64/libnvvm.so"} if toolkit["paths"] else set[str]()
    yield from ((f"{toolkit['home']}/{name}", "our build step") for name in sorted(links - inside.keys()))
    yield from ((path, "") for path in inside.values() if path in ours or _leads_to(path, places, owned))


def _leads_to(path: str, places: Mapping[str, os.stat_result], known: set[str]) -> bool:
    """Whether it is a link as templates/scripts/toolkit.sh and devel.sh make them, to a longer name beside it or to
    what a wheel of NVIDIA has of its name, which leads to a known file, or to a folder that holds some."""
    if not stat.S_ISLNK(places[path].st_mode):
        return False
    (folder, _, name), own = os.readlink(path).rpartition("/"), path.rpartition("/")[2]  # noqa: PTH115
    beside = folder in ("", "../../lib64") and name.startswith(own)
    if not beside and not (name == own and _OF_NVIDIA.fullmatch(folder)):
        return False
    target = os.path.realpath(path)
    return target in known or (Path(target).is_dir() and any(one.startswith(f"{target}/") for one in known))


def _of_steps(steps: Mapping[str, str], places: Mapping[str, os.stat_result]) -> _Found:
    """What our build steps write: their content is known."""
    found = hashes([path for path in steps if path in places and stat.S_ISREG(places[path].st_mode)], "sha256")
    yield from ((path, "" if found.get(path) == digest else "our build step") for path, digest in steps.items())


def _of_alternatives(places: Mapping[str, os.stat_result], *, any_choice: bool) -> _Found:
    """Links of update-alternatives, and its own note of each. `any_choice`: a person may have chosen others."""
    for path, to in debian.alternatives().items():
        yield path.replace("/etc/", f"{debian.DATABASE}/", 1), ""
        leads = os.readlink(path) if os.path.islink(path) else ""  # noqa: PTH114, PTH115  as it is written
        if leads == to or (debian.real(to) in places and not any_choice):
            yield path, "" if leads == to else "update-alternatives"


def _of_venv(environment: str, version: str, places: Mapping[str, os.stat_result]) -> _Found:
    """What `python3 -m venv` writes, made again of the system's own templates (venv, `install_scripts`)."""
    name = Path(environment).name
    values = {"DIR": environment, "NAME": name, "BIN_NAME": "bin", "PYTHON": f"{environment}/bin/python3"}
    for template in sorted(Path(_VENV_SCRIPTS.format(version)).glob("*/*")):
        path = f"{environment}/bin/{template.name}"
        # Templates before 3.11.11, 3.12.8 and 3.13.1 hold the quotes; values are quoted for later ones (gh-124651).
        # Those of 3.13 hold the parentheses of the prompt.
        filled = []
        for quoted in (str, shlex.quote):
            for prompt in (f"({name}) ", name):
                text = template.read_bytes().decode()
                for key, value in {**values, "PROMPT": prompt}.items():
                    text = text.replace(f"__VENV_{key}__", quoted(value))
                filled.append(text.encode())
        yield path, "" if _content(path) in filled else "venv"
    for link, target in {**_VENV_LINKS, f"bin/python{version}": "python3"}.items():
        path = f"{environment}/{link}"
        is_link = path in places and stat.S_ISLNK(places[path].st_mode)
        yield path, "" if is_link and str(Path(path).readlink()) == target else "venv"
    settings = f"{environment}/pyvenv.cfg"
    content = _content(settings)
    # site.py takes the last of several, getpath.py the first.
    said = [line for line in content.splitlines() if line.partition(b"=")[0].strip().lower() in _VENV_KEYS]
    # They read text: in that, other letters and spaces may make a key.
    plain = content.isascii() and content.replace(b"\n", b"").decode().isprintable()
    yield settings, "" if plain and said == [*_VENV_SETTINGS] else "venv"
    if ignored := _content(f"{environment}/.gitignore"):
        yield f"{environment}/.gitignore", "" if ignored == _VENV_IGNORED else "venv"


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _is_link_of(path: str, allowed: Mapping[str, str], explained: set[str]) -> bool:
    """Whether a link that nobody lists stands where such are made, and leads as its row says, or to a known file."""
    leads = os.readlink(path)  # noqa: PTH115  as it is written
    pattern = next((one for one in allowed if fnmatch.fnmatchcase(path, one)), None)
    if pattern is None:
        return False
    to, arrow, _ = allowed[pattern].partition(" <- ")
    target = os.path.realpath(path)
    return leads == to or (target in explained and (not arrow or fnmatch.fnmatchcase(target, to)))


def _in_front(
    files: Sequence[str], places: Mapping[str, os.stat_result], given: user_environment.UserEnvironment
) -> Iterator[str]:
    """Programs of these that stand in a folder of the PATH before another of the same name."""
    folders = [os.path.realpath(folder) for folder in given.environ.get("PATH", "").split(":") if folder]
    for file in files:
        (folder, _, name), mode = file.rpartition("/"), places[file].st_mode
        if folder in folders and (stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and mode & 0o111)):
            later = folders[folders.index(folder) + 1 :]
            found = os.path.realpath(file)
            if any(Path(one, name).exists() and os.path.realpath(f"{one}/{name}") != found for one in later):
                yield file


def _loadable(unowned: Sequence[str], given: user_environment.UserEnvironment) -> Iterator[str]:
    """Libraries of no owner in folders that the loader searches."""
    machine = machine_named(given.machine)
    try:
        search = SearchPath.of(given.environ, given.directory, machine)
    except ElfError:
        search = SearchPath(defaults=machine.folders)
    # Those that ldconfig is told of, whether it has run since or not.
    told = [folder for folder, _ in configured("/etc/ld.so.conf")]
    folders = {os.path.realpath(folder) for folder in (*search.library_path, *search.defaults, *told)}
    cached = {os.path.realpath(path) for paths in search.cache.values() for path in paths}
    for path in unowned:
        folder, _, name = path.rpartition("/")
        folder = folder.partition("/glibc-hwcaps/")[0]  # of a machine's own libraries, which come first (ld.so(8))
        if ".so" in name and (folder in folders or os.path.realpath(path) in cached):
            yield path


def _of_cache(given: user_environment.UserEnvironment) -> Iterator[str]:
    machine = machine_named(given.machine)
    with contextlib.suppress(ElfError):
        search = SearchPath.of({}, given.directory, machine)
        named = [*machine.folders, *(folder for folder, _ in configured("/etc/ld.so.conf"))]
        folders = {os.path.realpath(folder) for folder in named}
        files = Files(machine)
        for name, path in sorted((name, one) for name, paths in search.cache.items() for one in paths):
            folder = os.path.realpath(os.path.dirname(path))  # noqa: PTH120
            if folder.partition("/glibc-hwcaps/")[0] not in folders:
                yield f"{path}, whose folder no configuration names"
            elif name not in (path.rpartition("/")[2], getattr(files.get(path), "soname", "")):
                yield f"{path} under the name {name}, which is not its own"


def _plugins(unowned: Sequence[str], patterns: Mapping[str, str]) -> dict[str, str]:
    """Path -> who loads a file of no owner if it is there."""
    found = {}
    for path in unowned:
        name = path.rpartition("/")[2]
        fitting = [one for one in patterns if fnmatch.fnmatchcase(path if "/" in one else name, one)]
        if fitting:
            found[path] = patterns[max(fitting, key=len)]
    return found


def _privileged(found: Mapping[str, os.stat_result], packages: debian.Owned) -> Iterator[Mapping[str, Any]]:
    for path, facts in found.items():
        if stat.S_ISREG(facts.st_mode):
            capable = False
            with contextlib.suppress(OSError):  # it has none
                capable = bool(os.getxattr(path, "security.capability", follow_symlinks=False))
            if facts.st_mode & _SPECIAL or capable:
                mode = f"{stat.S_IMODE(facts.st_mode):o}"
                yield {"path": path, "mode": mode, "capabilities": capable, "packaged": path in packages.md5}


def judge_files(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """origin/files. A child may have files of its own (`free`); none may change what its parent has.

    expect of all three: {toolkit: {home, files: long tags of paths below it, and of licences, paths: all that must be
    there}, steps: {path: sha256} of what our build steps write, copies: {path: the file of a package that it copies},
    links: {pattern: why there are links to other files that no package lists, with `TARGET <- ` where it leads to one
    alone}, folders: {pattern: who makes folders without files}, generated: {pattern: why there are files that nobody
    lists}, path: folders of the PATH, plugins: {pattern of a name, or of a path: who loads it if it is there},
    privileged: {path: mode} of programs that Debian brings so, free, and of a child home: that of the image's user, and
    open: what everybody may change}.

    evidence (lists are cut, each with its `_count`): {files, unowned, excused: {pattern: how many}, altered: [{path,
    owner: who has it otherwise}], path, in_front: programs (of a child, those of no owner) found before another
    of their name, loadable: libraries of no owner where the loader looks, plugins: {file of no owner: who loads it},
    privileged: [{path, mode, capabilities, packaged: whether Debian brings it}], writable: what every user may change,
    authorities: certificates that are trusted and in no package, distrusted: the reverse, accounts, loose: {path of a
    known owner: who but root may change it, or why users can't use it}, void: bytecode that is not of its source's time
    or size, of_cache: what of the loader's cache ldconfig would not write}.
    """
    faults = [f"{one['path']} is not as {one['owner']} has it" for one in evidence["altered"]]
    faults += cut(evidence, "altered", "files are not as their owners have them")
    if not expect["free"]:
        faults += [f"{path} belongs to nobody" for path in evidence["unowned"]]
        faults += cut(evidence, "unowned", "files belong to nobody")
    faults += [f"{path} is missing or void: Python compiles that at each start" for path in evidence.get("void", ())]
    faults += cut(evidence, "void", "files of bytecode are not of their sources' time")
    generated = sum(evidence["excused"].values())
    return conclude(faults, f"{evidence['files']} files have owners, {generated} of them are generated")


def judge_lookup(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """origin/lookup."""
    faults = [*_path(expect, evidence["path"])]
    faults += [f"{path} is found before the image's own" for path in evidence["in_front"]]
    for path, who in evidence["plugins"].items():
        # Of what is in the home of a user whom a child made, who starts the image as it is reads none.
        anothers = "home" in expect and path.startswith("/home/") and not path.startswith(f"{expect['home']}/")
        if path in evidence["loadable"] or not anothers:
            faults.append(f"{path} is loaded by {who} if it is there")
    faults += [
        f"{path} stands where the loader looks, and belongs to nobody"
        for path in evidence["loadable"]
        if path not in evidence["plugins"]
    ]
    faults += [f"the loader's cache has {what}" for what in evidence.get("of_cache", ())]
    return conclude(faults, f"{len(expect['path'])} folders on the PATH, and nothing of unknown owner is found first")


def _path(expect: Mapping[str, Any], found: Sequence[str]) -> Iterator[str]:
    if list(found) == expect["path"]:
        return
    before = [folder for folder in found if folder not in expect["path"]]
    if relative := [folder for folder in found if not folder.startswith("/")]:
        yield f"the PATH has {relative[0]!r}: what runs depends on the folder to start it in"
    if not expect["free"]:
        yield f"the PATH is {':'.join(found)}; {', '.join(before) or 'the order of its folders'} is not as expected"
    elif [folder for folder in found if folder in expect["path"]] != expect["path"]:
        yield f"the PATH is {':'.join(found)}: folders of the parent's are missing or in another order"


def judge_privileges(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """origin/privileges."""
    faults = [
        f"{one['path']} has mode {one['mode']}{' and capabilities' if one['capabilities'] else ''}: "
        "it runs with more rights than its caller's, and Debian does not bring it so"
        for one in evidence["privileged"]
        if one["capabilities"] or expect["privileged"].get(one["path"]) != one["mode"] or not one.get("packaged", True)
    ]
    open_to_all = expect.get("open", ())
    faults += [f"every user may change {path}" for path in evidence["writable"] if not matches(path, open_to_all)]
    faults += [f"{path} {how}" for path, how in evidence.get("loose", {}).items()]
    faults += cut(evidence, "loose", "paths belong to others than root, can't be used, or are of another time")
    faults += evidence["accounts"]
    if evidence["authorities"]:
        faults.append(f"{evidence['authorities']} certificate authorities are trusted that Debian does not bring")
    if distrusted := evidence.get("distrusted", 0):
        faults.append(f"{distrusted} certificate authorities that Debian brings are not trusted")
    return conclude(faults, f"{len(evidence['privileged'])} programs run with more rights, all as Debian brings them")


CLAIMS = {"origin/files": judge_files, "origin/lookup": judge_lookup, "origin/privileges": judge_privileges}
