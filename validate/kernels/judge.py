"""One row of the table of kernels, its numbers and whether the kernel that was asked for ran."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from validate.judging import (
    RULE_T,
    Finding,
    backward,
    cause,
    failed,
    forward,
    is_between,
    is_beyond,
    is_within,
    joined,
    listed,
    not_applicable,
    passed,
    scientific,
    suspects,
    unproven,
)

Facts = Mapping[str, Any]


def dotted(capability: Sequence[int]) -> str:
    return ".".join(map(str, capability))


def judge(_subject: str, expect: Facts, evidence: Facts) -> Finding:
    """Of a kernel.

    expect: {cases, tolerance: {dtype: rule T or the largest relative error}, figures: {name: [least, most]}, facts,
    libraries: patterns of what must be mapped, package, expected_kernels: patterns, one for each part that has a name
    in this version}, and perhaps {capability: the host's least, capabilities: all where its GPUs differ, left_out:
    {case: why these versions or GPUs can't do it}, names_of: the versions that decide what its kernels are called,
    other_kernels: {pattern: whose they are}, aside_kernels: patterns of what runs around it}. Claims from before
    2026-11-22 have none of the last three: a name that was missing failed them.

    evidence: {device: {name, capability, torch}, environment}, and `gated` or `declined` (why it did not run), or
    {cases: {case: {dtype, shapes, finite, outputs: {name: {backward, error, plain_error}}, controls: {control:
    {name: error}}}, or `error`, or {gated: why this GPU can't, dtype}}, observed: {figures: {name: {value, controls}},
    facts} or `error`, libraries: {pattern: files}, kernels: what _timeline.described gives}.
    """
    device, known = evidence["device"], expect.get("capability")
    wanted = expect.get("capabilities") or ([known] if known else [])
    if wanted and device["capability"] not in wanted:
        host = listed(list(map(dotted, wanted)))
        return failed(f"ran on {device['name']} of capability {dotted(device['capability'])}, the host has {host}")
    if "gated" in evidence:
        # Where the host could not tell the GPU's capability, the device's own word decides.
        return failed(f"the GPU says {evidence['gated']}") if known else not_applicable(evidence["gated"])
    if evidence.get("declined"):
        return _declined(evidence["declined"])
    gated = [facts["gated"] for facts in evidence["cases"].values() if "gated" in facts]
    if gated and len(gated) == len(expect["cases"]) and not known:
        return not_applicable(listed(gated))
    problems = [
        *_case_problems(expect, evidence["cases"]),
        *_observed_problems(expect, evidence.get("observed", {})),
        *(f"no library like {one} is loaded" for one in expect["libraries"] if not evidence["libraries"].get(one)),
    ]
    profile = evidence["kernels"]
    if profile["works"]:
        problems += path_problems(expect, evidence)
    if problems:
        return failed(f"{joined(problems)}{suspects(evidence)}")
    if not profile["works"]:
        missed = "the profiler missed kernels that surely ran"
        if (marks := profile.get("marks")) is not None:
            seen, lead_in = f"{marks['seen']} of {marks['made']} marks", f"{marks['lead_in']} spins before them"
            missed = f"the profiler saw {seen}, and {lead_in}"
        return unproven(f"the results are right, but {missed}: which kernels ran can't be told")
    return passed(_summary(expect, evidence))


def _declined(reasons: Sequence[str]) -> Finding:
    """A library's own reasons: about this GPU they are a gate, all others are its fault."""
    gates = [reason for reason in reasons if "capability" in reason]
    if len(gates) == len(reasons):
        return not_applicable(listed(list(reasons)))
    return failed(f"it refuses to run: {listed([reason for reason in reasons if reason not in gates])}")


def _case_problems(expect: Facts, found: Facts) -> Iterator[str]:
    missed = set(expect["tolerance"]) - {facts.get("dtype") for facts in found.values()}
    for name in expect["cases"]:
        facts = found.get(name)
        if facts is None:
            yield f"{name} was not run"
        elif "gated" in facts:
            # Where the host could not tell the GPU's capability, the device's own word decides, as for a whole kernel.
            if expect.get("capability"):
                yield f"{name}: the GPU says {facts['gated']}"
        elif "error" in facts:
            yield f"{name}: {cause(facts['error'])}"
        elif facts["dtype"] not in expect["tolerance"]:
            yield f"{name} ran in {facts['dtype']}, for which nothing is claimed"
        elif facts["finite"] is not True:
            yield f"{name}: results are not finite"
        else:
            yield from _output_problems(name, expect["tolerance"][facts["dtype"]], facts)
    if missed and not any("error" in facts for facts in found.values()):
        yield f"nothing was run in {listed(sorted(missed))}"


def _output_problems(name: str, rule: str | float, facts: Facts) -> Iterator[str]:
    if not facts["outputs"]:
        yield f"{name} gave no result"
    tolerances = {output: _tolerance(rule, one) for output, one in facts["outputs"].items()}
    for output, one in facts["outputs"].items():
        if not is_within(one["error"], tolerances[output]):
            found, allowed = scientific(one["error"]), scientific(tolerances[output])
            yield f"{name}: {output} is off by {found}, at most {allowed} is allowed"
    if not facts["controls"]:
        yield f"{name} has no control"
    for control, errors in facts["controls"].items():
        for output, error in errors.items():
            if not is_beyond(error, tolerances[output]):
                found = scientific(error)
                yield f"control: {name}, {output} {control} is off by {found}, which the tolerance lets pass"


def _tolerance(rule: str | float, output: Facts) -> float:
    if rule != RULE_T:
        return float(rule)
    return (backward if output["backward"] else forward)(float(output["plain_error"]))


def _observed_problems(expect: Facts, found: Facts) -> Iterator[str]:
    if "error" in found:
        yield cause(found["error"])
        return
    for name, (least, most) in expect["figures"].items():
        figure = found.get("figures", {}).get(name)
        if figure is None:
            yield f"{name} was not measured"
            continue
        if not is_between(figure["value"], least, most):
            yield f"{name} is {_figure(figure['value'])}, not between {_figure(least)} and {_figure(most)}"
        if not figure["controls"]:
            yield f"{name} has no control"
        for control, value in figure["controls"].items():
            if is_between(value, least, most):
                yield f"control: {name} of {control} is {_figure(value)}, which passes as well"
    for name, wanted in expect["facts"].items():
        fact = found.get("facts", {}).get(name)
        if fact != wanted:
            yield f"{name}: {fact!r}, not {wanted!r}"


def _summary(expect: Facts, evidence: Facts) -> str:
    said = []
    shares = [
        one["error"] / (_tolerance(expect["tolerance"][facts["dtype"]], one) or math.inf)
        for facts in evidence["cases"].values()
        if "gated" not in facts
        for one in facts["outputs"].values()
    ]
    gated = [facts["gated"] for facts in evidence["cases"].values() if "gated" in facts]
    if shares:
        count = len(expect["cases"]) - len(gated)
        cases = f"{count} case{'s' if count > 1 else ''}"
        said.append(f"{len(shares)} results of {cases} use at most {max(shares):.0%} of the tolerance")
    figures = evidence.get("observed", {}).get("figures", {})
    said += [f"{name} {_figure(figures[name]['value'])}" for name in expect["figures"]]
    kernels = [names[0] for names in evidence["kernels"]["matching"].values() if names]
    if kernels:
        said.append(f"ran {listed(list(dict.fromkeys(map(bare, kernels))))}")
    said += filter(None, [path_remark(expect, evidence)])
    said += [f"not claimed: {why}" for why in dict.fromkeys([*expect.get("left_out", {}).values(), *gated])]
    return "; ".join(said)


def _figure(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, int | float) else str(value)


def path_problems(expect: Facts, evidence: Facts) -> Iterator[str]:
    """Why it can't have been the kernel that was asked for."""
    profile, patterns = evidence["kernels"], expect["expected_kernels"]
    if "ran" not in profile:
        # Before 2026-11-22 plain torch's kernels stood among the others, and nothing but a name told them apart.
        seen = [pattern for pattern in patterns if profile["matching"].get(pattern)]
        yield from _unseen(patterns, seen, profile["others"])
        return
    ran = _ran(evidence)
    wrong = [problem for case, names in ran.items() for problem in _path_faults(expect, case, names)]
    yield from wrong
    every = list(chain.from_iterable(ran.values()))
    if not wrong and not _nameless(expect, every):
        yield from _unseen(patterns, [one for one in patterns if any(_is_like(name, [one]) for name in every)], every)


def path_remark(expect: Facts, evidence: Facts) -> str:
    """What ran in place of a kernel whose name is not known, or nothing."""
    every = list(chain.from_iterable(_ran(evidence).values()))
    patterns = expect["expected_kernels"]
    if "names_of" not in expect or (patterns and all(any(_is_like(n, [one]) for n in every) for one in patterns)):
        return ""
    ran = list(dict.fromkeys(map(bare, _nameless(expect, every))))
    return f"ran as {listed(ran)}: no name is known for {expect['names_of']}" if ran else ""


def bare(kernel: str) -> str:
    """A CUDA kernel's name without its parameters."""
    plain = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0][:60]


def _ran(evidence: Facts) -> Mapping[str, Sequence[str]]:
    """Case -> kernels that plain torch did not run. A case that raised has a problem already."""
    cases, observed = evidence["cases"], evidence.get("observed", {})
    ran = evidence["kernels"].get("ran", {})
    return {case: names for case, names in ran.items() if "error" not in cases.get(case, observed)}


def _path_faults(expect: Facts, case: str, names: Sequence[str]) -> Iterator[str]:
    if any(_is_like(name, expect["expected_kernels"]) for name in names):
        return
    whose = {
        name: owner
        for name in names
        for pattern, owner in expect.get("other_kernels", {}).items()
        if re.search(pattern, name)
    }
    if whose:
        name, owner = next(iter(whose.items()))
        yield f"{case}: ran {bare(name)}, which is {owner}"
    elif "names_of" in expect and not _nameless(expect, names):
        yield f"{case}: no kernel of its own ran ({_told(names)})"


def _nameless(expect: Facts, names: Sequence[str]) -> list[str]:
    """Kernels that could be the one that was asked for, under a name that is not known."""
    known = [*expect["expected_kernels"], *expect.get("other_kernels", {}), *expect.get("aside_kernels", ())]
    return [name for name in names if not _is_like(name, known)]


def _is_like(name: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _unseen(patterns: Sequence[str], seen: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        if pattern not in seen:
            yield f"no CUDA kernel like {pattern} ran ({_told(others)})"


def _told(names: Sequence[str]) -> str:
    return f"seen were {listed(list(dict.fromkeys(map(bare, names))))}" if names else "none was seen"
