"""What the programs of examples/ are held to, where the installed Trainer decides it."""

import sys
from types import SimpleNamespace

import pytest

from validate.examples import programs


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
    assert programs._counts_first_labels() is counts
