"""What a canary is made of: ranges, facts, and mixtures of old and new versions."""

import pytest

from images.config.schema import Nightly
from images.errors import Problem, UserError
from images.nightly import canary
from images.nightly.canary import Locked
from tests.support.nightly_samples import CONTROL, MOVES, SOURCES, at


def test_held_layers_are_exact_and_pins_move_upward_within_ranges_and_facts() -> None:
    wanted = Nightly(stacks={"2.7": {"torchao": "<0.13"}})
    found = canary.requirements(CONTROL, wanted, {"xformers": ("0.0.32.post2",)}, {"peft": "<1"})
    assert "torch==2.7.1" in found and "triton==3.3.1" in found
    assert "torchao>=0.11.0,<0.13" in found
    assert "xformers>=0.0.31.post1,!=0.0.32.post2" in found
    assert "peft<1" in found
    assert not [line for line in found if line.startswith("flash-attn")]


def test_what_the_facts_speak_against_is_left_out_and_what_they_do_not_know_is_not() -> None:
    found = canary.refused_by_facts(CONTROL.image, SOURCES)
    assert "0.18.0" in found["torchao"]
    assert "0.12.0" not in found["torchao"]
    assert "bitsandbytes" not in found


def test_changes_come_pins_first() -> None:
    names = [one.name for one in canary.changes(CONTROL, at(MOVES))]
    assert names == ["torchao", "transformers", "peft", "liger-kernel", "numpy"]
    assert canary.changes(CONTROL, CONTROL) == ()
    assert at(MOVES).hash != CONTROL.hash == at({}).hash


def test_a_mixture_without_the_wanted_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def others(_control: Locked, chosen: dict[str, str], _run: object) -> Locked:
        return at({**chosen, "numpy": "1.0"})

    monkeypatch.setattr(canary, "relocked", others)
    assert canary.mixed(CONTROL, at(MOVES), frozenset({"numpy"})) is None
    assert canary.mixed(CONTROL, at(MOVES), frozenset({"peft"})) is not None


def test_a_network_that_does_not_answer_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Locked:
        raise UserError(Problem(where="index", cause="can't be reached"), code=1)

    monkeypatch.setattr(canary, "relocked", away)
    with pytest.raises(UserError):
        canary.mixed(CONTROL, at(MOVES), frozenset({"peft"}))
