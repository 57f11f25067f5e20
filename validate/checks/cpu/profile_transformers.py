"""framework/device-map of the transformers profile: a tiny Llama is placed whole, and with a part of it on disk.

The profile's examples (cpu-examples) train with the Trainer, in mixed precision and compiled.
"""

import importlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

from validate.checks._behaviour import judge_figures
from validate.claims import Claim
from validate.harness.forked import measure_claimed_subjects
from validate.harness.saved_llama import SavedLlama
from validate.judging import Finding

_KEPT_SHARE = 0.6
"""Of the model's bytes: what memory may hold, so that the rest must be placed elsewhere."""


SAME_LOGITS = 1e-4
"""The largest deviation of float32 logits of order 1 to 10 that another path may give."""
OTHER_LOGITS = 0.01
"""The least deviation of a control: a result 1 % off is 0.05 away (measured with torch 2.8)."""


class DeviceMapEvidence(TypedDict):
    """A model that is placed whole, and one of which memory can't hold a part."""

    devices: list[str]
    unplaced: int
    deviation: float
    split_devices: list[str]
    split_deviation: float
    split_control: float


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, DeviceMapEvidence]]:
    """Yield the evidence of the subject `device-map`."""
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        yield from measure_claimed_subjects(
            claims, {"device-map": lambda: _device_map(Path(folder))}
        )


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
        "devices": sorted(
            {*map(str, getattr(whole, "hf_device_map", {"": whole.device}).values())}
        ),
        "unplaced": sum(parameter.device.type == "meta" for parameter in whole.parameters()),
        "deviation": float((_logits(whole, llama) - plain).abs().max()),
        "split_devices": sorted({str(device) for device in split.hf_device_map.values()}),
        "split_deviation": float((split_logits - plain).abs().max()),
        "split_control": float((torch.roll(split_logits, 1, -1) - plain).abs().max()),
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


CLAIMS = {"framework/device-map": judge_device_map}
