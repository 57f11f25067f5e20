"""framework/device-map: check that transformers places models in memory and on disk.

The other claims of the transformers profile are its examples (cpu-examples), which train with the
Trainer, in mixed precision and compiled.
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
from validate.next_steps import pin

_MEMORY_SHARE = 0.6
"""The share of the model's bytes that memory may hold, so that the rest must go to disk."""


SAME_LOGITS = 1e-4
"""The largest difference of float32 logits of order 1 to 10 that are computed in another order."""
OTHER_LOGITS = 0.01
"""The least difference of the control. A result 1 % off is 0.05 away (measured with torch 2.8)."""


class DeviceMapEvidence(TypedDict):
    """How two models were placed, and how far their logits are from those of plain loading."""

    devices: list[str]  # of the model that is placed whole
    unplaced: int  # its parameters that are on no device
    deviation: float  # of its logits, the largest
    split_devices: list[str]  # of the model of which a part does not fit into memory
    split_deviation: float  # of its logits, the largest
    split_control: float  # the same of logits that are wrong on purpose


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, DeviceMapEvidence]]:
    """Yield `device-map` and its evidence, if it is claimed."""
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        measures = {"device-map": lambda: place_models(Path(folder))}
        yield from measure_claimed_subjects(claims, measures)


def place_models(folder: Path) -> DeviceMapEvidence:
    """Load a tiny Llama with `device_map="auto"`, and compare its logits with a plain load.

    It is loaded twice: with enough memory, and with too little. With too little, transformers puts
    some layers on disk in `folder`, and loads them as they run.
    """
    torch = importlib.import_module("torch")
    automodel = importlib.import_module("transformers").AutoModelForCausalLM
    llama = SavedLlama(folder / "model")
    plain_logits = compute_logits(automodel.from_pretrained(llama.folder), llama)

    # Try it with enough memory.
    whole = automodel.from_pretrained(llama.folder, device_map="auto")
    whole_logits = compute_logits(whole, llama)
    # Part of the model ("": all of it) -> its device. Newer releases of transformers set this only
    # for a model on several devices.
    device_map = getattr(whole, "hf_device_map", {"": whole.device})
    # Parameters without data stayed on the device `meta`.
    unplaced = sum(parameter.device.type == "meta" for parameter in whole.parameters())

    # Try it with too little memory.
    model_bytes = sum(tensor.numel() * tensor.element_size() for tensor in llama.saved.values())
    split = automodel.from_pretrained(
        llama.folder,
        device_map="auto",
        max_memory={"cpu": int(model_bytes * _MEMORY_SHARE)},
        offload_folder=str(folder / "offload"),
    )
    split_logits = compute_logits(split, llama)
    # The control, wrong logits that the judge must notice: each is its neighbour's.
    shifted_logits = torch.roll(split_logits, 1, -1)

    return {
        "devices": sorted({str(device) for device in device_map.values()}),
        "unplaced": unplaced,
        "deviation": largest_deviation(whole_logits, plain_logits),
        "split_devices": sorted({str(device) for device in split.hf_device_map.values()}),
        "split_deviation": largest_deviation(split_logits, plain_logits),
        "split_control": largest_deviation(shifted_logits, plain_logits),
    }


def largest_deviation(logits: Any, plain_logits: Any) -> float:
    """Return the largest absolute difference of two tensors."""
    return float((logits - plain_logits).abs().max())


def compute_logits(model: Any, llama: SavedLlama) -> Any:
    """Return the logits that a model computes for the tokens of `llama`, in float32."""
    with importlib.import_module("torch").no_grad():
        return model.eval()(llama.tokens).logits.float().cpu()


def judge_device_map(_subject: str, _expect: object, evidence: DeviceMapEvidence) -> Finding:
    """Pass if a model that was loaded with `device_map="auto"` computes what it does otherwise.

    It was loaded twice: with enough memory, and with too little, so that a part lies on the disk.
    Both must be placed so. The control, wrong logits, must be far from the right ones.
    """
    return judge_figures(
        evidence,
        equal={"unplaced": 0, "devices": ["cpu"], "split_devices": ["cpu", "disk"]},
        at_most={"deviation": SAME_LOGITS, "split_deviation": SAME_LOGITS},
        at_least={"split_control": OTHER_LOGITS},
    )


CLAIMS = {"framework/device-map": judge_device_map}
NEXT_STEPS = {
    "framework/device-map": pin("another release of accelerate or transformers")
    + '; until then, load models without `device_map="auto"`'
}
