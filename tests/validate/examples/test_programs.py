"""What is read of the programs in examples/, as far as their frameworks need not be installed."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from validate.examples import programs
from validate.examples.run import Run


class TrainerOf450:
    """The method of transformers 4.50 that counts labels. Its source is what is looked at."""

    def get_batch_samples(self) -> None:
        """`sum((batch["labels"].ne(-100)).sum() for batch in batch_samples)`."""


class TrainerOf516:
    """The methods of transformers 5.16, of which the second counts labels."""

    get_batch_samples = TrainerOf450.get_batch_samples

    def _get_num_items_in_batch(self) -> None:
        """`batch["labels"][..., 1:]`."""


@pytest.mark.parametrize(
    ("trainer", "counts_all_labels"), [(TrainerOf450, True), (TrainerOf516, False)]
)
def test_losses_are_divided_as_the_installed_trainer_divides_them(
    trainer: type, counts_all_labels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers: Any = SimpleNamespace(Trainer=trainer)
    monkeypatch.setitem(sys.modules, "transformers", transformers)

    assert programs.does_trainer_count_all_labels() is counts_all_labels


CONFIG_OF_DPO = {
    "model": "tiny",
    "data": "rows",
    "out": "out",
    "beta": 0.1,
    "lora": {},
    "training": {
        "seed": 1,
        "per_device_train_batch_size": 4,
        "max_steps": 20,
        "learning_rate": 2e-3,
    },
}


def replace_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace everything for which read_preferences needs torch, transformers or peft."""
    model: Any = SimpleNamespace(to=lambda _device: model, eval=lambda: model)
    loader = SimpleNamespace(from_pretrained=lambda *_arguments: model)
    fakes = {
        "transformers": SimpleNamespace(AutoModelForCausalLM=loader),
        "peft": SimpleNamespace(PeftModel=loader),
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
        monkeypatch.setattr(programs, name, lambda *_arguments: [])


def test_the_adapters_that_dpo_saved_are_read_as_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_tensors = {
        "base_model.model.q_proj.lora_A.weight": "A",
        "base_model.model.q_proj.lora_B.weight": "B",
    }
    weights_before = {"q_proj": "W"}
    replace_frameworks(monkeypatch)
    monkeypatch.setattr(
        programs,
        "read_tensors",
        lambda folder: saved_tensors if folder.name == "adapter" else weights_before,
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result.json").write_text(
        json.dumps({"losses": [0.7], "saved": "out/adapter"})
    )
    run = Run(
        folder=tmp_path,
        config=CONFIG_OF_DPO,
        example={},
        device="cpu",
        seconds=1.0,
        inductor_modules=0,
    )

    result = programs.read_preferences(run)

    assert result.saved == {"q_proj": ("A", "B")}
    assert result.start == weights_before
    assert result.dpo_beta == 0.1
