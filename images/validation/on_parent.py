"""What a child's layers do to its parent's files, and what they add that is found before these. Pure.

Owners inside of an image prove nothing here: any package may list any file. What was there before is known from the
parent's own layers, which lie below the child's.
"""

import fnmatch
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from images.engine.exported import LayerEntry, Tree, real, real_folder
from images.validation.child import debian_packages
from validate.binaries.loader import machine_named

_MOST_LISTED = 40
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_HARDWARE = re.compile(
    r"/(glibc-hwcaps/[^/]+|(?:tls|haswell|xeon_phi|avx512_1|x86_64)(?:/(?:haswell|x86_64|avx512_1))*)$"
)
"""Subfolders that the loader searches before a folder itself (glibc 2.36, dl-hwcaps.c, and those before 2.37)."""
_MODULE = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<kind>\.cpython-\d+[\w-]*\.so|\.abi3\.so|\.so|\.py)")
_RANKS = ("", ".cpython", ".abi3.so", ".so", ".py")
"""Of modules of one name in one folder, the first is imported: a package, then extensions, then source."""
_NOT_SHADOWED = frozenset(
    {"test", "this", "antigravity", "idlelib", "turtledemo", "turtle", "__future__", "tests", "docs"}
)
"""Modules that no other one imports."""
_STANDARD = re.compile(r"usr/(?:local/)?lib/python3\.\d+(?:/lib-dynload)?")
_PACKAGES = re.compile(r"opt/venv/lib/python3\.\d+/site-packages")
_RECORD = re.compile(r"(?P<location>.*)/[^/]+\.dist-info/RECORD")
_BYTECODE = re.compile(r".*/__pycache__/[^/]+\.pyc")
_SETTINGS_SECTION = re.compile(r'\s*\[\s*([\w.-]+)(?:\s+"(.*)")?\s*\]')
_TRIPLET = re.compile(r"usr/(lib|include)/[^/]+-linux-gnu[^/]*")
_SOURCES = re.compile(r"etc/apt/sources\.list(\.d/[^/]+)?")
_UNSIGNED = re.compile(
    r"\b(trusted|allow-insecure|allow-weak)\s*[+-]?[:=]\s*(yes|true|with|on|enable|[1-9])"
    r"|http://(?!([\w-]+\.)*debian\.org(:\d+)?(/|\s|$))\S+",
    re.IGNORECASE,
)
"""What of a list of sources leaves out signatures, or a server's identity (sources.list(5))."""
_DPKG = "var/lib/dpkg"
_STATUS = f"{_DPKG}/status"


class Start(NamedTuple):
    """What of the configuration of an image decides what is found first."""

    path: Sequence[str]
    libraries: Sequence[str] = ()
    """LD_LIBRARY_PATH's folders."""
    modules: Sequence[str] = ()
    """PYTHONPATH's folders."""
    directory: str = "/"
    architecture: str = "amd64"


def start(environment: Mapping[str, str], directory: str, architecture: str) -> Start:
    """Of a child. An entry that is no whole path is below the folder to start in, an empty one is that."""
    directory = directory or "/"
    path, libraries, modules = (
        [posixpath.join(directory, one) for one in re.split(separators, environment[name])]
        if environment.get(name)
        else []
        for name, separators in (("PATH", ":"), ("LD_LIBRARY_PATH", "[:;]"), ("PYTHONPATH", ":"))
    )
    return Start(path, libraries, modules, directory, architecture or "amd64")


def wanted(path: str) -> bool:
    """Whether the content of a file is asked for."""
    return (
        path in (*_SETTINGS, _STATUS, "etc/ld.so.conf")
        or bool(_SOURCES.fullmatch(path))
        or (path.startswith(f"{_DPKG}/info/") and path.endswith((".list", ".md5sums")))
        or path.startswith("etc/ld.so.conf.d/")
        or (path.endswith(".dist-info/RECORD") and "/site-packages/" in path)
    )


def compare(parent: Tree, child: Tree, start: Start, expect: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence of `S10 parent` (validate/checks/static/host_image.py).

    expect: {path: the parent's PATH, generated: {pattern: why a file's content and time may differ}, childrens:
    {pattern: why a child may do anything there}, additions: patterns of what it may add beside files of packages,
    settings: {file that installations write: patterns of its settings that bend nothing}, plugins: {pattern of a name,
    or of a path: who loads it if it is there}}.
    """
    added = {path: entry for path, entry in child.items() if path not in parent}
    moved = _of_moved(parent, child)
    upgraded = _upgraded(parent, child)
    changed: list[dict[str, Any]] = []
    excused: dict[str, int] = {}
    of_packages: dict[str, int] = {}
    for path, entry in parent.items():
        if child.get(path) is entry:
            continue
        how = ["deleted"] if path not in child else _how(path, parent, child)
        why = _why(f"/{path}", how, expect, path in moved)
        if how and why:
            excused[why] = excused.get(why, 0) + 1
        elif how and path in upgraded:
            of_packages[upgraded[path]] = of_packages.get(upgraded[path], 0) + 1
        elif how:
            changed.append({"path": f"/{path}", "how": how})
    rows = {one["path"]: one["how"] for one in changed}
    # A folder whose files are all changed alike stands for them.
    folded = [one for one in changed if rows.get(one["path"].rpartition("/")[0]) != one["how"]]
    front = list(dict.fromkeys(_in_front(parent, child, added, start, expect["path"])))
    plugins = {
        f"/{path}": who
        for path in added
        for pattern, who in expect["plugins"].items()
        if fnmatch.fnmatchcase(f"/{path}" if "/" in pattern else path.rpartition("/")[2], pattern)
    }
    before, after = (debian_packages(_text(one.get(_STATUS))) for one in (parent, child))
    among, listed = list(_among(parent, child, added, expect)), dict(_listings(child))
    excusing = {package for _, _, package in among} | {listed.get(path[1:], "") for path in plugins}
    return {
        "files": len(parent),
        "added": len(added),
        "changed": folded[:_MOST_LISTED],
        "changed_count": len(folded),
        "excused": excused,
        "upgraded": of_packages,
        "in_front": [{"what": what, "path": f"/{path}", "before": f"/{old}"} for what, path, old in front][
            :_MOST_LISTED
        ],
        "plugins": plugins,
        "settings": {
            f"/{path}": [one for one in now if one not in was] or now
            for path, read in _SETTINGS.items()
            if (now := read(_text(child.get(path)).splitlines())) != (was := read(_text(parent.get(path)).splitlines()))
        },
        "sources": {
            f"/{path}": found[0]
            for path, entry in child.items()
            if _SOURCES.fullmatch(path) and entry.content != getattr(parent.get(path), "content", "")
            if (found := _UNSIGNED.search(re.sub("#.*", "", _text(entry))))
        },
        "among": dict([(path, owner) for path, owner, package in among if not package][:_MOST_LISTED]),
        "excusing": {
            f"{name} {after.get(name, 'unknown')}": "".join(
                _text(child.get(f"{_DPKG}/info/{name}{of}.md5sums")) for of in ("", f":{start.architecture}")
            )
            for name in sorted(excusing - {""})
            if name not in after or after[name] != before.get(name)
        },
    }


def _among(parent: Tree, child: Tree, added: Tree, expect: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What was added to a folder of a Debian package of the parent's, whose programs read what lies there; whose folder
    it is, and which package lists it. Those of base-files are for all; libraries and headers are looked for elsewhere.
    """
    owners, listed = (dict(_listings(one)) for one in (parent, child))
    may = (*expect["generated"], *expect["childrens"], *expect["additions"])
    for path, entry in added.items():
        folder = path.rpartition("/")[0]
        while folder and folder not in parent:
            folder = folder.rpartition("/")[0]
        owner = owners.get(folder, "base-files")
        package = listed.get(path) or listed.get(path.removeprefix("usr/"), "")
        if entry.kind == "folder" or owner == "base-files" or not folder.startswith(("usr/", "etc/")):
            continue
        if not (_TRIPLET.fullmatch(folder) or any(fnmatch.fnmatchcase(f"/{path}", one) for one in may)):
            yield f"/{path}", owner, package


def _listings(tree: Tree) -> Iterator[tuple[str, str]]:
    """Each path that dpkg lists, and its package; base-files, which has the folders of all, comes last."""
    lists = [path for path in tree if path.startswith(f"{_DPKG}/info/") and path.endswith(".list")]
    for path in sorted(lists, key=lambda one: one.endswith("/base-files.list")):
        name = path.rpartition("/")[2].removesuffix(".list").partition(":")[0]
        yield from ((line.strip("/"), name) for line in _text(tree[path]).splitlines())


def _how(path: str, parent: Tree, child: Tree) -> list[str]:
    """What of a path is another: nothing, where an engine copied it up as it was."""
    before, after = parent[path], child[path]
    found = []
    if before.kind != after.kind and {before.kind, after.kind} != {"file", "hard link"}:
        found.append(after.kind)
    elif before.content != after.content or before.link != after.link:
        found.append("content" if after.kind == "file" else "target")
    # Bytecode that the parent has for a source no longer fits its time: each start compiles it again.
    elif before.time != after.time and any(one in parent and child.get(one) is parent[one] for one in _compiled(path)):
        found.append("time")
    if stat.S_IMODE(before.mode) != stat.S_IMODE(after.mode) and after.kind != "link":
        found.append("mode")
    if before.owner != after.owner:
        found.append("owner")
    return found


def _compiled(path: str) -> Iterator[str]:
    """Where bytecode of a source may be."""
    folder, _, name = path.rpartition("/")
    if name.endswith(".py"):
        yield from (f"{folder}/__pycache__/{name[:-3]}.cpython-3{minor}.pyc" for minor in range(10, 16))


def _why(path: str, how: Sequence[str], expect: Mapping[str, Any], moved: bool) -> str:
    """Why a child may do so; empty: it may not."""
    for pattern, why in expect["childrens"].items():
        if fnmatch.fnmatchcase(path, pattern):
            return str(why)
    if list(how) == ["content"] and _BYTECODE.fullmatch(path):
        return "bytecode (C12 holds it to its source)"
    if moved:
        return "a package that was moved or removed"
    if set(how) <= {"content", "time", "deleted", "target"}:
        if path in expect["settings"] and "deleted" not in how:
            return "settings that bend nothing"
        for pattern, why in expect["generated"].items():
            if fnmatch.fnmatchcase(path, pattern):
                return str(why)
    return ""


def _of_moved(parent: Tree, child: Tree) -> set[str]:
    """Files of Python packages of the parent that the child has no longer, or in another version (S1 tells which)."""
    found = set[str]()
    for path, entry in parent.items():
        record = _RECORD.fullmatch(path)
        if record and path not in child and entry.data:
            for line in entry.data.decode("utf-8", "replace").splitlines():
                name = line.rpartition(",")[0].rpartition(",")[0].strip('"')
                file = posixpath.normpath(f"{record['location']}/{name}")
                found |= {file, *(one for one in _compiled(file) if one in parent)}
            folder = path.rpartition("/")[0]
            found |= {one for one in parent if one == folder or one.startswith(f"{folder}/")}
    folders = {one.rpartition("/")[0] for one in found}
    return found | {f"{folder}/__pycache__" for folder in folders} | folders


def _upgraded(parent: Tree, child: Tree) -> dict[str, str]:
    """File -> the Debian package of the parent's that has it and is of another version in the child, and which."""
    before, after = (debian_packages(_text(one.get(_STATUS))) for one in (parent, child))
    found = dict[str, str]()
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            listings = (f"{_DPKG}/info/{one}.list" for one in (name, f"{name}:amd64", f"{name}:arm64"))
            lines = "\n".join(_text(parent.get(path)) for path in listings).splitlines()
            said = f"{name} {before[name]} to {after[name]}"
            found |= {real_folder(parent, path.lstrip("/")): said for path in lines if path.strip("/.")}
    return found


def _text(entry: LayerEntry | None) -> str:
    return (entry.data or b"").decode("utf-8", "replace") if entry else ""


def _git_settings(lines: Sequence[str]) -> list[str]:
    """`section.name=value` of each setting for all users of git; with a subsection, that between them."""
    section, found = "", list[str]()
    for line in lines:
        if header := _SETTINGS_SECTION.match(line):
            section = ".".join(part for part in header.groups() if part).lower()
            line = line[header.end() :]
        name, _, value = (part.strip() for part in line.partition("="))
        if name and name[0] not in "#;":
            found.append(f"{section}.{name.lower()}={value}")
    return found


def _name_services(lines: Sequence[str]) -> list[str]:
    """What is asked for names of users and hosts: each is a library that every program loads (nsswitch.conf(5))."""
    words = [word for line in lines for word in line.partition("#")[0].partition(":")[2].split()]
    return sorted({word for word in words if not word.startswith("[") and not word.endswith("]")})


def _logins(lines: Sequence[str]) -> list[str]:
    """Rules of who may log in (pam.d(5)), in their order, but for optional ones of packages' modules."""
    rules = [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("#")]
    return [rule for rule in rules if not _OPTIONAL.fullmatch(rule)]


_OPTIONAL = re.compile(r"\w+ optional pam_(cap|systemd|gnome_keyring|keyinit|umask|mkhomedir)\.so( [\w=]+)*")
_SETTINGS = {
    "etc/gitconfig": _git_settings,
    "etc/nsswitch.conf": _name_services,
    **{f"etc/pam.d/common-{one}": _logins for one in ("account", "auth", "password", "session")},
    "etc/pam.d/common-session-noninteractive": _logins,
}
"""Files that maintainer scripts of Debian's packages write: git-lfs, libnss-systemd and others."""


def _in_front(
    parent: Tree, child: Tree, added: Tree, start: Start, path: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """What is found first now, where, and what was found before."""
    was, now = _programs(parent, path), _programs(child, start.path)
    for name, old in was.items():
        if now.get(name, old) != old:
            yield f"the program {name}", now[name], old
    yield from _libraries_in_front(parent, child, added, start)
    headers = ["usr/local/include", f"usr/include/{MACHINES[start.architecture]}-linux-gnu", "usr/include"]
    for path in added:
        for place, folder in enumerate(headers):
            later = (one.replace(folder, before, 1) for before in headers[place + 1 :] for one in [path])
            if path.startswith(f"{folder}/") and (old := next((one for one in later if one in parent), "")):
                yield f"the header {path.removeprefix(f'{folder}/')}", path, old
    yield from _modules_in_front(parent, child, added, start)


def _programs(tree: Tree, folders: Sequence[str]) -> dict[str, str]:
    """Name -> the program that a shell finds."""
    found: dict[str, str] = {}
    for folder, names in _listed(tree, folders):
        for name in names:
            entry = tree.get(real(tree, f"{folder}/{name}"))
            if entry and entry.kind in ("file", "hard link") and entry.mode & 0o111:
                found.setdefault(name, f"{folder}/{name}")
    return found


def _listed(tree: Tree, folders: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Folders in their order, none twice, and the names in them."""
    names: dict[str, list[str]] = {real(tree, folder.strip("/")): [] for folder in folders}
    for path in tree:
        folder, _, name = path.rpartition("/")
        if folder in names:
            names[folder].append(name)
    return list(names.items())


def _libraries_in_front(parent: Tree, child: Tree, added: Tree, start: Start) -> Iterator[tuple[str, str, str]]:
    """By the loader's own order, and beside what a library of the parent's looks for."""
    was, now = _loaded(parent, start._replace(libraries=())), _loaded(child, start)
    for name, old in was.items():
        if now.get(name, old) != old and now[name] in added:
            yield f"the library {name}", now[name], old
    known: dict[str, str] = {}
    for path in parent:
        name = path.rpartition("/")[2]
        if ".so" in name:
            known.setdefault(name, path)
    homes = {path.rpartition("/")[0] for path in known.values()}
    told = {real(child, folder.strip("/")) for folder in start.libraries}
    for path in added:
        folder, _, name = path.rpartition("/")
        if name not in known or (name in was and now.get(name) == path):
            continue
        within = _HARDWARE.sub("", folder)
        ours = within in homes and within not in {real(child, one) for one in _defaults(start)}
        if (within != folder and within in homes) or ours or within in told:
            yield f"the library {name}", path, known[name]


def _defaults(start: Start) -> tuple[str, ...]:
    return tuple(folder.strip("/") for folder in machine_named(MACHINES[start.architecture]).folders)


def _loaded(tree: Tree, start: Start) -> dict[str, str]:
    """Name -> the library that the loader takes without a search path of the asking file, ldconfig having run."""
    folders = dict.fromkeys(
        real(tree, folder.strip("/")) for folder in (*start.libraries, *_configured(tree), *_defaults(start))
    )
    names: dict[str, dict[bool, dict[str, str]]] = {folder: {True: {}, False: {}} for folder in folders}
    for path in tree:
        folder, _, name = path.rpartition("/")
        within = _HARDWARE.sub("", folder)
        if within in names and ".so" in name:
            names[within][within != folder][name] = path
    found: dict[str, str] = {}
    for kinds in names.values():
        for name, path in (*kinds[True].items(), *kinds[False].items()):
            found.setdefault(name, path)
    return found


def _configured(tree: Tree) -> Iterator[str]:
    """Folders of /etc/ld.so.conf and of the files that it includes, which Debian's reads first."""
    files = sorted(path for path in tree if path.startswith("etc/ld.so.conf.d/") and path.endswith(".conf"))
    for path in (*files, "etc/ld.so.conf"):
        for line in _text(tree.get(path)).splitlines():
            folder = line.partition("#")[0].strip()
            if folder.startswith("/"):
                yield folder


def _modules_in_front(parent: Tree, child: Tree, added: Tree, start: Start) -> Iterator[tuple[str, str, str]]:
    """Beside a module of the parent's, and of its standard library from where Python looks first."""
    known = _modules(parent)
    for path in added:
        found = _module_of(path)
        if found and found[:2] in known:
            rank, old = known[found[:2]]
            if found[2] < rank:
                yield f"the module {found[1]}", path, old
    before = [real(child, folder.strip("/")) for folder in (*start.modules, start.directory)]
    standard = {name: old for (folder, name), (_, old) in known.items() if _STANDARD.fullmatch(folder)}
    packages = {name: old for (folder, name), (_, old) in known.items() if _PACKAGES.fullmatch(folder)}
    for path in child:
        found = _module_of(path)
        if found and found[0] in before and found[1] not in _NOT_SHADOWED:
            old = standard.get(found[1], packages.get(found[1], path))
            if old != path:
                yield f"the module {found[1]}", path, old
        elif path in added and re.fullmatch(r"usr/lib/python3\d+\.zip", path):
            yield "every module of the standard library", path, "usr/lib/python3"


def _modules(tree: Tree) -> dict[tuple[str, str], tuple[int, str]]:
    """Folder and name of each module -> its rank among those of one name, and its path."""
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for path in tree:
        one = _module_of(path) if "/python3" in path else None
        if one and (one[:2] not in found or one[2] < found[one[:2]][0]):
            found[one[:2]] = one[2], path
    return found


def _module_of(path: str) -> tuple[str, str, int] | None:
    """Folder, name and rank of what a file is imported as."""
    folder, _, name = path.rpartition("/")
    if name == "__init__.py":
        folder, _, name = folder.rpartition("/")
        return folder, name, 0
    match = _MODULE.fullmatch(name)
    if not match:
        return None
    kind = match["kind"]
    return folder, match["name"], _RANKS.index(".cpython" if kind.startswith(".cpython") else kind)
