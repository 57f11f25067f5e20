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
from typing import Any

from validate.checks import Settings
from validate.checks.gpu.speed import of_another_gpu
from validate.claims import Claim
from validate.harness import drawn, timing
from validate.harness.forked import attempt
from validate.harness.timing import Watch
from validate.judging import Finding, failed, is_finite, joined, passed, suspects, unproven
from validate.kernels import runner

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
_REHEARSAL = {**_SHAPE, "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
_RATE, _ADAPTERS_RATE = 1e-4, 1e-3
PEAK_SLACK = 1.05
"""Of a recorded peak: allocations are the same from run to run, libraries' workspaces are not."""
LOSS_SLACK = 0.05
"""Between recorded losses and today's: sums in another order, twenty steps long."""
LEAST_FALL = 0.1
REFERENCE_SLACK = 0.02
"""Between the mean loss in bfloat16 and in float32, on the same weights."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of each subject (`step WAY`) asked for; the eager one comes first, Liger, which patches
    transformers, last."""
    before = runner.environment()
    asked = {claim.subject for claim in claims}
    torch, rows = importlib.import_module("torch"), claims[0].expect["rows"]
    with timing.watched(torch) as (watch, conditions):
        eager: Mapping[str, Any] = {}
        for way in WAYS:
            if way != EAGER and way not in asked:
                continue
            found = attempt(partial(train, way, torch, "cuda", rows, watch))
            eager = found if way == EAGER else eager
            seen = {**conditions, "under_load": found.pop("under_load", [])}
            beside = {"eager": eager["trained"]} if way != EAGER and "trained" in eager else {}
            if way in asked:
                device = {"device": runner.device_facts(torch), "environment": before}
                yield way, {**found, **beside, **device, "conditions": seen}


def train(way: str, torch: Any, device: str, rows: int, watch: Watch) -> dict[str, Any]:
    """Train a new model in one way. `device`: `cpu` is a rehearsal, of a tiny one."""
    gc.collect()
    kept = 0
    if device == "cuda":
        torch.cuda.empty_cache()
        kept = torch.cuda.memory_allocated()  # what compiled code still holds
    torch.manual_seed(drawn.ALWAYS)  # a seed of each run's own moved the last loss by 0.07: more than LOSS_SLACK
    length = _TOKENS if device == "cuda" else 64
    generator = torch.Generator().manual_seed(drawn.ALWAYS)
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
    times, seen = timing.times(torch, step, device, warm=_WARM, repeats=steps - _WARM, watch=watch)
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
    trained = {
        "time": timing.robust(times),
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
    config = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config).train(), _ADAPTERS_RATE


WAYS: Mapping[str, Callable[[Any, str], tuple[Any, float]]] = {
    EAGER: lambda torch, device: (_llama(torch, device), _RATE),
    "compiled": _compiled,
    "qlora": _qlora,
    "liger": _liger,
}
"""How a model is made, in the order of measuring, and its learning rate."""


def judge(_subject: str, expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Finding:
    """step. Wrong losses and a higher peak fail; a longer time where nothing disturbed it. What holds is unproven
    where no run of this image on this GPU model is recorded.

    expect: {gpu: as the driver names it; rows: of a batch; at_most: `seconds` and `peak` as a share of the eager
    model's, `loss`: how far losses may be from its; baseline?: {time, peak, loss, of: which runs};
    peak_operations?: of the datasheet, a second}. evidence: {trained: {time, peak: bytes of GPU memory, losses,
    parameters}; eager?: the same of the eager model in this process;
    reference: `bfloat16` and `float32`, the mean loss on the same weights before and after training; conditions,
    device, environment}."""
    if reason := of_another_gpu(expect, evidence):
        return unproven(reason)
    trained = evidence["trained"]
    told = f"{trained['time']['seconds'] * 1e3:.1f} ms a step"
    if expect.get("peak_operations"):
        told += f" (MFU {operations(trained, expect['rows']) / expect['peak_operations']:.2f})"
    told += f", {trained['peak'] / 1e9:.1f} GB, loss {trained['losses'][-1]:.3f} after {len(trained['losses'])} steps"
    wrong = [*_loss_problems(expect, evidence), *_peak_problems(expect, evidence)]
    slow = list(_time_problems(expect, evidence))
    times = [trained["time"], *([evidence["eager"]["time"]] if "eager" in evidence else [])]
    why = list(timing.disturbances(evidence["conditions"], *times))
    if wrong or (slow and not why):
        return failed(f"{told}: {joined([*wrong, *slow])}{suspects(evidence)}")
    if slow or any(one["spread"] > timing.NOISY for one in times):
        return unproven(f"{told}: {joined([*slow, *why])}")
    if "baseline" not in expect:
        return unproven(f"{told}: nothing is wrong by itself, and no run of it on this GPU model is recorded")
    return passed(f"{told}, as {expect['baseline']['of']}")


def operations(trained: Mapping[str, Any], rows: int) -> float:
    """Operations a second of the model itself: six a weight and token, and causal attention's products."""
    attention = 6 * _SHAPE["num_hidden_layers"] * _SHAPE["hidden_size"] * _TOKENS
    return float((6 * trained["parameters"] + attention) * rows * _TOKENS / trained["time"]["seconds"])


def _loss_problems(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    losses = evidence["trained"]["losses"]
    if not all(is_finite(loss) for loss in losses):
        yield f"a loss is {next(loss for loss in losses if not is_finite(loss))}"
        return
    if losses[-1] >= losses[0] - LEAST_FALL:
        yield f"the loss goes from {losses[0]:.3f} to {losses[-1]:.3f}"
    reference = evidence.get("reference") or {"bfloat16": [], "float32": []}
    for found, wanted in zip(reference["bfloat16"], reference["float32"], strict=True):
        if not abs(found - wanted) <= REFERENCE_SLACK:
            yield f"a loss is {found:.4f}, and {wanted:.4f} in float32"
    eager, baseline = evidence.get("eager"), expect.get("baseline")
    if eager and (most := expect["at_most"].get("loss")):
        apart = max(abs(one - other) for one, other in zip(losses, eager["losses"], strict=False))
        if not apart <= most:
            yield f"losses are up to {apart:.3f} from the eager model's, {most:g} is allowed"
    if baseline and not abs(losses[-1] - baseline["loss"]) <= LOSS_SLACK:
        yield f"the loss was {baseline['loss']:.3f} in {baseline['of']}"


def _peak_problems(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    peak, eager, baseline = evidence["trained"]["peak"], evidence.get("eager"), expect.get("baseline")
    if peak <= 0:
        yield "torch's allocator counted nothing"
    share = expect["at_most"].get("peak")
    if eager and share and not peak <= share * eager["peak"]:
        yield f"its peak is {peak / eager['peak']:.2f} of the eager model's, {share:g} is the most"
    if baseline and not peak <= PEAK_SLACK * baseline["peak"]:
        yield f"the peak was {baseline['peak'] / 1e9:.1f} GB in {baseline['of']}"


def _time_problems(expect: Mapping[str, Any], evidence: Mapping[str, Any]) -> Iterator[str]:
    now, eager, baseline = evidence["trained"]["time"], evidence.get("eager"), expect.get("baseline")
    seconds, share = now["seconds"], expect["at_most"].get("seconds")
    if eager and share and not seconds <= share * timing.allowed(eager["time"], now, 0.0):
        yield f"it takes {seconds / eager['time']['seconds']:.2f} of the eager model's time, {share:g} is the most"
    most = timing.allowed(baseline["time"], now, timing.MARGIN) if baseline else seconds
    if baseline and not seconds <= most:
        yield f"it took {baseline['time']['seconds'] * 1e3:.1f} ms in {baseline['of']}, {most * 1e3:.1f} is the most"


CLAIMS = {"step": judge}
