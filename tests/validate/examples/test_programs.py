"""What the programs of examples/ are held to, where the installed Trainer decides it."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from validate.examples import programs
from validate.examples.run import Run


class Former:
    def get_batch_samples(self) -> None:
        """Of transformers 4.50: `sum((batch["labels"].ne(-100)).sum() for batch in batch_samples)`."""


class Present:
    get_batch_samples = Former.get_batch_samples

    def _get_num_items_in_batch(self) -> None:
        """Of transformers 5.16: `batch["labels"][..., 1:]`."""


@pytest.mark.parametrize(("trainer", "counts"), [(Former, True), (Present, False)])
def test_losses_are_divided_as_the_installed_trainer_divides_them(
    trainer: type, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(Trainer=trainer))  # type: ignore[arg-type]
    assert programs.does_trainer_count_all_labels() is counts


def test_what_dpo_saved_is_read_as_pairs_of_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = SimpleNamespace(to=lambda _device: model, eval=lambda: model)
    loads = SimpleNamespace(from_pretrained=lambda *_where: model)
    fakes = {
        "transformers": SimpleNamespace(AutoModelForCausalLM=loads),
        "peft": SimpleNamespace(PeftModel=loads),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, cast("Any", fake))
    for name in (
        "read_preference_rows",
        "shuffle_row_numbers",
        "pad_batches",
        "draw_adapters",
        "read_shape",
    ):
        monkeypatch.setattr(programs, name, lambda *_given: [])
    halves = {f"base_model.model.q_proj.lora_{half}.weight": half for half in "AB"}
    monkeypatch.setattr(
        programs,
        "read_tensors",
        lambda folder: halves if folder.name == "adapter" else {"q_proj": "W"},
    )
    training = {"seed": 1, "per_device_train_batch_size": 4, "max_steps": 20, "learning_rate": 2e-3}
    config = {
        "model": "tiny",
        "data": "rows",
        "out": "out",
        "beta": 0.1,
        "lora": {},
        "training": training,
    }
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result.json").write_text(
        json.dumps({"losses": [0.7], "saved": "out/adapter"})
    )
    example = Run(
        folder=tmp_path, config=config, example={}, device="cpu", seconds=1.0, inductor_modules=0
    )
    found = programs.read_preferences(example)
    assert (found.saved, found.start, found.dpo_beta) == (
        {"q_proj": ("A", "B")},
        {"q_proj": "W"},
        0.1,
    )
