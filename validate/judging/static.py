"""Judges of the static tier: S1 to S8."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from validate.binaries.demangle import readable
from validate.claims import Claim
from validate.judging import Finding, Judging, Status, failed, listed, not_applicable, passed, unproven

LOCK = "lock"
TOOLKIT = "toolkit"

Evidence = Mapping[str, Any]


def _conclude(faults: Iterable[str], good: str) -> Finding:
    """The first faults in full, the others counted. Paths are shown from the packages' folder on."""
    found = [re.sub(r"/\S*/site-packages/", "", fault) for fault in dict.fromkeys(faults)]
    if not found:
        return passed(good)
    shown = "; ".join(found[:4])
    return failed(f"{shown}; and {len(found) - 4} more" if len(found) > 4 else shown)


# ---- S1


def pins(claim: Claim, evidence: Evidence) -> Finding:
    """S1. expect: {version, locals, modules, python, shares} and for torch {cuda}; `lock`: {versions, closed}."""
    if claim.subject == LOCK:
        return _lock(claim, evidence)
    found = evidence["installed"]
    if not found:
        return failed(f"{claim.subject} is not installed")
    if len(found) > 1:
        places = [f"{one['version']} in {one['location']}" for one in found]
        return failed(f"{claim.subject} is installed {len(found)} times: {listed(places)}")
    faults = [*_version_faults(claim, found[0]), *_tag_faults(claim, found[0], evidence)]
    for module in claim.expect["modules"]:
        faults += _module_faults(claim, module, evidence["modules"][module])
    if "cuda" in claim.expect:
        faults += _torch_faults(claim, evidence["torch"])
    return _conclude(faults, f"{found[0]['version']}, imported from its own files")


def _version_faults(claim: Claim, found: Mapping[str, Any]) -> Iterator[str]:
    public, _, local = found["version"].partition("+")
    if public != claim.expect["version"] or local not in claim.expect["locals"]:
        yield f"{claim.subject} {found['version']} is installed, {claim.expect['version']} is promised"
    if not found["has_record"]:
        yield f"{claim.subject} has no RECORD, so its files can't be told from others'"


def _tag_faults(claim: Claim, found: Mapping[str, Any], evidence: Evidence) -> Iterator[str]:
    if evidence["python"] != claim.expect["python"]:
        yield f"the interpreter is Python {evidence['python']}, {claim.expect['python']} is promised"
    tags = found["tags"]
    if tags and not any(_tag_fits(tag, evidence["python"], evidence["glibc"]) for tag in tags):
        yield f"{claim.subject}'s wheel is for {listed(tags)}, not for this Python and glibc {evidence['glibc']}"


def _tag_fits(tag: str, python: str, glibc: str) -> bool:
    """A wheel tag against an x86-64 glibc Linux with CPython (packaging.python.org, platform compatibility tags)."""
    parts = tag.split("-")
    if len(parts) != 3:
        return False
    interpreters, abis, platforms = (part.split(".") for part in parts)
    minor = int(python.partition(".")[2])
    exact = f"cp3{minor}"
    fits = exact in interpreters and bool({exact, "abi3", "none"} & set(abis))
    fits |= "abi3" in abis and any(_minor(one, "cp3") <= minor for one in interpreters)
    fits |= "none" in abis and any(_minor(one, "py3") <= minor for one in interpreters)
    return fits and any(_platform_fits(platform, glibc) for platform in platforms)


def _minor(interpreter: str, prefix: str) -> int:
    """Lowest minor version of Python 3 that `py3`, `py310` or `cp39` names; out of reach for others."""
    found = re.fullmatch(rf"{prefix}(\d*)", interpreter)
    return int(found[1] or 0) if found else 1000


def _platform_fits(platform: str, glibc: str) -> bool:
    legacy = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}
    for old, new in legacy.items():
        platform = platform.replace(f"{old}_", f"{new}_")
    if platform in ("any", "linux_x86_64"):
        return True
    found = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", platform)
    return bool(found) and (int(found[1]), int(found[2])) <= tuple(map(int, glibc.split(".")[:2])) if found else False


def _module_faults(claim: Claim, module: str, found: Mapping[str, Any]) -> Iterator[str]:
    if found["file"] is None:
        what = f"is a namespace over {listed(found['namespace'])}" if found.get("namespace") else "can't be found"
        yield f"`import {module}` {what} {found.get('error', '')}".rstrip()
        return
    if claim.subject not in found["owners"]:
        owner = listed(found["owners"]) or "no distribution"
        yield f"`import {module}` loads {found['file']} of {owner}, found through {found['through']}"
    others = set(found["providers"]) - {claim.subject} - set(claim.expect.get("shares", ()))
    if others:
        yield f"{listed(sorted(others))} also installs files into {module}"


def _torch_faults(claim: Claim, torch: Mapping[str, Any]) -> Iterator[str]:
    if torch["cuda"] != claim.expect["cuda"]:
        built = f"for CUDA {torch['cuda']}" if torch["cuda"] else "for no CUDA at all"
        yield f"{torch['file']}: torch {torch['__version__']} is built {built}, {claim.expect['cuda']} is promised"
    elif str(torch["__version__"]).partition("+")[0] != claim.expect["version"]:
        yield f"{torch['file']} says {torch['__version__']}, {claim.expect['version']} is promised"


def _lock(claim: Claim, evidence: Evidence) -> Finding:
    """The whole closure: nothing missing, nothing at another version, and (`closed`) nothing besides."""
    promised, found = claim.expect["versions"], evidence["installed"]
    faults = [f"{name} {version} is not installed" for name, version in promised.items() if name not in found]
    for name, versions in found.items():
        wanted = promised.get(name)
        if wanted is None:
            if claim.expect["closed"]:
                faults.append(f"{name} {listed(versions)} is installed, but not in the lock")
        elif [version.partition("+")[0] for version in versions] != [wanted.partition("+")[0]]:
            faults.append(f"{name} {' and '.join(versions)} is installed, the lock has {wanted}")
    return _conclude(faults, f"all {len(promised)} locked distributions, each at its version")


# ---- S2


def files(claim: Claim, evidence: Evidence) -> Finding:
    """S2. expect: {unowned: {path pattern: why it may be there}}."""
    if not evidence["files"]:
        return failed("no distribution lists a single file")
    faults = [_in_conflict(one) for one in evidence["in_conflict"]]
    told = {one["path"] for one in evidence["in_conflict"]}
    faults += [_wrong(one) for one in evidence["wrong"] if one["path"] not in told]
    faults += [
        f"{path} belongs to no distribution" for path in _unexcused(evidence["unowned"], claim.expect["unowned"])
    ]
    if hidden := evidence["unowned_count"] - len(evidence["unowned"]):
        faults.append(f"{hidden} more files belong to no distribution")
    for one in evidence["without_record"]:
        if not one["location"].endswith("/dist-packages"):
            faults.append(f"{one['name']} in {one['location']} has no readable RECORD")
    return _conclude(faults, f"{evidence['files']} files of {evidence['distributions']} distributions are as recorded")


def _in_conflict(one: Mapping[str, Any]) -> str:
    holds = f"it holds {listed(one['holds'])}'s" if one["holds"] else "it holds neither's"
    return f"{one['path']} is claimed by {' and '.join(one['owners'])} with different contents ({holds})"


def _wrong(one: Mapping[str, Any]) -> str:
    states = sorted(set(one["owners"].values()))
    return f"{one['path']} of {listed(list(one['owners']))} is {' and '.join(states)}"


def _unexcused(paths: Sequence[str], excused: Mapping[str, str]) -> list[str]:
    return [path for path in paths if not any(fnmatch.fnmatchcase(path, f"*/{pattern}") for pattern in excused)]


# ---- S3


def libraries(claim: Claim, evidence: Evidence) -> Finding:
    """S3. expect: {of, cuda_libraries, host, other_platforms, exceptions}; validation/claims says what each is."""
    if not evidence["files"]:
        return failed(f"there is no shared library in the {claim.expect['of']}")
    faults = [f"{one['path']} can't be loaded: {one['error']}" for one in evidence["unreadable"]]
    # What `import torch` misses, all that needs torch misses too: the root comes first.
    torch_misses = [one for one in evidence.get("torch_misses", ()) if not _matches(one["name"], claim.expect["host"])]
    faults += [f"`import torch` misses {one['name']}, needed by {one['path']}" for one in torch_misses]
    linked = [_with_troubles(claim, one) for one in evidence["linked"]]
    troubled = [one for one in linked if one["troubles"] and not _excused(claim, one, linked)]
    faults += [_trouble(one) for one in sorted(troubled, key=lambda one: (not one["needs_cuda"], one["path"]))]
    if claim.expect["of"] == TOOLKIT:
        return _conclude(faults, f"all {evidence['files']} libraries and programs find what they need")
    faults += _strangers(evidence["torch_holds"])
    faults += _other_majors(claim, evidence["provided"])
    faults += [_second_owner(one) for one in evidence["second_owners"]]
    good = f"all {evidence['files']} libraries and programs find what they need, one CUDA"
    assumed = sorted({PurePosixPath(one["path"]).name for one in linked if one["assumed"]})
    return _conclude(
        faults, f"{good} (taking {listed(assumed)} to be loaded after their siblings)" if assumed else good
    )


def _with_troubles(claim: Claim, one: Mapping[str, Any]) -> dict[str, Any]:
    """`troubles`: what it needs and does not find, and what of another CUDA it needs, found or not.

    The driver's libraries come from the host.
    """
    missing = [name for name in one["missing"] if not _matches(name, claim.expect["host"])]
    foreign = [name for name in one["needs_cuda"] if _is_other_major(claim, name)]
    return {**one, "missing": missing, "troubles": sorted({*missing, *foreign})}


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _trouble(one: Mapping[str, Any]) -> str:
    what = f"{one['path']} of {listed(one['owners']) or 'no distribution'} needs"
    if one["missing"]:
        return f"{what} {listed(one['missing'])}, which the loader does not find"
    return f"{what} {listed(one['troubles'])} of another CUDA major than torch's"


def _excused(claim: Claim, one: Mapping[str, Any], linked: Sequence[Mapping[str, Any]]) -> bool:
    """A named exception, or an alternative: made for another platform, where a sibling serves this image's CUDA."""
    if any(_covers(exception, one["path"], one["troubles"]) for exception in claim.expect["exceptions"]):
        return True
    foreign = claim.expect["other_platforms"]
    elsewhere = all(_matches(name, foreign) or _is_other_major(claim, name) for name in one["troubles"])
    siblings = (other for other in linked if _family(other["path"]) == _family(one["path"]))
    return elsewhere and any(_serves(claim, other) for other in siblings)


def _covers(exception: Mapping[str, Any], path: str, names: Iterable[str]) -> bool:
    return _matches(path, [f"*/{exception['path']}"]) and all(_matches(name, exception["names"]) for name in names)


def _family(path: str) -> str:
    """What alternatives share: `.../bitsandbytes/libbitsandbytes_` of `libbitsandbytes_cuda126.so`."""
    folder, _, name = path.rpartition("/")
    head, underscore, _ = name.partition(".so")[0].rpartition("_")
    return f"{folder}/{head}{underscore}" if head else path


def _serves(claim: Claim, one: Mapping[str, Any]) -> bool:
    """Whether a library finds all it needs and is linked against this image's CUDA."""
    return not one["troubles"] and any(_is_own_major(claim, name) for name in one["needs_cuda"])


def _major(name: str) -> tuple[str, str]:
    """`("libcudart", "11")` of `libcudart.so.11.0`."""
    stem, _, version = name.partition(".so.")
    return stem, version.partition(".")[0]


def _is_own_major(claim: Claim, name: str) -> bool:
    stem, major = _major(name)
    return bool(major) and claim.expect["cuda_libraries"].get(stem) == major


def _is_other_major(claim: Claim, name: str) -> bool:
    stem, major = _major(name)
    own = claim.expect["cuda_libraries"].get(stem)
    return own is not None and bool(major) and own != major


def _strangers(torch_holds: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Where wheels bring CUDA, torch must get all of it from wheels."""
    if any(held["owners"] for held in torch_holds.values()):
        for name, held in torch_holds.items():
            if not held["owners"]:
                yield f"torch gets {name} from {held['path']}, which no distribution owns"


def _other_majors(claim: Claim, provided: Sequence[Sequence[Any]]) -> Iterator[str]:
    for soname, path, owners in provided:
        excused = any(_covers(exception, path, [soname]) for exception in claim.expect["exceptions"])
        if _is_other_major(claim, soname) and not excused:
            yield f"{path} of {listed(owners) or 'no distribution'} is {soname}: another CUDA major than torch's"


def _second_owner(one: Mapping[str, Any]) -> str:
    return f"{one['name']} of {listed(one['owners'])} has a rival on the loader's path: {one['other']}"


# ---- S4


def symbols(claim: Claim, evidence: Evidence) -> Finding:
    """S4. expect: {host, other_platforms, exceptions: [{path, symbols, reason}]}."""
    if not evidence["checked"]:
        return failed("there is no library whose symbols could be looked up")
    faults = [f"{one['path']} can't be read: {one['error']}" for one in evidence["unreadable"]]
    lacking = [one for one in evidence["lacking"] if not _may_lack(claim, one)]
    faults += [_lacking(one) for one in lacking]
    if hidden := evidence["lacking_count"] - len(evidence["lacking"]):
        faults.append(f"{hidden} more libraries lack symbols")
    good = f"{evidence['symbols']} symbols that {evidence['checked']} libraries and programs need are there"
    return _conclude(faults, good)


def _may_lack(claim: Claim, one: Mapping[str, Any]) -> bool:
    names = [*one["undefined"], *(version for version, _, _ in one["versions"])]
    rows = claim.expect["exceptions"]
    return any(
        _matches(one["path"], [f"*/{row['path']}"]) and all(_matches(name, row["symbols"]) for name in names)
        for row in rows
    )


def _lacking(one: Mapping[str, Any]) -> str:
    owner = listed(one["owners"]) or "no distribution"
    if one["versions"]:
        version, name, file = one["versions"][0]
        return f"{one['path']} of {owner} needs {version} of {name}, which {file} does not define"
    names = [readable(name) for name in one["undefined"]]
    count = one["undefined_count"]
    more = f" and {count - len(names[:2])} more" if count > len(names[:2]) else ""
    return f"{one['path']} of {owner} needs {', '.join(names[:2])}{more}, which none of its libraries has"


# ---- S5


def devicecode(claim: Claim, evidence: Evidence) -> Finding:
    """S5. expect: {files, also, archs: {arch: "cubin" or "jit"}, by_design, holes: [{file, archs, reason}], depth}; at
    depth "surplus" {nvidia, by_design_of}, too. validate/probes/static/devicecode.py says what each is.
    """
    found = evidence["files"]
    if claim.expect["depth"] == "surplus":
        return _sliced(claim, found)
    faults = [f"{path} can't be read: {facts['error']}" for path, facts in found.items() if "error" in facts]
    faults += [fault for path, facts in found.items() for fault in _hidden_faults(path, facts)]
    read = {path: facts for path, facts in found.items() if "error" not in facts and facts["archs"]}
    for pattern in claim.expect["files"]:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in found):
            faults.append(f"{claim.subject} has no {pattern}")
        elif not any(fnmatch.fnmatchcase(path, pattern) for path in read) and not faults:
            faults.append(f"{pattern} of {claim.subject} holds no code for any GPU")
    if not read and not faults and not claim.expect["files"]:
        return not_applicable(f"{claim.subject} brings no device code of its own")
    warnings: list[str] = []
    for path, facts in read.items():
        for arch, how in claim.expect["archs"].items():
            wrong = list(_arch_faults(path, facts, arch, how))
            hole = _hole(claim, path, arch)
            faults += [] if hole else wrong
            warnings += [f"WARNING: no sm_{arch} in {PurePosixPath(path).name} ({hole})"] if hole and wrong else []
    return _conclude(faults, "; ".join([_device_summary(claim, read), *warnings]))


def _sliced(claim: Claim, found: Mapping[str, Mapping[str, Any]]) -> Finding:
    """No code but what the promised archs have a use for, and S5 for its comparisons."""
    archs = listed([f"sm_{arch}" for arch in claim.expect["archs"]])
    faults = [f"{path} can't be read: {facts['error']}" for path, facts in found.items() if "error" in facts]
    # Recorded evidence of earlier suites lacks the latter two.
    read = {path: facts for path, facts in found.items() if any(map(facts.get, ("archs", "whole", "marked")))}
    if not read and not faults:
        return failed("there is no library with device code at all")
    for path, facts in sorted(read.items(), key=lambda pair: -pair[1]["surplus_bytes"]):
        if facts["surplus_entries"]:
            size = f"{facts['surplus_bytes'] / 1e6:.1f} MB"
            faults.append(f"{path} has {size} for {listed(facts['surplus'])} that {archs} has no use for")
        if facts.get("marked"):
            size = f"{facts['marked_bytes'] / 1e6:.1f} MB"
            faults.append(f"{path} has {size} for {listed(facts['marked'])} marked as taken out, and still there")
    others = {arch for facts in read.values() for arch in facts["archs"]} - {
        f"sm_{arch}{variant}" for arch in claim.expect["archs"] for variant in ("", "a", "f")
    }
    instead = f", and {listed(sorted(others))} where a library has none" if others else ""
    whole = sum(facts.get("whole", 0) for facts in read.values())
    as_they_come = f"; {whole} regions that lack kernels for it are as their packages bring them" if whole else ""
    return _conclude(faults, f"{len(read)} libraries hold code for {archs} alone{instead}{as_they_come}")


def _hidden_faults(path: str, facts: Mapping[str, Any]) -> Iterator[str]:
    for arch, regions in facts.get("hidden", {}).items():
        yield f"the sm_{arch} code of {regions} regions in {path} is marked as taken out, and the driver passes it over"


def _arch_faults(path: str, facts: Mapping[str, Any], arch: str, how: str) -> Iterator[str]:
    served = facts["served"][arch]
    if isinstance(served, str):
        if served == "none" or (served == "jit" and how == "cubin"):
            what = "only PTX" if served == "jit" else "no code"
            yield f"{path} has {what} for sm_{arch}, but {listed(facts['archs'])}"
        return
    of = f"of {facts['kernels']} kernels in {path}"
    if served.get("emptied"):
        yield f"the sm_{arch} code of {served['emptied']} of {facts['regions']} regions in {path} was emptied"
    for state, what in (("absent", "have no code"), ("stub", "are empty stubs")):
        if served.get(state):
            yield f"{served[state]} {of} {what} for sm_{arch}: {_readable(served, state)}"
    if served.get("jit") and how == "cubin":
        what = "reach through PTX alone, where machine code is promised,"
        yield f"{served['jit']} {of} {what} sm_{arch}: {_readable(served, 'jit')}"


def _readable(served: Mapping[str, Any], state: str) -> str:
    return listed(list(dict.fromkeys(readable(name) for name in served["named"][state])), limit=2)


def _hole(claim: Claim, path: str, arch: str) -> str:
    """Why upstream's own build lacks this arch in this file; empty where it has no such excuse."""
    rows = claim.expect.get("holes", ())
    return next((row["reason"] for row in rows if int(arch) in row["archs"] and _matches(path, [row["file"]])), "")


def _device_summary(claim: Claim, read: Mapping[str, Mapping[str, Any]]) -> str:
    archs = ", ".join(f"sm_{arch}{' (PTX)' if how == 'jit' else ''}" for arch, how in claim.expect["archs"].items())
    kernels = sum(facts.get("kernels", 0) for facts in read.values())
    what = f"{kernels} kernels in {len(read)} files" if kernels else f"{len(read)} libraries"
    return f"{what} serve {archs}"


# ---- S6


def toolkit(claim: Claim, evidence: Evidence) -> Finding:
    """S6. expect: {home, version, parts: [names]}."""
    home, version = claim.expect["home"], claim.expect["version"]
    if not evidence["home_exists"]:
        return failed(f"{home} does not exist")
    faults = [fault for part in claim.expect["parts"] for fault in _part_faults(part, evidence["parts"][part], version)]
    faults += _home_faults(evidence, home)
    faults += [
        f"{one['folder']} is on the loader's path ({one['from']}): {why}"
        for one in evidence["loader_folders"]
        if (why := _bad_folder(one, evidence["real_home"]))
    ]
    faults += [f"the image brings the host driver's {one['path']} itself" for one in evidence["driver_libraries"]]
    of_torch = str(evidence["torch"]["cuda"])
    if of_torch.partition(".")[0] != version.partition(".")[0]:
        faults.append(f"the toolkit is CUDA {version}, torch is built for CUDA {of_torch}: majors must be equal")
    warning = f"; WARNING: torch is built for {of_torch}, another minor" if of_torch != version else ""
    return _conclude(faults, f"CUDA {version} in {home}, {len(claim.expect['parts'])} parts{warning}")


def _part_faults(part: str, found: Mapping[str, Any], version: str) -> Iterator[str]:
    if not found["files"]:
        yield f"the toolkit lacks {part}"
        return
    if found.get("absent"):
        yield f"the toolkit's {part} lack {listed(found['absent'])}"
    if "error" in found:
        yield f"{found['files'][0]} does not run: {found['error']}"
    elif "minor" in found and found["minor"] != version:
        yield f"{found['files'][0]} is of CUDA {found['minor']}, {version} is promised"
    for path, soname in found.get("sonames", {}).items():
        stem, major = _major(soname or "")
        if not stem:
            yield f"{path} is no shared library"
        elif stem == "libcudart" and major != version.partition(".")[0]:
            yield f"{path} is {soname}, CUDA {version} is promised"


def _home_faults(evidence: Evidence, home: str) -> Iterator[str]:
    if evidence["variables"]["CUDA_HOME"] != home:
        yield f"CUDA_HOME is {evidence['variables']['CUDA_HOME']!r}, the toolkit is {home}"
    if evidence["variables"]["CUDA_PATH"] not in (None, home):
        yield f"CUDA_PATH is {evidence['variables']['CUDA_PATH']}, the toolkit is {home}"
    if evidence["default_link"] not in (None, evidence["real_home"]):
        yield f"the unversioned cuda link is {evidence['default_link']}, the toolkit is {home}"
    for name, path in evidence["programs_on_path"].items():
        if path and not path.startswith(f"{evidence['real_home']}/"):
            yield f"PATH finds {name} at {path}, outside of {home}"


def _bad_folder(one: Mapping[str, Any], real_home: str) -> str:
    for folder in (one["folder"], one["real"]):
        parts = PurePosixPath(folder).parts
        if "stubs" in parts:
            return "stubs stand in for the driver and do nothing"
        if "compat" in parts or any(part.startswith("cuda-compat") for part in parts):
            return "a forward-compatibility driver hides the host's"
        if folder == real_home or folder.startswith(f"{real_home}/"):
            return "the toolkit's libraries would shadow torch's"
    return ""


# ---- S7


def environment(claim: Claim, evidence: Evidence) -> Finding:
    """S7. expect: {required: {name: value}, denied: {pattern: why}, start_files: {name pattern: why}}."""
    required, denied = claim.expect["required"], claim.expect["denied"]
    faults = [
        f"{name} is {'not set' if found is None else repr(found)}, {required[name]!r} is promised"
        for name, found in evidence["required"].items()
        if found != required[name]
    ]
    faults += [
        f"{name}={value} is set: {_why(name, denied)}"
        for name, value in evidence["denied"].items()
        if name not in required
    ]
    for one in evidence["in_files"]:
        if required.get(one["name"]) != one["value"].strip("\"'"):
            faults.append(f"{one['file']} sets {one['name']}={one['value']}: {_why(one['name'], denied)}")
    faults += [f"{path} is not empty: {listed(lines)}" for path, lines in evidence["settings_files"].items() if lines]
    faults += _start_faults(claim, evidence["start"])
    good = f"{len(required)} variables as promised, none that misleads, no start-up code of unknown owner"
    return _conclude(faults, good)


def _why(name: str, denied: Mapping[str, str]) -> str:
    return next((why for pattern, why in denied.items() if fnmatch.fnmatchcase(name, pattern)), "it is denied")


def _start_faults(claim: Claim, start: Mapping[str, Any]) -> Iterator[str]:
    if start["flags"]["optimize"]:
        yield "Python starts with optimisation: every `assert` is gone"
    for name, value in start["changes"].items():
        yield f"starting Python sets {name}={value!r}"
    for one in start["code"]:
        harmless = one["owners"] or one["of_debian"] or one["does_nothing"]
        if not harmless and not _matches(PurePosixPath(one["file"]).name, claim.expect["start_files"]):
            yield f"{one['file']} runs at every start of Python and belongs to no distribution"


# ---- S8


def hygiene(claim: Claim, evidence: Evidence) -> Finding:
    """S8. Each subject is a promise of its own; what each expects stands at its judge."""
    judges: Mapping[str, Judging] = {
        "labels": _labels,
        "size": _size,
        "settings": _settings,
        "history": _history,
        "leftovers": _leftovers,
        "secrets": _secrets,
        "home": _home,
    }
    return judges[claim.subject](claim, evidence)


def _labels(claim: Claim, evidence: Evidence) -> Finding:
    """expect: {labels: {name: value}}. That the image holds what these values say is S1's to prove."""
    found, promised = evidence["labels"], claim.expect["labels"]
    faults = [
        f"the label {name} is {found.get(name)!r}, {value!r} is true"
        for name, value in promised.items()
        if found.get(name) != value
    ]
    return _conclude(faults, f"{len(promised)} labels say what the matrix says")


def _size(claim: Claim, evidence: Evidence) -> Finding:
    """expect: {bytes: the most}."""
    size, most = evidence["bytes"] / 1e9, claim.expect["bytes"] / 1e9
    if evidence["bytes"] > claim.expect["bytes"]:
        return failed(f"the image is {size:.2f} GB, at most {most:.1f} GB is promised")
    return passed(f"{size:.2f} GB of at most {most:.1f} GB")


def _settings(claim: Claim, evidence: Evidence) -> Finding:
    """expect: {capabilities: [what the container runtime must lend of the driver], entrypoint: [the promised one]}."""
    faults = [f"it runs as {evidence['user'] or 'root'}"] if evidence["user"] in ("", "0", "root") else []
    promised = claim.expect.get("entrypoint", [])
    if evidence["entrypoint"] != promised:
        found = " ".join(evidence["entrypoint"])[:80] or "none"
        faults.append(f"an entrypoint comes before what users run: {found}, {' '.join(promised) or 'none'} is promised")
    driver = evidence["driver"]
    lent = driver.get("NVIDIA_DRIVER_CAPABILITIES", "").split(",")
    lacking = [] if "all" in lent else [one for one in claim.expect["capabilities"] if one not in lent]
    if lacking:
        faults.append(f"NVIDIA_DRIVER_CAPABILITIES={','.join(lent)} lacks {listed(lacking)}")
    if driver.get("NVIDIA_VISIBLE_DEVICES") in (None, "", "void", "none"):
        faults.append(f"NVIDIA_VISIBLE_DEVICES={driver.get('NVIDIA_VISIBLE_DEVICES')} hides every GPU")
    if driver.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        faults.append("NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off")
    start = f"entrypoint {' '.join(promised)}" if promised else "no entrypoint"
    return _conclude(faults, f"user {evidence['user']}, {start}, the driver's {listed(lent)}")


def _history(claim: Claim, evidence: Evidence) -> Finding:
    faults = [f"{one['where']} holds {one['kind']}" for one in evidence["secrets"]]
    return _conclude(faults, "no credential in variables, labels and build steps")


def _leftovers(claim: Claim, evidence: Evidence) -> Finding:
    """expect: {leftovers: {path pattern: what it is}}."""
    faults = [
        f"{found['files']} files ({found['bytes'] / 1e6:.1f} MB) of {claim.expect['leftovers'][pattern]} are left: "
        f"{found['example']}"
        for pattern, found in evidence["leftovers"].items()
    ]
    return _with_unreadable(evidence, _conclude(faults, f"none of {evidence['files']} files is a build's leftover"))


def _secrets(claim: Claim, evidence: Evidence) -> Finding:
    faults = [
        f"{one['path']} holds {one['kind']}" + (f" (line {one['line']})" if one["line"] else "")
        for one in evidence["secrets"]
    ]
    return _with_unreadable(evidence, _conclude(faults, f"no credential in {evidence['read']} small files"))


def _home(claim: Claim, evidence: Evidence) -> Finding:
    home = evidence["home"]
    if "error" in home:
        return failed(f"the home {home['path']!r} can't be used: {home['error']}")
    if not home["for_all"]:
        return failed(f"the home {home['path']} is not for every user to write to (mode {home['mode']})")
    return passed(f"{home['path']} is for every user to write to")


def _with_unreadable(evidence: Evidence, finding: Finding) -> Finding:
    if finding.status is Status.PASS and evidence["unreadable"]:
        return unproven(f"{finding.reason}, but {listed(evidence['unreadable'])} can't be read by this user")
    return finding


JUDGES: Mapping[str, Judging] = {
    "S1": pins,
    "S2": files,
    "S3": libraries,
    "S4": symbols,
    "S5": devicecode,
    "S6": toolkit,
    "S7": environment,
    "S8": hygiene,
}
