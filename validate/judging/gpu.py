"""Judges of the gpu tier: G0 the device, G1 to G9 the table of kernels, G10 a 4-bit model loaded and trained."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, Judging, cpu, failed, listed, not_applicable, passed, unproven

RULE_T = "T"
FORWARD_FACTOR, FORWARD_FLOOR = 2.0, 1e-5
BACKWARD_FACTOR, BACKWARD_FLOOR = 3.0, 2e-4
"""Rule T: an error may be this many times plain torch's error in the same dtype, plus the floor."""

QLORA_GAIN = 0.5
"""The loss on one batch must at least halve: twelve steps bring it to a twentieth (H100, torch 2.11)."""
MEMORY_SLACK = 1.1
"""Allocations are rounded up to 512 bytes, and 4-bit weights carry a float32 scale a block."""

Evidence = Mapping[str, Any]


def kernel(claim: Claim, evidence: Evidence) -> Finding:
    """G1 to G9. expect: {cases: [names], tolerance: {dtype: rule}, figures, facts, ran, libraries, capability?}."""
    if reason := claim.expect.get("not_applicable"):
        return not_applicable(reason)
    if "error" in evidence:
        return failed(f"{_cause(evidence['error'])}{_suspects(evidence)}")
    if problems := list(_device_problems(claim.expect, evidence["device"])):
        return failed(_joined(problems))
    if "gated" in evidence:
        # Where the host could not tell the GPU's capability, the device's own word decides.
        known = claim.expect.get("capability")
        return failed(f"the GPU says {evidence['gated']}") if known else not_applicable(evidence["gated"])
    if evidence.get("declined"):
        return _declined(evidence["declined"])
    problems = [
        *_case_problems(claim.expect, evidence["cases"]),
        *_observed_problems(claim.expect, evidence.get("observed", {})),
        *_library_problems(claim.expect["libraries"], evidence["libraries"]),
    ]
    profile = evidence["kernels"]
    if profile["works"]:
        problems += _unseen(claim.expect["ran"], profile)
    if problems:
        return failed(f"{_joined(problems)}{_suspects(evidence)}")
    if not profile["works"]:
        return unproven("the results are right, but the profiler saw no kernel at all: which ones ran can't be told")
    return passed(_praise(claim.expect, evidence))


def _device_problems(expect: Mapping[str, Any], device: Mapping[str, Any]) -> Iterator[str]:
    wanted = expect.get("capability")
    if wanted and device["capability"] != wanted:
        yield f"ran on {device['name']} of capability {_dotted(device['capability'])}, the host has {_dotted(wanted)}"


def _declined(reasons: Sequence[str]) -> Finding:
    """A library's own reasons: about this GPU they are a gate, all others are its fault."""
    gates = [reason for reason in reasons if "capability" in reason]
    if len(gates) == len(reasons):
        return not_applicable(listed(list(reasons)))
    return failed(f"it refuses to run: {listed([reason for reason in reasons if reason not in gates])}")


def _case_problems(expect: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    missed = set(expect["tolerance"]) - {facts.get("dtype") for facts in found.values()}
    for name in expect["cases"]:
        facts = found.get(name)
        if facts is None:
            yield f"{name} was not run"
        elif "error" in facts:
            yield f"{name}: {_cause(facts['error'])}"
        elif facts["dtype"] not in expect["tolerance"]:
            yield f"{name} ran in {facts['dtype']}, for which nothing is promised"
        elif facts["finite"] is not True:
            yield f"{name}: results are not finite"
        else:
            yield from _output_problems(name, expect["tolerance"][facts["dtype"]], facts)
    if missed and not any("error" in facts for facts in found.values()):
        yield f"nothing was run in {listed(sorted(missed))}"


def _output_problems(name: str, rule: str | float, facts: Mapping[str, Any]) -> Iterator[str]:
    if not facts["outputs"]:
        yield f"{name} gave no result"
    tolerances = {output: _tolerance(rule, one) for output, one in facts["outputs"].items()}
    for output, one in facts["outputs"].items():
        if not _within(one["error"], tolerances[output]):
            yield f"{name}: {output} is off by {_shown(one['error'])}, at most {_shown(tolerances[output])} is allowed"
    if not facts["controls"]:
        yield f"{name} has no control"
    for control, errors in facts["controls"].items():
        for output, error in errors.items():
            if not _beyond(error, tolerances[output]):
                yield f"control: {name}, {output} {control} is off by {_shown(error)}, which the tolerance lets pass"


def _tolerance(rule: str | float, output: Mapping[str, Any]) -> float:
    if rule != RULE_T:
        return float(rule)
    factor, floor = (BACKWARD_FACTOR, BACKWARD_FLOOR) if output["backward"] else (FORWARD_FACTOR, FORWARD_FLOOR)
    return factor * float(output["plain_error"]) + floor


def _observed_problems(expect: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    if "error" in found:
        yield _cause(found["error"])
        return
    for name, (least, most) in expect["figures"].items():
        figure = found.get("figures", {}).get(name)
        if figure is None:
            yield f"{name} was not measured"
            continue
        if not _between(figure["value"], least, most):
            yield f"{name} is {_figure(figure['value'])}, not between {_figure(least)} and {_figure(most)}"
        if not figure["controls"]:
            yield f"{name} has no control"
        for control, value in figure["controls"].items():
            if _between(value, least, most):
                yield f"control: {name} of {control} is {_figure(value)}, which passes as well"
    for name, wanted in expect["facts"].items():
        value = found.get("facts", {}).get(name)
        if value != wanted:
            yield f"{name}: {value!r}, not {wanted!r}"


def _library_problems(patterns: Sequence[str], mapped: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for pattern in patterns:
        if not mapped.get(pattern):
            yield f"no library like {pattern} is loaded"


def _unseen(patterns: Sequence[str], profile: Mapping[str, Any]) -> Iterator[str]:
    """Right numbers from the wrong path: the kernel that should have run was not seen."""
    for pattern in patterns:
        if not profile["matching"].get(pattern):
            others = list(dict.fromkeys(_bare(name.removeprefix("void ")) for name in profile["others"]))
            seen = f"seen were {listed(others)}" if others else "none was seen"
            yield f"no CUDA kernel like {pattern} ran ({seen})"


def _suspects(evidence: Evidence) -> str:
    """Variables that send computations another way, where something is wrong."""
    variables = [f"{name}={value}" for name, value in evidence.get("environment", {}).items()]
    return f" ({listed(variables)} is set)" if variables else ""


def _praise(expect: Mapping[str, Any], evidence: Evidence) -> str:
    said = []
    shares = [
        one["error"] / (_tolerance(expect["tolerance"][facts["dtype"]], one) or math.inf)
        for facts in evidence["cases"].values()
        for one in facts["outputs"].values()
    ]
    if shares:
        cases = f"{len(expect['cases'])} case{'s' if len(expect['cases']) > 1 else ''}"
        said.append(f"{len(shares)} results of {cases} use at most {max(shares):.0%} of the tolerance")
    figures = evidence.get("observed", {}).get("figures", {})
    said += [f"{name} {_figure(figures[name]['value'])}" for name in expect["figures"]]
    kernels = [names[0].removeprefix("void ") for names in evidence["kernels"]["matching"].values() if names]
    if kernels:
        said.append(f"ran {listed(list(dict.fromkeys(map(_bare, kernels))))}")
    return "; ".join(said)


# ---- G0


def device(claim: Claim, evidence: Evidence) -> Finding:
    """G0. expect: {inventory?: {driver, gpus: [{name, capability, memory}]}, archs: [promised]}."""
    for view in ("cuda", "torch"):
        if "error" in evidence[view]:
            return failed(f"{view}: {_cause(evidence[view]['error'])}{_suspects(evidence)}")
    problems = [*_inventory_problems(claim.expect.get("inventory"), evidence), *_views_differ(evidence)]
    if len(evidence["libcuda"]) != 1:
        problems.append(f"{len(evidence['libcuda'])} driver libraries are loaded: {listed(list(evidence['libcuda']))}")
    if problems:
        return failed(f"{_joined(problems)}{_suspects(evidence)}")
    gpus = evidence["cuda"]["gpus"]
    names = listed([f"{one['name']} ({_dotted(one['capability'])})" for one in gpus])
    driver = evidence["nvml"].get("driver", "?")
    as_host = "as the host says" if claim.expect.get("inventory") else "as libcuda and torch both say"
    return passed(f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, {names}, driver {driver}, {as_host}")


def _inventory_problems(inventory: Mapping[str, Any] | None, evidence: Evidence) -> Iterator[str]:
    if inventory is None:
        return
    wanted, found = inventory["gpus"], evidence["cuda"]["gpus"]
    if len(wanted) != len(found):
        yield f"the host lent {len(wanted)} GPUs, {len(found)} are seen"
        return
    for index, (host, seen) in enumerate(zip(_sorted(wanted), _sorted(found), strict=True)):
        if (host["name"], host["capability"]) != (seen["name"], seen["capability"]):
            host_is, seen_is = (f"{one['name']} ({_dotted(one['capability'])})" for one in (host, seen))
            yield f"GPU {index} is {seen_is}, the host says {host_is}"
    inside = evidence["nvml"].get("driver")
    if inside and inventory["driver"] and inside != inventory["driver"]:
        yield f"the driver's library is {inside}, the host's driver is {inventory['driver']}"


def _views_differ(evidence: Evidence) -> Iterator[str]:
    """What libcuda counts, torch must see as well."""
    cuda, torch = (_sorted(evidence[view]["gpus"]) for view in ("cuda", "torch"))
    if not cuda:
        yield "libcuda counts no GPU"
    if [one["capability"] for one in cuda] != [one["capability"] for one in torch]:
        cuda_sees, torch_sees = (listed([one["name"] for one in view]) or "nothing" for view in (cuda, torch))
        yield f"libcuda sees {cuda_sees}, torch sees {torch_sees}"


def _sorted(gpus: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """NVML counts by bus, CUDA by speed: the order says nothing."""
    return sorted(gpus, key=lambda one: (one["name"], one["capability"]))


# ---- G1, besides its kernels


def numerics(claim: Claim, evidence: Evidence) -> Finding:
    """G1: a kernel, or (`cudnn`) the cuDNN that runs against the one torch was compiled for."""
    if claim.subject != "cudnn":
        return kernel(claim, evidence)
    if "error" in evidence:
        return failed(_cause(evidence["error"]))
    compiled, running = (".".join(map(str, evidence[which])) for which in ("compiled", "running"))
    if compiled != running:
        return failed(f"torch was compiled for cuDNN {compiled}, cuDNN {running} runs")
    return passed(f"cuDNN {running} runs, as torch was compiled for")


# ---- G10


def llama(claim: Claim, evidence: Evidence) -> Finding:
    """G10: weights and logits as C10 judges them, on this GPU; and QLoRA."""
    if claim.subject in ("nf4-weights", "nf4-logits"):
        finding = cpu.quantized_llama(claim, evidence)
        if claim.subject == "nf4-logits" or finding.status != passed("").status:
            return finding
        problem = _memory_problem(evidence["memory"])
        return failed(problem) if problem else passed(f"{finding.reason}; {_memory(evidence['memory'])}")
    if "error" in evidence:
        return failed(f"{claim.subject}: {_cause(evidence['error'])}{_suspects(evidence)}")
    problems = [*_training_problems(evidence), *_repetition_problems(evidence)]
    if problems:
        return failed(_joined(problems))
    losses = evidence["losses"]
    return passed(
        f"{len(losses)} steps bring the loss from {losses[0]:.3f} to {losses[-1]:.3f}, B moved in "
        f"{evidence['adapters']} adapters, {evidence['base_count']} base weights untouched; a second run ends in the "
        "same bits"
    )


def _memory_problem(memory: Mapping[str, Any]) -> str:
    """NF4 takes half a byte and 1/16 of scales a weight where bfloat16 takes two."""
    others = memory["parameters"] - memory["projections"]
    most = MEMORY_SLACK * (memory["projections"] * 0.5625 + others * 2)
    if not _within(memory["quantised"], most):
        return f"loading in 4-bit takes {memory['quantised']} bytes of GPU memory, at most {most:.0f} are right"
    if not _beyond(memory["bfloat16"], most):
        return f"control: bfloat16 takes {memory['bfloat16']} bytes, which passes as well"
    return ""


def _memory(memory: Mapping[str, Any]) -> str:
    return f"{memory['quantised'] / memory['bfloat16']:.2f} of bfloat16's GPU memory, embeddings included"


def _training_problems(evidence: Evidence) -> Iterator[str]:
    losses = evidence["losses"]
    if not losses or not all(_beyond(loss, 0.0) for loss in losses):
        yield f"losses are {listed([str(loss) for loss in losses])}"
    elif losses[-1] > QLORA_GAIN * losses[0]:
        yield f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"
    if evidence["gradient_checkpointing"] is not True:
        yield "gradient checkpointing is off"
    if not evidence["adapters"]:
        yield "no adapter was attached"
    if evidence["b_before"] != 0:
        yield f"B was {evidence['b_before']} before the first step"
    if evidence["b_still"]:
        yield f"B did not move in {listed(evidence['b_still'])}"
    if not evidence["base_count"]:
        yield "no base weight was looked at"
    if evidence["base_changed"]:
        yield f"training changed frozen weights: {listed(evidence['base_changed'])}"


def _repetition_problems(evidence: Evidence) -> Iterator[str]:
    again = evidence["again"]
    if again["losses"] != evidence["losses"]:
        pairs = zip(evidence["losses"], again["losses"], strict=False)
        step = next((index for index, (one, other) in enumerate(pairs) if one != other), len(again["losses"]))
        yield f"a second run's losses differ from step {step + 1} on"
    elif again["fingerprint"] != evidence["fingerprint"]:
        yield "a second run ends in other bits"


# ---- words and numbers


def _within(value: Any, bound: float) -> bool:
    """Not-a-number and infinity arrive as text, and are within nothing."""
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= bound


def _beyond(value: Any, bound: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > bound


def _between(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and least <= value <= most


def _bare(kernel: str) -> str:
    """A CUDA kernel's name without its parameters."""
    return re.split(r"[<(]", kernel.replace("(anonymous namespace)::", ""), maxsplit=1)[0][:60]


def _shown(value: Any) -> str:
    return f"{value:.2e}" if isinstance(value, int | float) else str(value)


def _figure(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, int | float) else str(value)


def _dotted(capability: Sequence[int]) -> str:
    return ".".join(map(str, capability))


def _cause(error: Mapping[str, Any]) -> str:
    """The first line of an error, which CUDA's and torch's say most in."""
    return f"{error['kind']}: {str(error['message']).strip().partition(chr(10))[0][:300]}"


def _joined(problems: Sequence[str]) -> str:
    return "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


JUDGES: Mapping[str, Judging] = {
    "G0": device,
    "G1": numerics,
    **dict.fromkeys(("G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9"), kernel),
    "G10": llama,
}
