"""What is made of an example's run, where no torch is needed for it."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from validate.examples import evidence
from validate.examples.trained import Adapters, Optimiser, Trained
from validate.harness.reference import Shape


class _Logits(float):
    def float(self) -> _Logits:
        return self

    def cpu(self) -> _Logits:
        return self


@pytest.mark.parametrize(("read_over", "deviation"), [(None, 2.0), ({"weight": 3.0}, 0.0)])
def test_what_is_loaded_again_is_held_against_what_it_was_read_over(
    read_over: Any, deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", cast("Any", SimpleNamespace(no_grad=nullcontext)))
    monkeypatch.setattr(evidence, "_logits", lambda _trained, weights, _tokens: weights["weight"])
    monkeypatch.setattr(evidence, "_far", lambda found, wanted: abs(found - wanted))
    trained = Trained(
        losses=[],
        shape=Shape(),
        start={"weight": 1.0},
        read_over=read_over,
        batches=[([1], [1])],
        optimiser=Optimiser(rate=1.0),
        saved={},
        adapters=Adapters(scale=1.0, start={}),
        reload=lambda _tokens: _Logits(3.0),
    )
    assert evidence._read_back(trained)["reload_deviation"] == deviation
