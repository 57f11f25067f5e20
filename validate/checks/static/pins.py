"""S1: `import` gives a user the pinned version, of the right build, from its own distribution, and nothing else.

The evidence of the claim about the lock (subject `lock`) lists everything installed.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from validate.binaries.loader import X86_64
from validate.claims import Claim
from validate.environment import installed, user_environment
from validate.environment.installed import Distribution
from validate.judging import Finding, conclude, failed, listed


class _TorchCuda(TypedDict, total=False):
    cuda: str
    """Of torch alone: the CUDA that it must be built for."""


class _OfMachine(TypedDict, total=False):
    machine: str
    """In the kernel's words; absent: x86_64."""


class PinExpect(_TorchCuda, _OfMachine):
    version: str
    locals: list[str]
    """Local versions that name this wheel."""
    modules: list[str]
    python: str
    shares: list[str]
    """Distributions that put files into its package by design."""


class InstalledDistribution(TypedDict):
    version: str
    location: str
    tags: list[str]
    has_record: bool


class _ModuleDetails(TypedDict, total=False):
    error: str
    namespace: list[str]
    through: str
    """The entry of sys.path that supplied it."""


class Module(_ModuleDetails):
    file: str | None
    owners: list[str]
    providers: list[str]


class TorchVersion(TypedDict):
    """torch/version.py, read as text."""

    file: str | None
    __version__: str | None
    cuda: str | None


class _OfTorch(TypedDict, total=False):
    torch: TorchVersion


class PinEvidence(_OfTorch, _OfMachine):
    python: str
    glibc: str
    installed: list[InstalledDistribution]
    modules: dict[str, Module]


class LockExpect(TypedDict):
    versions: dict[str, str]
    closed: bool
    """Nothing else may be installed."""


class LockEvidence(TypedDict):
    installed: dict[str, list[str]]


LOCK = "lock"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, LockEvidence | PinEvidence]]:
    wanted = sorted({module for claim in claims for module in _modules(claim)})
    given = user_environment.recorded()
    start = user_environment.start(given, wanted)
    folders = [entry or given.directory for entry in start.path]
    everything = installed.distributions(folders)
    owners = installed.owners(everything)
    for claim in claims:
        if claim.subject == LOCK:
            versions: dict[str, list[str]] = {}
            for distribution in everything:
                versions.setdefault(distribution.name, []).append(distribution.version)
            yield LOCK, {"installed": versions}
        else:
            of_this_name = [distribution for distribution in everything if distribution.name == claim.subject]
            evidence: PinEvidence = {
                "python": start.version,
                "glibc": start.glibc or _glibc(),
                "installed": [
                    {
                        "version": distribution.version,
                        "location": distribution.location,
                        "tags": list(distribution.tags),
                        "has_record": distribution.entries is not None,
                    }
                    for distribution in of_this_name
                ],
                "modules": {
                    module: _module(module, claim.subject, everything, owners, start) for module in _modules(claim)
                },
            }
            if claim.subject == "torch":
                evidence["torch"] = torch_version(of_this_name)
            yield claim.subject, {**evidence, "machine": given.machine}


def _modules(claim: Claim) -> Sequence[str]:
    """The top-level modules that a claim asks for; the claim about the lock asks for none."""
    return cast(PinExpect, claim.expect).get("modules", ())


def _module(
    module: str,
    subject: str,
    everything: Sequence[Distribution],
    owners: Mapping[str, Sequence[Distribution]],
    start: user_environment.Start,
) -> Module:
    found = start.found.get(module)
    providers = sorted({other.name for other in everything if module in other.modules()})
    if found is None or "error" in found:
        return {"file": None, "error": (found or {}).get("error", ""), "owners": [], "providers": providers}
    origin = found["origin"]
    if origin in (None, "namespace"):
        return {"file": None, "namespace": found["locations"], "owners": [], "providers": providers}
    file = os.path.join(os.path.realpath(os.path.dirname(origin)), os.path.basename(origin))  # noqa: PTH118 PTH119 PTH120
    # The entry of sys.path that supplied a file: the longest that it lies under.
    under = [entry for entry in start.path if entry and origin.startswith(entry.rstrip("/") + "/")]
    return {
        "file": file,
        "through": max(under, key=len, default="the working directory"),
        "owners": sorted({owner.name for owner in owners.get(file, ())}),
        "providers": providers,
    }


def _glibc() -> str:
    version = os.confstr("CS_GNU_LIBC_VERSION") or ""
    return version.removeprefix("glibc ")


def torch_version(of_torch: Sequence[Distribution]) -> TorchVersion:
    """`__version__` and `cuda` as torch/version.py states them, read as text: torch is not imported."""
    for distribution in of_torch:
        file = Path(distribution.location, "torch", "version.py")
        if file.is_file():
            values = _constants(file.read_text(encoding="utf-8", errors="replace"))
            return {"file": str(file), "__version__": values["__version__"], "cuda": values["cuda"]}
    return {"file": None, "__version__": None, "cuda": None}


def _constants(source: str) -> dict[str, str | None]:
    values: dict[str, str | None] = {"__version__": None, "cuda": None}
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError):
        return values
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and target.id in values and isinstance(value, ast.Constant):
                values[target.id] = None if value.value is None else str(value.value)
    return values


def judge(subject: str, expect: PinExpect, evidence: PinEvidence) -> Finding:
    """S1. expect: {version, locals, modules, python, shares} and for torch {cuda}; `lock`: {versions, closed}."""
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


def judge_lock(_subject: str, expect: LockExpect, evidence: LockEvidence) -> Finding:
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


CLAIMS = {"S1 lock": judge_lock, "S1": judge}
