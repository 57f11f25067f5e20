"""Judges of the cpu tier. Tolerances come with their controls: a control that passes makes the claim fail."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, Judging, failed, listed, passed, unproven

FORWARD_FACTOR, FORWARD_FLOOR = 2.0, 1e-5
BACKWARD_FLOOR = 2e-4
"""Rule T: an error may be this many times plain torch's error in the same dtype, plus the floor."""

QUANTISER_SIGMAS = 7.0
QUANTISER_SAMPLE = 1024 * 1024
"""bitsandbytes' own figures are means over 1024 x 1024 normal values; sigma shrinks with the root of the sample."""

DECODER_TOLERANCE = 1e-5
"""How far two float32 decoders of the same codes may differ, in units of the weights' deviation."""

EM_CUDA = 190
_NUMPY_SUM = 15.0
_SCALE_BYTES = 4
_HEAD_CHARACTERS = 160
_TRACEBACK = ("File ", "Traceback ", "raise ")
_TELLING = re.compile(r"fatal|error|assert|undefined|cannot|no such", re.IGNORECASE)


def native(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C2: every library that the matrix selects is loaded, complete, and on the promised CUDA."""
    if not evidence:
        return failed(f"{claim.subject} is not installed")
    problems = list(_file_problems(claim.expect, evidence["files"]))
    if "error" in evidence:
        problems.append(f"loading {claim.subject}: {_cause(evidence['error'])}")
    else:
        problems += _loading_problems(claim.expect, evidence)
    if problems:
        return failed(_joined(problems))
    with_what = [f"symbols {listed(claim.expect['symbols'])}"] if claim.expect["symbols"] else []
    with_what += [f"CUDA kernels of {listed(claim.expect['operators'])}"] if claim.expect["operators"] else []
    with_what += [_runtime(found) for found in evidence["cuda_runtimes"] if claim.expect["cuda_major"] is not None]
    return passed(f"{listed(list(evidence['libraries']))} loaded, with {', '.join(with_what)}")


def _runtime(found: Mapping[str, Any]) -> str:
    return f"the CUDA {_dotted(found['version'])} runtime of {found['owner'] or found['file']}"


def _file_problems(expect: Mapping[str, Any], files: Mapping[str, bool]) -> Iterator[str]:
    if not files:
        yield f"no file matches {listed(list(expect['libraries']))}"
    yield from (f"{name} is missing" for name, exists in files.items() if not exists)


def _loading_problems(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    yield from _library_problems(expect, evidence["libraries"])
    yield from _operator_problems(expect["operators"], evidence["operators"])
    yield from _runtime_problems(expect["cuda_major"], evidence["cuda_runtimes"])
    yield from _selection_problems(expect, evidence["selection"])
    yield from (f"import {name}: {_cause(error)}" for name, error in evidence["imports"].items() if error)


def _library_problems(expect: Mapping[str, Any], libraries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
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


def _operator_problems(expected: Iterable[str], found: Mapping[str, Any]) -> Iterator[str]:
    absent = [name for name in expected if found.get(name) is None]
    if absent:
        yield f"torch does not know {listed(absent)}"
    without = [name for name in expected if found.get(name) is False]
    if without:
        yield f"no CUDA kernel is registered for {listed(without)}"


def _runtime_problems(major: int | None, runtimes: list[Mapping[str, Any]]) -> Iterator[str]:
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
        yield f"its own lookup can't be asked: {_cause(selection['error']) if selection else 'no answer'}"
        return
    if selection["torch_cuda"] != expect["selection"]["cuda"]:
        yield f"torch was compiled for CUDA {selection['torch_cuda']}, not {expect['selection']['cuda']}"
    wanted = [PurePosixPath(name).name for name in expect["libraries"]]
    if selection["file"] not in wanted:
        override = f" (BNB_CUDA_VERSION={selection['override']})" if selection["override"] else ""
        yield f"on a GPU it would take {selection['file']}{override}, not {listed(wanted)}"


def compiler(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C3: source in, imported extension out."""
    if "compiler" in evidence and not evidence["compiler"]["path"]:
        return failed(_no_compiler(evidence["compiler"]))
    if "error" in evidence:
        return failed(f"{claim.subject}: {_cause(evidence['error'])}")
    judges = {"c-extension": _c_extension, "triton-launcher": _triton_launcher}
    return judges[claim.subject](evidence)


def _no_compiler(compiler: Mapping[str, Any]) -> str:
    if compiler["from"] == "CC":
        return f"CC={compiler['command']} is no program in this image"
    return "no C compiler: neither gcc nor clang is on PATH"


def _c_extension(evidence: Mapping[str, Any]) -> Finding:
    path, build = evidence["compiler"]["path"], evidence["build"]
    if not evidence["python_h"]:
        return failed(f"Python.h is not in {evidence['include']}")
    if build["exit_code"] != 0:
        return failed(f"{path} ended with status {build['exit_code']}: {_telling(build['stderr'])}")
    if not build["bytes"]:
        return failed(f"{path} ended with status 0 and made nothing")
    if "error" in evidence["import"]:
        return failed(f"the compiled extension can't be imported: {_cause(evidence['import']['error'])}")
    if evidence["import"]["answer"] != evidence["expected"]:
        return failed(f"the extension answers {evidence['import']['answer']}, its source says {evidence['expected']}")
    if evidence["control"]["refused"] is not True:
        return failed(f"control: {path} accepts a source that it must refuse")
    return passed(f"{evidence['version'] or path} made an extension against {evidence['include']}, and it runs")


def _triton_launcher(evidence: Mapping[str, Any]) -> Finding:
    if not evidence["made"]:
        return failed("Triton put no compiled module into its empty cache")
    if "load_binary" not in evidence["functions"]:
        return failed(f"Triton's driver module lacks load_binary: {listed(evidence['functions'])}")
    stub = ", linked with a stand-in for libcuda" if evidence["stub_driver"] else ""
    return passed(f"Triton {evidence['triton']} built its driver module with {evidence['compiler']['path']}{stub}")


def triton(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C4: a cubin that says it is for this arch, from each kernel; none for the bogus arch."""
    if "error" in evidence:
        return failed(f"Triton can't be imported: {_cause(evidence['error'])}")
    if evidence["jit"] != "JITFunction":
        interpret = evidence["environment"].get("TRITON_INTERPRET")
        why = f" (TRITON_INTERPRET={interpret})" if interpret else ""
        return failed(f"kernels are {evidence['jit']} instead of JITFunction{why}: nothing is compiled")
    arch, kernels = claim.expect["arch"], evidence["kernels"]
    problems = [problem for name in claim.expect["kernels"] for problem in _kernel_problems(name, arch, kernels)]
    if not claim.expect["kernels"]:
        problems.append("no kernel was asked for")
    if problems:
        return failed(_joined(problems))
    if evidence["control"]["arch"] != claim.expect["bogus"] or "error" not in evidence["control"]:
        return failed(f"control: sm_{claim.expect['bogus']} does not exist, and compiled all the same")
    size = sum(kernels[name]["bytes"] for name in claim.expect["kernels"])
    what = f"{' and '.join(claim.expect['kernels'])} for sm_{arch} ({size} bytes)"
    return passed(f"Triton {evidence['triton']} compiled {what}, and refused sm_{claim.expect['bogus']}")


def _kernel_problems(name: str, arch: int, kernels: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    facts = kernels.get(name)
    if facts is None:
        yield f"{name} was not compiled"
    elif "error" in facts:
        yield f"{name} for sm_{arch}: {_cause(facts['error'])}"
    elif facts["machine"] != EM_CUDA:
        yield f"{name}: ptxas made {facts['bytes']} bytes that are no CUDA binary"
    elif facts["arch"] != arch:
        yield f"{name}: asked for sm_{arch}, the binary is for sm_{facts['arch']}"
    elif not facts["entry"]:
        yield f"{name}: the binary for sm_{arch} does not hold the kernel"


def quantized_llama(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C10: the stack computes, quantises and trains as plain torch says it should."""
    if "error" in evidence:
        return failed(f"{claim.subject}: {_cause(evidence['error'])}")
    judges: Mapping[str, Judging] = {
        "fp32": _logits,
        "nf4-weights": _weights,
        "nf4-logits": _logits,
        "lora-step": _lora_step,
    }
    return judges[claim.subject](claim, evidence)


def _logits(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    comparisons = evidence["comparisons"]
    wanted = {"fp32": ("float32",), "nf4-logits": ("float32", "bfloat16")}[claim.subject]
    problems = [problem for dtype in wanted for problem in _comparison_problems(dtype, comparisons[dtype])]
    if problems:
        return failed(_joined(problems))
    shown = [
        f"{dtype} {comparisons[dtype]['error']:.1e} (at most {_tolerance(comparisons[dtype]):.1e})" for dtype in wanted
    ]
    return passed(f"logits differ from plain torch's by {' and '.join(shown)}; controls are told apart")


def _tolerance(comparison: Mapping[str, Any]) -> float:
    return FORWARD_FACTOR * float(comparison["plain_error"]) + FORWARD_FLOOR


def _comparison_problems(what: str, comparison: Mapping[str, Any]) -> Iterator[str]:
    tolerance = _tolerance(comparison)
    if not _within(comparison["error"], tolerance):
        yield f"{what} logits are off by {_shown(comparison['error'])}, at most {_shown(tolerance)} is allowed"
    yield from _control_problems(what, tolerance, comparison["controls"])


def _control_problems(what: str, tolerance: float, controls: Mapping[str, Any]) -> Iterator[str]:
    if not controls:
        yield f"{what} has no control"
    for name, error in controls.items():
        if not _beyond(error, tolerance):
            yield f"control: {what} {name} is off by {_shown(error)}, within the {_shown(tolerance)} that is allowed"


def _weights(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    projections = evidence["projections"]
    if not projections:
        return failed("no projection was looked at")
    for judge_one in _PROJECTION_CHECKS:
        wrong = {name: pair for name, facts in projections.items() if (pair := judge_one(claim.expect, facts))}
        if wrong:
            expected, found = next(iter(wrong.values()))
            good = f"{len(projections)} of {len(projections)} projections"
            return failed(f"expected {expected} in {good}, found {found} in {listed(list(wrong), limit=1)}")
    values = sum(facts["values"] for facts in projections.values())
    error = sum(facts["mean_error"] * facts["values"] for facts in projections.values()) / values
    bound = _error_bound(claim.expect, values)
    if abs(error - claim.expect["mean_error"]) > bound:
        return failed(f"over all projections the mean error is {error:.5f}, not {_error_promise(claim.expect, values)}")
    each = sum(facts["bytes"] + facts["scale_bytes"] for facts in projections.values()) / values
    return passed(
        f"{len(projections)} projections are {claim.expect['quant_type']}, {each:.4f} bytes a weight "
        f"({each / 2:.3f} of bfloat16), mean error {error:.5f} (promised {_error_promise(claim.expect, values)})"
    )


_Mismatch = tuple[str, str]
"""What was expected and what was found."""


def _class_of(expect: Mapping[str, Any], facts: Mapping[str, Any]) -> _Mismatch | None:
    module, _, name = facts["class"].rpartition(".")
    return None if name == "Linear4bit" and module.startswith("bitsandbytes.") else ("Linear4bit", facts["class"])


def _storage(expect: Mapping[str, Any], facts: Mapping[str, Any]) -> _Mismatch | None:
    if facts["dtype"] == "uint8" and facts["bytes"] * 2 == facts["values"]:
        return None
    return "uint8 at half a byte a weight", f"{facts['dtype']} at {facts['bytes'] / facts['values']:.2f}"


def _format(expect: Mapping[str, Any], facts: Mapping[str, Any]) -> _Mismatch | None:
    wanted = (expect["quant_type"], expect["block_size"])
    found = (facts["quant_type"], facts["block_size"])
    return None if found == wanted else (f"{wanted[0]} in blocks of {wanted[1]}", f"{found[0]} in blocks of {found[1]}")


def _decodable(expect: Mapping[str, Any], facts: Mapping[str, Any]) -> _Mismatch | None:
    return ("weights that decode", _cause(facts["error"])) if "error" in facts else None


def _scales(expect: Mapping[str, Any], facts: Mapping[str, Any]) -> _Mismatch | None:
    wanted = math.ceil(facts["values"] / expect["block_size"]) * _SCALE_BYTES
    return None if facts["scale_bytes"] == wanted else (f"{wanted} bytes of scales", str(facts["scale_bytes"]))


def _rounding(expect: Mapping[str, Any], facts: Mapping[str, Any]) -> _Mismatch | None:
    """Two-sided: no error at all means that nothing was quantised."""
    distance = abs(facts["mean_error"] - expect["mean_error"]) if _within(facts["mean_error"], 1.0) else math.inf
    if distance <= _error_bound(expect, facts["values"]):
        return None
    return f"a mean error of {_error_promise(expect, facts['values'])}", _shown(facts["mean_error"])


def _decoder(expect: Mapping[str, Any], facts: Mapping[str, Any]) -> _Mismatch | None:
    if _within(facts["decoder_difference"], DECODER_TOLERANCE):
        return None
    return "bitsandbytes to decode its own codes", f"a difference of {_shown(facts['decoder_difference'])}"


_PROJECTION_CHECKS: tuple[Callable[[Mapping[str, Any], Mapping[str, Any]], _Mismatch | None], ...] = (
    _class_of,
    _storage,
    _format,
    _decodable,
    _scales,
    _rounding,
    _decoder,
)
"""In the order in which a failure explains the ones after it."""


def _error_bound(expect: Mapping[str, Any], values: int) -> float:
    return QUANTISER_SIGMAS * float(expect["mean_error_sigma"]) * math.sqrt(QUANTISER_SAMPLE / values)


def _error_promise(expect: Mapping[str, Any], values: int) -> str:
    return f"{expect['mean_error']:.5f} +- {_error_bound(expect, values):.5f}"


def _lora_step(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    problems = [*_loss_problems(evidence), *_adapter_problems(evidence["adapters"]), *_base_problems(evidence)]
    if problems:
        return failed(_joined(problems))
    worst = max(adapter["error"] for adapter in evidence["adapters"].values())
    return passed(
        f"B moved from zero in {len(evidence['adapters'])} adapters as in plain torch (off by {worst:.1e}, at most "
        f"{BACKWARD_FLOOR:.0e}), loss {evidence['loss']:.4f}, {evidence['base_count']} base weights untouched"
    )


def _loss_problems(evidence: Mapping[str, Any]) -> Iterator[str]:
    loss, plain = evidence["loss"], evidence["plain_loss"]
    if not _within(loss, math.inf) or not _within(plain, math.inf):
        yield f"the loss is {loss}, plain torch's is {plain}"
    elif abs(loss - plain) > BACKWARD_FLOOR * plain:
        yield f"the loss is {loss:.5f}, plain torch's is {plain:.5f}"


def _adapter_problems(adapters: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if not adapters:
        yield "no adapter was attached"
    still = [name for name, adapter in adapters.items() if not _beyond(adapter["after"], 0.0)]
    if still:
        yield f"B did not move in {len(still)} of {len(adapters)} adapters: {listed(still, limit=1)}"
    early = [name for name, adapter in adapters.items() if adapter["before"] != 0]
    if early:
        yield f"B was not zero before the step in {listed(early, limit=1)}"
    off = [name for name, adapter in adapters.items() if not _within(adapter["error"], BACKWARD_FLOOR)]
    if off and not still:
        error = _shown(adapters[off[0]]["error"])
        yield f"B is off by {error} (at most {BACKWARD_FLOOR:.0e}) in {listed(off, limit=1)}"
    for name, adapter in adapters.items():
        if name not in still:
            yield from _control_problems(name, BACKWARD_FLOOR, {"scaled": adapter["control"]})


def _base_problems(evidence: Mapping[str, Any]) -> Iterator[str]:
    if not evidence["base_count"]:
        yield "no base weight was looked at"
    if evidence["base_changed"]:
        yield f"the step changed frozen weights: {listed(evidence['base_changed'])}"


def _within(value: Any, bound: float) -> bool:
    """Not-a-number and infinity arrive as text, and are within nothing."""
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= bound


def _beyond(value: Any, bound: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > bound


def _shown(value: Any) -> str:
    return f"{value:.2e}" if isinstance(value, int | float) else str(value)


def _dotted(version: int) -> str:
    """CUDA's own version number: 12060 is 12.6."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _joined(problems: list[str]) -> str:
    return "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


def _cause(error: Mapping[str, Any]) -> str:
    """The line of an error that tells most: compilers bury it below a headline."""
    head, _, rest = str(error["message"]).strip().partition("\n")
    detail = _telling(rest) or _telling(str(error.get("log", "")))
    news = detail and detail not in head and head not in detail
    return f"{error['kind']}: {head[:_HEAD_CHARACTERS]}" + (f" ({detail})" if news else "")


def _telling(text: str) -> str:
    stripped = (line.strip() for line in text.splitlines())
    lines = [line for line in stripped if line and not line.startswith(_TRACEBACK)]
    return next((line for line in lines if _TELLING.search(line)), lines[-1] if lines else "")[:300]


def imports(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C1. expect: {modules, first, complaints: [patterns], harmless: {pattern: why it may be said}}."""
    if not evidence["orders"]:
        return failed("nothing was imported")
    problems = []
    for order, found in evidence["orders"].items():
        if "error" in found:
            problems.append(f"imported {order}: {_cause({**found['error'], 'log': ''})}")
            continue
        problems += [f"imported {order} it says: {line}" for line in found["said"] if _is_complaint(claim, line)]
    if problems:
        return failed(_joined(list(dict.fromkeys(problems))))
    return passed(f"{listed(list(claim.expect['modules']))} imported {' and '.join(evidence['orders'])}, no complaint")


def _is_complaint(claim: Claim, line: str) -> bool:
    if any(re.search(pattern, line, re.IGNORECASE) for pattern in claim.expect["harmless"]):
        return False
    return any(re.search(pattern, line, re.IGNORECASE) for pattern in claim.expect["complaints"])


def compile_(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C5: dynamo captured, inductor generated, the process mapped what the compiler made, the numbers are right."""
    if "error" in evidence:
        return failed(f"torch.compile: {_cause(evidence['error'])}")
    problems = []
    switches = ", ".join(f"{name}={value}" for name, value in evidence["environment"].items())
    if not evidence["graphs"] or not evidence["captured"]:
        problems.append(f"torch.compile captured nothing{f' ({switches})' if switches else ''}: it is switched off")
    elif not evidence["generated"] or not evidence["libraries"]:
        problems.append("torch.compile generated no kernel")
    elif not evidence["mapped"]:
        problems.append(f"{evidence['libraries'][0]} was compiled and is not loaded")
    if evidence["breaks"]:
        problems.append(f"{evidence['breaks']} graph breaks")
    tolerance = FORWARD_FACTOR * float(evidence["plain_error"]) + FORWARD_FLOOR
    if not _within(evidence["found_error"], tolerance):
        problems.append(f"its numbers are off by {_shown(evidence['found_error'])}, at most {_shown(tolerance)}")
    if not _beyond(evidence["control_error"], tolerance):
        problems.append(f"control: 1% more is off by {_shown(evidence['control_error'])}, within what is allowed")
    if problems:
        return failed(_joined(problems))
    made = f"{evidence['generated']} generated, {len(evidence['mapped'])} compiled library loaded"
    return passed(f"torch {evidence['torch']}: {made}, off by {evidence['found_error']:.1e} (at most {tolerance:.1e})")


def bridges(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C6: numpy shares memory with torch both ways; torchvision's nms keeps the boxes that it must."""
    if "error" in evidence:
        return failed(f"{claim.subject}: {_cause(evidence['error'])}")
    return {"numpy": _numpy_bridge, "torchvision": _nms}[claim.subject](evidence)


def _numpy_bridge(evidence: Mapping[str, Any]) -> Finding:
    broken = [name for name, shared in evidence["shared"].items() if shared is not True]
    if broken or not evidence["shared"]:
        return failed(f"torch and numpy do not share memory for {listed(broken) or 'any type'}")
    if evidence["copied_sum"] != _NUMPY_SUM:
        return failed(f"a copied array sums up to {evidence['copied_sum']}, not {_NUMPY_SUM}")
    return passed(f"numpy {evidence['numpy']} and torch share memory for {len(evidence['shared'])} types")


def _nms(evidence: Mapping[str, Any]) -> Finding:
    if evidence["kept"] != [1, 2]:
        return failed(f"nms keeps {evidence['kept']} of three boxes, [1, 2] is right")
    if evidence["control"] != [1, 0, 2]:
        return failed(f"control: nms that must drop no box keeps {evidence['control']}")
    return passed(f"torchvision {evidence['torchvision']}: nms keeps the right boxes")


def threads(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C7: more than one thread has computed, under one OpenMP runtime. expect: {apart: {path pattern: why}}."""
    if "error" in evidence:
        return failed(f"threads: {_cause(evidence['error'])}")
    problems = [f"import {name}: {_cause(error)}" for name, error in evidence["not_imported"].items()]
    apart = claim.expect.get("apart", {})
    runtimes = [path for path in evidence["openmp"] if not any(PurePosixPath(path).match(one) for one in apart)]
    beside = [PurePosixPath(path).name for path in evidence["openmp"] if path not in runtimes]
    if len(runtimes) > 1:
        problems.append(f"{len(runtimes)} OpenMP runtimes in one process: {listed(runtimes)}")
    if not runtimes:
        problems.append("no OpenMP runtime is loaded")
    if evidence["cores"] > 1 and evidence["torch_threads"] < 2:
        settings = ", ".join(f"{name}={value}" for name, value in evidence["environment"].items())
        problems.append(f"torch takes 1 thread on {evidence['cores']} cores{f' ({settings})' if settings else ''}")
    elif evidence["cores"] > 1 and evidence["busy_threads"] < 2:
        problems.append(f"torch says {evidence['torch_threads']} threads, {evidence['busy_threads']} has worked")
    if problems:
        return failed(_joined(problems))
    if evidence["cores"] < 2:
        return unproven("only one core is at hand here")
    runtime = PurePosixPath(runtimes[0]).name
    others = f" (beside it, for its bringer alone: {listed(beside)})" if beside else " alone"
    return passed(f"{evidence['busy_threads']} threads worked on {evidence['cores']} cores, under {runtime}{others}")


def stranger(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C8. expect: {uid}. That the trial's own conditions held is part of what is judged."""
    conditions = []
    if evidence["uid"] != claim.expect["uid"] or evidence["known"]:
        conditions.append(f"the probe ran as uid {evidence['uid']}, which the image knows")
    if evidence["root_is_writable"]:
        conditions.append("the root was writable")
    if set(evidence["interfaces"]) - {"lo"}:
        conditions.append(f"there was a network: {listed(evidence['interfaces'])}")
    problems = [f"{name}: {_cause(step['error'])}" for name, step in evidence["steps"].items() if "error" in step]
    training = evidence["steps"]["training"].get("answer")
    if training and not (training["checkpoint"] and _falls(training["losses"])):
        problems.append(f"training: losses {training['losses']}, checkpoint {training['checkpoint']}")
    if problems:
        return failed(f"for uid {evidence['uid']}: {_joined(problems)}")
    if conditions:
        return unproven(_joined(conditions))
    steps = listed(list(evidence["steps"]), limit=9)
    return passed(f"uid {evidence['uid']}, read-only root, no network: {steps} work")


def _falls(losses: list[Any]) -> bool:
    return all(_within(loss, math.inf) for loss in losses) and losses[-1] < losses[0]


def instructions(claim: Claim, evidence: Mapping[str, Any]) -> Finding:
    """C9. expect: {most, per_bytes}."""
    if not evidence["files"]:
        return failed("there is no native code to read")
    found = evidence["not_asking"]
    problems = [
        f"{_shortened(one['path'])} of {listed(one['owners']) or 'no distribution'} holds {one['avx512']} AVX-512 "
        "instructions and never asks whether the processor has them"
        for one in found
    ]
    if problems:
        return failed(_joined(problems))
    return passed(f"{evidence['files']} files of native code; the {evidence['asking']} that use AVX-512 ask first")


def _shortened(path: str) -> str:
    return re.sub(r"^/\S*/site-packages/", "", path)


JUDGES: Mapping[str, Judging] = {
    "C1": imports,
    "C2": native,
    "C3": compiler,
    "C4": triton,
    "C5": compile_,
    "C6": bridges,
    "C7": threads,
    "C8": stranger,
    "C9": instructions,
    "C10": quantized_llama,
}
