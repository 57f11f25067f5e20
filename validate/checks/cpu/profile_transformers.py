"""P1 of the transformers profile: placing a model, mixed precision, compiling one, and the Trainer, on a tiny Llama.

Each comparison comes with a control, so that a feature that quietly does nothing is told apart.
"""

import importlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.claims import Claim
from validate.harness.forked import asked
from validate.harness.saved_llama import LEARNING_RATE, SavedLlama, make_trainer

_STEPS = 8
_KEPT_SHARE = 0.6
"""Of the model's bytes: what memory may hold, so that the rest must be placed elsewhere."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of the subjects asked for: `device-map`, `mixed-precision`, `compile`, `trainer`."""
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        yield from asked(
            claims,
            {
                "device-map": lambda: _device_map(Path(folder, "device-map")),
                "mixed-precision": lambda: _mixed_precision(Path(folder, "mixed-precision")),
                "compile": lambda: _compiled(Path(folder, "compile")),
                "trainer": lambda: _trainer(Path(folder, "trainer")),
            },
        )


def _device_map(folder: Path) -> BehaviourEvidence:
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


def _mixed_precision(folder: Path) -> BehaviourEvidence:
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


def _compiled(folder: Path) -> BehaviourEvidence:
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


def _trainer(folder: Path) -> BehaviourEvidence:
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


CLAIMS = {"P1": judge}
