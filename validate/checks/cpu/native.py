"""native: a package loads the CUDA library that the matrix selects: it is mapped, has its symbols, registers its
operators.

A successful import shows little. Without a GPU bitsandbytes silently takes its CPU library; xformers and torchao log a
warning and go on without kernels.
"""

import ctypes
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, cast

from validate.checks import Settings
from validate.claims import Claim
from validate.environment import installed
from validate.harness.error_codes import ErrorEvidence
from validate.harness.forked import attempt, describe_error, list_mapped_files, measure_in_fork
from validate.judging import Finding, failed, joined, listed, passed, root_cause

SETTINGS = Settings(begins_with_torch=True)

_CUDA_RUNTIME = re.compile(r"/libcudart\.so\.(\d+)[^/]*$")


class _NativeExpect(TypedDict):
    modules: Sequence[str]
    loading: str  # `import`, or `by-path` where an import without a GPU takes another library
    cuda_major: int | None
    symbols: Sequence[str]
    operators: Sequence[str]
    libraries: Sequence[str]  # patterns of files


class NativeExpect(_NativeExpect, total=False):
    """`selection`: {cuda}, where the package chooses its library by torch's CUDA."""

    selection: Mapping[str, str]


class Library(TypedDict, total=False):
    """How a library was loaded, and the symbols that it lacks. Without the last two keys it could not be loaded."""

    mapped_by_import: bool
    load_error: str | None
    mapped: bool
    missing_symbols: list[str]


class CudaRuntime(TypedDict):
    """A CUDA runtime that is mapped: file, owner, and the version that it reports itself (12060 for 12.6)."""

    file: str
    owner: str | None
    major: int
    version: int


class NativeEvidence(TypedDict, total=False):
    """Empty where the distribution is not installed. Where loading it crashed, `error` stands after `files`."""

    version: str
    files: Mapping[str, bool]  # name -> it is there
    error: Mapping[str, Any]
    imports: Mapping[str, ErrorEvidence | None]  # module -> what importing it raised
    libraries: Mapping[str, Library]
    operators: Mapping[
        str, bool | None
    ]  # name -> it has a CUDA kernel; None: torch does not know it
    selection: Mapping[str, Any] | None
    cuda_runtimes: list[CudaRuntime]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, NativeEvidence]]:
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
        names = _library_names(root, claim.expect["libraries"])
        files = {name: (root / name).is_file() for name in names}
        present = [name for name in names if files[name]]
        loaded: NativeEvidence = measure_in_fork(
            partial(_loaded, cast("NativeExpect", claim.expect), root, present, owners)
        )
        yield claim.subject, {**loaded, "version": distribution.version, "files": files}


def _loaded(
    expect: NativeExpect, root: Path, present: Sequence[str], owners: Mapping[str, str]
) -> NativeEvidence:
    """Import the modules and load the libraries."""
    imports: dict[str, ErrorEvidence | None] = {}
    for name in expect["modules"]:
        print(f"importing {name}", flush=True)  # noqa: T201  after a crash it is the last line of the log
        try:
            importlib.import_module(name)
            imports[name] = None
        except Exception as error:
            imports[name] = describe_error(error)
    by_import = list_mapped_files("")
    return {
        "imports": imports,
        "libraries": {
            name: _library(root / name, by_import, expect["symbols"]) for name in present
        },
        "operators": {name: _has_cuda_kernel(name) for name in expect["operators"]},
        "selection": attempt(_bitsandbytes_selection) if "selection" in expect else None,
        "cuda_runtimes": _cuda_runtimes(owners),
    }


def _library_names(root: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files that match a pattern, and each pattern without wildcards, whether its file is there or not.

    A file that RECORD lists and the disk lacks fails `files/recorded`.
    """
    names: dict[str, None] = {}
    for pattern in patterns:
        found = {str(file.relative_to(root)) for file in root.glob(pattern)}
        if "*" not in pattern:
            found.add(pattern)
        names |= dict.fromkeys(sorted(found))
    return list(names)


def _library(path: Path, by_import: Sequence[str], symbols: Sequence[str]) -> Library:
    """Load a library."""
    file = str(path.resolve())
    print(f"loading {path}", flush=True)  # noqa: T201
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return {"mapped_by_import": file in by_import, "load_error": str(error)}
    return {
        "mapped_by_import": file in by_import,
        "load_error": None,
        "mapped": file in list_mapped_files(""),
        "missing_symbols": [name for name in symbols if not hasattr(library, name)],
    }


def _has_cuda_kernel(operator: str) -> bool | None:
    """Return whether an operator has a CUDA kernel; None: no such operator is registered."""
    c = importlib.import_module("torch._C")
    if operator not in set(c._dispatch_get_all_op_names()):
        return None
    return bool(c._dispatch_has_kernel_for_dispatch_key(operator, "CUDA"))


def _bitsandbytes_selection() -> Mapping[str, Any]:
    """Return which file bitsandbytes' own lookup would take on a GPU, BNB_CUDA_VERSION and fallbacks included."""
    cuda = str(importlib.import_module("torch").version.cuda)
    major, minor = (int(part) for part in cuda.split(".")[:2])
    specs = importlib.import_module("bitsandbytes.cuda_specs").CUDASpecs(
        highest_compute_capability=(9, 0),
        cuda_version_string=f"{major}{minor}",
        cuda_version_tuple=(major, minor),
    )
    path = importlib.import_module("bitsandbytes.cextension").get_cuda_bnb_library_path(specs)
    return {
        "torch_cuda": cuda,
        "file": Path(path).name,
        "override": os.environ.get("BNB_CUDA_VERSION"),
    }


def _cuda_runtimes(owners: Mapping[str, str]) -> list[CudaRuntime]:
    """Return each CUDA runtime that is mapped."""
    runtimes: list[CudaRuntime] = []
    for path in list_mapped_files(""):
        match = _CUDA_RUNTIME.search(path)
        if match:
            version = ctypes.c_int()
            ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(version))
            runtimes.append(
                {
                    "file": path,
                    "owner": owners.get(path),
                    "major": int(match[1]),
                    "version": version.value,
                }
            )
    return runtimes


def judge(subject: str, expect: NativeExpect, evidence: NativeEvidence) -> Finding:
    """Judge that every library that the matrix selects is loaded, complete, and on the expected CUDA."""
    if not evidence:
        return failed(f"{subject} is not installed")

    problems: list[str] = []
    if not evidence["files"]:
        problems.append(f"no file matches {listed(list(expect['libraries']))}")
    problems += [f"{name} is missing" for name, exists in evidence["files"].items() if not exists]
    if "error" in evidence:
        problems.append(f"loading {subject}: {root_cause(evidence['error'])}")
    else:
        problems += _library_problems(expect, evidence["libraries"])
        problems += _operator_problems(expect["operators"], evidence["operators"])
        problems += _runtime_problems(expect["cuda_major"], evidence["cuda_runtimes"])
        problems += _selection_problems(expect, evidence["selection"])
        problems += [
            f"import {name}: {root_cause(error)}"
            for name, error in evidence["imports"].items()
            if error
        ]
    if problems:
        return failed(joined(problems))
    return passed(_summarise(expect, evidence))


def _summarise(expect: NativeExpect, evidence: NativeEvidence) -> str:
    """Write what was loaded, with which symbols, kernels and CUDA runtime."""
    parts = []
    if expect["symbols"]:
        parts.append(f"symbols {listed(expect['symbols'])}")
    if expect["operators"]:
        parts.append(f"CUDA kernels of {listed(expect['operators'])}")
    if expect["cuda_major"] is not None:
        for runtime in evidence["cuda_runtimes"]:
            whose = runtime["owner"] or runtime["file"]
            parts.append(f"the CUDA {_dotted(runtime['version'])} runtime of {whose}")
    return f"{listed(list(evidence['libraries']))} loaded, with {', '.join(parts)}"


def _library_problems(expect: NativeExpect, libraries: Mapping[str, Library]) -> Iterator[str]:
    """Yield why a library is not loaded as it is expected."""
    for name, library in libraries.items():
        if library["load_error"]:
            yield f"{name} can't be loaded: {library['load_error']}"
        elif not library["mapped"]:
            yield f"{name} was loaded but something else is mapped in its place"
        elif expect["loading"] == "import" and not library["mapped_by_import"]:
            yield f"importing {listed(list(expect['modules']))} does not load {name}"
        elif library["missing_symbols"]:
            count = f"{len(library['missing_symbols'])} of {len(expect['symbols'])} symbols"
            yield f"{name} lacks {count}: {listed(library['missing_symbols'])}"


def _operator_problems(names: Iterable[str], operators: Mapping[str, bool | None]) -> Iterator[str]:
    """Yield operators that torch does not know, or that have no CUDA kernel."""
    unknown = [name for name in names if operators.get(name) is None]
    if unknown:
        yield f"torch does not know {listed(unknown)}"
    without_kernel = [name for name in names if operators.get(name) is False]
    if without_kernel:
        yield f"no CUDA kernel is registered for {listed(without_kernel)}"


def _runtime_problems(major: int | None, runtimes: Sequence[CudaRuntime]) -> Iterator[str]:
    """Yield CUDA runtimes that are not the one that is expected; `major` None: none is."""
    if major is None:
        return
    if not runtimes:
        yield f"no CUDA {major} runtime is loaded"
    if len(runtimes) > 1:
        yield f"{len(runtimes)} CUDA runtimes are loaded: {listed([runtime['file'] for runtime in runtimes])}"
    for runtime in runtimes:
        if runtime["major"] != major or runtime["version"] // 1000 != major:
            yield f"expected the CUDA {major} runtime, {runtime['file']} is {_dotted(runtime['version'])}"


def _selection_problems(expect: NativeExpect, selection: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield why the package's own lookup would take another library on a GPU."""
    if "selection" not in expect:
        return
    if selection is None or "error" in selection:
        yield f"its own lookup can't be asked: {root_cause(selection['error']) if selection else 'no answer'}"
        return

    cuda = expect["selection"]["cuda"]
    if selection["torch_cuda"] != cuda:
        yield f"torch was compiled for CUDA {selection['torch_cuda']}, not {cuda}"
    names = [Path(name).name for name in expect["libraries"]]
    if selection["file"] not in names:
        override = f" (BNB_CUDA_VERSION={selection['override']})" if selection["override"] else ""
        yield f"on a GPU it would take {selection['file']}{override}, not {listed(names)}"


def _dotted(version: int) -> str:
    """CUDA's own version number: 12060 is 12.6."""
    return f"{version // 1000}.{version % 1000 // 10}"


CLAIMS = {"native": judge}
