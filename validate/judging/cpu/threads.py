"""C7: more than one thread, under one OpenMP runtime."""

from __future__ import annotations

from pathlib import PurePosixPath

from validate.contracts.cpu import ThreadsEvidence, ThreadsExpect
from validate.judging import Finding, failed, listed, passed, typed, unproven
from validate.judging.text import joined, root_cause


@typed
def judge(_subject: str, expect: ThreadsExpect, evidence: ThreadsEvidence) -> Finding:
    """C7: more than one thread has computed, under one OpenMP runtime. expect: {bundled: {path pattern: why}}."""
    if "error" in evidence:
        return failed(f"threads: {root_cause(evidence['error'])}")
    problems = [f"import {name}: {root_cause(error)}" for name, error in evidence["not_imported"].items()]
    bundled = expect["bundled"]
    runtimes = [path for path in evidence["openmp"] if not any(PurePosixPath(path).match(one) for one in bundled)]
    beside = [PurePosixPath(path).name for path in evidence["openmp"] if path not in runtimes]
    if len(runtimes) > 1:
        problems.append(f"{len(runtimes)} OpenMP runtimes in one process: {listed(runtimes)}")
    if not runtimes:
        problems.append("no OpenMP runtime is loaded")
    if evidence["cores"] > 1 and evidence["torch_threads"] < 2:
        settings = ", ".join(f"{name}={value}" for name, value in evidence["environment"].items())
        problems.append(f"torch takes 1 thread on {evidence['cores']} cores{f' ({settings})' if settings else ''}")
    elif evidence["cores"] > 1 and evidence["busy_threads"] < 2:
        problems.append(f"torch reports {evidence['torch_threads']} threads, {evidence['busy_threads']} has worked")
    if problems:
        return failed(joined(problems))
    if evidence["cores"] < 2:
        return unproven("only one core is at hand here")
    runtime = PurePosixPath(runtimes[0]).name
    others = f" (also loaded, used only by the package that bundles it: {listed(beside)})" if beside else " alone"
    return passed(f"{evidence['busy_threads']} threads worked on {evidence['cores']} cores, under {runtime}{others}")
