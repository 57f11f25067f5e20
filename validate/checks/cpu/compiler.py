"""compiler: the image's C compiler and Python headers build the extensions that Triton and torch.compile need at run
time."""

import ctypes
import importlib
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from validate.claims import Claim
from validate.environment import nvml
from validate.harness.forked import attempt, in_fork
from validate.judging import Finding, failed, listed, passed, root_cause, telling_line

_EXTENSION = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *number) {{
    return PyLong_FromLong(PyLong_AsLong(number) + {nonce}L);
}}
static PyMethodDef methods[] = {{{{"answer", answer, METH_O, NULL}}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", NULL, -1, methods}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""
_BROKEN = "#include <Python.h>\n#error this source must be refused\n"


Compiler = TypedDict("Compiler", {"from": str, "command": str, "path": str | None})
"""Whether $CC or the PATH names it, what was looked for, and where it is; None: it is not there."""


class CompilerRun(TypedDict):
    """How a compiler ended, and the file that it wrote."""

    exit_code: int
    stderr: str
    file: str
    bytes: int


ExtensionEvidence = TypedDict(
    "ExtensionEvidence",
    {
        "compiler": Compiler,
        "include": str,
        "python_h": bool,
        "version": str,
        "build": CompilerRun,
        "control": Mapping[str, bool],
        "expected": int,
        "import": Mapping[str, Any],
    },
    total=False,
)
"""As far as it came: without a compiler there is nothing after `python_h`, without a file no `import`."""


class LauncherEvidence(TypedDict, total=False):
    """As far as it came."""

    compiler: Compiler
    stub_driver: bool
    triton: str
    made: list[str]
    functions: list[str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of each subject, built in an empty folder."""
    measures = {"c-extension": _c_extension, "triton-launcher": _triton_launcher}
    for claim in claims:
        with tempfile.TemporaryDirectory(prefix="compiler-") as folder:
            yield claim.subject, in_fork(partial(measures[claim.subject], Path(folder)))


def _c_extension(folder: Path) -> Mapping[str, Any]:
    """Compile an extension, import it and ask it for an answer; have a broken source refused (the control)."""
    compiler, include = _find_compiler(), _python_include()
    evidence: dict[str, Any] = {
        "compiler": compiler,
        "include": include,
        "python_h": Path(include, "Python.h").is_file(),
    }
    path = compiler["path"]
    if not path:
        return evidence
    name, nonce = "validate_probe", secrets.randbelow(1 << 30)
    built = _compile(path, _EXTENSION.format(name=name, nonce=nonce), folder / "good", include)
    control = _compile(path, _BROKEN, folder / "broken", include)
    printed = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    evidence |= {
        "version": printed.partition("\n")[0],
        "build": built,
        "control": {"refused": not _made(control)},
    }
    if not _made(built):
        return evidence

    def answer() -> Mapping[str, int]:
        spec = importlib.util.spec_from_file_location(name, built["file"])
        if spec is None or spec.loader is None:
            raise ImportError(f"{built['file']} is no extension module of this Python")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return {"answer": module.answer(1)}

    return {**evidence, "expected": nonce + 1, "import": attempt(answer)}


def _made(build: CompilerRun) -> bool:
    """Return whether a compiler run wrote its file."""
    return bool(build["exit_code"] == 0 and build["bytes"] > 0)


def _python_include() -> str:
    """Triton's own rule: Debian's `posix_local` scheme has no headers, `posix_prefix` does."""
    scheme = sysconfig.get_default_scheme()
    return sysconfig.get_paths(scheme="posix_prefix" if scheme == "posix_local" else scheme)["include"]


def _triton_launcher(folder: Path) -> Mapping[str, Any]:
    """Let Triton build and import its own driver module, as it does before the first launch of any kernel.

    The module links with libcuda. Without a driver, the probe builds a stub with the functions that driver.c calls.
    """
    compiler, cache = _find_compiler(), Path(os.environ["TRITON_CACHE_DIR"])
    evidence = {"compiler": compiler, "stub_driver": bool(nvml.absent())}
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


def _compile(compiler: str, source: str, folder: Path, include: str, *options: str, suffix: str = "") -> CompilerRun:
    """Compile a source into a shared library."""
    folder.mkdir(parents=True)
    code = folder / "main.c"
    code.write_text(source, encoding="utf-8")
    file = folder / (suffix or "main" + str(sysconfig.get_config_var("EXT_SUFFIX")))
    command = [compiler, str(code), "-O3", "-shared", "-fPIC", "-o", str(file), f"-I{folder}", f"-I{include}", *options]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    return {
        "exit_code": answer.returncode,
        "stderr": answer.stderr[:1500],
        "file": str(file),
        "bytes": file.stat().st_size if file.exists() else 0,
    }


def _stand_in_for_driver(compiler: str, driver_source: str, folder: Path) -> None:
    """Compile and load a libcuda.so.1 whose every function fails, and point Triton's linker at it.

    cuda.h renames some functions to their `_v2` or `_v3`, so each has those too.
    """
    names = sorted(set(re.findall(r"\bcu[A-Z]\w*", driver_source)))
    functions = "\n".join(
        f"int {name}{version}(void) {{ return 100; }}" for name in names for version in ("", "_v2", "_v3")
    )
    soname = "libcuda.so.1"
    built = _compile(compiler, functions, folder / "driver", "/", f"-Wl,-soname,{soname}", suffix=soname)
    if not _made(built):
        raise OSError(f"{compiler} did not make a stand-in for libcuda: {built['stderr'][:300] or 'it made nothing'}")
    Path(built["file"]).with_name("libcuda.so").symlink_to(soname)
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder / "driver")
    ctypes.CDLL(built["file"], mode=ctypes.RTLD_GLOBAL)


def _no_compiler(compiler: Compiler) -> str:
    """Return why nothing was compiled; empty: something was."""
    if not compiler["path"] and compiler["from"] == "CC":
        return f"CC={compiler['command']} is no program in this image"
    return "" if compiler["path"] else "no C compiler: neither gcc nor clang is on PATH"


def judge_c_extension(_subject: str, _expect: object, evidence: ExtensionEvidence) -> Finding:
    """Judge that an extension was compiled, imported, and gives the right answer."""
    reason = _no_compiler(evidence["compiler"])
    if reason:
        return failed(reason)
    path, build = evidence["compiler"]["path"], evidence["build"]
    if not evidence["python_h"]:
        return failed(f"Python.h is not in {evidence['include']}")
    if build["exit_code"] != 0:
        return failed(f"{path} ended with status {build['exit_code']}: {telling_line(build['stderr'])}")
    if not build["bytes"]:
        return failed(f"{path} ended with status 0 and made nothing")
    if "error" in evidence["import"]:
        return failed(f"the compiled extension can't be imported: {root_cause(evidence['import']['error'])}")
    if evidence["import"]["answer"] != evidence["expected"]:
        return failed(f"the extension answers {evidence['import']['answer']}, its source says {evidence['expected']}")
    if evidence["control"]["refused"] is not True:
        return failed(f"control: {path} accepts a source that it must refuse")
    return passed(f"{evidence['version'] or path} made an extension against {evidence['include']}, and it runs")


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
    return passed(f"Triton {evidence['triton']} built its driver module with {evidence['compiler']['path']}{stub}")


CLAIMS = {"compiler/c-extension": judge_c_extension, "compiler/triton-launcher": judge_launcher}
