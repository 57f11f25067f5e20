"""4bit-llama: a tiny Llama is saved, loaded back in 4-bit by transformers and bitsandbytes, and trained for one LoRA
step.

Users of QLoRA meet each layer of this on their first day: bitsandbytes' library, transformers' loading, peft's
adapters. Any of them can quietly do nothing (bitsandbytes without its CUDA library still imports), so the results are
compared with plain torch. Every comparison has controls that must fail it: a result 1 % off, and the weights before
quantisation. The check needs no GPU.
"""

import importlib
import importlib.metadata
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

from validate.checks import Settings
from validate.claims import Claim
from validate.harness import nf4
from validate.harness.forked import attempt, measure_claimed_subjects
from validate.harness.nf4 import ExpectedError
from validate.harness.reference import relative_error
from validate.harness.saved_llama import CONVERTED, SEED, WEIGHT_DEVIATION, SavedLlama
from validate.judging import (
    BACKWARD_FLOOR,
    Finding,
    failed,
    forward,
    is_beyond,
    is_within,
    joined,
    listed,
    passed,
    root_cause,
    scientific,
)

SETTINGS = Settings(starts_first=True, begins_with_torch=True)

CONTROL_SCALE = {"float32": 1.01, "bfloat16": 1.05}
"""A result scaled so must be told apart. bfloat16's own error through the whole model is 1.5 %."""
LORA_RATE = 0.1
QUANTISER_SIGMAS = 7.0
"""How many standard deviations the mean error of NF4 may be away from the published one."""
QUANTISER_SAMPLE = 1024 * 1024
"""The published mean error is one of so many values. Its deviation shrinks with the root of their number."""
DECODER_TOLERANCE = 1e-5
"""How far two float32 decoders of the same codes may differ, in units of the weights' deviation."""


class Comparison(TypedDict):
    """Relative errors against float64: of the model's logits, of plain torch's in the same dtype, of each control."""

    error: float
    plain_error: float
    controls: Mapping[str, float]


class LogitsEvidence(TypedDict):
    """Comparisons by dtype."""

    comparisons: Mapping[str, Comparison]


Layer = TypedDict(
    "Layer",
    {
        "class": str,
        "weight_class": str,
        "dtype": str,
        "bytes": int,
        "values": int,  # the number of weights that were saved
        "quant_type": str | None,
        "block_size": int | None,
    },
)


class Projection(Layer, total=False):
    """A linear layer as loading in 4-bit left it. Where its codes do not decode, `error` stands in place of figures.

    Errors are in units of the weights' deviation.
    """

    scale_bytes: int
    mean_error: float
    decoder_difference: float
    error: Mapping[str, Any]


class _Weights(TypedDict):
    projections: Mapping[str, Projection]


class WeightsEvidence(_Weights, total=False):
    """Evidence from before 2026-11-28 does not have `loaded_by`."""

    loaded_by: str


class Adapter(TypedDict):
    """B of a LoRA adapter: its largest value before and after a step, and relative errors against plain torch."""

    before: float
    after: float
    error: float
    control: float


class LoraEvidence(TypedDict):
    """One step of LoRA, and which frozen weights it changed."""

    loss: float
    plain_loss: float
    adapters: Mapping[str, Adapter]
    base_changed: list[str]
    base_count: int


Evidence = LogitsEvidence | WeightsEvidence | LoraEvidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Evidence]]:
    """Yield the evidence of the subjects asked for, in this order."""
    # Before anything else, as SETTINGS says.
    importlib.import_module("torch")
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        llama = SavedLlama(Path(folder))
        measures: Mapping[str, Callable[[], Evidence]] = {
            "weights": lambda: measure_weights(llama),
            "logits": lambda: measure_logits(llama),
            "lora-step": lambda: measure_lora_step(llama),
        }
        yield from measure_claimed_subjects(claims, measures)


def measure_weights(llama: SavedLlama) -> WeightsEvidence:
    """Look at each projection as loading in 4-bit left it."""
    # No forward pass before this: on some CPUs bitsandbytes repacks the weights in it.
    model = llama.load_in_4bit("float32")
    return {
        "loaded_by": llama.way_to_load_in_4bit,
        "projections": {
            name: describe_projection(llama, model, name) for name in llama.shape.projections
        },
    }


def measure_logits(llama: SavedLlama) -> LogitsEvidence:
    """Compare the 4-bit model with its dequantised weights, in float32 and bfloat16.

    bitsandbytes has two ways on a CPU: in training it dequantises, in inference on AVX512-BF16 it repacks and
    multiplies in bfloat16 whatever the model's dtype.
    """
    unquantised = llama.reference_logits(llama.saved, "float64")
    comparisons = {}
    for dtype, is_training in (("float32", True), ("bfloat16", False)):
        model = llama.load_in_4bit(dtype).train(is_training)
        weights = llama.dequantise(model)
        logits = llama.logits_of(model)

        exact = llama.reference_logits(weights, "float64")
        plain = llama.reference_logits(weights, dtype)
        comparison = compare(dtype, logits, exact, plain)
        control = {"unquantised weights": relative_error(unquantised, exact)}
        comparisons[dtype] = Comparison(
            **{**comparison, "controls": {**comparison["controls"], **control}}
        )

    return {"comparisons": comparisons}


def measure_lora_step(llama: SavedLlama) -> LoraEvidence:
    """Take one SGD step of LoRA, and the same step on the dequantised weights in plain float32."""
    model = llama.load_in_4bit("float32")
    plain = llama.load("float32")
    plain.load_state_dict(llama.dequantise(model))

    before = llama.hash_frozen_weights(model)
    step = take_lora_step(llama, prepare_for_4bit_training(model))
    plain_step = take_lora_step(llama, plain)
    after = llama.hash_frozen_weights(model)

    adapters = {}
    for name, matrix in step.matrices.items():
        adapters[name] = Adapter(
            before=step.largest_before[name],
            after=float(matrix.abs().max()),
            error=relative_error(matrix, plain_step.matrices[name]),
            control=relative_error(matrix * CONTROL_SCALE["float32"], plain_step.matrices[name]),
        )
    return {
        "loss": step.loss,
        "plain_loss": plain_step.loss,
        "adapters": adapters,
        "base_changed": [name for name, digest in after.items() if digest != before.get(name)],
        "base_count": len(before),
    }


def compare(dtype: str, logits: Any, exact: Any, plain: Any) -> Comparison:
    """Return the relative errors of a model's logits, of plain torch's in the same dtype, and of the control."""
    scale = CONTROL_SCALE[dtype]
    return {
        "error": relative_error(logits, exact),
        "plain_error": relative_error(plain, exact),
        "controls": {f"scaled by {scale}": relative_error(logits.double() * scale, exact)},
    }


def describe_projection(llama: SavedLlama, model: Any, name: str) -> Projection:
    """Return what a projection is stored as, and how far its values are from those that were saved."""
    module = model.get_submodule(name)
    weight = module.weight
    state = getattr(weight, "quant_state", None)
    projection: Projection = {
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "weight_class": type(weight).__qualname__,
        "dtype": str(weight.dtype).removeprefix("torch."),
        "bytes": weight.numel() * weight.element_size(),
        "values": llama.saved[f"{name}.weight"].numel(),
        "quant_type": getattr(state, "quant_type", None),
        "block_size": getattr(state, "blocksize", None),
    }
    if state is None:
        return projection

    codes = attempt(lambda: measure_codes(llama.saved[f"{name}.weight"], weight, state))
    return cast("Projection", {**projection, **codes})


def measure_codes(original: Any, weight: Any, state: Any) -> dict[str, Any]:
    """Decode the stored codes by our own NF4 and by bitsandbytes."""
    functional = importlib.import_module("bitsandbytes.functional")
    shape = tuple(original.shape)
    decoded = nf4.dequantise(weight.data.cpu(), state.absmax.cpu(), shape, state.blocksize)
    decoded_by_bitsandbytes = functional.dequantize_4bit(weight.data, state).cpu().float()
    return {
        "scale_bytes": state.absmax.numel() * state.absmax.element_size(),
        "mean_error": float((decoded - original).abs().mean()) / WEIGHT_DEVIATION,
        "decoder_difference": float((decoded_by_bitsandbytes - decoded).abs().max())
        / WEIGHT_DEVIATION,
    }


class LoraStep(NamedTuple):
    """A step of LoRA: the loss before it, and each B by its name."""

    loss: float
    largest_before: Mapping[str, float]
    matrices: Mapping[str, Any]


def prepare_for_4bit_training(model: Any) -> Any:
    """Prepare a 4-bit model as peft asks for."""
    peft = importlib.import_module("peft")
    return peft.prepare_model_for_kbit_training(
        model, gradient_checkpointing_kwargs={"use_reentrant": False}
    )


def take_lora_step(llama: SavedLlama, model: Any) -> LoraStep:
    """Attach adapters to all linear layers and take one step of SGD."""
    torch, peft = llama.torch, importlib.import_module("peft")
    # The same seed gives every model the same A.
    torch.manual_seed(SEED)
    settings = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    tuned = peft.get_peft_model(model, settings).train()
    matrices = {name: parameter for name, parameter in tuned.named_parameters() if "lora_B" in name}
    largest_before = {name: float(matrix.detach().abs().max()) for name, matrix in matrices.items()}

    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LORA_RATE)
    tokens = llama.tokens.to(llama.device)
    loss = tuned(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()

    after = {name: matrix.detach().cpu().clone() for name, matrix in matrices.items()}
    return LoraStep(float(loss.detach()), largest_before, after)


def judge_logits(_subject: str, _expect: object, evidence: LogitsEvidence) -> Finding:
    """Hold the logits of the 4-bit model, by its own weights, to rule T, and the controls beyond it."""
    problems: list[str] = []
    summaries: list[str] = []
    for dtype in ("float32", "bfloat16"):
        comparison = evidence["comparisons"][dtype]
        error, tolerance = comparison["error"], forward(float(comparison["plain_error"]))
        if is_within(error, tolerance):
            summaries.append(f"{dtype} {error:.1e} (at most {tolerance:.1e})")
        else:
            allowed = f"at most {scientific(tolerance)} is allowed"
            problems.append(f"{dtype} logits are off by {scientific(error)}, {allowed}")
        problems.extend(control_problems(dtype, tolerance, comparison["controls"]))

    if problems:
        return failed(joined(problems))
    return passed(
        f"logits differ from plain torch's by {' and '.join(summaries)}; controls are told apart"
    )


def control_problems(what: str, tolerance: float, controls: Mapping[str, float]) -> Iterator[str]:
    """Yield each control that the tolerance lets pass."""
    if not controls:
        yield f"{what} has no control"
    for name, error in controls.items():
        if not is_beyond(error, tolerance):
            allowed = scientific(tolerance)
            yield f"control: {what} {name} is off by {scientific(error)}, within the {allowed} that is allowed"


def judge_weights(_subject: str, expect: ExpectedError, evidence: WeightsEvidence) -> Finding:
    """Judge what each projection is stored as, and the mean error over all of them."""
    projections = evidence["projections"]
    if not projections:
        return failed("no projection was looked at")

    mismatches = {
        name: find_mismatch(expect, projection) for name, projection in projections.items()
    }
    wrong = {name: mismatch for name, mismatch in mismatches.items() if mismatch}
    if wrong:
        count = len(projections)
        first = min(wrong.values(), key=lambda mismatch: mismatch.order)
        names = [name for name, mismatch in wrong.items() if mismatch.order == first.order]
        return failed(
            f"expected {first.expected} in {count} of {count} projections, "
            f"found {first.measured} in {listed(names, limit=1)}"
        )

    values = sum(projection["values"] for projection in projections.values())
    total_error = sum(
        projection["mean_error"] * projection["values"] for projection in projections.values()
    )
    error, expected = total_error / values, describe_expected_error(expect, values)
    if abs(error - expect["mean_error"]) > largest_distance(expect, values):
        return failed(f"over all projections the mean error is {error:.5f}, not {expected}")

    stored = sum(
        projection["bytes"] + projection["scale_bytes"] for projection in projections.values()
    )
    each = stored / values
    way = f"; loaded by {CONVERTED}" if evidence.get("loaded_by") == CONVERTED else ""
    return passed(
        f"{len(projections)} projections are {expect['quant_type']}, {each:.4f} bytes a weight "
        f"({each / 2:.3f} of bfloat16), mean error {error:.5f} (expected {expected}){way}"
    )


class Mismatch(NamedTuple):
    """What is wrong with a projection. A mismatch of a lower order explains those of a higher one."""

    order: int
    expected: str
    measured: str


def find_mismatch(expect: ExpectedError, projection: Projection) -> Mismatch | None:
    """Return the first thing that is wrong with a projection."""
    module, _, name = projection["class"].rpartition(".")
    if name != "Linear4bit" or not module.startswith("bitsandbytes."):
        return Mismatch(0, "Linear4bit", projection["class"])

    values = projection["values"]
    if projection["dtype"] != "uint8" or projection["bytes"] * 2 != values:
        measured = f"{projection['dtype']} at {projection['bytes'] / values:.2f}"
        return Mismatch(1, "uint8 at half a byte a weight", measured)

    if (projection["quant_type"], projection["block_size"]) != (
        expect["quant_type"],
        expect["block_size"],
    ):
        measured = f"{projection['quant_type']} in blocks of {projection['block_size']}"
        return Mismatch(2, f"{expect['quant_type']} in blocks of {expect['block_size']}", measured)

    if "error" in projection:
        return Mismatch(3, "weights that decode", root_cause(projection["error"]))

    scale_bytes = math.ceil(values / expect["block_size"]) * 4
    if projection["scale_bytes"] != scale_bytes:
        return Mismatch(4, f"{scale_bytes} bytes of scales", str(projection["scale_bytes"]))

    # Two-sided: no error at all means that nothing was quantised.
    error, bound = projection["mean_error"], largest_distance(expect, values)
    if not is_within(error, 1.0) or abs(error - expect["mean_error"]) > bound:
        return Mismatch(
            5, f"a mean error of {describe_expected_error(expect, values)}", scientific(error)
        )

    if not is_within(projection["decoder_difference"], DECODER_TOLERANCE):
        measured = f"a difference of {scientific(projection['decoder_difference'])}"
        return Mismatch(6, "bitsandbytes to decode its own codes", measured)
    return None


def largest_distance(expect: ExpectedError, values: int) -> float:
    """Return how far the mean error over so many values may be from the published one."""
    return QUANTISER_SIGMAS * expect["mean_error_sigma"] * math.sqrt(QUANTISER_SAMPLE / values)


def describe_expected_error(expect: ExpectedError, values: int) -> str:
    """Write the mean error that so many values may have: `0.07280 +- 0.00052`."""
    return f"{expect['mean_error']:.5f} +- {largest_distance(expect, values):.5f}"


def judge_lora_step(_subject: str, _expect: object, evidence: LoraEvidence) -> Finding:
    """Judge the step by plain torch's, and that frozen weights stayed as they were."""
    if problems := list(lora_problems(evidence)):
        return failed(joined(problems))

    worst = max(adapter["error"] for adapter in evidence["adapters"].values())
    return passed(
        f"B moved from zero in {len(evidence['adapters'])} adapters as in plain torch (off by {worst:.1e}, at most "
        f"{BACKWARD_FLOOR:.0e}), loss {evidence['loss']:.4f}, {evidence['base_count']} base weights untouched"
    )


def lora_problems(evidence: LoraEvidence) -> Iterator[str]:
    """Yield what is wrong with a step of LoRA."""
    loss, plain = evidence["loss"], evidence["plain_loss"]
    if not is_within(loss, math.inf) or not is_within(plain, math.inf):
        yield f"the loss is {loss}, plain torch's is {plain}"
    elif abs(loss - plain) > BACKWARD_FLOOR * plain:
        yield f"the loss is {loss:.5f}, plain torch's is {plain:.5f}"

    adapters = evidence["adapters"]
    if not adapters:
        yield "no adapter was attached"
    still = [name for name, adapter in adapters.items() if not is_beyond(adapter["after"], 0.0)]
    if still:
        yield f"B did not move in {len(still)} of {len(adapters)} adapters: {listed(still, limit=1)}"
    started_elsewhere = [name for name, adapter in adapters.items() if adapter["before"] != 0]
    if started_elsewhere:
        yield f"B was not zero before the step in {listed(started_elsewhere, limit=1)}"
    off = [
        name
        for name, adapter in adapters.items()
        if not is_within(adapter["error"], BACKWARD_FLOOR)
    ]
    if off and not still:
        error = scientific(adapters[off[0]]["error"])
        yield f"B is off by {error} (at most {BACKWARD_FLOOR:.0e}) in {listed(off, limit=1)}"
    for name, adapter in adapters.items():
        # A control of what did not move would repeat that it did not.
        if name not in still:
            yield from control_problems(name, BACKWARD_FLOOR, {"scaled": adapter["control"]})

    if not evidence["base_count"]:
        yield "no base weight was looked at"
    if evidence["base_changed"]:
        yield f"the step changed frozen weights: {listed(evidence['base_changed'])}"


CLAIMS = {
    "4bit-llama/weights": judge_weights,
    "4bit-llama/logits": judge_logits,
    "4bit-llama/lora-step": judge_lora_step,
}
