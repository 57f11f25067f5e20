"""Whether the kernel that was asked for ran: results can be right by the wrong path.

What a kernel is called changes from release to release, so a name that is not known decides nothing: numbers do. Each
case must have run something that plain torch did not run on the same inputs and that is not known to be another's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from validate.contracts.gpu import KernelEvidence, KernelExpect
from validate.judging import listed


def problems(expect: KernelExpect, evidence: KernelEvidence) -> Iterator[str]:
    """Why it can't have been the kernel that was asked for."""
    profile, patterns = evidence["kernels"], expect["expected_kernels"]
    if "ran" not in profile:
        # Before 2026-11-22 plain torch's kernels stood among the others, and nothing but a name told them apart.
        seen = [pattern for pattern in patterns if profile["matching"].get(pattern)]
        yield from _unseen(patterns, seen, profile["others"])
        return
    ran = _ran(evidence)
    wrong = [problem for case, names in ran.items() for problem in _case_problems(expect, case, names)]
    yield from wrong
    every = list(chain.from_iterable(ran.values()))
    if not wrong and not _nameless(expect, every):
        yield from _unseen(patterns, [one for one in patterns if any(re.search(one, name) for name in every)], every)


def remark(expect: KernelExpect, evidence: KernelEvidence) -> str:
    """What ran in place of a kernel whose name is not known, or nothing."""
    every = list(chain.from_iterable(_ran(evidence).values()))
    patterns = expect["expected_kernels"]
    if "names_of" not in expect or (patterns and all(any(re.search(one, n) for n in every) for one in patterns)):
        return ""
    ran = list(dict.fromkeys(map(bare, _nameless(expect, every))))
    return f"ran as {listed(ran)}: no name is known for {expect['names_of']}" if ran else ""


def bare(kernel: str) -> str:
    """A CUDA kernel's name without its parameters."""
    plain = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", plain, maxsplit=1)[0][:60]


def _ran(evidence: KernelEvidence) -> Mapping[str, Sequence[str]]:
    """Case -> kernels that plain torch did not run. A case that raised has a problem already."""
    cases, observed = evidence["cases"], evidence.get("observed", {})
    ran = evidence["kernels"].get("ran", {})
    return {case: names for case, names in ran.items() if "error" not in cases.get(case, observed)}


def _case_problems(expect: KernelExpect, case: str, names: Sequence[str]) -> Iterator[str]:
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


def _nameless(expect: KernelExpect, names: Sequence[str]) -> list[str]:
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
