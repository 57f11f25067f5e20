"""framework of the transformers profile: placing a model, mixed precision, compiling one, and the Trainer, on a tiny
Llama.

Each comparison comes with a control, so that a feature that quietly does nothing is told apart.
"""

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from validate.checks._behaviour import judge_figures
from validate.claims import Claim
from validate.harness.forked import asked
from validate.harness.saved_llama import LEARNING_RATE, SavedLlama, make_trainer
from validate.judging import Finding

_STEPS = 8
_KEPT_SHARE = 0.6
"""Of the model's bytes: what memory may hold, so that the rest must be placed elsewhere."""


SAME_LOGITS = 1e-4
"""The largest deviation of float32 logits of order 1 to 10 that another path may give."""
OTHER_LOGITS = 0.01
"""The least deviation of a control: a result 1 % off is 0.05 away (measured with torch 2.8)."""
LEARNED = 0.2
"""The last loss as a share of the first. Eight steps on one batch bring a tiny model below 0.01 (measured)."""


class DeviceMapEvidence(TypedDict):
    """A model that is placed whole, and one of which memory can't hold a part."""

    devices: list[str]
    unplaced: int
    deviation: float
    split_devices: list[str]
    split_deviation: float
    split_control: float


class MixedPrecisionEvidence(TypedDict):
    """The dtypes of products, weights and gradients, and the last loss as a share of the first."""

    products: list[str]
    parameters: list[str]
    gradients: list[str]
    loss_ratio: float


class CompiledEvidence(TypedDict):
    graphs: int
    deviation: float
    control: float


class TrainerEvidence(TypedDict):
    steps: int
    loss_ratio: float
    moved_share: float


Evidence = DeviceMapEvidence | MixedPrecisionEvidence | CompiledEvidence | TrainerEvidence


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Evidence]]:
    """Yield the evidence of the subjects asked for: `device-map`, `mixed-precision`, `compile`, `trainer`."""
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        measures: Mapping[str, Callable[[], Evidence]] = {
            "device-map": lambda: _device_map(Path(folder, "device-map")),
            "mixed-precision": lambda: _mixed_precision(Path(folder, "mixed-precision")),
            "compile": lambda: _compiled(Path(folder, "compile")),
            "trainer": lambda: _trainer(Path(folder, "trainer")),
        }
        yield from asked(claims, measures)


def _device_map(folder: Path) -> DeviceMapEvidence:
    """Placed whole, and placed with too little memory: then layers wait on disk and are brought in as they run."""
    llama, torch = SavedLlama(folder / "model"), importlib.import_module("torch")
    automodel = importlib.import_module("transformers").AutoModelForCausalLM
    plain = _logits(automodel.from_pretrained(llama.folder), llama)
    whole = automodel.from_pretrained(llama.folder, device_map="auto")
    size = sum(tensor.numel() * tensor.element_size() for tensor in llama.saved.values())
    split = automodel.from_pretrained(
        llama.folder,
        device_map="auto",
        max_memory={"cpu": int(size * _KEPT_SHARE)},
        offload_folder=str(folder / "offload"),
    )
    split_logits = _logits(split, llama)
    return {
        # transformers says it of a model that lies in several places, newer ones of no other.
        "devices": sorted({*map(str, getattr(whole, "hf_device_map", {"": whole.device}).values())}),
        "unplaced": sum(parameter.device.type == "meta" for parameter in whole.parameters()),
        "deviation": float((_logits(whole, llama) - plain).abs().max()),
        "split_devices": sorted({str(device) for device in split.hf_device_map.values()}),
        "split_deviation": float((split_logits - plain).abs().max()),
        "split_control": float((torch.roll(split_logits, 1, -1) - plain).abs().max()),
    }


def _mixed_precision(folder: Path) -> MixedPrecisionEvidence:
    """bfloat16 through accelerate: products in bfloat16, weights and gradients in float32, and the loss falls."""
    torch, accelerate = importlib.import_module("torch"), importlib.import_module("accelerate")
    llama = SavedLlama(folder)
    accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
    model = importlib.import_module("transformers").AutoModelForCausalLM.from_pretrained(llama.folder)
    products: set[str] = set()
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda _module, _inputs, out: products.add(str(out.dtype)))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))
    losses = []
    for _ in range(_STEPS):
        loss = model(llama.tokens, labels=llama.tokens).loss
        accelerator.backward(loss)
        gradients = {str(parameter.grad.dtype) for parameter in model.parameters() if parameter.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return {
        "products": sorted(products),
        "parameters": sorted({str(parameter.dtype) for parameter in model.parameters()}),
        "gradients": sorted(gradients),
        "loss_ratio": losses[-1] / losses[0],
    }


def _compiled(folder: Path) -> CompiledEvidence:
    """torch.compile of a transformers model: graphs were captured, none fell back, and the numbers are the same."""
    torch = importlib.import_module("torch")
    llama = SavedLlama(folder)
    model = importlib.import_module("transformers").AutoModelForCausalLM.from_pretrained(llama.folder).eval()
    plain = _logits(model, llama)
    torch._dynamo.reset()
    counters = importlib.import_module("torch._dynamo.utils").counters
    counters.clear()
    logits = _logits(torch.compile(model), llama)
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "deviation": float((logits - plain).abs().max()),
        "control": float((logits * 1.01 - plain).abs().max()),
    }


def _trainer(folder: Path) -> TrainerEvidence:
    """The Trainer from arguments to a checkpoint that can be loaded."""
    transformers = importlib.import_module("transformers")
    llama = SavedLlama(folder / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(llama.folder)
    rows = [{"input_ids": row, "labels": row} for row in llama.tokens]
    saving = {"logging_steps": 1, "save_strategy": "no"}
    trainer = make_trainer(model, folder / "out", rows, max_steps=_STEPS, per_device_train_batch_size=2, **saving)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    trainer.save_model(str(folder / "trained"))
    trained = transformers.AutoModelForCausalLM.from_pretrained(folder / "trained")
    moved = [
        name
        for name, value in trained.state_dict().items()
        if not value.equal(llama.saved[name])  # a copy of what was there is no training
    ]
    return {
        "steps": trainer.state.global_step,
        "loss_ratio": losses[-1] / losses[0],
        "moved_share": len(moved) / len(llama.saved),
    }


def _logits(model: Any, llama: SavedLlama) -> Any:
    with importlib.import_module("torch").no_grad():
        return model.eval()(llama.tokens).logits.float().cpu()


def judge_device_map(_subject: str, _expect: object, evidence: DeviceMapEvidence) -> Finding:
    """Judge that all is placed, on disk too, and computes the same."""
    return judge_figures(
        evidence,
        equal={"unplaced": 0, "devices": ["cpu"], "split_devices": ["cpu", "disk"]},
        at_most={"deviation": SAME_LOGITS, "split_deviation": SAME_LOGITS},
        at_least={"split_control": OTHER_LOGITS},
    )


def judge_mixed_precision(_subject: str, _expect: object, evidence: MixedPrecisionEvidence) -> Finding:
    """Judge the dtypes, and that the loss falls."""
    return judge_figures(
        evidence,
        equal={
            "products": ["torch.bfloat16"],
            "parameters": ["torch.float32"],
            "gradients": ["torch.float32"],
        },
        at_most={"loss_ratio": LEARNED},
    )


def judge_compiled(_subject: str, _expect: object, evidence: CompiledEvidence) -> Finding:
    """Judge that graphs were captured, and compute the same."""
    return judge_figures(
        evidence,
        at_most={"deviation": SAME_LOGITS},
        at_least={"graphs": 1, "control": OTHER_LOGITS},
    )


def judge_trainer(_subject: str, _expect: object, evidence: TrainerEvidence) -> Finding:
    """Judge that the Trainer took all steps, learned, and moved every weight."""
    return judge_figures(
        evidence,
        equal={"steps": _STEPS},
        at_most={"loss_ratio": LEARNED},
        at_least={"moved_share": 0.99},
    )


CLAIMS = {
    "framework/device-map": judge_device_map,
    "framework/mixed-precision": judge_mixed_precision,
    "framework/compile": judge_compiled,
    "framework/trainer": judge_trainer,
}
