"""One row of the table of kernels, its numbers and whether the kernel that was asked for ran."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

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
from validate.kernels._evidence import (
    CaseEvidence,
    KernelEvidence,
    KernelExpect,
    ObservedEvidence,
    Output,
    ProfileEvidence,
)


def dotted(capability: Sequence[int]) -> str:
    """Write a compute capability: `9.0`."""
    return ".".join(map(str, capability))


def judge(_subject: str, expect: KernelExpect, evidence: KernelEvidence) -> Finding:
    """Judge a kernel's results, and whether the kernel that was asked for ran."""
    device, capability = evidence["device"], expect.get("capability")
    of_host = expect.get("capabilities") or ([capability] if capability else [])
    if of_host and device["capability"] not in of_host:
        host = listed(list(map(dotted, of_host)))
        return failed(
            f"ran on {device['name']} of capability {dotted(device['capability'])}, the host has {host}"
        )
    if "gated" in evidence:
        # Where the host could not tell the GPU's capability, the device's own word decides.
        reason = evidence["gated"]
        return failed(f"the GPU says {reason}") if capability else not_applicable(reason)
    if evidence.get("declined"):
        return _judge_refusal(evidence["declined"])
    gated = [case["gated"] for case in evidence["cases"].values() if "gated" in case]
    if gated and len(gated) == len(expect["cases"]) and not capability:
        return not_applicable(listed(gated))

    problems = [
        *_case_problems(expect, evidence["cases"]),
        *_observed_problems(expect, evidence.get("observed", {})),
    ]
    for pattern in expect["libraries"]:
        if not evidence["libraries"].get(pattern):
            problems.append(f"no library like {pattern} is loaded")
    profile = evidence["kernels"]
    if profile["works"]:
        problems += path_problems(expect, evidence)
    if problems:
        return failed(f"{joined(problems)}{suspects(evidence)}")
    if not profile["works"]:
        return unproven(
            f"the results are right, but {_lost_marks(profile)}: which kernels ran can't be told"
        )
    return passed(_summary(expect, evidence))


def _judge_refusal(reasons: Sequence[str]) -> Finding:
    """Judge a library's own reasons not to run: about this GPU they are a gate, all others are its fault."""
    faults = [reason for reason in reasons if "capability" not in reason]
    if faults:
        return failed(f"it refuses to run: {listed(faults)}")
    return not_applicable(listed(list(reasons)))


def _lost_marks(profile: ProfileEvidence) -> str:
    """Write what the profiler did not see."""
    marks = profile.get("marks")
    if marks is None:
        return "the profiler missed kernels that surely ran"
    return f"the profiler saw {marks['seen']} of {marks['made']} marks, and {marks['lead_in']} spins before them"


def _case_problems(expect: KernelExpect, cases: Mapping[str, CaseEvidence]) -> Iterator[str]:
    """Yield cases that were not run, or whose results are off."""
    for name in expect["cases"]:
        case = cases.get(name)
        if case is None:
            yield f"{name} was not run"
        elif "gated" in case:
            # Where the host could not tell the GPU's capability, the device's own word decides, as for a whole kernel.
            if expect.get("capability"):
                yield f"{name}: the GPU says {case['gated']}"
        elif "error" in case:
            yield f"{name}: {cause(case['error'])}"
        elif case["dtype"] not in expect["tolerance"]:
            yield f"{name} ran in {case['dtype']}, for which nothing is claimed"
        elif case["finite"] is not True:
            yield f"{name}: results are not finite"
        else:
            yield from _output_problems(name, expect["tolerance"][case["dtype"]], case)

    missed = set(expect["tolerance"]) - {case.get("dtype") for case in cases.values()}
    if missed and not any("error" in case for case in cases.values()):
        yield f"nothing was run in {listed(sorted(missed))}"


def _output_problems(name: str, rule: str | float, case: CaseEvidence) -> Iterator[str]:
    """Yield results that are off, and controls that the tolerance lets pass."""
    if not case["outputs"]:
        yield f"{name} gave no result"
    tolerances = {}
    for result, output in case["outputs"].items():
        tolerances[result] = _tolerance(rule, output)
        if not is_within(output["error"], tolerances[result]):
            error, allowed = scientific(output["error"]), scientific(tolerances[result])
            yield f"{name}: {result} is off by {error}, at most {allowed} is allowed"

    if not case["controls"]:
        yield f"{name} has no control"
    for control, errors in case["controls"].items():
        for result, error_of_control in errors.items():
            if not is_beyond(error_of_control, tolerances[result]):
                error = scientific(error_of_control)
                yield f"control: {name}, {result} {control} is off by {error}, which the tolerance lets pass"


def _tolerance(rule: str | float, output: Output) -> float:
    """Return the largest error that a result may have."""
    if rule != RULE_T:
        return float(rule)
    allowed = backward if output["backward"] else forward
    return allowed(float(output["plain_error"]))


def _observed_problems(expect: KernelExpect, observed: ObservedEvidence) -> Iterator[str]:
    """Yield figures and facts that are not as they are expected."""
    if "error" in observed:
        yield cause(observed["error"])
        return

    for name, (least, most) in expect["figures"].items():
        figure = observed.get("figures", {}).get(name)
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

    for name, expected in expect["facts"].items():
        fact = observed.get("facts", {}).get(name)
        if fact != expected:
            yield f"{name}: {fact!r}, not {expected!r}"


def _summary(expect: KernelExpect, evidence: KernelEvidence) -> str:
    """Write how much of the tolerance was used, the figures, and which kernels ran."""
    parts = []
    gated = [case["gated"] for case in evidence["cases"].values() if "gated" in case]
    shares = list(_shares_of_tolerance(expect, evidence["cases"]))
    if shares:
        count = len(expect["cases"]) - len(gated)
        cases = f"{count} case{'s' if count > 1 else ''}"
        parts.append(
            f"{len(shares)} results of {cases} use at most {max(shares):.0%} of the tolerance"
        )

    figures = evidence.get("observed", {}).get("figures", {})
    parts += [f"{name} {_figure(figures[name]['value'])}" for name in expect["figures"]]

    kernels = [bare(names[0]) for names in evidence["kernels"]["matching"].values() if names]
    if kernels:
        parts.append(f"ran {listed(list(dict.fromkeys(kernels)))}")
    remark = path_remark(expect, evidence)
    if remark:
        parts.append(remark)
    reasons = dict.fromkeys([*expect.get("left_out", {}).values(), *gated])
    parts += [f"not claimed: {reason}" for reason in reasons]
    return "; ".join(parts)


def _shares_of_tolerance(
    expect: KernelExpect, cases: Mapping[str, CaseEvidence]
) -> Iterator[float]:
    """Yield each result's error as a share of what it may be."""
    for case in cases.values():
        if "gated" in case:
            continue
        rule = expect["tolerance"][case["dtype"]]
        for output in case["outputs"].values():
            yield output["error"] / (_tolerance(rule, output) or math.inf)


def _figure(value: object) -> str:
    """Write a figure in five digits."""
    return f"{value:.5g}" if isinstance(value, int | float) else str(value)


def path_problems(expect: KernelExpect, evidence: KernelEvidence) -> Iterator[str]:
    """Yield why it can't have been the kernel that was asked for."""
    profile, patterns = evidence["kernels"], expect["expected_kernels"]
    if "ran" not in profile:
        # Before 2026-11-22 plain torch's kernels stood among the others, and nothing but a name told them apart.
        seen = [pattern for pattern in patterns if profile["matching"].get(pattern)]
        yield from _unseen(patterns, seen, profile["others"])
        return

    ran = _ran(evidence)
    faults: list[str] = []
    for case, names in ran.items():
        faults.extend(_path_faults(expect, case, names))
    yield from faults

    all_names = list(chain.from_iterable(ran.values()))
    if not faults and not _nameless(expect, all_names):
        seen = [pattern for pattern in patterns if _any_is_like(all_names, pattern)]
        yield from _unseen(patterns, seen, all_names)


def path_remark(expect: KernelExpect, evidence: KernelEvidence) -> str:
    """Write what ran in place of a kernel whose name is not known, or nothing."""
    if "names_of" not in expect:
        return ""
    names = list(chain.from_iterable(_ran(evidence).values()))
    patterns = expect["expected_kernels"]
    if patterns and all(_any_is_like(names, pattern) for pattern in patterns):
        return ""
    ran = list(dict.fromkeys(map(bare, _nameless(expect, names))))
    return f"ran as {listed(ran)}: no name is known for {expect['names_of']}" if ran else ""


def bare(kernel: str) -> str:
    """Return a CUDA kernel's name without its parameters."""
    plain = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0][:60]


def _ran(evidence: KernelEvidence) -> Mapping[str, Sequence[str]]:
    """Return by case the kernels that plain torch did not run. A case that raised has a problem already."""
    cases, observed = evidence["cases"], evidence.get("observed", {})
    kernels = {}
    for case, names in evidence["kernels"].get("ran", {}).items():
        # What ran for no case belongs to the observations.
        has_error = "error" in cases[case] if case in cases else "error" in observed
        if not has_error:
            kernels[case] = names
    return kernels


def _path_faults(expect: KernelExpect, case: str, names: Sequence[str]) -> Iterator[str]:
    """Yield why a case ran another kernel than its own."""
    if any(_is_like(name, expect["expected_kernels"]) for name in names):
        return
    for name in names:
        for pattern, owner in expect.get("other_kernels", {}).items():
            if re.search(pattern, name):
                yield f"{case}: ran {bare(name)}, which is {owner}"
                return
    if "names_of" in expect and not _nameless(expect, names):
        yield f"{case}: no kernel of its own ran ({_seen(names)})"


def _nameless(expect: KernelExpect, names: Sequence[str]) -> list[str]:
    """Return kernels that could be the one that was asked for, under a name that is not known."""
    known = [
        *expect["expected_kernels"],
        *expect.get("other_kernels", {}),
        *expect.get("aside_kernels", ()),
    ]
    return [name for name in names if not _is_like(name, known)]


def _any_is_like(names: Sequence[str], pattern: str) -> bool:
    """Return whether one of the names fits a pattern."""
    return any(re.search(pattern, name) for name in names)


def _is_like(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name fits one of the patterns."""
    return any(re.search(pattern, name) for pattern in patterns)


def _unseen(patterns: Sequence[str], seen: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """Yield patterns that no kernel fits."""
    for pattern in patterns:
        if pattern not in seen:
            yield f"no CUDA kernel like {pattern} ran ({_seen(others)})"


def _seen(names: Sequence[str]) -> str:
    """Write which kernels were seen."""
    return (
        f"seen were {listed(list(dict.fromkeys(map(bare, names))))}" if names else "none was seen"
    )
