"""native: check that a package loads the CUDA library that the matrix selects, and all of it.

A successful import shows little. Without a GPU bitsandbytes silently takes its CPU library;
xformers and torchao log a warning and go on without kernels.
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
from validate.next_steps import if_image_sets, pin

SETTINGS = Settings(begins_with_torch=True)

_CUDA_RUNTIME = re.compile(r"/libcudart\.so\.(?P<major>\d+)[^/]*$")
"""The path of a CUDA runtime: `.../nvidia/cuda_runtime/lib/libcudart.so.12`."""
_HOPPER = (9, 0)


class _NativeExpect(TypedDict):
    modules: Sequence[str]  # to import
    loading: str  # `import`, or `by-path` where an import without a GPU takes another library
    cuda_major: int | None  # of the CUDA runtime that must be loaded; None: not checked
    symbols: Sequence[str]  # that each library must have
    operators: Sequence[str]  # of torch, that must have a CUDA kernel
    libraries: Sequence[str]  # paths or glob patterns below site-packages


class NativeExpect(_NativeExpect, total=False):
    """What is expected of a package with compiled libraries."""

    # {cuda: torch's version of it}; of bitsandbytes alone, which chooses its library by that
    selection: Mapping[str, str]


class Library(TypedDict, total=False):
    """How a library was loaded. The last two keys are absent if it could not be loaded."""

    mapped_by_import: bool  # importing the modules has loaded it
    load_error: str | None
    mapped: bool  # this file, and no other of its name, is mapped into the process
    missing_symbols: list[str]


class CudaRuntime(TypedDict):
    """A CUDA runtime library that is mapped into the process."""

    file: str
    owner: str | None  # the distribution that has the file
    major: int  # by its file name
    version: int  # as it reports itself: 12060 for 12.6; 0: it reports none


class NativeEvidence(TypedDict, total=False):
    """What `measure` yields: nothing if the package is not installed.

    If loading it raised or crashed, only `version`, `files` and `error` are there.
    """

    version: str
    files: Mapping[str, bool]  # path of a library below site-packages -> whether it exists
    error: Mapping[str, Any]
    imports: Mapping[str, ErrorEvidence | None]  # module -> what importing it raised
    libraries: Mapping[str, Library]  # of `files`, those that exist
    # name -> whether it has a CUDA kernel; None: torch does not know it
    operators: Mapping[str, bool | None]
    selection: Mapping[str, Any] | None  # of ask_bitsandbytes_for_library; None: was not asked
    cuda_runtimes: list[CudaRuntime]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, NativeEvidence]]:
    """Load the compiled libraries of the package that each claim names, as users load them.

    Yields the name of the package, and what was loaded, in a fork that has imported only torch. For
    a package that is not installed, the evidence is empty.
    """
    importlib.import_module("torch")
    owners = owners_of_libraries()
    for claim in claims:
        try:
            distribution = importlib.metadata.distribution(claim.subject)
        except importlib.metadata.PackageNotFoundError:
            yield claim.subject, {}
            continue

        expect = cast("NativeExpect", claim.expect)
        # Look for the files here, because loading a library may crash the fork.
        site_packages = Path(str(distribution.locate_file(""))).resolve()
        names = find_libraries(site_packages, expect["libraries"])
        files = {name: (site_packages / name).is_file() for name in names}
        present = [name for name in names if files[name]]

        loaded: NativeEvidence = measure_in_fork(
            partial(load_package, expect, site_packages, present, owners)
        )
        yield claim.subject, {**loaded, "version": distribution.version, "files": files}


def owners_of_libraries() -> dict[str, str]:
    """Return the real path of each installed shared library, and the distribution that has it."""
    owners = {}
    for path, names in installed.names_of_owners(installed.distributions(sys.path)).items():
        if ".so" in path:
            owners[os.path.realpath(path)] = names[0]
    return owners


def find_libraries(site_packages: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files that match the patterns, relative to site-packages, without repetitions.

    A pattern without wildcards names one file. It is returned even if there is no such file, so
    that the judge can say that it is missing.
    """
    names: list[str] = []
    for pattern in patterns:
        matches = {str(file.relative_to(site_packages)) for file in site_packages.glob(pattern)}
        if "*" not in pattern:
            matches.add(pattern)
        for name in sorted(matches):
            if name not in names:
                names.append(name)
    return names


def load_package(
    expect: NativeExpect, site_packages: Path, libraries: Sequence[str], owners: Mapping[str, str]
) -> NativeEvidence:
    """Import the expected modules, load the libraries, and describe what was loaded.

    This runs in a fork. If a module raises an error, the others are imported all the same.

    libraries: paths relative to site-packages.
    owners: path of an installed library -> the distribution that has it.
    """
    imports: dict[str, ErrorEvidence | None] = {}
    for name in expect["modules"]:
        # After a crash, this is the last line of the log.
        print(f"importing {name}", flush=True)  # noqa: T201
        try:
            importlib.import_module(name)
            imports[name] = None
        except Exception as error:
            imports[name] = describe_error(error)

    mapped_by_import = list_mapped_files()
    loaded = {}
    for name in libraries:
        loaded[name] = load_library(site_packages / name, mapped_by_import, expect["symbols"])

    # Which library bitsandbytes would choose, or the error that it raised.
    selection = None
    if "selection" in expect:
        selection = attempt(ask_bitsandbytes_for_library)
    return {
        "imports": imports,
        "libraries": loaded,
        # The value is None if torch does not know the operator.
        "operators": {name: has_cuda_kernel(name) for name in expect["operators"]},
        "selection": selection,
        "cuda_runtimes": list_cuda_runtimes(owners),
    }


def load_library(path: Path, mapped_by_import: Sequence[str], symbols: Sequence[str]) -> Library:
    """Load a shared library, and return how that went and which of the symbols it lacks.

    `mapped_by_import` are the files that importing the package has mapped into the process.
    """
    file = str(path.resolve())
    # After a crash, this is the last line of the log.
    print(f"loading {path}", flush=True)  # noqa: T201
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return {"mapped_by_import": file in mapped_by_import, "load_error": str(error)}
    return {
        "mapped_by_import": file in mapped_by_import,
        "load_error": None,
        # If another library of this name (soname) is loaded already, dlopen returns that one.
        "mapped": file in list_mapped_files(),
        "missing_symbols": [name for name in symbols if not hasattr(library, name)],
    }


def has_cuda_kernel(operator: str) -> bool | None:
    """Return whether an operator of torch has a CUDA kernel; None: there is no such operator."""
    c = importlib.import_module("torch._C")
    if operator not in set(c._dispatch_get_all_op_names()):
        return None
    return bool(c._dispatch_has_kernel_for_dispatch_key(operator, "CUDA"))


def ask_bitsandbytes_for_library() -> Mapping[str, Any]:
    """Return which library bitsandbytes would load on a GPU, by its own function.

    That function chooses by torch's CUDA and the variable BNB_CUDA_VERSION. The GPU does not matter
    if it is new enough, so a Hopper is named.
    """
    cuda = str(importlib.import_module("torch").version.cuda)
    major, minor = (int(part) for part in cuda.split(".")[:2])
    specs = importlib.import_module("bitsandbytes.cuda_specs").CUDASpecs(
        highest_compute_capability=_HOPPER,
        cuda_version_string=f"{major}{minor}",
        cuda_version_tuple=(major, minor),
    )
    path = importlib.import_module("bitsandbytes.cextension").get_cuda_bnb_library_path(specs)
    return {
        "torch_cuda": cuda,
        "file": Path(path).name,
        "override": os.environ.get("BNB_CUDA_VERSION"),
    }


def list_cuda_runtimes(owners: Mapping[str, str]) -> list[CudaRuntime]:
    """Return the CUDA runtimes that are mapped into this process, with the version each reports.

    `owners`: path of an installed library -> the distribution that has it.
    """
    # The runtime is asked for its version because a file name can be wrong.
    runtimes: list[CudaRuntime] = []
    for path in list_mapped_files():
        match = _CUDA_RUNTIME.search(path)
        if not match:
            continue
        runtimes.append(
            {
                "file": path,
                "owner": owners.get(path),
                "major": int(match["major"]),
                "version": ask_runtime_for_version(path),
            }
        )
    return runtimes


def ask_runtime_for_version(path: str) -> int:
    """Return the version that a CUDA runtime reports: 12060 for 12.6; 0 if it reports none."""
    version = ctypes.c_int()
    # dlopen returns the library that is mapped already.
    status = ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(version))
    # 0 is cudaSuccess.
    return version.value if status == 0 else 0


def judge(subject: str, expect: NativeExpect, evidence: NativeEvidence) -> Finding:
    """Pass if a package's compiled libraries are there, load, and use the expected CUDA runtime.

    Fails with each library that is missing, does not load or lacks symbols, with operators that
    have no CUDA kernel, and with modules that can't be imported. `subject` names the package. Empty
    evidence means that it is not installed.
    """
    if not evidence:
        return failed(
            f"{subject} is not installed",
            pin(f"the release of {subject} that was made for this torch and CUDA"),
        )

    problems: list[str] = []
    if not evidence["files"]:
        problems.append(f"{subject} has no file like {listed(list(expect['libraries']))}")
    for name, exists in evidence["files"].items():
        if not exists:
            problems.append(f"the library {name} is missing")

    if "error" in evidence:
        problems.append(f"{subject} can't be loaded: {root_cause(evidence['error'])}")
    else:
        problems += library_problems(expect, evidence["libraries"])
        problems += operator_problems(expect["operators"], evidence["operators"])
        problems += runtime_problems(expect["cuda_major"], evidence["cuda_runtimes"])
        problems += selection_problems(expect, evidence["selection"])
        for name, error in evidence["imports"].items():
            if error:
                problems.append(f"`import {name}` fails: {root_cause(error)}")

    if problems:
        return failed(joined(problems))
    return passed(summarise(expect, evidence))


def summarise(expect: NativeExpect, evidence: NativeEvidence) -> str:
    """Write which libraries were loaded, with which symbols, kernels and CUDA runtime.

    Each claim expects symbols, kernels or a runtime, so the sentence has at least one of them.
    """
    parts = []
    if expect["symbols"]:
        parts.append(f"symbols {listed(expect['symbols'])}")
    if expect["operators"]:
        parts.append(f"CUDA kernels of {listed(expect['operators'])}")
    if expect["cuda_major"] is not None:
        for runtime in evidence["cuda_runtimes"]:
            owner = runtime["owner"] or runtime["file"]
            parts.append(f"the CUDA {dotted(runtime['version'])} runtime of {owner}")
    return f"{listed(list(evidence['libraries']))} loaded, with {', '.join(parts)}"


def library_problems(expect: NativeExpect, libraries: Mapping[str, Library]) -> Iterator[str]:
    """Yield a problem for each library that is not loaded as expected, or lacks a symbol.

    `libraries`: name -> how loading it went, and which of the expected symbols it lacks. If a
    library has several problems, the first one explains the others.
    """
    for name, library in libraries.items():
        if library["load_error"]:
            yield f"{name} can't be loaded: {library['load_error']}"
        elif not library["mapped"]:
            yield f"another library of the same name is loaded in place of {name}"
        # If `loading` is `by-path`, importing the package without a GPU takes another library.
        elif expect["loading"] == "import" and not library["mapped_by_import"]:
            yield f"importing {listed(list(expect['modules']))} does not load {name}"
        elif library["missing_symbols"]:
            count = f"{len(library['missing_symbols'])} of {len(expect['symbols'])} symbols"
            yield f"{name} lacks {count}: {listed(library['missing_symbols'])}"


def operator_problems(names: Iterable[str], operators: Mapping[str, bool | None]) -> Iterator[str]:
    """Yield a sentence about operators that torch does not know, or that have no CUDA kernel.

    `names` are the expected operators. `operators` is what was measured: name -> whether it has a
    CUDA kernel, or None if torch does not know it.
    """
    unknown = [name for name in names if operators.get(name) is None]
    if unknown:
        yield f"torch does not know the operators {listed(unknown)}"
    without_kernel = [name for name in names if operators.get(name) is False]
    if without_kernel:
        yield f"no CUDA kernel is registered for {listed(without_kernel)}"


def runtime_problems(major: int | None, runtimes: Sequence[CudaRuntime]) -> Iterator[str]:
    """Yield a problem unless exactly one CUDA runtime is loaded, of this major version.

    Both its file name and what it reports must say so. `major` None: the package uses no CUDA
    runtime, so nothing is checked.
    """
    if major is None:
        return
    if not runtimes:
        yield f"no CUDA {major} runtime is loaded"
    if len(runtimes) > 1:
        files = [runtime["file"] for runtime in runtimes]
        yield f"{len(runtimes)} CUDA runtimes are loaded: {listed(files)}"
    for runtime in runtimes:
        file, version = runtime["file"], runtime["version"]
        # The runtime reports its version as 12080 for CUDA 12.8.
        if version == 0:
            yield f"{file} does not report its version: cudaRuntimeGetVersion failed"
        elif version // 1000 != major:
            yield f"{file} is the runtime of CUDA {dotted(version)}, and CUDA {major} is expected"
        elif runtime["major"] != major:
            yield (
                f"{file} is the runtime of CUDA {dotted(version)}, but is named like one of CUDA "
                f"{runtime['major']}"
            )


def selection_problems(expect: NativeExpect, selection: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield why the package would load another library on a GPU than the expected one.

    `selection` is what ask_bitsandbytes_for_library returned, or `error` if it raised.
    """
    # Most packages have only one library, and do not choose.
    if "selection" not in expect:
        return
    if selection is None:
        yield "the package's own lookup can't be asked: no answer"
        return
    if "error" in selection:
        yield f"the package's own lookup can't be asked: {root_cause(selection['error'])}"
        return

    cuda = expect["selection"]["cuda"]
    if selection["torch_cuda"] != cuda:
        yield f"torch was compiled for CUDA {selection['torch_cuda']}, not {cuda}"

    names = [Path(name).name for name in expect["libraries"]]
    if selection["file"] not in names:
        override = ""
        if selection["override"]:
            override = f" (BNB_CUDA_VERSION={selection['override']})"
        yield (
            f"on a GPU the package would take {selection['file']}{override}, not {listed(names)}"
        )


def dotted(version: int) -> str:
    """Return a version number of CUDA as people write it: `12.6` for 12060."""
    return f"{version // 1000}.{version % 1000 // 10}"


CLAIMS = {"native": judge}
NEXT_STEPS = {
    "native": f"{if_image_sets('BNB_CUDA_VERSION or an LD_LIBRARY_PATH that leads to CUDA')}; if "
    f"not, {pin('the release of the package that was made for this torch and CUDA')}"
}
