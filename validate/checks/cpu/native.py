"""native: a package loads the CUDA library that the matrix selects: it is mapped, has its symbols, registers its
operators.

A successful import shows little. Without a GPU bitsandbytes silently takes its CPU library; xformers and torchao log a
warning and go on without kernels.
"""

import ctypes
import importlib
import importlib.metadata
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.harness.forked import attempt, described, in_fork, mapped
from validate.judging import Finding, failed, joined, listed, passed, root_cause

SETTINGS = Settings(begins_with_torch=True)

_CUDA_RUNTIME = re.compile(r"/libcudart\.so\.(\d+)[^/]*$")
_LIBRARY = r"\.so[^/]*$"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of each distribution, measured in a fork that has imported torch alone."""
    importlib.import_module("torch")
    # Shared libraries by real path, with the distribution whose RECORD lists each.
    listing = installed.names_of_owners(installed.distributions(sys.path))
    owners = {os.path.realpath(path): names[0] for path, names in listing.items() if ".so" in path}
    for claim in claims:
        try:
            distribution = importlib.metadata.distribution(claim.subject)
        except importlib.metadata.PackageNotFoundError:
            yield claim.subject, {}
            continue
        # Facts that need no loading, so that a crash does not lose them.
        root = Path(str(distribution.locate_file(""))).resolve()
        names = _library_names(distribution, root, claim.expect["libraries"])
        files = {name: (root / name).is_file() for name in names}
        loaded = in_fork(partial(_loaded, claim.expect, root, [name for name in names if files[name]], owners))
        yield claim.subject, {"version": distribution.version, "root": str(root), "files": files, **loaded}


def _loaded(
    expect: Mapping[str, Any], root: Path, present: Sequence[str], owners: Mapping[str, str]
) -> Mapping[str, Any]:
    before = mapped(_LIBRARY)
    # A list that grows with what packages log at WARNING or above from now on.
    warnings: list[str] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(f"{record.name}: {record.getMessage()}"[:500])

    logging.getLogger().addHandler(Recorder(level=logging.WARNING))
    imports: dict[str, Mapping[str, str] | None] = {}
    for name in expect["modules"]:
        print(f"importing {name}", flush=True)  # noqa: T201  after a crash it is the last line of the log
        try:
            importlib.import_module(name)
            imports[name] = None
        except Exception as error:
            imports[name] = described(error)
    by_import = mapped("")
    return {
        "imports": imports,
        "warnings": warnings,
        "libraries": {name: _library(root / name, by_import, expect["symbols"]) for name in present},
        "operators": {name: _has_cuda_kernel(name) for name in expect["operators"]},
        "selection": attempt(_bitsandbytes_selection) if "selection" in expect else None,
        "cuda_runtimes": _cuda_runtimes(owners),
        "mapped": {
            path.removeprefix(f"{root}/"): owners.get(path)
            for path in mapped(_LIBRARY)
            if path not in before and "lib-dynload" not in path
        },
    }


def _library_names(distribution: importlib.metadata.Distribution, root: Path, patterns: Sequence[str]) -> list[str]:
    """Files that a pattern names, by RECORD or on the disk: one that RECORD lists and the disk lacks is a finding.

    A pattern without wildcards is named even if neither knows it.
    """
    recorded = [str(file) for file in distribution.files or ()]
    names: dict[str, None] = {}
    for pattern in patterns:
        on_disk = [str(file.relative_to(root)) for file in root.glob(pattern)]
        listed = [file for file in recorded if _matches(file, pattern)]
        names |= dict.fromkeys(sorted({*on_disk, *listed, *([] if "*" in pattern else [pattern])}))
    return list(names)


def _matches(file: str, pattern: str) -> bool:
    """As Path.glob does: `**/` stands for any number of folders, none included; `*` stays within one."""
    if "**/" in pattern:
        before, _, after = pattern.partition("**/")
        return file.startswith(before) and fnmatch(file.rpartition("/")[2], after)
    return fnmatch(file, pattern) and file.count("/") == pattern.count("/")


def _library(path: Path, by_import: Sequence[str], symbols: Sequence[str]) -> Mapping[str, Any]:
    file = str(path.resolve())
    print(f"loading {path}", flush=True)  # noqa: T201
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return {"mapped_by_import": file in by_import, "load_error": str(error)}
    return {
        "mapped_by_import": file in by_import,
        "load_error": None,
        "mapped": file in mapped(""),
        "missing_symbols": [name for name in symbols if not hasattr(library, name)],
    }


def _has_cuda_kernel(operator: str) -> bool | None:
    """None: no such operator is registered."""
    c = importlib.import_module("torch._C")
    if operator not in set(c._dispatch_get_all_op_names()):
        return None
    return bool(c._dispatch_has_kernel_for_dispatch_key(operator, "CUDA"))


def _bitsandbytes_selection() -> Mapping[str, Any]:
    """Which file bitsandbytes' own lookup would take on a GPU, BNB_CUDA_VERSION and fallbacks included."""
    cuda = str(importlib.import_module("torch").version.cuda)
    major, minor = (int(part) for part in cuda.split(".")[:2])
    specs = importlib.import_module("bitsandbytes.cuda_specs").CUDASpecs(
        highest_compute_capability=(9, 0), cuda_version_string=f"{major}{minor}", cuda_version_tuple=(major, minor)
    )
    path = importlib.import_module("bitsandbytes.cextension").get_cuda_bnb_library_path(specs)
    return {"torch_cuda": cuda, "file": Path(path).name, "override": os.environ.get("BNB_CUDA_VERSION")}


def _cuda_runtimes(owners: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Each CUDA runtime that is mapped: file, owner, and the version it answers itself (12060 for 12.6)."""
    found: list[Mapping[str, Any]] = []
    for match in filter(None, map(_CUDA_RUNTIME.search, mapped(""))):
        path, version = match.string, ctypes.c_int()
        ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(version))
        found.append({"file": path, "owner": owners.get(path), "major": int(match[1]), "version": version.value})
    return found


def judge(subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """native: every library that the matrix selects is loaded, complete, and on the expected CUDA.

    expect: {modules, loading: `import`, or `by-path` where an import without a GPU takes another library, cuda_major,
    symbols, operators, libraries: patterns of files, selection: {cuda} where the package chooses by torch's CUDA}.
    evidence, empty where it is not installed: {version, root, files: {name: it is there}}, and `error` or {imports:
    {module: what it raised}, warnings, libraries: {name: {mapped_by_import, load_error, mapped, missing_symbols}},
    operators: {name: it has a CUDA kernel; null: it is unknown}, selection: {torch_cuda, file, override},
    cuda_runtimes: [{file, owner, major, version}], mapped: {library: owner}}.
    """
    if not evidence:
        return failed(f"{subject} is not installed")
    problems: list[str] = []
    files = evidence["files"]
    if not files:
        problems.append(f"no file matches {listed(list(expect['libraries']))}")
    problems += (f"{name} is missing" for name, exists in files.items() if not exists)
    if "error" in evidence:
        problems.append(f"loading {subject}: {root_cause(evidence['error'])}")
    else:
        libraries = evidence["libraries"]
        for name, facts in libraries.items():
            if facts["load_error"]:
                problems.append(f"{name} can't be loaded: {facts['load_error']}")
            elif not facts["mapped"]:
                problems.append(f"{name} was loaded but something else is mapped in its place")
            elif expect["loading"] == "import" and not facts["mapped_by_import"]:
                problems.append(f"importing {listed(list(expect['modules']))} does not load {name}")
            elif facts["missing_symbols"]:
                count = f"{len(facts['missing_symbols'])} of {len(expect['symbols'])} symbols"
                problems.append(f"{name} lacks {count}: {listed(facts['missing_symbols'])}")
        problems += _operator_problems(expect["operators"], evidence["operators"])
        problems += _runtime_problems(expect["cuda_major"], evidence["cuda_runtimes"])
        problems += _selection_problems(expect, evidence["selection"])
        problems += (f"import {name}: {root_cause(error)}" for name, error in evidence["imports"].items() if error)
    if problems:
        return failed(joined(problems))
    with_what = [f"symbols {listed(expect['symbols'])}"] if expect["symbols"] else []
    with_what += [f"CUDA kernels of {listed(expect['operators'])}"] if expect["operators"] else []
    with_what += [
        f"the CUDA {_dotted(found['version'])} runtime of {found['owner'] or found['file']}"
        for found in evidence["cuda_runtimes"]
        if expect["cuda_major"] is not None
    ]
    return passed(f"{listed(list(evidence['libraries']))} loaded, with {', '.join(with_what)}")


def _operator_problems(expected: Iterable[str], found: Mapping[str, bool | None]) -> Iterator[str]:
    if absent := [name for name in expected if found.get(name) is None]:
        yield f"torch does not know {listed(absent)}"
    if without := [name for name in expected if found.get(name) is False]:
        yield f"no CUDA kernel is registered for {listed(without)}"


def _runtime_problems(major: int | None, runtimes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if major is None:
        return
    if not runtimes:
        yield f"no CUDA {major} runtime is loaded"
    if len(runtimes) > 1:
        yield f"{len(runtimes)} CUDA runtimes are loaded: {listed([found['file'] for found in runtimes])}"
    for found in runtimes:
        if found["major"] != major or found["version"] // 1000 != major:
            yield f"expected the CUDA {major} runtime, {found['file']} is {_dotted(found['version'])}"


def _selection_problems(expect: Mapping[str, Any], selection: Mapping[str, Any] | None) -> Iterator[str]:
    if "selection" not in expect:
        return
    if selection is None or "error" in selection:
        yield f"its own lookup can't be asked: {root_cause(selection['error']) if selection else 'no answer'}"
        return
    if selection["torch_cuda"] != expect["selection"]["cuda"]:
        yield f"torch was compiled for CUDA {selection['torch_cuda']}, not {expect['selection']['cuda']}"
    wanted = [Path(name).name for name in expect["libraries"]]
    if selection["file"] not in wanted:
        override = f" (BNB_CUDA_VERSION={selection['override']})" if selection["override"] else ""
        yield f"on a GPU it would take {selection['file']}{override}, not {listed(wanted)}"


def _dotted(version: int) -> str:
    """CUDA's own version number: 12060 is 12.6."""
    return f"{version // 1000}.{version % 1000 // 10}"


CLAIMS = {"native": judge}
