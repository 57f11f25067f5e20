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
    """Return a compute capability as text: `9.0`."""
    return ".".join(map(str, capability))


def judge(_subject: str, expect: KernelExpect, evidence: KernelEvidence) -> Finding:
    """Judge a GPU kernel that was run: its results, and whether it was really this kernel.

    A library may fall back to another kernel without an error, so the profiler must have seen this
    one. FAIL: a result is wrong, or another kernel ran. NOT_APPLICABLE: this GPU cannot run it.
    UNPROVEN: the results are right, but the profiler lost what ran.
    """
    # The claim was made for the host's GPUs, so the kernel must have run on one of them. If no host
    # was known, there are no capabilities to compare with.
    device = evidence["device"]
    capability = expect.get("capability")
    host_capabilities = expect.get("capabilities") or ([capability] if capability else [])
    if host_capabilities and device["capability"] not in host_capabilities:
        host = listed([dotted(known) for known in host_capabilities])
        return failed(
            f"ran on {device['name']} of capability {dotted(device['capability'])}, "
            f"the host has {host}"
        )

    # `gated`: a kernel or case that this GPU is too old or too new for. A host that knew the GPU's
    # capability did not claim what this GPU cannot run, so the GPU must be able to. If the host did
    # not know it, the container's word decides.
    if "gated" in evidence:
        reason = evidence["gated"]
        return failed(f"the GPU says {reason}") if capability else not_applicable(reason)
    # `declined`: the library's own reasons why it cannot run here.
    if evidence.get("declined"):
        return _judge_refusal(evidence["declined"])
    gated = _list_gated_reasons(evidence)
    is_every_case_gated = bool(gated) and len(gated) == len(expect["cases"])
    if is_every_case_gated and not capability:
        return not_applicable(listed(gated))

    # Wrong results are a FAIL even if the profiler lost kernels. Which kernels ran is judged only
    # if it lost none.
    problems = [
        *_find_case_problems(expect, evidence["cases"]),
        *_find_observed_problems(expect, evidence.get("observed", {})),
    ]
    for pattern in expect["libraries"]:
        if not evidence["libraries"].get(pattern):
            problems.append(f"no library like {pattern} is loaded")
    profile = evidence["kernels"]
    if profile["works"]:
        problems += _find_wrong_kernels(expect, evidence)
    if problems:
        return failed(f"{joined(problems)}{suspects(evidence)}")
    if not profile["works"]:
        lost_marks = _describe_lost_marks(profile)
        return unproven(f"the results are right, but {lost_marks}: which kernels ran can't be told")
    return passed(_summarise(expect, evidence))


def _list_gated_reasons(evidence: KernelEvidence) -> list[str]:
    """Return why this GPU could not run some cases, a reason for each."""
    return [case["gated"] for case in evidence["cases"].values() if "gated" in case]


def _judge_refusal(reasons: Sequence[str]) -> Finding:
    """Judge the reasons for which a library refused to run.

    NOT_APPLICABLE if all of them are about the compute capability of this GPU, else FAIL.
    """
    faults = [reason for reason in reasons if "capability" not in reason]
    if faults:
        return failed(f"it refuses to run: {listed(faults)}")
    return not_applicable(listed(list(reasons)))


def _describe_lost_marks(profile: ProfileEvidence) -> str:
    """Return what the profiler did not see."""
    marks = profile.get("marks")
    if marks is None:
        return "the profiler missed kernels that surely ran"
    return (
        f"the profiler saw {marks['seen']} of {marks['made']} marks, "
        f"and {marks['lead_in']} spins before them"
    )


def _find_case_problems(expect: KernelExpect, cases: Mapping[str, CaseEvidence]) -> Iterator[str]:
    """Yield a sentence for each case of a kernel that was not run, failed, or has wrong results.

    A case is one set of inputs for the kernel. A dtype that no case ran in gets a sentence, too.

    expect: the claim's names of cases and, for each dtype, the tolerance.
    cases: name -> what was measured; only `error`, if the case raised one.
    """
    for name in expect["cases"]:
        case = cases.get(name)
        if case is None:
            yield f"{name} was not run"
        elif "gated" in case:
            # This GPU cannot run the case. A host that knew its GPU did not claim such cases, so
            # that is a problem. If the host did not know it, the case does not count.
            if expect.get("capability"):
                yield f"{name}: the GPU says {case['gated']}"
        elif "error" in case:
            yield f"{name}: {cause(case['error'])}"
        elif case["dtype"] not in expect["tolerance"]:
            yield f"{name} ran in {case['dtype']}, for which nothing is claimed"
        elif case["finite"] is not True:
            yield f"{name}: results are not finite"
        else:
            yield from _find_output_problems(name, expect["tolerance"][case["dtype"]], case)

    # Something must have run in each dtype that the claim has a tolerance for. If a case raised an
    # error, that was said above, and its dtype is not known: it may be the missing one.
    dtypes_run = {case.get("dtype") for case in cases.values()}
    missing_dtypes = set(expect["tolerance"]) - dtypes_run
    has_error = any("error" in case for case in cases.values())
    if missing_dtypes and not has_error:
        yield f"nothing was run in {listed(sorted(missing_dtypes))}"


def _find_output_problems(name: str, rule: str | float, case: CaseEvidence) -> Iterator[str]:
    """Yield the results of a case that are off, and the controls that the tolerance lets pass.

    A control is a result that was spoiled on purpose, so its error must be beyond the tolerance.

    name: the case's, for the sentences.
    rule: the largest relative error; or RULE_T, which allows a small multiple of plain torch's
        error in the same dtype.
    """
    if not case["outputs"]:
        yield f"{name} gave no result"
    tolerances = {}
    for result, output in case["outputs"].items():
        tolerances[result] = _largest_allowed_error(rule, output)
        if not is_within(output["error"], tolerances[result]):
            error = scientific(output["error"])
            allowed = scientific(tolerances[result])
            yield f"{name}: {result} is off by {error}, at most {allowed} is allowed"

    if not case["controls"]:
        yield f"{name} has no control"
    for control, errors in case["controls"].items():
        for result, control_error in errors.items():
            if not is_beyond(control_error, tolerances[result]):
                yield (
                    f"control: {name}, {result} {control} is off by {scientific(control_error)}, "
                    "which the tolerance lets pass"
                )


def _largest_allowed_error(rule: str | float, output: Output) -> float:
    """Return the largest relative error that a result may have.

    rule: this error itself, or RULE_T: then it follows from plain torch's error.
    """
    if rule != RULE_T:
        return float(rule)
    allowed = backward_tolerance if output["backward"] else forward_tolerance
    return allowed(float(output["plain_error"]))


def _find_observed_problems(expect: KernelExpect, observed: ObservedEvidence) -> Iterator[str]:
    """Yield a sentence for each figure or fact that is not as expected, and each useless control.

    A figure is a measured number, which must lie between a least and a most. Its controls are the
    same figure of results that were spoiled on purpose, so they must lie outside. A fact must have
    the expected value. If measuring raised an error, the error is the only sentence.
    """
    if "error" in observed:
        yield cause(observed["error"])
        return

    for name, (least, most) in expect["figures"].items():
        figure = observed.get("figures", {}).get(name)
        if figure is None:
            yield f"{name} was not measured"
            continue
        if not is_between(figure["value"], least, most):
            yield (
                f"{name} is {_write_five_digits(figure['value'])}, "
                f"not between {_write_five_digits(least)} and {_write_five_digits(most)}"
            )
        if not figure["controls"]:
            yield f"{name} has no control"
        for control, value in figure["controls"].items():
            if is_between(value, least, most):
                figure_text = _write_five_digits(value)
                yield f"control: {name} of {control} is {figure_text}, which passes as well"

    for name, expected in expect["facts"].items():
        fact = observed.get("facts", {}).get(name)
        if fact != expected:
            yield f"{name}: {fact!r}, not {expected!r}"


def _summarise(expect: KernelExpect, evidence: KernelEvidence) -> str:
    """Write what was measured of a kernel that passed, as one line for people.

    For example: `2 results of 1 case use at most 31% of the tolerance; ran flash_fwd_kernel`.
    """
    parts = []
    # Why this GPU cannot run some cases: these are among the expected ones, but did not run.
    reasons_of_gpu = _list_gated_reasons(evidence)
    shares = list(_measure_shares_of_tolerance(expect, evidence["cases"]))
    if shares:
        count = len(expect["cases"]) - len(reasons_of_gpu)
        cases = "1 case" if count == 1 else f"{count} cases"
        largest_share = max(shares)
        parts.append(
            f"{len(shares)} results of {cases} use at most {largest_share:.0%} of the tolerance"
        )

    figures = evidence.get("observed", {}).get("figures", {})
    for name in expect["figures"]:
        parts.append(f"{name} {_write_five_digits(figures[name]['value'])}")

    # CUDA kernels that ran, by the pattern that their names match. The first name is enough.
    kernels = []
    for names in evidence["kernels"]["matching"].values():
        if names:
            kernels.append(shorten_name(names[0]))
    if kernels:
        parts.append(f"ran {_list_once(kernels)}")
    remark = _remark_on_unknown_kernels(expect, evidence)
    if remark:
        parts.append(remark)

    # `left_out`: why these versions of packages cannot run some cases. Each reason is written once.
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


def _find_wrong_kernels(expect: KernelExpect, evidence: KernelEvidence) -> Iterator[str]:
    """Yield why it cannot have been the claimed kernel that ran, by what the profiler saw.

    `expect` has regular expressions of the CUDA kernels that must and must not be seen. A kernel
    that fits none of them proves nothing: it may be the claimed one under a new name. Call this
    only if the profiler lost nothing.
    """
    profile = evidence["kernels"]
    patterns = expect["expected_kernels"]
    if "ran" not in profile:
        # Evidence from before 2026-11-22 does not tell plain torch's kernels apart, so each name
        # that is expected must have been seen.
        matched = [pattern for pattern in patterns if profile["matching"].get(pattern)]
        yield from _find_missing_patterns(patterns, matched, profile["others"])
        return

    # Case by case, so that a kernel that ran in one case does not stand in for another case's.
    names_by_case = _read_own_kernels(evidence)
    faults: list[str] = []
    for case, names in names_by_case.items():
        faults.extend(_find_wrong_kernel_of_case(expect, case, names))
    yield from faults

    # Look for parts of the kernel, such as its backward, that ran in no case. Where a case has a
    # fault, that explains the missing part; and an unknown kernel may be the missing part. In
    # neither case is a missing part a fault of its own.
    all_names = list(chain.from_iterable(names_by_case.values()))
    if not faults and not _find_unknown_kernels(expect, all_names):
        matched = [pattern for pattern in patterns if _any_matches(all_names, pattern)]
        yield from _find_missing_patterns(patterns, matched, all_names)


def _remark_on_unknown_kernels(expect: KernelExpect, evidence: KernelEvidence) -> str:
    """Return a remark about unknown CUDA kernels that ran where expected ones did not; empty: none.

    A kernel is unknown if its name fits no pattern. That is no fault: it may be the claimed kernel
    under a name that _names.py does not have yet.
    """
    # Nothing is expected by name, or the claim is older than names of versions (2026-11-22).
    if "names_of" not in expect:
        return ""

    # Each part of the kernel, such as its backward, has one pattern. If every part ran under a name
    # that is known, there is nothing to remark. But there may be no pattern at all, because no name
    # is known in these versions: then nothing has shown that the kernel ran.
    patterns = expect["expected_kernels"]
    names = list(chain.from_iterable(_read_own_kernels(evidence).values()))
    if patterns and all(_any_matches(names, pattern) for pattern in patterns):
        return ""

    unknown = [shorten_name(name) for name in _find_unknown_kernels(expect, names)]
    if unknown:
        return f"ran as {_list_once(unknown)}: no name is known for {expect['names_of']}"
    return ""


def shorten_name(kernel: str) -> str:
    """Return a CUDA kernel's name without its parameters, at most 60 characters.

    `void flash::flash_fwd<Traits, 0>(Params)` becomes `flash::flash_fwd`.
    """
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0][:60]


def _read_own_kernels(evidence: KernelEvidence) -> Mapping[str, Sequence[str]]:
    """Return which CUDA kernels ran for each case, without those that plain torch ran, too.

    What ran for observations, which measure other things than results, stands under the name of the
    kernel in place of a case. A case that raised an error is left out: that is reported already.
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


def _find_wrong_kernel_of_case(
    expect: KernelExpect, case: str, names: Sequence[str]
) -> Iterator[str]:
    """Yield the fault of a case, at most one: another kernel ran for it, or none of its own.

    expect: patterns of the CUDA kernels that must run, and of those that must not run instead.
    names: the kernels that ran for the case, and that plain torch did not run.
    """
    # One that is expected proves it, whatever else ran.
    if any(_matches_any(name, expect["expected_kernels"]) for name in names):
        return

    for name in names:
        for pattern, owner in expect.get("other_kernels", {}).items():
            if re.search(pattern, name):
                yield f"{case}: ran {shorten_name(name)}, which is {owner}"
                return

    # If an unknown kernel ran, that may be its own. Without `names_of` (such as `flash-attn 2.7.4`)
    # no kernel is expected by name, or the claim is older than this rule.
    if "names_of" in expect and not _find_unknown_kernels(expect, names):
        yield f"{case}: no kernel of its own ran ({_describe_seen(names)})"


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


def _find_missing_patterns(
    patterns: Sequence[str], matched: Sequence[str], names: Sequence[str]
) -> Iterator[str]:
    """Yield a fault for each pattern that is not among the matched ones.

    names: the kernels that ran instead, for the text.
    """
    for pattern in patterns:
        if pattern not in matched:
            yield f"no CUDA kernel like {pattern} ran ({_describe_seen(names)})"


def _describe_seen(names: Sequence[str]) -> str:
    """Return a phrase about the kernels that were seen."""
    if not names:
        return "none was seen"
    return f"seen were {_list_once([shorten_name(name) for name in names])}"
