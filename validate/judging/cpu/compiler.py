"""C3: source in, imported extension out."""

from __future__ import annotations

from validate.contracts.cpu import CExtensionEvidence, LauncherEvidence, LookedUp, NothingExpected
from validate.judging import Finding, by_subject, failed, listed, passed, typed
from validate.judging.text import root_cause, telling_line


def _no_compiler(compiler: LookedUp) -> str:
    if compiler["from"] == "CC":
        return f"CC={compiler['command']} is no program in this image"
    return "no C compiler: neither gcc nor clang is on PATH"


@typed
def _c_extension(subject: str, _expect: NothingExpected, evidence: CExtensionEvidence) -> Finding:
    if "compiler" in evidence and not evidence["compiler"]["path"]:
        return failed(_no_compiler(evidence["compiler"]))
    if "error" in evidence:
        return failed(f"{subject}: {root_cause(evidence['error'])}")
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


@typed
def _triton_launcher(subject: str, _expect: NothingExpected, evidence: LauncherEvidence) -> Finding:
    if "compiler" in evidence and not evidence["compiler"]["path"]:
        return failed(_no_compiler(evidence["compiler"]))
    if "error" in evidence:
        return failed(f"{subject}: {root_cause(evidence['error'])}")
    if not evidence["made"]:
        return failed("Triton put no compiled module into its empty cache")
    if "load_binary" not in evidence["functions"]:
        return failed(f"Triton's driver module lacks load_binary: {listed(evidence['functions'])}")
    stub = ", linked with a stand-in for libcuda" if evidence["stub_driver"] else ""
    return passed(f"Triton {evidence['triton']} built its driver module with {evidence['compiler']['path']}{stub}")


judge = by_subject({"c-extension": _c_extension, "triton-launcher": _triton_launcher})
"""C3: source in, imported extension out."""
