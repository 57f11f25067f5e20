"""C2: the CUDA library that the matrix selects is loaded, complete, and of the expected CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from validate.contracts.cpu import CudaRuntime, NativeEvidence, NativeExpect, NativeLibrary, Selection
from validate.judging import Finding, failed, listed, passed, typed
from validate.judging.text import joined, root_cause


@typed
def judge(subject: str, expect: NativeExpect, evidence: NativeEvidence) -> Finding:
    """C2: every library that the matrix selects is loaded, complete, and on the expected CUDA."""
    if not evidence:
        return failed(f"{subject} is not installed")
    problems = list(_file_problems(expect, evidence["files"]))
    if "error" in evidence:
        problems.append(f"loading {subject}: {root_cause(evidence['error'])}")
    else:
        problems += _loading_problems(expect, evidence)
    if problems:
        return failed(joined(problems))
    with_what = [f"symbols {listed(expect['symbols'])}"] if expect["symbols"] else []
    with_what += [f"CUDA kernels of {listed(expect['operators'])}"] if expect["operators"] else []
    with_what += [_runtime(found) for found in evidence["cuda_runtimes"] if expect["cuda_major"] is not None]
    return passed(f"{listed(list(evidence['libraries']))} loaded, with {', '.join(with_what)}")


def _runtime(found: CudaRuntime) -> str:
    return f"the CUDA {_dotted(found['version'])} runtime of {found['owner'] or found['file']}"


def _file_problems(expect: NativeExpect, files: Mapping[str, bool]) -> Iterator[str]:
    if not files:
        yield f"no file matches {listed(list(expect['libraries']))}"
    yield from (f"{name} is missing" for name, exists in files.items() if not exists)


def _loading_problems(expect: NativeExpect, evidence: NativeEvidence) -> Iterator[str]:
    yield from _library_problems(expect, evidence["libraries"])
    yield from _operator_problems(expect["operators"], evidence["operators"])
    yield from _runtime_problems(expect["cuda_major"], evidence["cuda_runtimes"])
    yield from _selection_problems(expect, evidence["selection"])
    yield from (f"import {name}: {root_cause(error)}" for name, error in evidence["imports"].items() if error)


def _library_problems(expect: NativeExpect, libraries: Mapping[str, NativeLibrary]) -> Iterator[str]:
    for name, facts in libraries.items():
        if facts["load_error"]:
            yield f"{name} can't be loaded: {facts['load_error']}"
        elif not facts["mapped"]:
            yield f"{name} was loaded but something else is mapped in its place"
        elif expect["loading"] == "import" and not facts["mapped_by_import"]:
            yield f"importing {listed(list(expect['modules']))} does not load {name}"
        elif facts["missing_symbols"]:
            count = f"{len(facts['missing_symbols'])} of {len(expect['symbols'])} symbols"
            yield f"{name} lacks {count}: {listed(facts['missing_symbols'])}"


def _operator_problems(expected: Iterable[str], found: Mapping[str, bool | None]) -> Iterator[str]:
    absent = [name for name in expected if found.get(name) is None]
    if absent:
        yield f"torch does not know {listed(absent)}"
    without = [name for name in expected if found.get(name) is False]
    if without:
        yield f"no CUDA kernel is registered for {listed(without)}"


def _runtime_problems(major: int | None, runtimes: Sequence[CudaRuntime]) -> Iterator[str]:
    if major is None:
        return
    if not runtimes:
        yield f"no CUDA {major} runtime is loaded"
    if len(runtimes) > 1:
        yield f"{len(runtimes)} CUDA runtimes are loaded: {listed([found['file'] for found in runtimes])}"
    for found in runtimes:
        if found["major"] != major or found["version"] // 1000 != major:
            yield f"expected the CUDA {major} runtime, {found['file']} is {_dotted(found['version'])}"


def _selection_problems(expect: NativeExpect, selection: Selection | None) -> Iterator[str]:
    if "selection" not in expect:
        return
    if selection is None or "error" in selection:
        yield f"its own lookup can't be asked: {root_cause(selection['error']) if selection else 'no answer'}"
        return
    if selection["torch_cuda"] != expect["selection"]["cuda"]:
        yield f"torch was compiled for CUDA {selection['torch_cuda']}, not {expect['selection']['cuda']}"
    wanted = [PurePosixPath(name).name for name in expect["libraries"]]
    if selection["file"] not in wanted:
        override = f" (BNB_CUDA_VERSION={selection['override']})" if selection["override"] else ""
        yield f"on a GPU it would take {selection['file']}{override}, not {listed(wanted)}"


def _dotted(version: int) -> str:
    """CUDA's own version number: 12060 is 12.6."""
    return f"{version // 1000}.{version % 1000 // 10}"
