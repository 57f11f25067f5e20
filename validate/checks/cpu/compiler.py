"""compiler: check that the image can compile the extension module that Triton needs.

Triton compiles it before its first kernel, so an image without gcc, the headers of libc or Python.h
fails a user there.
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
from validate.next_steps import BUILD_ANEW, if_image_sets

Compiler = TypedDict("Compiler", {"from": str, "command": str, "path": str | None})
"""The C compiler that Triton chooses: `from` is `CC` or `PATH`, `command` what it looks for, `path`
where that is (None: nowhere)."""


class LauncherEvidence(TypedDict, total=False):
    """What building Triton's driver module gave. Without a compiler: the first two keys."""

    compiler: Compiler
    stub_driver: bool  # there is no driver here, so a stand-in for libcuda was built
    triton: str  # its version
    made: list[str]  # shared libraries that appeared in Triton's cache
    functions: list[str]  # of the driver module


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, LauncherEvidence]]:
    """Yield each claimed subject and its evidence, measured in a fork with an empty folder."""
    for claim in claims:
        with tempfile.TemporaryDirectory(prefix="compiler-") as folder:
            yield claim.subject, measure_in_fork(partial(build_driver_module, Path(folder)))


def build_driver_module(folder: Path) -> LauncherEvidence:
    """Let Triton build and import its driver module, as before the first launch of any kernel.

    The module links with libcuda. On a machine without a driver, a stand-in for libcuda is built in
    `folder` first. Returns the compiler that was found, the libraries that Triton compiled (`made`)
    and the functions of the module. Without a compiler, nothing is built. Raises ImportError if
    Triton is not installed, and what Triton raises if the module does not build.
    """
    compiler = find_compiler()
    # libcuda can't be loaded where there is no driver.
    lacks_driver = bool(nvml.libcuda_error())
    evidence: LauncherEvidence = {"compiler": compiler, "stub_driver": lacks_driver}
    if not compiler["path"]:
        return evidence

    if lacks_driver:
        spec = importlib.util.find_spec("triton")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("triton is not installed")
        triton_folder = Path(next(iter(spec.submodule_search_locations)))
        driver_source = triton_folder / "backends" / "nvidia" / "driver.c"
        build_libcuda_stub(compiler["path"], driver_source.read_text(encoding="utf-8"), folder)

    # CudaUtils compiles the module, and has its functions as attributes.
    driver = importlib.import_module("triton.backends.nvidia.driver")
    utilities = driver.CudaUtils()
    evidence["triton"] = importlib.import_module("triton").__version__

    # The suite gives each probe an empty cache, so whatever lies there was made just now.
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    evidence["made"] = sorted(str(file.relative_to(cache)) for file in cache.rglob("*.so"))

    functions = []
    for name in vars(utilities):
        if callable(getattr(utilities, name)):
            functions.append(name)
    evidence["functions"] = sorted(functions)
    return evidence


def find_compiler() -> Compiler:
    """Return the compiler Triton takes: $CC, else gcc, else clang (triton/runtime/build.py)."""
    if command := os.environ.get("CC"):
        return {"from": "CC", "command": command, "path": shutil.which(command)}
    path = shutil.which("gcc") or shutil.which("clang")
    return {"from": "PATH", "command": "gcc or clang", "path": path}


def build_libcuda_stub(compiler: str, driver_source: str, folder: Path) -> None:
    """Compile and load a libcuda.so.1 whose functions all fail, and let Triton link with it.

    `compiler` is the path of a C compiler, `driver_source` the text of Triton's driver.c: the
    library has the functions that it calls. Raises OSError if the library does not compile.
    """
    functions = []
    for name in sorted(set(re.findall(r"\bcu[A-Z]\w*", driver_source))):
        # cuda.h renames some functions to their second or third version, so have all three.
        for version in ("", "_v2", "_v3"):
            # 100 is CUDA_ERROR_NO_DEVICE.
            functions.append(f"int {name}{version}(void) {{ return 100; }}")
    source = folder / "main.c"
    source.write_text("\n".join(functions), encoding="utf-8")

    library = folder / "libcuda.so.1"
    command = [compiler, str(source), "-shared", "-fPIC", "-o", str(library)]
    command.append(f"-Wl,-soname,{library.name}")
    environ = {**os.environ, "LC_ALL": "C"}
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if completed.returncode or not library.is_file():
        message = completed.stderr[:300] or "it made nothing"
        raise OSError(f"{compiler} did not make a stand-in for libcuda: {message}")

    # Triton links with the name without a version, and finds it by this variable.
    (folder / "libcuda.so").symlink_to(library.name)
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    # The driver module takes its functions from this library, which is loaded already.
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def judge_launcher(_subject: str, _expect: object, evidence: LauncherEvidence) -> Finding:
    """Pass if Triton could build its driver module with a C compiler of the image.

    The module launches kernels: without it, no kernel runs. The compiler is the one that CC names,
    else gcc or clang on the PATH.
    """
    compiler = evidence["compiler"]
    if not compiler["path"]:
        if compiler["from"] == "CC":
            return failed(
                f"CC={compiler['command']} is no program in this image",
                "let the variable CC name a program of the image, or remove the ENV line that sets "
                "it from your Dockerfile, and build the image again",
            )
        return failed("there is no C compiler: neither gcc nor clang is on PATH")

    if not evidence["made"]:
        return failed(
            "Triton began with an empty cache folder, and left no compiled driver module in it",
            f"{if_image_sets('TRITON_CACHE_DIR or another TRITON_* variable')}; if not, "
            f"{BUILD_ANEW}",
        )
    if "load_binary" not in evidence["functions"]:
        present = listed(evidence["functions"]) or "none"
        return failed(
            "the driver module that Triton compiled lacks the function load_binary, so Triton can "
            f"start no kernel (functions that it has: {present}). Triton's files are not those of "
            "a release",
            "if your Dockerfile installs another triton over the one of the lock, take that step "
            f"out; then {BUILD_ANEW}",
        )

    stub = ""
    if evidence["stub_driver"]:
        stub = ", linked with a stand-in for libcuda"
    return passed(
        f"Triton {evidence['triton']} built its driver module with {compiler['path']}{stub}"
    )


CLAIMS = {"compiler/triton-launcher": judge_launcher}
NEXT_STEPS = {
    "compiler/triton-launcher": "install a C compiler (`apt-get install gcc libc6-dev`) in the "
    "Dockerfile of your image or of your base image, below every step that removes gcc, and build "
    f"again; if neither is yours, {BUILD_ANEW}"
}
