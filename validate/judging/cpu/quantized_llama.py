"""C10: the stack computes, quantises and trains as plain torch says it should."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from validate.contracts.cpu import (
    Adapter,
    Comparison,
    LogitsEvidence,
    LoraEvidence,
    NothingExpected,
    Projection,
    QuantiserExpect,
    WeightsEvidence,
)
from validate.judging import Finding, Judging, by_subject, failed, listed, passed, typed
from validate.judging.numbers import is_beyond, is_within, scientific
from validate.judging.text import joined, root_cause
from validate.judging.tolerance import BACKWARD_FLOOR, FORWARD_FACTOR, FORWARD_FLOOR

QUANTISER_SIGMAS = 7.0
QUANTISER_SAMPLE = 1024 * 1024
"""bitsandbytes' own figures are means over 1024 x 1024 normal values; sigma shrinks with the root of the sample."""
DECODER_TOLERANCE = 1e-5
"""How far two float32 decoders of the same codes may differ, in units of the weights' deviation."""
_SCALE_BYTES = 4


@typed
def _logits(subject: str, _expect: NothingExpected, evidence: LogitsEvidence) -> Finding:
    if "error" in evidence:
        return failed(f"{subject}: {root_cause(evidence['error'])}")
    comparisons = evidence["comparisons"]
    wanted = {"fp32": ("float32",), "nf4-logits": ("float32", "bfloat16")}[subject]
    problems = [problem for dtype in wanted for problem in _comparison_problems(dtype, comparisons[dtype])]
    if problems:
        return failed(joined(problems))
    shown = [
        f"{dtype} {comparisons[dtype]['error']:.1e} (at most {_tolerance(comparisons[dtype]):.1e})" for dtype in wanted
    ]
    return passed(f"logits differ from plain torch's by {' and '.join(shown)}; controls are told apart")


def _tolerance(comparison: Comparison) -> float:
    return FORWARD_FACTOR * float(comparison["plain_error"]) + FORWARD_FLOOR


def _comparison_problems(what: str, comparison: Comparison) -> Iterator[str]:
    tolerance = _tolerance(comparison)
    if not is_within(comparison["error"], tolerance):
        yield f"{what} logits are off by {scientific(comparison['error'])}, at most {scientific(tolerance)} is allowed"
    yield from _control_problems(what, tolerance, comparison["controls"])


def _control_problems(what: str, tolerance: float, controls: Mapping[str, float]) -> Iterator[str]:
    if not controls:
        yield f"{what} has no control"
    for name, error in controls.items():
        if not is_beyond(error, tolerance):
            found, allowed = scientific(error), scientific(tolerance)
            yield f"control: {what} {name} is off by {found}, within the {allowed} that is allowed"


@typed
def _weights(subject: str, expect: QuantiserExpect, evidence: WeightsEvidence) -> Finding:
    if "error" in evidence:
        return failed(f"{subject}: {root_cause(evidence['error'])}")
    projections = evidence["projections"]
    if not projections:
        return failed("no projection was looked at")
    for judge_one in _PROJECTION_CHECKS:
        wrong = {name: pair for name, facts in projections.items() if (pair := judge_one(expect, facts))}
        if wrong:
            expected, found = next(iter(wrong.values()))
            good = f"{len(projections)} of {len(projections)} projections"
            return failed(f"expected {expected} in {good}, found {found} in {listed(list(wrong), limit=1)}")
    values = sum(facts["values"] for facts in projections.values())
    error = sum(facts["mean_error"] * facts["values"] for facts in projections.values()) / values
    bound = _error_bound(expect, values)
    if abs(error - expect["mean_error"]) > bound:
        return failed(f"over all projections the mean error is {error:.5f}, not {_expected_error(expect, values)}")
    each = sum(facts["bytes"] + facts["scale_bytes"] for facts in projections.values()) / values
    return passed(
        f"{len(projections)} projections are {expect['quant_type']}, {each:.4f} bytes a weight "
        f"({each / 2:.3f} of bfloat16), mean error {error:.5f} (expected {_expected_error(expect, values)})"
    )


_Mismatch = tuple[str, str]
"""What was expected and what was found."""


def _class_of(expect: QuantiserExpect, facts: Projection) -> _Mismatch | None:
    module, _, name = facts["class"].rpartition(".")
    return None if name == "Linear4bit" and module.startswith("bitsandbytes.") else ("Linear4bit", facts["class"])


def _storage(expect: QuantiserExpect, facts: Projection) -> _Mismatch | None:
    if facts["dtype"] == "uint8" and facts["bytes"] * 2 == facts["values"]:
        return None
    return "uint8 at half a byte a weight", f"{facts['dtype']} at {facts['bytes'] / facts['values']:.2f}"


def _format(expect: QuantiserExpect, facts: Projection) -> _Mismatch | None:
    wanted = (expect["quant_type"], expect["block_size"])
    found = (facts["quant_type"], facts["block_size"])
    return None if found == wanted else (f"{wanted[0]} in blocks of {wanted[1]}", f"{found[0]} in blocks of {found[1]}")


def _decodable(expect: QuantiserExpect, facts: Projection) -> _Mismatch | None:
    return ("weights that decode", root_cause(facts["error"])) if "error" in facts else None


def _scales(expect: QuantiserExpect, facts: Projection) -> _Mismatch | None:
    wanted = math.ceil(facts["values"] / expect["block_size"]) * _SCALE_BYTES
    return None if facts["scale_bytes"] == wanted else (f"{wanted} bytes of scales", str(facts["scale_bytes"]))


def _rounding(expect: QuantiserExpect, facts: Projection) -> _Mismatch | None:
    """Two-sided: no error at all means that nothing was quantised."""
    distance = abs(facts["mean_error"] - expect["mean_error"]) if is_within(facts["mean_error"], 1.0) else math.inf
    if distance <= _error_bound(expect, facts["values"]):
        return None
    return f"a mean error of {_expected_error(expect, facts['values'])}", scientific(facts["mean_error"])


def _decoder(expect: QuantiserExpect, facts: Projection) -> _Mismatch | None:
    if is_within(facts["decoder_difference"], DECODER_TOLERANCE):
        return None
    return "bitsandbytes to decode its own codes", f"a difference of {scientific(facts['decoder_difference'])}"


_PROJECTION_CHECKS: tuple[Callable[[QuantiserExpect, Projection], _Mismatch | None], ...] = (
    _class_of,
    _storage,
    _format,
    _decodable,
    _scales,
    _rounding,
    _decoder,
)
"""In the order in which a failure explains the ones after it."""


def _error_bound(expect: QuantiserExpect, values: int) -> float:
    return QUANTISER_SIGMAS * float(expect["mean_error_sigma"]) * math.sqrt(QUANTISER_SAMPLE / values)


def _expected_error(expect: QuantiserExpect, values: int) -> str:
    return f"{expect['mean_error']:.5f} +- {_error_bound(expect, values):.5f}"


@typed
def _lora_step(subject: str, _expect: NothingExpected, evidence: LoraEvidence) -> Finding:
    if "error" in evidence:
        return failed(f"{subject}: {root_cause(evidence['error'])}")
    problems = [*_loss_problems(evidence), *_adapter_problems(evidence["adapters"]), *_base_problems(evidence)]
    if problems:
        return failed(joined(problems))
    worst = max(adapter["error"] for adapter in evidence["adapters"].values())
    return passed(
        f"B moved from zero in {len(evidence['adapters'])} adapters as in plain torch (off by {worst:.1e}, at most "
        f"{BACKWARD_FLOOR:.0e}), loss {evidence['loss']:.4f}, {evidence['base_count']} base weights untouched"
    )


def _loss_problems(evidence: LoraEvidence) -> Iterator[str]:
    loss, plain = evidence["loss"], evidence["plain_loss"]
    if not is_within(loss, math.inf) or not is_within(plain, math.inf):
        yield f"the loss is {loss}, plain torch's is {plain}"
    elif abs(loss - plain) > BACKWARD_FLOOR * plain:
        yield f"the loss is {loss:.5f}, plain torch's is {plain:.5f}"


def _adapter_problems(adapters: Mapping[str, Adapter]) -> Iterator[str]:
    if not adapters:
        yield "no adapter was attached"
    still = [name for name, adapter in adapters.items() if not is_beyond(adapter["after"], 0.0)]
    if still:
        yield f"B did not move in {len(still)} of {len(adapters)} adapters: {listed(still, limit=1)}"
    early = [name for name, adapter in adapters.items() if adapter["before"] != 0]
    if early:
        yield f"B was not zero before the step in {listed(early, limit=1)}"
    off = [name for name, adapter in adapters.items() if not is_within(adapter["error"], BACKWARD_FLOOR)]
    if off and not still:
        error = scientific(adapters[off[0]]["error"])
        yield f"B is off by {error} (at most {BACKWARD_FLOOR:.0e}) in {listed(off, limit=1)}"
    for name, adapter in adapters.items():
        if name not in still:
            yield from _control_problems(name, BACKWARD_FLOOR, {"scaled": adapter["control"]})


def _base_problems(evidence: LoraEvidence) -> Iterator[str]:
    if not evidence["base_count"]:
        yield "no base weight was looked at"
    if evidence["base_changed"]:
        yield f"the step changed frozen weights: {listed(evidence['base_changed'])}"


JUDGES: Mapping[str, Judging] = {
    "fp32": _logits,
    "nf4-weights": _weights,
    "nf4-logits": _logits,
    "lora-step": _lora_step,
}
"""By subject of C10; G10 judges weights and logits by them, too."""
judge = by_subject(JUDGES)
