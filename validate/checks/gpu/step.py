"""step: a training step must be as fast, small and right as recorded for this image and GPU model.

The model is a Llama of 1.1 billion parameters (TinyLlama's shape). It trains in bfloat16 with fused
AdamW on one batch with rows of 2,048 tokens, in four variants: as transformers has it (`eager`),
with compiled layers (`compiled`), by QLoRA over NF4 (`qlora`), and with Liger's kernels (`liger`).
The eager model's loss is compared with float32 by plain products; the losses, times and memory of
the others with the eager model's; and all with recorded runs (images/data/baselines.json). Which
times count is described in validate/harness/timing.py.
"""

import copy
import gc
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict, cast

from validate.checks import Settings
from validate.checks.gpu.speed import judge_gpu
from validate.claims import Claim
from validate.harness import seeding, timing
from validate.harness.forked import attempt
from validate.harness.timing import Conditions, Timed, Watch
from validate.judging import Finding, failed, is_finite, joined, passed, suspects, unproven
from validate.kernels import runner
from validate.kernels._evidence import DeviceFacts
from validate.next_steps import MEASUREMENT_FAILED, calm_gpu, pin

SETTINGS = Settings(runs_alone=True, time_limit=600)

EAGER = "eager"
STEPS = 20
"""Training steps of the eager model."""
_OTHER_STEPS = 12
"""Training steps of the other variants."""
_WARM_UP_STEPS = 4
"""The first steps of each, which are not timed."""
_TOKENS = 2048
"""The length of each row of the batch."""
_DISTINCT_TOKENS = 256
"""The rows are random tokens with IDs below this."""
_SHAPE: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": _TOKENS,
    "rms_norm_eps": 1e-5,
}
_REHEARSAL_SHAPE = {
    **_SHAPE,
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
}
PEAK_SLACK = 1.05
"""How many times a recorded peak of memory today's may be: allocations are the same from run to
run, but the workspaces of libraries are not."""
LOSS_SLACK = 0.05
"""How far today's last loss may be from the recorded one, after sums in another order."""
LEAST_FALL = 0.1
"""How far the loss must fall from the first step to the last."""
REFERENCE_SLACK = 0.02
"""How far the mean loss in bfloat16 may be from that in float32, on the same weights."""
_RECORDED = "recorded runs of this image"
"""What reasons call the runs of a baseline; in brackets follows which these are."""


class Baseline(TypedDict):
    """What recorded runs of the image on this GPU model needed, and which runs these are."""

    time: Timed
    peak: float
    loss: float
    of: str  # which runs, for people


class _StepExpect(TypedDict):
    gpu: str  # as the driver names it
    rows: int  # of a batch
    # `seconds` and `peak`: as shares of the eager model's; `loss`: the distance from its losses.
    at_most: Mapping[str, float]


class StepExpect(_StepExpect, total=False):
    """What a claim about a training step expects."""

    baseline: Baseline
    peak_operations: float  # operations a second, by the GPU's datasheet


class Run(TypedDict):
    """What some training steps needed, and their losses."""

    time: Timed  # of a step
    peak: float  # bytes of GPU memory
    losses: list[float]


class Trained(Run):
    """The same, and how many parameters the model has."""

    parameters: int


class TrainedAndRead(TypedDict, total=False):
    """A run with everything that was read beside it."""

    trained: Trained
    # dtype -> mean losses on the same weights, before and after training; of the eager model only
    reference: Mapping[str, list[float]]
    under_load: list[Mapping[str, int]]  # NVML's readings of the GPU during the steps


class StepEvidence(TrainedAndRead, total=False):
    """A run, the eager model's run in the same process, and what may have disturbed both."""

    eager: Trained
    conditions: Conditions
    device: DeviceFacts
    environment: Mapping[str, str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, StepEvidence]]:
    """Train the variants of the model that the claims name, and yield each with what was measured.

    The eager model is always trained, because the other variants are compared with it. If a run
    raises an error, the error is yielded in place of its figures.
    """
    # torch sets variables of its own when it is imported, so ours are read first.
    environment = runner.environment()
    torch = importlib.import_module("torch")
    claimed_variants = {claim.subject for claim in claims}
    # All claims have the same size of a batch.
    rows = claims[0].expect["rows"]
    with timing.watch_gpu(torch) as (watch, conditions):
        eager_run: TrainedAndRead = {}
        # VARIANTS has the eager model first, because the others are compared with it, and Liger
        # last, because it patches transformers for the whole process.
        for name in VARIANTS:
            is_claimed = name in claimed_variants
            if not is_claimed and name != EAGER:
                continue

            # If training raises an error, `run` has only the error.
            run = attempt(partial(train, name, torch, "cuda", rows, watch))
            # The GPU's clocks during the run belong to the conditions.
            readings = run.pop("under_load", [])
            if name == EAGER:
                eager_run = run
            if not is_claimed:
                continue

            evidence = cast(
                "StepEvidence",
                {
                    **run,
                    "device": runner.device_facts(torch),
                    "environment": environment,
                    "conditions": {**conditions, "under_load": readings},
                },
            )
            # If the eager model's run raised an error, there is nothing to compare with.
            if name != EAGER and "trained" in eager_run:
                evidence["eager"] = eager_run["trained"]
            yield name, evidence


def train(variant: str, torch: Any, device: str, rows: int, watch: Watch) -> TrainedAndRead:
    """Train a new model of one variant on one batch, and return its times, losses and memory.

    variant: a key of VARIANTS.
    device: `cuda`; or `cpu`, for a rehearsal with a tiny model, whose memory is not measured.
    rows: how many rows of tokens the batch has.
    watch: reads the GPU's clocks while steps are timed.

    The eager model's loss is also computed in float32, before and after training (`reference`).
    """
    # Free the memory of the previous variant. Some stays in use by its compiled code, and must not
    # count in the peak of this one.
    gc.collect()
    memory_before = 0
    if device == "cuda":
        torch.cuda.empty_cache()
        memory_before = torch.cuda.memory_allocated()

    # Make model, batch and optimizer. The seed is the same for every run: different ones moved the
    # last loss by 0.07, which is more than LOSS_SLACK.
    torch.manual_seed(seeding.FIXED_SEED)
    tokens = draw_tokens(torch, device, rows)
    model = VARIANTS[variant].make_model(torch, device)
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=VARIANTS[variant].learning_rate, fused=True)
    is_eager = variant == EAGER
    float32_losses = []
    if is_eager:
        float32_losses.append(compute_float32_loss(torch, model, tokens))

    all_steps = STEPS if is_eager else _OTHER_STEPS
    run, reading = run_steps(torch, model, optimizer, tokens, all_steps, watch)
    losses = run["losses"]

    # Compare bfloat16 with float32 once more, on the trained weights.
    reference: dict[str, list[float]] = {}
    if is_eager:
        with torch.no_grad():
            loss_after = float(model(input_ids=tokens, labels=tokens).loss)
        # Drop AdamW's moments, to make room for the model in float32.
        optimizer.state.clear()
        float32_losses.append(compute_float32_loss(torch, model, tokens))
        reference = {"bfloat16": [losses[0], loss_after], "float32": float32_losses}

    trained: Trained = {
        **run,
        "peak": run["peak"] - memory_before,
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }
    return {"trained": trained, "reference": reference, "under_load": [reading]}


def run_steps(
    torch: Any, model: Any, optimizer: Any, tokens: Any, steps: int, watch: Watch
) -> tuple[Run, Mapping[str, int]]:
    """Train a model in place for some steps on one batch, of which the first are not timed.

    Returns what the steps needed, and what `watch` reads of the GPU while it works. On a CPU no
    memory is measured. `tokens` are token IDs, [rows, length], on the model's device.
    """
    device = tokens.device.type
    # Copies of the model that were made before must not count in the peak.
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    loss_tensors: list[Any] = []

    def step() -> None:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # Keep it as a tensor: to make it a number, the host would have to wait for the GPU.
        loss_tensors.append(loss.detach())

    times, reading = timing.time_runs(
        torch, step, device, warm=_WARM_UP_STEPS, repeats=steps - _WARM_UP_STEPS, watch=watch
    )
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    losses = [float(loss) for loss in loss_tensors]
    return {"time": timing.summarise_times(times), "peak": peak, "losses": losses}, reading


def draw_tokens(torch: Any, device: str, rows: int) -> Any:
    """Return the batch, tokens [rows, length] on the device: the same in every run.

    On a CPU rows are short, for a rehearsal.
    """
    length = _TOKENS if device == "cuda" else 64
    generator = torch.Generator().manual_seed(seeding.FIXED_SEED)
    return torch.randint(0, _DISTINCT_TOKENS, (rows, length), generator=generator).to(device)


def compute_float32_loss(torch: Any, model: Any, tokens: Any) -> float:
    """Return the mean loss of a float32 copy of the model, with attention by plain products.

    `tokens` are token IDs, [rows, length]. It takes one row at a time, to need less memory.
    """
    attention = importlib.import_module("torch.nn.attention")
    exact_model = copy.deepcopy(model).float()
    losses = []
    with torch.no_grad(), attention.sdpa_kernel([attention.SDPBackend.MATH]):
        for row in tokens:
            losses.append(float(exact_model(input_ids=row[None], labels=row[None]).loss))
    return sum(losses) / len(losses)


def make_llama(torch: Any, device: str) -> Any:
    """Return a new Llama in bfloat16, whose weights are drawn on the device.

    On a CPU it is a tiny one, for a rehearsal.
    """
    transformers = importlib.import_module("transformers")
    shape = _SHAPE if device == "cuda" else _REHEARSAL_SHAPE
    config = transformers.LlamaConfig(**shape, use_cache=False, attn_implementation="sdpa")
    # Weights are drawn in the default dtype and on the default device.
    dtype_before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return transformers.LlamaForCausalLM(config).train()
    finally:
        torch.set_default_dtype(dtype_before)


def make_compiled_llama(torch: Any, device: str) -> Any:
    """Return a Llama whose layers are compiled one at a time: as all are alike, only one is."""
    model = make_llama(torch, device)
    for layer in model.model.layers:
        layer.compile()
    return model


def make_liger_llama(torch: Any, device: str) -> Any:
    """Return a Llama with Liger's kernels. This patches transformers for the whole process."""
    importlib.import_module("liger_kernel.transformers").apply_liger_kernel_to_llama()
    return make_llama(torch, device)


def make_qlora_llama(torch: Any, device: str) -> Any:
    """Return a Llama with 4-bit weights (NF4) and LoRA adapters on all linear layers.

    The layers are replaced as transformers does while it loads a checkpoint.
    """
    bitsandbytes = importlib.import_module("bitsandbytes")
    peft = importlib.import_module("peft")
    model = make_llama(torch, device)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    setattr(block, name, quantise_linear(torch, bitsandbytes, linear).to(device))
    model.is_loaded_in_4bit = True
    config = peft.LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(model, config).train()


def quantise_linear(torch: Any, bitsandbytes: Any, linear: Any) -> Any:
    """Return bitsandbytes' 4-bit version of a linear layer, with the same weight.

    The weight is packed into 4 bits when the result is moved to a device. It is not trained.
    """
    quantised = bitsandbytes.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=False,
        compute_dtype=torch.bfloat16,
        quant_type="nf4",
    )
    quantised.weight = bitsandbytes.nn.Params4bit(
        linear.weight.detach(), requires_grad=False, quant_type="nf4"
    )
    return quantised


class Variant(NamedTuple):
    """How a variant's model is made, given torch and the device, and its learning rate."""

    make_model: Callable[[Any, str], Any]
    learning_rate: float


VARIANTS: Mapping[str, Variant] = {
    EAGER: Variant(make_llama, learning_rate=1e-4),
    "compiled": Variant(make_compiled_llama, learning_rate=1e-4),
    "qlora": Variant(make_qlora_llama, learning_rate=1e-3),
    "liger": Variant(make_liger_llama, learning_rate=1e-4),
}
"""In the order of measuring."""


def judge(_subject: str, expect: StepExpect, evidence: StepEvidence) -> Finding:
    """Judge how a model trained on a GPU: its losses, the time of a step and the peak of memory.

    They are compared with the same training by plain transformers on this GPU (the eager model) and
    with a recorded run of this image on this GPU model (`baseline`), as far as there are any.

    FAIL: losses are wrong, the peak of memory is too high, or a step takes too long. UNPROVEN: a
    step takes too long, but something disturbed the measurement; times vary too much to be
    compared; or nothing is wrong, but no run is recorded to compare with.
    """
    other_gpu = judge_gpu(expect["gpu"], evidence["device"])
    if other_gpu:
        return other_gpu

    trained = evidence["trained"]
    if not is_finite(trained["time"]["seconds"]):
        return failed(
            "no time of a step could be measured (it is not a number)", MEASUREMENT_FAILED
        )
    times = [trained["time"]]
    if "eager" in evidence:
        times.append(evidence["eager"]["time"])
    summary = summarise(expect, trained)
    problems = [*find_loss_problems(expect, evidence), *find_peak_problems(expect, evidence)]
    delays = list(find_delays(expect, evidence))
    disturbances = list(timing.disturbances(evidence["conditions"], *times))

    # A disturbance, such as another process on the GPU, may be why a step takes too long. It does
    # not explain wrong losses or too much memory.
    is_slow = bool(delays) and not disturbances
    if problems or is_slow:
        reason = f"{joined([*problems, *delays])}{suspects(evidence)}"
        return failed(f"{reason} (measured: {summary})")

    # The more a time varies, the wider is its bound, until any time would be within it.
    is_noisy = any(timed["spread"] > timing.NOISY for timed in times)
    if delays or is_noisy:
        reason = joined([*delays, *disturbances])
        return unproven(f"{reason} (measured: {summary})", calm_gpu(reason))

    if "baseline" not in expect:
        return unproven(
            "times and memory were not judged, as no run of this image on this GPU model is "
            f"recorded to compare them with; the losses are right (measured: {summary})",
            "nothing needs to be done",
        )
    return passed(f"{summary}, as {expect['baseline']['of']}")


def summarise(expect: StepExpect, trained: Trained) -> str:
    """Return in one line what a run needed, and its last loss.

    If the claim has the GPU's peak (operations a second), also the model FLOPs utilisation (MFU):
    the share of the peak that was used. `trained` has the time of a step in seconds, the peak of
    memory in bytes, and the losses.
    """
    utilisation = ""
    if expect.get("peak_operations"):
        share = operations_a_second(trained, expect["rows"]) / expect["peak_operations"]
        utilisation = f" (MFU {share:.2f})"
    milliseconds = trained["time"]["seconds"] * 1e3
    gigabytes = trained["peak"] / 1e9
    losses = trained["losses"]
    # Evidence has a loss that is not finite as text.
    last_loss = float(losses[-1])
    needs = f"{milliseconds:.1f} ms a step{utilisation}, {gigabytes:.1f} GB"
    return f"{needs}, loss {last_loss:.3f} after {len(losses)} steps"


def operations_a_second(trained: Trained, rows: int) -> float:
    """Return how many operations a second the model computed in a step with this many rows.

    Operations that a run computes a second time, to save memory, do not count.
    """
    # For each token: six operations for each weight (forward and backward), and causal attention.
    attention_operations = 6 * _SHAPE["num_hidden_layers"] * _SHAPE["hidden_size"] * _TOKENS
    operations_a_token = 6 * trained["parameters"] + attention_operations
    return float(operations_a_token * rows * _TOKENS / trained["time"]["seconds"])


def find_loss_problems(expect: StepExpect, evidence: StepEvidence) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with the losses of a training.

    They must be finite and fall. They must also be near other losses, where there are such: those
    in float32, the eager model's, and recorded ones. Comparisons are written as `not ... <=`, so
    that NaN is a problem, too.
    """
    losses = evidence["trained"]["losses"]
    yield from find_learning_problems(losses)
    if not all(is_finite(loss) for loss in losses):
        return

    # Compare bfloat16 with float32, on the same weights, before and after training. This was only
    # measured if the trained model is the eager one.
    reference = evidence.get("reference") or {"bfloat16": [], "float32": []}
    for loss, exact in zip(reference["bfloat16"], reference["float32"], strict=True):
        if not abs(loss - exact) <= REFERENCE_SLACK:
            yield (
                f"a loss is {loss:.4f} in bfloat16 and {exact:.4f} in float32, and they may differ "
                f"by at most {REFERENCE_SLACK:g}"
            )

    largest_distance = expect["at_most"].get("loss")
    if "eager" in evidence and largest_distance:
        # Compare step by step. The eager model takes more steps, which are left out.
        pairs = zip(losses, evidence["eager"]["losses"], strict=False)
        distance = max(abs(loss - eager_loss) for loss, eager_loss in pairs)
        if not distance <= largest_distance:
            yield (
                f"losses differ by up to {distance:.3f} from those of the same model without this "
                f"variant (eager), and at most {largest_distance:g} is allowed"
            )

    # Compare the last loss with that of recorded runs.
    if "baseline" in expect:
        baseline = expect["baseline"]
        if not abs(losses[-1] - baseline["loss"]) <= LOSS_SLACK:
            yield (
                f"the last loss is {losses[-1]:.3f}, {_RECORDED} had {baseline['loss']:.3f} "
                f"({baseline['of']}), and at most {LOSS_SLACK:g} of difference is allowed"
            )


def find_learning_problems(losses: Sequence[float]) -> Iterator[str]:
    """Yield why a model did not learn: a loss is not finite, or the losses do not fall."""
    not_finite = [loss for loss in losses if not is_finite(loss)]
    if not_finite:
        yield f"a loss is {not_finite[0]}, and must be a number"
    elif losses[-1] >= losses[0] - LEAST_FALL:
        fall = f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f}"
        yield f"{fall}, and must fall by more than {LEAST_FALL:g}"


def find_peak_problems(expect: StepExpect, evidence: StepEvidence) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with a training's peak of GPU memory, in bytes.

    It must be above 0. It may be at most as high as two bounds, where there is something to compare
    with: a share of the eager model's peak (0.8), and PEAK_SLACK times the peak of recorded runs.
    Comparisons are written as `not ...`, so that NaN is a problem, too.
    """
    peak = evidence["trained"]["peak"]
    if not peak > 0:
        yield "torch's allocator counted no GPU memory at all"

    share = expect["at_most"].get("peak")
    if "eager" in evidence and share:
        eager_peak = evidence["eager"]["peak"]
        if not eager_peak > 0:
            yield "torch's allocator counted no GPU memory of the eager model"
        elif not peak <= share * eager_peak:
            actual_share = peak / eager_peak
            yield (
                f"its peak of memory is {actual_share:.2f} of the eager model's, and at most "
                f"{share:g} is allowed"
            )

    if "baseline" in expect:
        baseline = expect["baseline"]
        most = PEAK_SLACK * baseline["peak"]
        if not peak <= most:
            yield (
                f"{_RECORDED} took {baseline['peak'] / 1e9:.1f} GB ({baseline['of']}), and at most "
                f"{most / 1e9:.1f} GB is allowed"
            )


def find_delays(expect: StepExpect, evidence: StepEvidence) -> Iterator[str]:
    """Yield a sentence for each comparison by which a training step is too slow.

    A step is compared with one of the eager model, if that ran, and with recorded steps of this
    image on this GPU model, if there are such. `longest_allowed` returns such a time, lengthened by
    as much as both times vary and by a margin (0.1: a tenth).
    """
    timed = evidence["trained"]["time"]
    seconds = timed["seconds"]

    # The claim says which share of the eager model's time a step may take: 0.97. The eager model
    # ran on the same GPU just before, so no margin is needed between machines.
    share = expect["at_most"].get("seconds")
    if "eager" in evidence and share:
        eager = evidence["eager"]["time"]
        # `not ... <=`, because NaN must not pass.
        if not seconds <= share * timing.longest_allowed(eager, timed, margin=0.0):
            actual_share = seconds / eager["seconds"]
            longer = f"a step takes {actual_share:.2f} of the eager model's time"
            yield f"{longer}, and at most {share:g} is allowed"

    # Recorded runs were on another day, and maybe on another machine with this GPU model.
    if "baseline" in expect:
        baseline = expect["baseline"]
        most = timing.longest_allowed(baseline["time"], timed, margin=timing.MARGIN)
        if not seconds <= most:
            milliseconds = baseline["time"]["seconds"] * 1e3
            recorded = (
                f"{_RECORDED} took {milliseconds:.1f} ms a step (by image ID: {baseline['of']})"
            )
            yield f"{recorded}, and at most {most * 1e3:.1f} ms is allowed"


CLAIMS = {"step": judge}
_PIN = pin(
    "the releases of torch, transformers, bitsandbytes and liger-kernel before the last change"
)
_AGAIN_THEN_PIN = f"measure again on a GPU that nothing else uses; if it fails there, too, {_PIN}"
NEXT_STEPS = {
    "step": {
        " ms is allowed": _AGAIN_THEN_PIN,
        "model's time": _AGAIN_THEN_PIN,
        "": _PIN,
    }
}
