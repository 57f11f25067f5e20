"""step: a training step that is slower, hungrier or learns otherwise than it did in this image on this GPU model.

A Llama of 1.1 billion parameters (TinyLlama's shape), 2,048 tokens a row, in bfloat16 with fused AdamW, on one batch:
as transformers has it (`eager`), with its layers compiled, with Liger's kernels, and QLoRA over NF4. The loss of the
eager model is held against float32 by plain products, the others' losses, times and peaks against the eager one's, and
all against recorded runs (images/data/baselines.json). Which times count stands in validate/harness/timing.py.
"""

import copy
import gc
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, cast

from validate.checks import Settings
from validate.checks.gpu.speed import of_another_gpu
from validate.claims import Claim
from validate.harness import seeding, timing
from validate.harness.forked import attempt
from validate.harness.timing import Conditions, Timed, Watch
from validate.judging import Finding, failed, is_finite, joined, passed, suspects, unproven
from validate.kernels import runner
from validate.kernels._evidence import DeviceFacts

SETTINGS = Settings(runs_alone=True, time_limit=600)

EAGER = "eager"
STEPS, _OTHERS_STEPS, _WARM = 20, 12, 4
"""Of the eager model, and of the others; the first are not timed."""
_TOKENS, _WORDS = 2048, 256
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
_REHEARSAL = {
    **_SHAPE,
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
}
_RATE, _ADAPTERS_RATE = 1e-4, 1e-3
PEAK_SLACK = 1.05
"""Of a recorded peak: allocations are the same from run to run, libraries' workspaces are not."""
LOSS_SLACK = 0.05
"""Between recorded losses and today's: sums in another order, twenty steps long."""
LEAST_FALL = 0.1
REFERENCE_SLACK = 0.02
"""Between the mean loss in bfloat16 and in float32, on the same weights."""


class Baseline(TypedDict):
    """What recorded runs of the image on this GPU model needed, and which runs these are."""

    time: Timed
    peak: float
    loss: float
    of: str


class _StepExpect(TypedDict):
    gpu: str  # as the driver names it
    rows: int  # of a batch
    at_most: Mapping[
        str, float
    ]  # `seconds`, `peak`: shares of the eager model's; `loss`: how far from its losses


class StepExpect(_StepExpect, total=False):
    """`peak_operations`: of the datasheet, a second."""

    baseline: Baseline
    peak_operations: float


class Trained(TypedDict):
    """What a run needed: seconds a step, bytes of GPU memory at the peak; its losses."""

    time: Timed
    peak: float
    losses: list[float]
    parameters: int


class TrainedAndRead(TypedDict, total=False):
    """A run; `reference`: mean losses on the same weights before and after training, by dtype."""

    trained: Trained
    reference: Mapping[str, list[float]]
    under_load: list[Mapping[str, int]]


class StepEvidence(TrainedAndRead, total=False):
    """`eager`: the eager model's run in this process."""

    eager: Trained
    conditions: Conditions
    device: DeviceFacts
    environment: Mapping[str, str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, StepEvidence]]:
    """Yield the evidence of each subject (`step WAY`) asked for.

    The eager model comes first, Liger, which patches transformers, last.
    """
    before = runner.environment()
    asked = {claim.subject for claim in claims}
    torch, rows = importlib.import_module("torch"), claims[0].expect["rows"]
    with timing.watched(torch) as (watch, conditions):
        eager: TrainedAndRead = {}
        for way in WAYS:
            if way != EAGER and way not in asked:
                continue
            run = attempt(partial(train, way, torch, "cuda", rows, watch))
            under_load = run.pop("under_load", [])
            if way == EAGER:
                eager = run
            if way in asked:
                described = {
                    **run,
                    "device": runner.device_facts(torch),
                    "environment": before,
                    "conditions": {**conditions, "under_load": under_load},
                }
                evidence = cast("StepEvidence", described)
                if way != EAGER and "trained" in eager:
                    evidence["eager"] = eager["trained"]
                yield way, evidence


def train(way: str, torch: Any, device: str, rows: int, watch: Watch) -> TrainedAndRead:
    """Train a new model in one way. `device`: `cpu` is a rehearsal, of a tiny one."""
    gc.collect()
    kept = 0
    if device == "cuda":
        torch.cuda.empty_cache()
        kept = torch.cuda.memory_allocated()  # what compiled code still holds
    torch.manual_seed(
        seeding.FIXED_SEED
    )  # a seed of each run's own moved the last loss by 0.07: more than LOSS_SLACK
    length = _TOKENS if device == "cuda" else 64
    generator = torch.Generator().manual_seed(seeding.FIXED_SEED)
    tokens = torch.randint(0, _WORDS, (rows, length), generator=generator).to(device)
    model, rate = WAYS[way](torch, device)
    moving = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(moving, lr=rate, fused=True)
    reference = {"float32": [_float32_loss(torch, model, tokens)]} if way == EAGER else {}
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses: list[Any] = []

    def step() -> None:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    steps = STEPS if way == EAGER else _OTHERS_STEPS
    times, seen = timing.time_runs(
        torch, step, device, warm=_WARM, repeats=steps - _WARM, watch=watch
    )
    peak = torch.cuda.max_memory_allocated() - kept if device == "cuda" else 0
    said = [float(loss) for loss in losses]
    if way == EAGER:
        with torch.no_grad():
            after = float(model(input_ids=tokens, labels=tokens).loss)
        optimizer.state.clear()  # its moments make room for the model in float32
        reference = {
            "bfloat16": [said[0], after],
            "float32": [*reference["float32"], _float32_loss(torch, model, tokens)],
        }
    trained: Trained = {
        "time": timing.summarise_times(times),
        "peak": peak,
        "losses": said,
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }
    return {"trained": trained, "reference": reference, "under_load": [seen]}


def _float32_loss(torch: Any, model: Any, tokens: Any) -> float:
    """A row at a time, with attention in plain products."""
    attention = importlib.import_module("torch.nn.attention")
    exact = copy.deepcopy(model).float()
    with torch.no_grad(), attention.sdpa_kernel([attention.SDPBackend.MATH]):
        found = [float(exact(input_ids=row[None], labels=row[None]).loss) for row in tokens]
    return sum(found) / len(found)


def _llama(torch: Any, device: str) -> Any:
    """Weights made on the device, by its own generator, in bfloat16."""
    transformers = importlib.import_module("transformers")
    shape = _SHAPE if device == "cuda" else _REHEARSAL
    config = transformers.LlamaConfig(**shape, use_cache=False, attn_implementation="sdpa")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return transformers.LlamaForCausalLM(config).train()
    finally:
        torch.set_default_dtype(before)


def _compiled(torch: Any, device: str) -> tuple[Any, float]:
    """A layer at a time: all are alike, so that one is compiled."""
    model = _llama(torch, device)
    for layer in model.model.layers:
        layer.compile()
    return model, _RATE


def _liger(torch: Any, device: str) -> tuple[Any, float]:
    importlib.import_module("liger_kernel.transformers").apply_liger_kernel_to_llama()
    return _llama(torch, device), _RATE


def _qlora(torch: Any, device: str) -> tuple[Any, float]:
    """Adapters over NF4. The layers are replaced as transformers does while it loads a checkpoint."""
    bitsandbytes, peft = (importlib.import_module(name) for name in ("bitsandbytes", "peft"))
    model = _llama(torch, device)
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, linear in list(block.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    packed = bitsandbytes.nn.Linear4bit(
                        linear.in_features,
                        linear.out_features,
                        bias=False,
                        compute_dtype=torch.bfloat16,
                        quant_type="nf4",
                    )
                    packed.weight = bitsandbytes.nn.Params4bit(
                        linear.weight.detach(), requires_grad=False, quant_type="nf4"
                    )
                    setattr(block, name, packed.to(device))
    model.is_loaded_in_4bit = True
    config = peft.LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(model, config).train(), _ADAPTERS_RATE


WAYS: Mapping[str, Callable[[Any, str], tuple[Any, float]]] = {
    EAGER: lambda torch, device: (_llama(torch, device), _RATE),
    "compiled": _compiled,
    "qlora": _qlora,
    "liger": _liger,
}
"""How a model is made, in the order of measuring, and its learning rate."""


def judge(_subject: str, expect: StepExpect, evidence: StepEvidence) -> Finding:
    """Judge a run. Wrong losses and a higher peak fail; a longer time where nothing disturbed it.

    What holds is unproven where no run of this image on this GPU model is recorded.
    """
    if reason := of_another_gpu(expect["gpu"], evidence["device"]):
        return unproven(reason)

    trained = evidence["trained"]
    times = [trained["time"]]
    if "eager" in evidence:
        times.append(evidence["eager"]["time"])
    summary = _summary(expect, trained)
    wrong = [*_loss_problems(expect, evidence), *_peak_problems(expect, evidence)]
    slow = list(_time_problems(expect, evidence))
    disturbances = list(timing.disturbances(evidence["conditions"], *times))
    if wrong or (slow and not disturbances):
        return failed(f"{summary}: {joined([*wrong, *slow])}{suspects(evidence)}")
    if slow or any(timed["spread"] > timing.NOISY for timed in times):
        return unproven(f"{summary}: {joined([*slow, *disturbances])}")
    if "baseline" not in expect:
        return unproven(
            f"{summary}: nothing is wrong by itself, and no run of it on this GPU model is recorded"
        )
    return passed(f"{summary}, as {expect['baseline']['of']}")


def _summary(expect: StepExpect, trained: Trained) -> str:
    """Write what a run needed."""
    utilisation = ""
    if expect.get("peak_operations"):
        share = operations(trained, expect["rows"]) / expect["peak_operations"]
        utilisation = f" (MFU {share:.2f})"
    losses = trained["losses"]
    return (
        f"{trained['time']['seconds'] * 1e3:.1f} ms a step{utilisation}, {trained['peak'] / 1e9:.1f} GB, "
        f"loss {losses[-1]:.3f} after {len(losses)} steps"
    )


def operations(trained: Trained, rows: int) -> float:
    """Return operations a second of the model itself: six a weight and token, and causal attention's products."""
    attention = 6 * _SHAPE["num_hidden_layers"] * _SHAPE["hidden_size"] * _TOKENS
    return float(
        (6 * trained["parameters"] + attention) * rows * _TOKENS / trained["time"]["seconds"]
    )


def _loss_problems(expect: StepExpect, evidence: StepEvidence) -> Iterator[str]:
    """Yield losses that do not fall, or are not float32's, the eager model's or those that were recorded."""
    losses = evidence["trained"]["losses"]
    not_finite = [loss for loss in losses if not is_finite(loss)]
    if not_finite:
        yield f"a loss is {not_finite[0]}"
        return
    if losses[-1] >= losses[0] - LEAST_FALL:
        yield f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f}"

    reference = evidence.get("reference") or {"bfloat16": [], "float32": []}
    for loss, exact in zip(reference["bfloat16"], reference["float32"], strict=True):
        if not abs(loss - exact) <= REFERENCE_SLACK:
            yield f"a loss is {loss:.4f}, and {exact:.4f} in float32"

    most = expect["at_most"].get("loss")
    if "eager" in evidence and most:
        pairs = zip(losses, evidence["eager"]["losses"], strict=False)
        apart = max(abs(loss - eager_loss) for loss, eager_loss in pairs)
        if not apart <= most:
            yield f"losses are up to {apart:.3f} from the eager model's, {most:g} is allowed"

    if "baseline" in expect:
        baseline = expect["baseline"]
        if not abs(losses[-1] - baseline["loss"]) <= LOSS_SLACK:
            yield f"the loss was {baseline['loss']:.3f} in {baseline['of']}"


def _peak_problems(expect: StepExpect, evidence: StepEvidence) -> Iterator[str]:
    """Yield a peak that is larger than the eager model's allows, or than was recorded."""
    peak = evidence["trained"]["peak"]
    if peak <= 0:
        yield "torch's allocator counted nothing"

    share = expect["at_most"].get("peak")
    if "eager" in evidence and share:
        eager_peak = evidence["eager"]["peak"]
        if not peak <= share * eager_peak:
            yield f"its peak is {peak / eager_peak:.2f} of the eager model's, {share:g} is the most"

    if "baseline" in expect:
        baseline = expect["baseline"]
        if not peak <= PEAK_SLACK * baseline["peak"]:
            yield f"the peak was {baseline['peak'] / 1e9:.1f} GB in {baseline['of']}"


def _time_problems(expect: StepExpect, evidence: StepEvidence) -> Iterator[str]:
    """Yield a time that is longer than the eager model's allows, or than was recorded."""
    timed = evidence["trained"]["time"]
    seconds = timed["seconds"]

    share = expect["at_most"].get("seconds")
    if "eager" in evidence and share:
        eager = evidence["eager"]["time"]
        if not seconds <= share * timing.longest_allowed(eager, timed, 0.0):
            yield f"it takes {seconds / eager['seconds']:.2f} of the eager model's time, {share:g} is the most"

    if "baseline" in expect:
        baseline = expect["baseline"]
        most = timing.longest_allowed(baseline["time"], timed, timing.MARGIN)
        if not seconds <= most:
            recorded = f"{baseline['time']['seconds'] * 1e3:.1f} ms in {baseline['of']}"
            yield f"it took {recorded}, {most * 1e3:.1f} is the most"


CLAIMS = {"step": judge}
