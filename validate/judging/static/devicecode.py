"""S5: device code for the claimed archs."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from validate.binaries.demangle import readable
from validate.contracts.device_code import (
    CodeOfFile,
    DeviceCodeEvidence,
    DeviceCodeExpect,
    KernelCodeExpect,
    LibraryCodeExpect,
    PrunedCodeExpect,
    Served,
)
from validate.judging import Finding, failed, listed, not_applicable, typed
from validate.judging.text import conclude, matches

_WholeExpect = KernelCodeExpect | LibraryCodeExpect


@typed
def judge(subject: str, expect: DeviceCodeExpect, evidence: DeviceCodeEvidence) -> Finding:
    """S5, of three kinds: validate/contracts/device_code.py says what each expects."""
    found = evidence["files"]
    if expect["kind"] == "pruned":
        return _pruned(expect, found)
    faults = [f"{path} can't be read: {facts['error']}" for path, facts in found.items() if "error" in facts]
    faults += [fault for path, facts in found.items() for fault in _hidden_faults(path, facts)]
    read = {path: facts for path, facts in found.items() if "error" not in facts and facts["archs"]}
    for pattern in expect["files"]:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in found):
            faults.append(f"{subject} has no {pattern}")
        elif not any(fnmatch.fnmatchcase(path, pattern) for path in read) and not faults:
            faults.append(f"{pattern} of {subject} holds no code for any GPU")
    if not read and not faults and not expect["files"]:
        return not_applicable(f"{subject} brings no device code of its own")
    warnings: list[str] = []
    for path, facts in read.items():
        for arch, how in expect["archs"].items():
            wrong = list(_arch_faults(path, facts, arch, how))
            gap = _known_gap(expect, path, arch)
            faults += [] if gap else wrong
            warnings += [f"WARNING: no sm_{arch} in {PurePosixPath(path).name} ({gap})"] if gap and wrong else []
    return conclude(faults, "; ".join([_device_summary(expect, read), *warnings]))


def _pruned(expect: PrunedCodeExpect, found: Mapping[str, CodeOfFile]) -> Finding:
    """No code but what the claimed archs have a use for, and S5 for its comparisons."""
    archs = listed([f"sm_{arch}" for arch in expect["archs"]])
    faults = [f"{path} can't be read: {facts['error']}" for path, facts in found.items() if "error" in facts]
    read = {
        path: facts
        for path, facts in found.items()
        if "error" not in facts and (facts["archs"] or facts["whole"] or facts["marked"])
    }
    if not read and not faults:
        return failed("there is no library with device code at all")
    for path, facts in sorted(read.items(), key=lambda pair: -pair[1]["surplus_bytes"]):
        if facts["surplus_entries"]:
            size = f"{facts['surplus_bytes'] / 1e6:.1f} MB"
            faults.append(f"{path} has {size} for {listed(facts['surplus'])} that {archs} has no use for")
        if facts["marked"]:
            size = f"{facts['marked_bytes'] / 1e6:.1f} MB"
            faults.append(f"{path} has {size} for {listed(facts['marked'])} marked as taken out, and still there")
    others = {arch for facts in read.values() for arch in facts["archs"]} - {
        f"sm_{arch}{variant}" for arch in expect["archs"] for variant in ("", "a", "f")
    }
    instead = f", and {listed(sorted(others))} where a library has none" if others else ""
    whole = sum(facts["whole"] for facts in read.values())
    as_they_come = f"; {whole} regions left unpruned because they lack kernels for it" if whole else ""
    return conclude(faults, f"{len(read)} libraries hold code for {archs} alone{instead}{as_they_come}")


def _hidden_faults(path: str, facts: CodeOfFile) -> Iterator[str]:
    for arch, regions in facts.get("hidden", {}).items():
        yield f"the sm_{arch} code of {regions} regions in {path} is marked as taken out, and the driver passes it over"


def _arch_faults(path: str, facts: CodeOfFile, arch: str, how: str) -> Iterator[str]:
    served = facts["served"][arch]
    if isinstance(served, str):
        if served == "none" or (served == "jit" and how == "cubin"):
            what = "only PTX" if served == "jit" else "no code"
            yield f"{path} has {what} for sm_{arch}, but {listed(facts['archs'])}"
        return
    of = f"of {facts['kernels']} kernels in {path}"
    if served.get("emptied"):
        yield f"the sm_{arch} code of {served['emptied']} of {facts['regions']} regions in {path} was emptied"
    if served.get("absent"):
        yield f"{served['absent']} {of} have no code for sm_{arch}: {_readable(served, 'absent')}"
    if served.get("stub"):
        yield f"{served['stub']} {of} are empty stubs for sm_{arch}: {_readable(served, 'stub')}"
    if served.get("jit") and how == "cubin":
        what = "reach through PTX alone, where machine code is expected,"
        yield f"{served['jit']} {of} {what} sm_{arch}: {_readable(served, 'jit')}"


def _readable(served: Served, state: str) -> str:
    return listed(list(dict.fromkeys(readable(name) for name in served["named"][state])), limit=2)


def _known_gap(expect: _WholeExpect, path: str, arch: str) -> str:
    """Why upstream's own build lacks this arch in this file; empty where it has no such excuse."""
    rows = expect["known_gaps"]
    return next((row["reason"] for row in rows if int(arch) in row["archs"] and matches(path, [row["file"]])), "")


def _device_summary(expect: _WholeExpect, read: Mapping[str, CodeOfFile]) -> str:
    archs = ", ".join(f"sm_{arch}{' (PTX)' if how == 'jit' else ''}" for arch, how in expect["archs"].items())
    kernels = sum(facts.get("kernels", 0) for facts in read.values())
    what = f"{kernels} kernels in {len(read)} files" if kernels else f"{len(read)} libraries"
    return f"{what} serve {archs}"
