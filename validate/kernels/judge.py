"""Judges a GPU kernel: whether its results are right, and whether it was this kernel that ran.

CUDA kernels are told apart by their names, which are known for some versions only. So a name that
is seen proves something, and one that is missing proves little (_names.py). The claim sorts names
into *expected* ones (of the kernel itself), *other* ones (of a kernel that must not run in its
place), and those *aside* (which run around any kernel). A name that is none of these is *unknown*:
it may be the kernel's own in a new version.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from validate.judging import (
    PROVES_NOTHING,
    RULE_T,
    Finding,
    backward_tolerance,
    cause,
    failed,
    forward_tolerance,
    is_between,
    is_beyond,
    is_within,
    joined,
    listed,
    not_applicable,
    passed,
    plural,
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
from validate.next_steps import REPORT


def dotted(capability: Sequence[int]) -> str:
    """Return a compute capability as text: `9.0`."""
    return ".".join(map(str, capability))


def judge(_subject: str, expect: KernelExpect, evidence: KernelEvidence) -> Finding:
    """Judge a GPU kernel that was run: its results, and whether it was really this kernel.

    A library may fall back to another kernel without an error, so the profiler must have seen this
    one. FAIL: a result is wrong, or another kernel ran. NOT_APPLICABLE: this GPU cannot run it.
    UNPROVEN: the results are right, but the profiler lost what ran.
    """
    finding = _judge_whether_it_ran(expect, evidence)
    if finding is not None:
        return finding

    problems = [
        *_find_case_problems(expect, evidence["cases"]),
        *_find_observed_problems(expect, evidence.get("observed", {})),
    ]
    for pattern in expect["libraries"]:
        if not evidence["libraries"].get(pattern):
            problems.append(f"the kernel's library, a file like {pattern}, is not loaded")

    # The profiler sometimes loses kernels. Then it can't be told which ones ran, but wrong results
    # are a FAIL all the same.
    profile = evidence["kernels"]
    if profile["works"]:
        problems += _describe_wrong_kernels(expect, evidence)
    if problems:
        return failed(f"{joined(problems)}{suspects(evidence)}")
    if not profile["works"]:
        lost = _describe_lost_kernels(profile)
        return unproven(
            f"the results are right, but {lost}, so it is not known which kernels ran",
            "end other profilers (nsys, ncu, DCGM) that watch this GPU, then validate again",
        )
    return passed(_summarise(expect, evidence))


def _judge_whether_it_ran(expect: KernelExpect, evidence: KernelEvidence) -> Finding | None:
    """Judge a kernel that did not run, or ran on a wrong GPU. Return None if neither is the case.

    There are two reasons why it, or a case of it, did not run. Either this GPU can't run it
    (`gated`): a fault if the claim was written for this GPU's compute capability, otherwise the
    claim is not applicable. Or the kernel's library refused to run it (`declined`).
    """
    device = evidence["device"]
    # The capability (9.0) of the host's GPUs, for which the claim was written; or several, if they
    # differ. If the host did not know its GPUs, there is nothing to compare with.
    capability = expect.get("capability")
    host_capabilities = expect.get("capabilities") or ([capability] if capability else [])
    if host_capabilities and device["capability"] not in host_capabilities:
        host = listed([dotted(known) for known in host_capabilities])
        return failed(
            f"the GPU in the container, {device['name']}, has compute capability "
            f"{dotted(device['capability'])}, and those of this machine have {host}, so the "
            "container ran on another machine",
            "let `docker context use` or DOCKER_HOST name the engine of this machine, and validate "
            "again",
        )

    # A host that knows its GPUs claims only what they can run, so this is a fault there.
    if "gated" in evidence:
        reason = evidence["gated"]
        if not capability:
            return not_applicable(reason)
        return failed(
            f"this GPU can't run the kernel, though truetag expected it to: {reason}", REPORT
        )
    if evidence.get("declined"):
        return _judge_refusal(evidence["declined"])

    reasons = _list_gated_reasons(evidence)
    cannot_run_any_case = bool(reasons) and len(reasons) == len(expect["cases"])
    if cannot_run_any_case and not capability:
        return not_applicable(listed(reasons))
    return None


def _list_gated_reasons(evidence: KernelEvidence) -> list[str]:
    """Return why this GPU could not run some cases, a reason for each."""
    return [case["gated"] for case in evidence["cases"].values() if "gated" in case]


def _judge_refusal(reasons: Sequence[str]) -> Finding:
    """Judge the reasons for which a library refused to run.

    NOT_APPLICABLE if all of them are about the compute capability of this GPU, else FAIL.
    """
    faults = [reason for reason in reasons if "capability" not in reason]
    if faults:
        return failed(f"the kernel's library refuses to run it: {listed(faults)}")
    return not_applicable(listed(list(reasons)))


def _describe_lost_kernels(profile: ProfileEvidence) -> str:
    """Return a phrase about kernels that the profiler lost, although they surely ran.

    Around the kernel that is tested, the check runs others that only wait: a mark begins each case,
    and spins come before the first mark, because the profiler may lose the first kernels. Older
    evidence has no numbers of these.
    """
    marks = profile.get("marks")
    if marks is None:
        return "the profiler missed kernels that surely ran"
    return (
        f"the profiler saw {marks['seen']} of {marks['made']} marks, "
        f"and {marks['lead_in']} spins before them"
    )


def _find_case_problems(expect: KernelExpect, cases: Mapping[str, CaseEvidence]) -> Iterator[str]:
    """Yield a sentence for each case of a kernel that was not run, failed, or has wrong results.

    A case is one set of inputs, such as a shape and a dtype.

    expect: has the names of all cases, and for each dtype how far results may be off.
    cases: name of a case -> what was measured.
    """
    for name in expect["cases"]:
        case = cases.get(name)
        if case is None:
            yield f"the case {name} was not run"
        elif "gated" in case:
            # This GPU cannot run the case. That is a problem only if the claim was written for this
            # GPU: then it would have left the case out.
            if expect.get("capability"):
                yield f"this GPU can't run the case {name}, and was expected to: {case['gated']}"
        elif "error" in case:
            yield f"the case {name} fails: {cause(case['error'])}"
        elif case["dtype"] not in expect["tolerance"]:
            yield f"the case {name} ran in {case['dtype']}, which this check does not know"
        elif case["finite"] is not True:
            yield f"the case {name} gave results that are not finite numbers"
        else:
            yield from _find_output_problems(name, expect["tolerance"][case["dtype"]], case)

    # At least one case must have run in each dtype. A case that raised an error has no dtype, and
    # was reported above.
    dtypes_run = {case.get("dtype") for case in cases.values()}
    missing_dtypes = set(expect["tolerance"]) - dtypes_run
    has_error = any("error" in case for case in cases.values())
    if missing_dtypes and not has_error:
        yield f"none of the kernel's cases was run in {listed(sorted(missing_dtypes))}"


def _find_output_problems(name: str, rule: str | float, case: CaseEvidence) -> Iterator[str]:
    """Yield a sentence for each result of a case that is too far off, and each useless control.

    A control is a result that was spoiled on purpose. If its error is within the tolerance, the
    comparison would not notice a wrong result.

    name: the case's, for the sentences.
    rule: how far results may be off, see _largest_allowed_error.
    """
    tolerances: dict[str, float] = {}
    for result, output in case["outputs"].items():
        tolerances[result] = _largest_allowed_error(rule, output)

    if not case["outputs"]:
        yield f"the case {name} gave no result"
    for result, output in case["outputs"].items():
        if not is_within(output["error"], tolerances[result]):
            error = scientific(output["error"])
            allowed = scientific(tolerances[result])
            off = f"in the case {name}, {result} is off by {error}"
            yield f"{off}, and at most {allowed} is allowed"

    if not case["controls"]:
        yield f"{PROVES_NOTHING}no result of the case {name} was made wrong on purpose and compared"
    for control, errors in case["controls"].items():
        for result, control_error in errors.items():
            if not is_beyond(control_error, tolerances[result]):
                yield (
                    f"{PROVES_NOTHING}{result} of the case {name}, made wrong on purpose "
                    f"({control}), is off by {scientific(control_error)}, and passes as right"
                )


def _largest_allowed_error(rule: str | float, output: Output) -> float:
    """Return the largest relative error that a result may have.

    rule: this error itself; or RULE_T, which allows a small multiple of the error that plain torch
        makes in the same dtype.
    """
    if rule != RULE_T:
        return float(rule)
    # Gradients (`backward`) may be off by a larger multiple.
    allowed = backward_tolerance if output["backward"] else forward_tolerance
    return allowed(float(output["plain_error"]))


def _find_observed_problems(expect: KernelExpect, observed: ObservedEvidence) -> Iterator[str]:
    """Yield a sentence for each measured number or fact that is not as expected.

    A number is called a figure. It must lie within bounds, and its controls, which were measured
    with results that were spoiled on purpose, must lie outside of them.
    """
    # If measuring raised an error, nothing else was measured.
    if "error" in observed:
        yield f"what the kernel does can't be measured: {cause(observed['error'])}"
        return

    for name, (least, most) in expect["figures"].items():
        figure = observed.get("figures", {}).get(name)
        if figure is None:
            yield f"{name} was not measured"
            continue
        if not is_between(figure["value"], least, most):
            yield (
                f"{name} is {_write_five_digits(figure['value'])}, "
                f"and should be {_write_five_digits(least)} to {_write_five_digits(most)}"
            )
        if not figure["controls"]:
            yield (
                f"{PROVES_NOTHING}{name} was not measured of a result that was made wrong on "
                "purpose"
            )
        for control, value in figure["controls"].items():
            if is_between(value, least, most):
                shown = _write_five_digits(value)
                yield (
                    f"{PROVES_NOTHING}{name} is {shown} also for a result that was made wrong on "
                    f"purpose ({control}), and passes as right"
                )

    for name, expected in expect["facts"].items():
        fact = observed.get("facts", {}).get(name)
        if fact != expected:
            yield f"{name} is {fact!r}, and {expected!r} is expected"


def _summarise(expect: KernelExpect, evidence: KernelEvidence) -> str:
    """Write what was measured of a kernel that passed, as one line for people.

    For example: `2 results of 1 case use at most 31% of the tolerance; ran flash_fwd_kernel`.
    """
    parts = []
    # Cases that this GPU cannot run.
    reasons_of_gpu = _list_gated_reasons(evidence)
    cases_run = len(expect["cases"]) - len(reasons_of_gpu)
    shares = list(_measure_shares_of_tolerance(expect, evidence["cases"]))
    if shares:
        results = f"{len(shares)} results of {plural(cases_run, 'case')}"
        parts.append(f"{results} use at most {max(shares):.0%} of the tolerance")

    figures = evidence.get("observed", {}).get("figures", {})
    for name in expect["figures"]:
        parts.append(f"{name} {_write_five_digits(figures[name]['value'])}")

    # The first CUDA kernel that was seen for each expected name.
    kernels = []
    for names in evidence["kernels"]["matching"].values():
        if names:
            kernels.append(shorten_name(names[0]))
    if kernels:
        parts.append(f"ran {_list_once(kernels)}")
    remark = _remark_on_unknown_kernels(expect, evidence)
    if remark:
        parts.append(remark)

    # Cases that were not claimed because these versions of packages cannot run them.
    reasons_of_versions = expect.get("left_out", {}).values()
    for reason in dict.fromkeys([*reasons_of_versions, *reasons_of_gpu]):
        parts.append(f"not claimed: {reason}")
    return "; ".join(parts)


def _list_once(names: Sequence[str]) -> str:
    """Return names as a phrase, without repetitions."""
    return listed(list(dict.fromkeys(names)))


def _measure_shares_of_tolerance(
    expect: KernelExpect, cases: Mapping[str, CaseEvidence]
) -> Iterator[float]:
    """Yield each result's error as a share of the error that it may have."""
    for case in cases.values():
        if "gated" in case:
            continue
        rule = expect["tolerance"][case["dtype"]]
        for output in case["outputs"].values():
            # A tolerance of 0 was kept by an error of 0: its share is 0.
            yield output["error"] / (_largest_allowed_error(rule, output) or math.inf)


def _write_five_digits(value: object) -> str:
    """Return a figure with five digits, and anything else as text."""
    return f"{value:.5g}" if isinstance(value, int | float) else str(value)


def _describe_wrong_kernels(expect: KernelExpect, evidence: KernelEvidence) -> Iterator[str]:
    """Yield a sentence for each sign that it was not the claimed kernel that ran.

    There are two signs: the profiler saw the name of another CUDA kernel, or it did not see a name
    that it should have seen. `expect` has regular expressions of these names. Call this only if the
    profiler lost nothing.
    """
    profile = evidence["kernels"]
    patterns = expect["expected_kernels"]
    if "ran" not in profile:
        # Evidence from before 2026-11-22 does not say which kernels ran in which case.
        matched = [pattern for pattern in patterns if profile["matching"].get(pattern)]
        yield from _describe_missing_patterns(patterns, matched, profile["others"])
        return

    # Each case by itself, so that no kernel of one case stands in for that of another.
    faults: list[str] = []
    for case, names in _read_own_kernels(evidence).items():
        faults += _describe_wrong_kernel_of_case(expect, case, names)
    yield from faults

    # Then all cases together: each part of the kernel, such as its backward, must have run in one
    # of them. A part that seems to be missing may be explained by a fault above, or have run under
    # a name that is not known.
    all_names = _list_own_kernels(evidence)
    if not faults and not _find_unknown_kernels(expect, all_names):
        matched = [pattern for pattern in patterns if _any_matches(all_names, pattern)]
        yield from _describe_missing_patterns(patterns, matched, all_names)


def _remark_on_unknown_kernels(expect: KernelExpect, evidence: KernelEvidence) -> str:
    """Return a remark about CUDA kernels that seem to be the claimed kernel under a new name.

    For example `ran as fmha_fwd: no name is known for flash-attn 2.9.0`. That is no fault. Empty
    if the names are known.
    """
    # `names_of` is missing if the claim expects no names.
    if "names_of" not in expect:
        return ""

    # There is a pattern for each part of the kernel. If the profiler saw all parts, no question is
    # open. If there is no pattern, nothing has shown yet that the kernel ran.
    patterns = expect["expected_kernels"]
    names = _list_own_kernels(evidence)
    if patterns and all(_any_matches(names, pattern) for pattern in patterns):
        return ""

    unknown = [shorten_name(name) for name in _find_unknown_kernels(expect, names)]
    if not unknown:
        return ""
    return f"ran as {_list_once(unknown)}: no name is known for {expect['names_of']}"


def shorten_name(kernel: str) -> str:
    """Return a CUDA kernel's name without its parameters, at most 60 characters.

    `void flash::flash_fwd<Traits, 0>(Params)` becomes `flash::flash_fwd`.
    """
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0][:60]


def _read_own_kernels(evidence: KernelEvidence) -> Mapping[str, Sequence[str]]:
    """Return which CUDA kernels ran in each case, without those that plain torch runs, too.

    A case that raised an error is left out: it is reported already. The profile also has a row of
    what ran for figures and facts (`observed`), under the name of the kernel in place of a case.
    """
    kernels = {}
    for case, names in evidence["kernels"].get("ran", {}).items():
        measured: CaseEvidence | ObservedEvidence
        if case in evidence["cases"]:
            measured = evidence["cases"][case]
        else:
            measured = evidence.get("observed", {})
        if "error" not in measured:
            kernels[case] = names
    return kernels


def _list_own_kernels(evidence: KernelEvidence) -> list[str]:
    """Return the CUDA kernels of all cases together, without those that plain torch runs, too."""
    return list(chain.from_iterable(_read_own_kernels(evidence).values()))


def _describe_wrong_kernel_of_case(
    expect: KernelExpect, case: str, names: Sequence[str]
) -> Iterator[str]:
    """Yield one sentence if the claimed kernel did not run in a case; nothing if it may have run.

    expect: patterns of names of CUDA kernels: those of the claimed kernel (`expected_kernels`), and
        those of kernels that must not run in its place -> whose they are (`other_kernels`).
    names: the CUDA kernels that ran in the case, without those that plain torch runs, too.
    """
    # One that is expected is proof enough, whatever else ran.
    if any(_matches_any(name, expect["expected_kernels"]) for name in names):
        return

    # Report only the first: one kernel in its place is enough.
    for name in names:
        for pattern, owner in expect.get("other_kernels", {}).items():
            if re.search(pattern, name):
                other = shorten_name(name)
                yield f"in the case {case} another kernel ran: {other}, which is {owner}"
                return

    # Of some kernels no names are known at all: their claims have no `names_of`.
    if "names_of" not in expect:
        return
    # A name that no pattern fits may be the claimed kernel's, in a new version of its package.
    if not _find_unknown_kernels(expect, names):
        yield f"in the case {case}, the claimed kernel did not run ({_describe_seen(names)})"


def _find_unknown_kernels(expect: KernelExpect, names: Sequence[str]) -> list[str]:
    """Return the kernels that match no pattern: each may be the expected one under a new name."""
    known = [
        *expect["expected_kernels"],
        *expect.get("other_kernels", {}),
        *expect.get("aside_kernels", ()),
    ]
    return [name for name in names if not _matches_any(name, known)]


def _any_matches(names: Sequence[str], pattern: str) -> bool:
    """Return whether one of the names matches a pattern."""
    return any(re.search(pattern, name) for name in names)


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(re.search(pattern, name) for pattern in patterns)


def _describe_missing_patterns(
    patterns: Sequence[str], matched: Sequence[str], names: Sequence[str]
) -> Iterator[str]:
    """Yield a fault for each pattern that is not among the matched ones.

    names: the kernels that ran instead, for the text.
    """
    for pattern in patterns:
        if pattern not in matched:
            # Without what must not stand before the name: it would not be read as a name.
            shown = re.sub(r"\(\?<?!.*?\)", "", pattern)
            yield f"no CUDA kernel like {shown} ran ({_describe_seen(names)})"


def _describe_seen(names: Sequence[str]) -> str:
    """Return a phrase about the kernels that were seen."""
    if not names:
        return "none was seen"
    return f"seen were {_list_once([shorten_name(name) for name in names])}"
