"""compiler: the image's C compiler and Python headers build the extension module that Triton needs at run time.

Triton compiles it before its first kernel, so an image without gcc, libc's headers or Python.h fails a user there.
"""

import ctypes
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

from validate.claims import Claim
from validate.environment import nvml
from validate.harness.forked import measure_in_fork
from validate.judging import Finding, failed, listed, passed

Compiler = TypedDict("Compiler", {"from": str, "command": str, "path": str | None})
"""Whether $CC or the PATH names it, what was looked for, and where it is; None: it is not there."""


class LauncherEvidence(TypedDict, total=False):
    """As far as it came."""

    compiler: Compiler
    stub_driver: bool
    triton: str
    made: list[str]
    functions: list[str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, LauncherEvidence]]:
    """Yield the evidence of `triton-launcher`, built in an empty folder."""
    for claim in claims:
        with tempfile.TemporaryDirectory(prefix="compiler-") as folder:
            yield claim.subject, measure_in_fork(partial(_triton_launcher, Path(folder)))


def _triton_launcher(folder: Path) -> LauncherEvidence:
    """Let Triton build and import its own driver module, as it does before the first launch of any kernel.

    The module links with libcuda. Without a driver, the probe builds a stub with the functions that driver.c calls.
    """
    compiler, cache = _find_compiler(), Path(os.environ["TRITON_CACHE_DIR"])
    evidence: LauncherEvidence = {"compiler": compiler, "stub_driver": bool(nvml.libcuda_error())}
    if not compiler["path"]:
        return evidence
    if evidence["stub_driver"]:
        spec = importlib.util.find_spec("triton")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("triton is not installed")
        source = Path(next(iter(spec.submodule_search_locations)), "backends", "nvidia", "driver.c")
        _stand_in_for_driver(compiler["path"], source.read_text(encoding="utf-8"), folder)
    driver = importlib.import_module("triton.backends.nvidia.driver")
    utilities = driver.CudaUtils()
    made = sorted(str(file.relative_to(cache)) for file in cache.rglob("*.so"))
    return {
        **evidence,
        "triton": importlib.import_module("triton").__version__,
        "made": made,
        "functions": sorted(name for name in vars(utilities) if callable(getattr(utilities, name))),
    }


def _find_compiler() -> Compiler:
    """Triton's own rule (triton/runtime/build.py): $CC, else gcc, else clang."""
    if chosen := os.environ.get("CC"):
        return {"from": "CC", "command": chosen, "path": shutil.which(chosen)}
    path = shutil.which("gcc") or shutil.which("clang")
    return {"from": "PATH", "command": "gcc or clang", "path": path}


def _stand_in_for_driver(compiler: str, driver_source: str, folder: Path) -> None:
    """Compile and load a libcuda.so.1 whose every function fails, and point Triton's linker at it.

    cuda.h renames some functions to their `_v2` or `_v3`, so each has those too.
    """
    functions = []
    for name in sorted(set(re.findall(r"\bcu[A-Z]\w*", driver_source))):
        for version in ("", "_v2", "_v3"):
            functions.append(f"int {name}{version}(void) {{ return 100; }}")
    source = folder / "main.c"
    source.write_text("\n".join(functions), encoding="utf-8")

    library = folder / "libcuda.so.1"
    command = [
        compiler,
        str(source),
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        f"-Wl,-soname,{library.name}",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode or not library.is_file():
        raise OSError(
            f"{compiler} did not make a stand-in for libcuda: {done.stderr[:300] or 'it made nothing'}"
        )

    (folder / "libcuda.so").symlink_to(library.name)
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _no_compiler(compiler: Compiler) -> str:
    """Return why nothing was compiled; empty: something was."""
    if not compiler["path"] and compiler["from"] == "CC":
        return f"CC={compiler['command']} is no program in this image"
    return "" if compiler["path"] else "no C compiler: neither gcc nor clang is on PATH"


def judge_launcher(_subject: str, _expect: object, evidence: LauncherEvidence) -> Finding:
    """Judge that Triton built its driver module."""
    reason = _no_compiler(evidence["compiler"])
    if reason:
        return failed(reason)
    if not evidence["made"]:
        return failed("Triton put no compiled module into its empty cache")
    if "load_binary" not in evidence["functions"]:
        return failed(f"Triton's driver module lacks load_binary: {listed(evidence['functions'])}")
    stub = ", linked with a stand-in for libcuda" if evidence["stub_driver"] else ""
    return passed(
        f"Triton {evidence['triton']} built its driver module with {evidence['compiler']['path']}{stub}"
    )


CLAIMS = {"compiler/triton-launcher": judge_launcher}
