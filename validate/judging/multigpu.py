"""Judges of the multigpu tier. Ranks give `{"ranks": [rank 0's, rank 1's, ...]}`: each must have done well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from validate.claims import Claim
from validate.judging import Finding, Judging, failed, listed, not_applicable, passed, unproven

RULE_T = "T"
BACKWARD_FACTOR, BACKWARD_FLOOR = 3.0, 2e-4
"""Rule T for gradients: an error may be this many times that of one process in the same dtype, plus the floor."""
EXPLAINED = 3

Evidence = Mapping[str, Any]


def compared(claim: Claim, evidence: Evidence) -> Finding:
    """M2 to M5, M8: what ranks computed together, beside one process.

    expect: {device, ranks?, tolerance: {comparison: number or "T"}, facts: {name: value},
    figures: {name: [least, most]}}. Each comparison needs controls, and each control must be beyond the tolerance.
    """
    return _of_ranks(claim, evidence, _comparison_problems, _comparison_praise)


def collectives(claim: Claim, evidence: Evidence) -> Finding:
    """M1. expect: {device, ranks?, operations: [names], sizes: [numbers a rank]}."""
    return _of_ranks(claim, evidence, _exact_problems, _exact_praise)


def settings(claim: Claim, evidence: Evidence) -> Finding:
    """M1: what would bend NCCL. expect: {device, ranks?, lent: {variable: value that the trial sets}}."""
    return _of_ranks(claim, evidence, _setting_problems, lambda _expect, _ranks: "no file and no variable bends NCCL")


def library(claim: Claim, evidence: Evidence) -> Finding:
    """M1: one NCCL, of one owner, unchanged, of torch's CUDA. expect: {device, ranks?, cuda}."""
    return _of_ranks(claim, evidence, _library_problems, _library_praise)


def transport(claim: Claim, evidence: Evidence) -> Finding:
    """M1: the best way that the host's GPUs have to each other. expect: {device, ranks?, link, lent}.

    `link` is nvlink, pcie, apart, or empty where the host could not tell: then the container's own view decides.
    """
    return _of_ranks(claim, evidence, _transport_problems, _transport_praise)


def bandwidth(claim: Claim, evidence: Evidence) -> Finding:
    """M6: never red. expect: {device, ranks?, floor: bytes a second, link}."""
    finding = _of_ranks(claim, evidence, lambda _expect, _rank: iter(()), lambda _expect, _ranks: "")
    if finding.reason:
        return finding if finding.status is not_applicable("").status else unproven(f"warning: {finding.reason}")
    slowest = {way: min(_number(one[way]) for one in evidence["ranks"]) for way in ("all_reduce", "send")}
    said = f"all-reduce {_speed(slowest['all_reduce'])}, to the next rank {_speed(slowest['send'])}"
    floor = claim.expect["floor"]
    if not _between(min(slowest.values()), floor, math.inf):
        return unproven(f"warning: {said}; {claim.expect['link'] or 'this link'} should give {_speed(floor)} at least")
    return passed(f"{said} ({claim.expect['link'] or 'link unknown'})")


def shared_memory(claim: Claim, evidence: Evidence) -> Finding:
    """M7. expect: {least: bytes}."""
    if "error" in evidence:
        return failed(_cause(evidence["error"]))
    size = evidence["size"]
    if not _between(size, claim.expect["least"], math.inf):
        return failed(f"/dev/shm is too small: {_bytes(size)}, {_bytes(claim.expect['least'])} are needed")
    if evidence["refuses more"] is not True:
        return failed("control: a file larger than /dev/shm was not refused")
    if evidence["right"] is not True or not evidence["handed over"]:
        return failed("batches that workers hand over do not arrive as they were made")
    return passed(
        f"{_bytes(size)}; workers handed over {evidence['handed over']} batches of {_bytes(evidence['batch'])}"
    )


# ---- what all have in common


def _of_ranks(
    claim: Claim,
    evidence: Evidence,
    problems_of: Callable[[Evidence, Evidence], Iterator[str]],
    praise: Callable[[Evidence, Sequence[Evidence]], str],
) -> Finding:
    if reason := claim.expect.get("not_applicable"):
        return not_applicable(reason)
    if "error" in evidence:
        return failed(_cause(evidence["error"]))
    ranks = evidence["ranks"]
    problems = list(_place_problems(claim.expect, ranks))
    for number, rank in enumerate(ranks):
        if "error" in rank:
            problems.append(f"rank {number}: {_cause(rank['error'])}")
        elif not problems:
            problems += [f"rank {number}: {problem}" for problem in problems_of(claim.expect, rank)]
    if problems:
        shown = "; ".join(problems[:EXPLAINED])
        return failed(shown + (f"; and {len(problems) - EXPLAINED} more" if len(problems) > EXPLAINED else ""))
    return passed(praise(claim.expect, ranks))


def _place_problems(expect: Evidence, ranks: Sequence[Evidence]) -> Iterator[str]:
    """Each rank on a device of its own, of the kind that was asked for, through that kind's backend."""
    wanted = expect.get("ranks")
    if len(ranks) < 2 or (wanted and len(ranks) != wanted):
        yield f"{len(ranks)} ranks measured, {wanted or 'at least 2'} were asked for"
    devices = [rank["device"] for rank in ranks if "error" not in rank]
    for device in devices:
        backend = {"cuda": "nccl", "cpu": "gloo"}[expect["device"]]
        if device["type"] != expect["device"] or backend not in device["backend"]:
            yield f"ran on {device['type']} through {device['backend']}, not on {expect['device']} through {backend}"
    if expect["device"] == "cuda" and len({device["uuid"] for device in devices}) != len(devices):
        yield "two ranks ran on one GPU"


# ---- M2 to M5, M8


def _comparison_problems(expect: Evidence, rank: Evidence) -> Iterator[str]:
    found = rank.get("comparisons", {})
    for name, rule in expect.get("tolerance", {}).items():
        if name not in found:
            yield f"{name} were not compared"
            continue
        yield from _one_comparison(name, _tolerance(rule, found[name]), found[name])
    for name, value in expect.get("facts", {}).items():
        if (seen := rank.get("facts", {}).get(name)) != value:
            yield f"{name}: {seen!r}, not {value!r}"
    for name, (least, most) in expect.get("figures", {}).items():
        if not _between(figure := rank.get("figures", {}).get(name), least, most):
            yield f"{name} is {_shown(figure)}, not between {_shown(least)} and {_shown(most)}"


def _one_comparison(name: str, tolerance: float, found: Evidence) -> Iterator[str]:
    if not _between(found["error"], 0, tolerance):
        yield f"{name} are off by {_shown(found['error'])}, at most {_shown(tolerance)} is allowed"
    if not found["controls"]:
        yield f"{name} have no control"
    for control, value in found["controls"].items():
        if not _beyond(value, tolerance):
            yield f"control: {name} {control} are off by {_shown(value)}, which the tolerance lets pass"


def _tolerance(rule: str | float, found: Evidence) -> float:
    return BACKWARD_FACTOR * found["plain_error"] + BACKWARD_FLOOR if rule == RULE_T else float(rule)


def _comparison_praise(expect: Evidence, ranks: Sequence[Evidence]) -> str:
    said = [
        f"{name} within {max(rank['comparisons'][name]['error'] for rank in ranks):.1e}"
        for name in expect.get("tolerance", {})
    ]
    said += [f"{name} {_shown(ranks[0]['figures'][name])}" for name in expect.get("figures", {})]
    said += [_fact(name, value) for name, value in expect.get("facts", {}).items()]
    return f"{len(ranks)} ranks: {listed(said, limit=6)}"


# ---- M1


def _exact_problems(expect: Evidence, rank: Evidence) -> Iterator[str]:
    sizes = [str(size) for size in expect["sizes"]]
    for name in expect["operations"]:
        exact, controls = rank["exact"].get(name, {}), rank["controls"].get(name, {})
        if wrong := [size for size in sizes if exact.get(size) is not True]:
            yield f"{name} of {listed(wrong)} numbers is not exact"
        if passing := [size for size in sizes if controls.get(size) is not False]:
            yield f"control: {name} of {listed(passing)} numbers is right for other ranks' data too"


def _exact_praise(expect: Evidence, ranks: Sequence[Evidence]) -> str:
    return f"{len(ranks)} ranks: {listed(list(expect['operations']), limit=9)} exact at {len(expect['sizes'])} sizes"


def _setting_problems(expect: Evidence, rank: Evidence) -> Iterator[str]:
    for place, lines in rank["files"].items():
        if lines:
            yield f"{place} sets {listed(list(lines))}"
    lent = expect.get("lent", {})
    own = {name: value for name, value in rank["variables"].items() if lent.get(name) != value}
    if own:
        yield f"the image sets {listed([f'{name}={value}' for name, value in own.items()])}"


def _library_problems(expect: Evidence, rank: Evidence) -> Iterator[str]:
    libraries = rank["libraries"]
    if len(libraries) != 1:
        yield f"{len(libraries)} NCCL libraries are loaded: {listed([one['path'] for one in libraries]) or 'none'}"
    for one in libraries:
        owners = one["owners"]
        if len(owners) != 1:
            names = listed([f"{owner['name']} {owner['version']}" for owner in owners]) or "no distribution"
            yield f"{one['path']} belongs to {names}"
        for owner in owners:
            if owner["version"].split("+")[0] != one["running"] and one["running"] != _three(owner["version"]):
                yield f"NCCL {one['running']} runs, {owner['name']} is {owner['version']}"
            if owner["as recorded"] is not True:
                yield f"{one['path']} is not the file that {owner['name']} {owner['version']} brought"
        made_for = one["built"].get("cuda", "")
        if made_for and made_for.split(".")[0] != str(expect["cuda"]).split(".")[0]:
            yield f"NCCL {one['running']} is made for CUDA {made_for}, torch for {expect['cuda']}"


def _three(version: str) -> str:
    """2.27.5.1 is 2.27.5 to NCCL."""
    return ".".join(version.split(".")[:3])


def _library_praise(_expect: Evidence, ranks: Sequence[Evidence]) -> str:
    one = ranks[0]["libraries"][0]
    owner, cuda = one["owners"][0], one["built"].get("cuda")
    return f"NCCL {one['running']}{f' for CUDA {cuda}' if cuda else ''} runs, from {owner['name']} {owner['version']}"


def _transport_problems(expect: Evidence, rank: Evidence) -> Iterator[str]:
    used = rank["connections"]
    if not used:
        yield "NCCL's log names no transport"
    link = expect.get("link") or ("access" if rank["peer access"] else "apart")
    if link in ("nvlink", "pcie") and rank["peer access"] is not True:
        yield "the host's GPUs reach each other, the container's do not"
    allowed = ("P2P",) if link != "apart" else ("P2P", "SHM")
    if wrong := [way for way in used if way.partition("/")[0] not in allowed]:
        blame = {name: value for name, value in rank["taken"].items() if name not in expect.get("lent", {})}
        why = f" ({listed([f'{name}={value}' for name, value in blame.items()])})" if blame else ""
        yield f"ranks of one host talk over {listed(wrong)}{why}, {' or '.join(allowed)} is possible"


def _transport_praise(expect: Evidence, ranks: Sequence[Evidence]) -> str:
    ways = sorted({way for rank in ranks for way in rank["connections"]})
    return f"{len(ranks)} ranks talk over {listed(ways)} ({expect.get('link') or 'the host could not tell its links'})"


# ---- words and numbers


def _between(value: Any, least: float, most: float) -> bool:
    """Not-a-number and infinity arrive as text, and are between nothing."""
    return isinstance(value, int | float) and math.isfinite(value) and least <= value <= most


def _beyond(value: Any, bound: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > bound


def _number(value: Any) -> float:
    """Not-a-number arrives as text, and is no speed."""
    return float(value) if isinstance(value, int | float) else 0.0


def _shown(value: Any) -> str:
    return f"{value:.2e}" if isinstance(value, int | float) else str(value)


def _fact(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {listed([str(item) for item in value]) if isinstance(value, list) else value}"


def _speed(value: float) -> str:
    return f"{value / 1e9:.3g} GB/s"


def _bytes(value: float) -> str:
    return f"{value / 2**20:.0f} MiB"


def _cause(error: Mapping[str, Any]) -> str:
    """The first line of an error, which CUDA's and torch's say most in."""
    return f"{error['kind']}: {str(error['message']).strip().partition(chr(10))[0][:300]}"


_SUBJECTS: Mapping[str, Judging] = {
    "collectives": collectives,
    "settings": settings,
    "nccl": library,
    "transport": transport,
}


def _m1(claim: Claim, evidence: Evidence) -> Finding:
    return _SUBJECTS[claim.subject](claim, evidence)


JUDGES: Mapping[str, Judging] = {
    "M1": _m1,
    **dict.fromkeys(("M2", "M3", "M4", "M5", "M8"), compared),
    "M6": bandwidth,
    "M7": shared_memory,
}
