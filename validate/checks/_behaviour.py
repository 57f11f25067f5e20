"""Judge figures that must have a certain value, or be at most or at least another.

The limits of a framework's behaviour stand in its check's own file. Those of an example, and of the
settings in an image's environment, come with the claim.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.judging import PROVES_NOTHING, Finding, failed, listed, passed
from validate.next_steps import CHECK_FAILED

BehaviourEvidence = Mapping[str, Any]
"""Figures by name. One with `control` in its name must be large: it is that of a result that was
made wrong on purpose, which must be recognised."""


class Limits(TypedDict, total=False):
    """The name of each figure, and the value, the most or the least that it may be."""

    equal: Mapping[str, object]
    at_most: Mapping[str, float]
    at_least: Mapping[str, float]


class ExampleRun(TypedDict):
    """How an example is run (validate/examples/run.py)."""

    folder: str
    commands: Sequence[str]
    config: str
    adapter: str
    seconds: float


class ExampleExpect(Limits):
    """What is expected of an example: how it is run, and the limits of its figures."""

    example: ExampleRun


def judge_limits(_subject: str, expect: Limits, evidence: BehaviourEvidence) -> Finding:
    """Judge figures by the limits of the claim. A claim without limits fails."""
    if not any(expect.get(rule) for rule in ("equal", "at_most", "at_least")):
        return failed(
            "the claim states no limit, so nothing that was measured can be compared with it",
            CHECK_FAILED,
        )
    return judge_figures(
        evidence,
        equal=expect.get("equal", {}),
        at_most=expect.get("at_most", {}),
        at_least=expect.get("at_least", {}),
    )


def judge_figures(
    evidence: BehaviourEvidence,
    *,
    equal: Mapping[str, object] | None = None,
    at_most: Mapping[str, float] | None = None,
    at_least: Mapping[str, float] | None = None,
) -> Finding:
    """Pass if measured figures are within their limits.

    `evidence` has the figures by name. `equal`, `at_most` and `at_least` map names to the value
    that a figure must have, or to the most or the least that it may be. Raises KeyError if a figure
    with a limit was not measured, which makes the claim FAIL, too.
    """
    if not evidence:
        return failed(
            "the check ran to its end without a single figure, so it is not known whether what it "
            "is about works",
            CHECK_FAILED,
        )

    equal, at_most, at_least = equal or {}, at_most or {}, at_least or {}
    problems = []
    for name, required_value in equal.items():
        if evidence[name] != required_value:
            expected = _shorten(required_value)
            problems.append(
                f"{_describe(name)} is {_shorten(evidence[name])}, and {expected} is expected"
            )
    for name, bound in at_most.items():
        figure = evidence[name]
        # `figure > bound` would let NaN pass.
        if not figure <= bound:
            problems.append(f"{_describe(name)} is {figure:.3g}, and at most {bound:g} is allowed")
    problems += _describe_too_small(evidence, at_least)
    if problems:
        return failed(listed(problems))

    figures = []
    for name in (*equal, *at_most, *at_least):
        figures.append(f"{name} {_shorten(evidence[name])}")
    return passed(listed(figures, limit=6))


def _describe_too_small(figures: BehaviourEvidence, bounds: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each measured figure that is smaller than its bound, or NaN."""
    for name, bound in bounds.items():
        figure = figures[name]
        # `figure < bound` would let NaN pass.
        if figure >= bound:
            continue
        problem = f"{_describe(name)} is {figure:.3g}, and at least {bound:g} is expected"
        if "control" in name:
            problem = (
                f"{PROVES_NOTHING}a result that was made wrong on purpose ({name}) is off by only "
                f"{figure:.3g}, and at least {bound:g} is needed to recognise it"
            )
        yield problem


_MEANINGS = {
    "back": "the share of this memory that vLLM gave back while asleep",
    "cached": "the number of tokens that vLLM took from its prefix cache",
    "compared": "the number of compared tensors",
    "compiled_ahead": "whether the package's extension was compiled ahead",
    "default": "NCCL's timeout without the variable, in seconds",
    "deviation": "the largest deviation from the right result",
    "differing": "the list of tensors that are not the trainer's",
    "median": "the median distance of vLLM's probabilities from those of transformers",
    "moved": "how much the optimizer's steps changed",
    "loss_deviation": "the largest difference of a training step's losses",
    "outside": "the share of tokens whose probability in vLLM is 10 % off that in transformers",
    "reload_deviation": "the largest difference that saving and loading makes to the logits",
    "spread": "the difference of the largest and the smallest advantage",
    "taken_gib": "the GPU memory that vLLM took, in GiB",
    "unplaced": "the number of parameters that are on no device",
    "world": "the number of processes that have started",
}
"""Names of figures that do not say what was measured -> what was."""


def _describe(name: str) -> str:
    """Return what a figure is, and its name in evidence: `the loss deviation (loss_deviation)`."""
    in_words = f"the {name.replace('_', ' ')}"
    return f"{_MEANINGS.get(name, in_words)} ({name})"


def _shorten(value: object) -> str:
    """Return a figure as short text: three digits of a float, the first eight items of a list."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):
        return listed([str(item) for item in value], limit=8) or "nothing"
    return str(value)[:80]
