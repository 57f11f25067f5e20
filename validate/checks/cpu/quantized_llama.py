"""4bit-llama: check that a tiny Llama loads in 4-bit and trains with LoRA, as in plain torch.

Users of QLoRA meet each layer of this on their first day: bitsandbytes' library, transformers'
loading, peft's adapters. Any of them can quietly do nothing (bitsandbytes without its CUDA library
still imports), so the results are compared with plain torch. Every comparison has controls that
must fail it: a result 1 % off, and the weights before quantisation. The check needs no GPU.
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
    PROVES_NOTHING,
    Finding,
    failed,
    forward_tolerance,
    is_beyond,
    is_within,
    joined,
    listed,
    passed,
    root_cause,
    scientific,
)
from validate.next_steps import CHECK_FAILED, pin_together

SETTINGS = Settings(starts_first=True, begins_with_torch=True)

CONTROL_SCALE = {"float32": 1.01, "bfloat16": 1.05}
"""Controls are results multiplied by this, which must be recognised as wrong. bfloat16's own error
through the whole model is 1.5 %."""
LORA_RATE = 0.1
"""The learning rate of the step with LoRA."""
QUANTISER_SIGMAS = 7.0
"""How many standard deviations the mean error of NF4 may be away from the published one."""
QUANTISER_SAMPLE = 1024 * 1024
"""The number of values of which the mean error was published. The standard deviation of a mean
error shrinks with the root of the number of values."""
DECODER_TOLERANCE = 1e-5
"""How far two float32 decoders of the same codes may differ, in units of the weights' deviation."""


class Comparison(TypedDict):
    """Errors of logits, relative to those of plain torch in float64."""

    error: float  # of the 4-bit model
    plain_error: float  # of plain torch in the model's dtype, with the same weights
    controls: Mapping[str, float]  # of results that are wrong on purpose, by name


class LogitsEvidence(TypedDict):
    """What `measure_logits` returns: a comparison for each dtype."""

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
    """A linear layer after loading in 4-bit.

    The keys below are absent if it was not quantised. If its codes could not be decoded, only
    `error` is there. Errors are in units of the weights' standard deviation.
    """

    scale_bytes: int
    mean_error: float  # of the decoded weights
    decoder_difference: float  # largest difference of bitsandbytes' decoder and ours
    error: Mapping[str, Any]


class _Weights(TypedDict):
    projections: Mapping[str, Projection]


class WeightsEvidence(_Weights, total=False):
    """What `measure_weights` returns. Evidence from before 2026-11-28 has no `loaded_by`."""

    loaded_by: str


class Adapter(TypedDict):
    """The matrix B of a LoRA adapter, around one training step."""

    before: float  # largest absolute value before the step
    after: float  # and after it
    error: float  # after the step, relative to plain torch's
    control: float  # the error of B multiplied by CONTROL_SCALE


class LoraEvidence(TypedDict):
    """What `measure_lora_step` returns."""

    loss: float
    plain_loss: float
    adapters: Mapping[str, Adapter]  # by the name of the matrix
    base_changed: list[str]  # frozen weights that the step changed
    base_count: int  # number of frozen weights


Evidence = LogitsEvidence | WeightsEvidence | LoraEvidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Evidence]]:
    """Measure a small Llama whose weights bitsandbytes quantised to 4 bits, on the CPU.

    Yields what was measured of each subject that has a claim: `weights`, `logits` (the outputs) and
    `lora-step` (a training step of adapters).
    """
    # Import torch before bitsandbytes and the others, as SETTINGS promises (begins_with_torch).
    importlib.import_module("torch")
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        llama = SavedLlama(Path(folder))
        # Only those with a claim are called.
        measures: Mapping[str, Callable[[], Evidence]] = {
            "weights": lambda: measure_weights(llama),
            "logits": lambda: measure_logits(llama),
            "lora-step": lambda: measure_lora_step(llama),
        }
        yield from measure_claimed_subjects(claims, measures)


def measure_weights(llama: SavedLlama) -> WeightsEvidence:
    """Load the model in 4-bit, and describe how each of its linear layers is stored."""
    # No forward pass before the weights are described: on some CPUs bitsandbytes repacks them in
    # it.
    model = llama.load_in_4bit("float32")
    projections = {}
    for name in llama.shape.projections:
        projections[name] = describe_projection(llama, model, name)
    return {"loaded_by": llama.way_to_load_in_4bit, "projections": projections}


def describe_projection(llama: SavedLlama, model: Any, name: str) -> Projection:
    """Return how the linear layer `name` is stored, and how far it is from the saved weight.

    `name` is such as `model.layers.0.mlp.up_proj`. If the layer was not quantised, the fields about
    its codes are left out; if they can't be decoded, `error` says why.
    """
    module = model.get_submodule(name)
    weight = module.weight
    original = llama.saved[f"{name}.weight"]
    # bitsandbytes' QuantState says how the weight was quantised. Other weights have none.
    state = getattr(weight, "quant_state", None)
    projection: Projection = {
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "weight_class": type(weight).__qualname__,
        "dtype": str(weight.dtype).removeprefix("torch."),
        "bytes": weight.numel() * weight.element_size(),
        "values": original.numel(),
        "quant_type": getattr(state, "quant_type", None),
        "block_size": getattr(state, "blocksize", None),
    }
    if state is None:
        return projection

    # Add three more fields, or `error` if decoding raised one.
    code_fields = attempt(lambda: measure_codes(original, weight, state))
    return cast("Projection", {**projection, **code_fields})


def measure_codes(original: Any, weight: Any, state: Any) -> dict[str, Any]:
    """Decode the codes of a 4-bit weight by our own NF4 and by bitsandbytes, and compare both.

    `state` is bitsandbytes' QuantState of the weight. Returns the keys `scale_bytes`, `mean_error`
    and `decoder_difference` of Projection.
    """
    functional = importlib.import_module("bitsandbytes.functional")
    scales = state.absmax
    decoded = nf4.dequantise(
        weight.data.cpu(), scales.cpu(), tuple(original.shape), state.blocksize
    )
    decoded_by_bitsandbytes = functional.dequantize_4bit(weight.data, state).cpu().float()

    mean_error = float((decoded - original).abs().mean())
    largest_difference = float((decoded_by_bitsandbytes - decoded).abs().max())
    # Divide errors by the weights' standard deviation, because the published error is for 1.
    return {
        "scale_bytes": scales.numel() * scales.element_size(),
        "mean_error": mean_error / WEIGHT_DEVIATION,
        "decoder_difference": largest_difference / WEIGHT_DEVIATION,
    }


def measure_logits(llama: SavedLlama) -> LogitsEvidence:
    """Compare the logits of the 4-bit model with those of its decoded weights in plain torch.

    bitsandbytes has two ways to multiply on a CPU, and both are measured. In training it decodes
    the weights, and multiplies in the model's dtype (here float32). In inference on a CPU with
    AVX512-BF16 it packs them in another way, and multiplies in bfloat16.
    """
    in_training = compare_logits(llama, "float32", is_training=True)
    in_inference = compare_logits(llama, "bfloat16", is_training=False)
    return {"comparisons": {"float32": in_training, "bfloat16": in_inference}}


def compare_logits(llama: SavedLlama, dtype: str, *, is_training: bool) -> Comparison:
    """Load the model in 4-bit, computing in this dtype, and compare its logits with plain torch's.

    Plain torch computes with the decoded 4-bit weights. So the error is only that of the model's
    arithmetic, without that of quantising. `is_training` is the mode of the model: bitsandbytes may
    compute in another way in each.
    """
    model = llama.load_in_4bit(dtype).train(is_training)
    # Decode the weights before the forward pass, which may pack them in another way.
    decoded_weights = llama.dequantise(model)
    logits = llama.logits_of(model)

    exact = llama.reference_logits(decoded_weights, "float64")
    plain = llama.reference_logits(decoded_weights, dtype)

    # Make two results that are wrong on purpose. The judge must notice both.
    unquantised = llama.reference_logits(llama.saved, "float64")
    scale = CONTROL_SCALE[dtype]
    scaled = logits.double() * scale
    return {
        "error": relative_error(logits, exact),
        "plain_error": relative_error(plain, exact),
        "controls": {
            f"scaled by {scale}": relative_error(scaled, exact),
            "unquantised weights": relative_error(unquantised, exact),
        },
    }


class LoraStep(NamedTuple):
    """One training step with LoRA. Matrices are by the name of their parameter."""

    loss: float  # before the step
    largest_b_before: Mapping[str, float]  # each B's largest absolute value before the step
    b_after: Mapping[str, Any]  # each B after the step


def measure_lora_step(llama: SavedLlama) -> LoraEvidence:
    """Take a training step of LoRA on a 4-bit model, and the same step on a float32 model.

    The float32 model has the decoded weights of the 4-bit model. Returns both losses, how far the
    adapters of the 4-bit model are from those of the other, and which frozen weights changed.
    """
    model = llama.load_in_4bit("float32")
    plain_model = llama.load("float32")
    plain_model.load_state_dict(llama.dequantise(model))

    # Hash the weights, to see that the step changes only the adapters.
    hashes_before = llama.hash_frozen_weights(model)
    step = take_lora_step(llama, prepare_for_4bit_training(model))
    plain_step = take_lora_step(llama, plain_model)
    hashes_after = llama.hash_frozen_weights(model)

    adapters = {}
    for name, b in step.b_after.items():
        plain_b = plain_step.b_after[name]
        adapters[name] = Adapter(
            before=step.largest_b_before[name],
            after=float(b.abs().max()),
            error=relative_error(b, plain_b),
            control=relative_error(b * CONTROL_SCALE["float32"], plain_b),
        )

    changed = []
    for name, digest in hashes_after.items():
        if digest != hashes_before.get(name):
            changed.append(name)
    return {
        "loss": step.loss,
        "plain_loss": plain_step.loss,
        "adapters": adapters,
        "base_changed": changed,
        "base_count": len(hashes_before),
    }


def prepare_for_4bit_training(model: Any) -> Any:
    """Prepare a 4-bit model for training, as peft's documentation says."""
    peft = importlib.import_module("peft")
    return peft.prepare_model_for_kbit_training(
        model, gradient_checkpointing_kwargs={"use_reentrant": False}
    )


def take_lora_step(llama: SavedLlama, model: Any) -> LoraStep:
    """Attach LoRA adapters to all linear layers of a model, and take one step of SGD.

    An adapter adds the product of two small matrices, B and A, to a weight. Only B is returned: it
    is zero at first, so its values after the step are the step that was taken.
    """
    torch = llama.torch
    peft = importlib.import_module("peft")
    # A begins with random values. With the same seed they are the same for every model.
    torch.manual_seed(SEED)
    settings = peft.LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    tuned = peft.get_peft_model(model, settings).train()

    # Name of each matrix B -> the matrix, and its largest value before the step.
    all_b = {}
    largest_b_before = {}
    for name, parameter in tuned.named_parameters():
        if "lora_B" in name:
            all_b[name] = parameter
            largest_b_before[name] = float(parameter.detach().abs().max())

    trained = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LORA_RATE)
    tokens = llama.tokens.to(llama.device)
    loss = tuned(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()

    b_after = {name: matrix.detach().cpu().clone() for name, matrix in all_b.items()}
    return LoraStep(float(loss.detach()), largest_b_before, b_after)


def judge_logits(_subject: str, _expect: object, evidence: LogitsEvidence) -> Finding:
    """Pass if a model with 4-bit weights computes the right logits, in float32 and in bfloat16.

    All errors are relative to exact logits. The largest error allowed is a small multiple of plain
    torch's error in the same dtype. Controls, which are results that are wrong on purpose, must
    have a larger one, or the comparison would notice nothing.
    """
    problems: list[str] = []
    summaries: list[str] = []
    for dtype in ("float32", "bfloat16"):
        comparison = evidence["comparisons"][dtype]
        error = comparison["error"]
        tolerance = forward_tolerance(float(comparison["plain_error"]))
        if is_within(error, tolerance):
            summaries.append(f"{dtype} {error:.1e} (at most {tolerance:.1e})")
        else:
            allowed = f"at most {scientific(tolerance)} is allowed"
            problems.append(f"{dtype} logits are off by {scientific(error)}, and {allowed}")
        problems += control_problems(dtype, tolerance, comparison["controls"])

    if problems:
        return failed(joined(problems))
    return passed(
        f"logits differ from plain torch's by {' and '.join(summaries)}; controls are told apart"
    )


def control_problems(owner: str, tolerance: float, controls: Mapping[str, float]) -> Iterator[str]:
    """Yield a problem for each control whose error is within the tolerance, or if there is none.

    A control is a result that is wrong on purpose: a tolerance that lets it pass is worthless.
    `owner` names what the controls belong to: `float32`, or an adapter. `controls`: name -> error.
    """
    if not controls:
        yield f"{PROVES_NOTHING}no result of {owner} was made wrong on purpose and compared"
    for name, error in controls.items():
        if not is_beyond(error, tolerance):
            allowed = scientific(tolerance)
            yield (
                f"{PROVES_NOTHING}the result of {owner} that was made wrong on purpose ({name}) is "
                f"off by {scientific(error)}, and passes as right (up to {allowed} is allowed)"
            )


def judge_weights(_subject: str, expect: ExpectedError, evidence: WeightsEvidence) -> Finding:
    """Pass if each linear layer of a model is stored in 4 bits, with the error that NF4 has.

    The error of weights must neither be larger nor smaller than the published one: without an
    error, nothing was quantised. The mean error over all layers is judged, too. It is a mean of
    more values, so chance changes it less, and it must be closer (largest_distance).
    """
    projections = evidence["projections"]
    if not projections:
        return failed("no linear layer of the model (projection) was looked at", CHECK_FAILED)

    mismatches: dict[str, Mismatch] = {}
    for name, projection in projections.items():
        mismatch = find_mismatch(expect, projection)
        if mismatch:
            mismatches[name] = mismatch
    if mismatches:
        return failed(describe_mismatches(mismatches, len(projections)))

    # Over all layers: how many weights there are, their bytes with the scales, and the mean error.
    values = 0
    stored_bytes = 0
    total_error = 0.0
    for projection in projections.values():
        values += projection["values"]
        stored_bytes += projection["bytes"] + projection["scale_bytes"]
        total_error += projection["mean_error"] * projection["values"]
    mean_error = total_error / values

    expected_error = describe_expected_error(expect, values)
    if abs(mean_error - expect["mean_error"]) > largest_distance(expect, values):
        return failed(
            f"the mean error of all 4-bit weights is {mean_error:.5f}, and should be "
            f"{expected_error}"
        )

    bytes_per_weight = stored_bytes / values
    share_of_bfloat16 = bytes_per_weight / 2
    # Users load by from_pretrained. Any other way is mentioned.
    way_of_loading = ""
    if evidence.get("loaded_by") == CONVERTED:
        way_of_loading = f"; loaded by {CONVERTED}"
    return passed(
        f"{len(projections)} projections are {expect['quant_type']}, "
        f"{bytes_per_weight:.4f} bytes a weight ({share_of_bfloat16:.3f} of bfloat16), "
        f"mean error {mean_error:.5f} (expected {expected_error}){way_of_loading}"
    )


class Mismatch(NamedTuple):
    """What is wrong with a linear layer."""

    order: int  # the number of the step of `find_mismatch` that found it, from 0
    expected: str
    measured: str


def describe_mismatches(mismatches: Mapping[str, Mismatch], count: int) -> str:
    """Return a sentence about the most basic mismatch of linear layers ("projections").

    `mismatches`: layer -> the first thing that is wrong with it. `count` is the number of all
    layers.
    """
    # What an earlier step of `find_mismatch` finds, such as the wrong class, explains what later
    # steps find.
    first = min(mismatches.values(), key=lambda mismatch: mismatch.order)
    names = [name for name, mismatch in mismatches.items() if mismatch.order == first.order]
    return (
        f"expected {first.expected} in {count} of {count} projections (linear layers), "
        f"found {first.measured} in {listed(names, limit=1)}"
    )


def find_mismatch(expect: ExpectedError, projection: Projection) -> Mismatch | None:
    """Return the first thing that is wrong with a linear layer that was loaded in 4 bits.

    None if nothing is wrong. `projection` is what was measured of the layer, `expect` the format,
    the block size and the mean error that it should have. For example, a layer that was not
    quantised gives `Mismatch(0, "Linear4bit", "torch.nn.modules.linear.Linear")`. The first number
    says at which step it was found: a fault at an early step explains those at later ones.
    """
    # The layer's class is bitsandbytes' own.
    module, _, class_name = projection["class"].rpartition(".")
    if class_name != "Linear4bit" or not module.startswith("bitsandbytes."):
        return Mismatch(0, "Linear4bit", projection["class"])

    # Two weights share a byte.
    values = projection["values"]
    if projection["dtype"] != "uint8" or projection["bytes"] * 2 != values:
        measured = f"{projection['dtype']} at {projection['bytes'] / values:.2f}"
        return Mismatch(1, "uint8 at half a byte a weight", measured)

    # The format is the expected one: `nf4 in blocks of 64`.
    expected = f"{expect['quant_type']} in blocks of {expect['block_size']}"
    measured = f"{projection['quant_type']} in blocks of {projection['block_size']}"
    if measured != expected:
        return Mismatch(2, expected, measured)

    # bitsandbytes could turn the codes back into weights.
    if "error" in projection:
        return Mismatch(3, "weights that decode", root_cause(projection["error"]))

    # Each block of weights has a scale, a float32.
    scale_bytes = math.ceil(values / expect["block_size"]) * 4
    if projection["scale_bytes"] != scale_bytes:
        return Mismatch(4, f"{scale_bytes} bytes of scales", str(projection["scale_bytes"]))

    # The mean error must be near the published one. One that is too small is wrong as well: without
    # any error, nothing was quantised. (`is_within` is False for NaN.)
    error = projection["mean_error"]
    distance = abs(error - expect["mean_error"])
    if not is_within(distance, largest_distance(expect, values)):
        expected = f"a mean error of {describe_expected_error(expect, values)}"
        return Mismatch(5, expected, scientific(error))

    # bitsandbytes must decode the codes to the same weights as our own decoder.
    if not is_within(projection["decoder_difference"], DECODER_TOLERANCE):
        measured = f"a difference of {scientific(projection['decoder_difference'])}"
        return Mismatch(6, "bitsandbytes to decode its own codes", measured)
    return None


def largest_distance(expect: ExpectedError, values: int) -> float:
    """Return how far the mean error of this number of values may be from the published one.

    The fewer values there are, the more a mean varies: with 1 / sqrt(values).
    """
    return QUANTISER_SIGMAS * expect["mean_error_sigma"] * math.sqrt(QUANTISER_SAMPLE / values)


def describe_expected_error(expect: ExpectedError, values: int) -> str:
    """Write the mean error that this number of values may have: `0.07280 +- 0.00052`."""
    return f"{expect['mean_error']:.5f} +- {largest_distance(expect, values):.5f}"


def judge_lora_step(_subject: str, _expect: object, evidence: LoraEvidence) -> Finding:
    """Pass if a training step of LoRA over 4-bit weights moved only the adapters, and rightly.

    The matrix B of each adapter must be zero before the step. After it, B must be what the same
    step in plain torch gives, with a relative error of BACKWARD_FLOOR at most. The frozen base
    weights must not have changed.
    """
    problems = list(find_lora_problems(evidence))
    if problems:
        return failed(joined(problems))

    adapters = evidence["adapters"]
    largest_error = max(adapter["error"] for adapter in adapters.values())
    return passed(
        f"B moved from zero in {len(adapters)} adapters as in plain torch "
        f"(off by {largest_error:.1e}, at most {BACKWARD_FLOOR:.0e}), "
        f"loss {evidence['loss']:.4f}, {evidence['base_count']} base weights untouched"
    )


def find_lora_problems(evidence: LoraEvidence) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with a training step of LoRA.

    The loss must be that of plain torch, with a relative error of BACKWARD_FLOOR at most. The
    adapters must have moved as in plain torch. No frozen weight may have changed.
    """
    loss, plain_loss = evidence["loss"], evidence["plain_loss"]
    # A number within infinity is finite and not negative.
    if not is_within(loss, math.inf) or not is_within(plain_loss, math.inf):
        yield f"the loss is {loss}, plain torch's is {plain_loss}"
    elif abs(loss - plain_loss) > BACKWARD_FLOOR * plain_loss:
        allowed = BACKWARD_FLOOR * plain_loss
        both = f"the loss is {loss:.5f}, plain torch's is {plain_loss:.5f}"
        yield f"{both}, and a difference of at most {allowed:.0e} is allowed"

    yield from find_adapter_problems(evidence["adapters"])

    if not evidence["base_count"]:
        yield "the model has no frozen weight, and LoRA freezes all but those of its adapters"
    if evidence["base_changed"]:
        yield f"the step changed frozen weights: {listed(evidence['base_changed'])}"


def find_adapter_problems(adapters: Mapping[str, Adapter]) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with LoRA's adapters after a training step.

    An adapter adds the product of two small matrices, B and A, to a weight. B is zero before the
    step. After it, B must be what the same step in plain torch gives. `adapters` is by name.
    """
    if not adapters:
        yield "no LoRA adapter was attached to the model"

    # `before` and `after` are the largest value of B. A B that is no number has not moved.
    moved = {name for name, adapter in adapters.items() if is_beyond(adapter["after"], 0.0)}
    unmoved = [name for name in adapters if name not in moved]
    if unmoved:
        count = f"{len(unmoved)} of {len(adapters)}"
        names = listed(unmoved, limit=1)
        yield f"training did not change the matrix B of {count} adapters: {names}"

    nonzero_before = [name for name, adapter in adapters.items() if adapter["before"] != 0]
    if nonzero_before:
        names = listed(nonzero_before, limit=1)
        yield f"the matrix B of adapters was not zero before the step: {names}"

    wrong = []
    for name, adapter in adapters.items():
        if not is_within(adapter["error"], BACKWARD_FLOOR):
            wrong.append(name)
    # A matrix that did not move is wrong, too: that was reported above.
    if wrong and not unmoved:
        error = scientific(adapters[wrong[0]]["error"])
        names = listed(wrong, limit=1)
        yield (
            f"the trained matrix B is off by {error} from plain torch's, and at most "
            f"{BACKWARD_FLOOR:.0e} is allowed: {names}"
        )

    # `control` is the error of a B that is wrong on purpose: the limit must reject it.
    for name in adapters:
        if name in moved:
            controls = {"scaled": adapters[name]["control"]}
            yield from control_problems(name, BACKWARD_FLOOR, controls)


CLAIMS = {
    "4bit-llama/weights": judge_weights,
    "4bit-llama/logits": judge_logits,
    "4bit-llama/lora-step": judge_lora_step,
}
NEXT_STEP = (
    f"{pin_together('bitsandbytes, transformers and peft')}; "
    "until then, do not train or load models in 4-bit in this image, as neither their results nor "
    "their memory can be relied on"
)
NEXT_STEPS = dict.fromkeys(CLAIMS, NEXT_STEP)
