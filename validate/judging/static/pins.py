"""S1: the pinned distributions, and the closure of the lock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from validate.binaries.machines import X86_64
from validate.contracts.static import (
    InstalledDistribution,
    LockEvidence,
    LockExpect,
    Module,
    PinEvidence,
    PinExpect,
    TorchVersion,
)
from validate.judging import Finding, failed, listed, typed
from validate.judging.text import conclude

LOCK = "lock"


@typed
def judge(subject: str, expect: PinExpect, evidence: PinEvidence) -> Finding:
    """S1. expect: {version, locals, modules, python, shares} and for torch {cuda}; `lock`: {versions, closed}."""
    if subject == LOCK:
        return _lock(cast(LockExpect, expect), cast(LockEvidence, evidence))
    found = evidence["installed"]
    if not found:
        return failed(f"{subject} is not installed")
    if len(found) > 1:
        places = [f"{one['version']} in {one['location']}" for one in found]
        return failed(f"{subject} is installed {len(found)} times: {listed(places)}")
    faults = [*_version_faults(subject, expect, found[0]), *_tag_faults(subject, expect, found[0], evidence)]
    for module in expect["modules"]:
        faults += _module_faults(subject, expect, module, evidence["modules"][module])
    if "cuda" in expect:
        faults += _torch_faults(expect, evidence["torch"])
    return conclude(faults, f"{found[0]['version']}, imported from its own files")


def _version_faults(subject: str, expect: PinExpect, found: InstalledDistribution) -> Iterator[str]:
    public, _, local = found["version"].partition("+")
    if public != expect["version"] or local not in expect["locals"]:
        yield f"{subject} {found['version']} is installed, {expect['version']} is expected"
    if not found["has_record"]:
        yield f"{subject} has no RECORD, so its files can't be told from others'"


def _tag_faults(subject: str, expect: PinExpect, found: InstalledDistribution, evidence: PinEvidence) -> Iterator[str]:
    machine, wanted = evidence.get("machine", X86_64.name), expect.get("machine", X86_64.name)
    if machine != wanted:
        yield f"the interpreter is of {machine}, {wanted} is expected"
    if evidence["python"] != expect["python"]:
        yield f"the interpreter is Python {evidence['python']}, {expect['python']} is expected"
    tags = found["tags"]
    if tags and not any(_tag_fits(tag, evidence["python"], evidence["glibc"], wanted) for tag in tags):
        yield f"{subject}'s wheel is for {listed(tags)}, not for this Python and glibc {evidence['glibc']}"


def _tag_fits(tag: str, python: str, glibc: str, machine: str = X86_64.name) -> bool:
    """A wheel tag against glibc Linux with CPython on a machine (packaging.python.org, platform compatibility tags)."""
    parts = tag.split("-")
    if len(parts) != 3:
        return False
    interpreters, abis, platforms = (part.split(".") for part in parts)
    minor = int(python.partition(".")[2])
    exact = f"cp3{minor}"
    fits = exact in interpreters and bool({exact, "abi3", "none"} & set(abis))
    fits |= "abi3" in abis and any(_minor(one, "cp3") <= minor for one in interpreters)
    fits |= "none" in abis and any(_minor(one, "py3") <= minor for one in interpreters)
    return fits and any(_platform_fits(platform, glibc, machine) for platform in platforms)


def _minor(interpreter: str, prefix: str) -> int:
    """Lowest minor version of Python 3 that `py3`, `py310` or `cp39` names; out of reach for others."""
    found = re.fullmatch(rf"{prefix}(\d*)", interpreter)
    return int(found[1] or 0) if found else 1000


def _platform_fits(platform: str, glibc: str, machine: str) -> bool:
    legacy = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}
    for old, new in legacy.items():
        platform = platform.replace(f"{old}_", f"{new}_")
    if platform in ("any", f"linux_{machine}"):
        return True
    found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{machine}", platform)
    return bool(found) and (int(found[1]), int(found[2])) <= tuple(map(int, glibc.split(".")[:2])) if found else False


def _module_faults(subject: str, expect: PinExpect, module: str, found: Module) -> Iterator[str]:
    if found["file"] is None:
        what = f"is a namespace over {listed(found['namespace'])}" if found.get("namespace") else "can't be found"
        yield f"`import {module}` {what} {found.get('error', '')}".rstrip()
        return
    if subject not in found["owners"]:
        owner = listed(found["owners"]) or "no distribution"
        yield f"`import {module}` loads {found['file']} of {owner}, found through {found['through']}"
    others = set(found["providers"]) - {subject} - set(expect["shares"])
    if others:
        yield f"{listed(sorted(others))} also installs files into {module}"


def _torch_faults(expect: PinExpect, torch: TorchVersion) -> Iterator[str]:
    if torch["cuda"] != expect["cuda"]:
        built = f"for CUDA {torch['cuda']}" if torch["cuda"] else "for no CUDA at all"
        yield f"{torch['file']}: torch {torch['__version__']} is built {built}, {expect['cuda']} is expected"
    elif str(torch["__version__"]).partition("+")[0] != expect["version"]:
        yield f"{torch['file']} says {torch['__version__']}, {expect['version']} is expected"


def _lock(expect: LockExpect, evidence: LockEvidence) -> Finding:
    """The whole closure: nothing missing, nothing at another version, and (`closed`) nothing besides."""
    expected, found = expect["versions"], evidence["installed"]
    faults = [f"{name} {version} is not installed" for name, version in expected.items() if name not in found]
    for name, versions in found.items():
        wanted = expected.get(name)
        if wanted is None:
            if expect["closed"]:
                faults.append(f"{name} {listed(versions)} is installed, but not in the lock")
        elif [version.partition("+")[0] for version in versions] != [wanted.partition("+")[0]]:
            faults.append(f"{name} {' and '.join(versions)} is installed, the lock has {wanted}")
    return conclude(faults, f"all {len(expected)} locked distributions, each at its version")
