"""Trials side by side: results in order, an error that lets the others end, an interrupt that ends them."""

import importlib
import threading

import pytest

from images.errors import Problem, UserError
from images.nightly.together import together


def test_results_come_in_the_order_of_the_work() -> None:
    second_is_done = threading.Event()

    def first() -> str:
        assert second_is_done.wait(60)
        return "first"

    def second() -> str:
        second_is_done.set()
        return "second"

    assert together([first, second], lambda: None) == ["first", "second"]


def test_an_error_of_one_lets_the_others_end() -> None:
    failed, ended = threading.Event(), []

    def fails() -> str:
        failed.set()
        raise UserError(Problem(where="x", cause="no network", then="mend it"))

    def works() -> str:
        assert failed.wait(60)
        ended.append("worked")
        return ""

    with pytest.raises(UserError, match="no network"):
        together([fails, works], lambda: ended.append("cancelled"))
    assert ended == ["worked"]


def test_an_interrupt_ends_the_trials_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled, goes, ended = threading.Event(), threading.Event(), threading.Event()

    def goes_on() -> None:
        goes.set()
        if cancelled.wait(60):
            ended.set()

    def interrupted(_running: object) -> None:
        assert goes.wait(60)
        raise KeyboardInterrupt

    module = importlib.import_module("images.nightly.together")
    monkeypatch.setattr(module, "wait", interrupted)  # a worker of xdist ignores the signal
    with pytest.raises(KeyboardInterrupt):
        together([goes_on, goes_on], cancelled.set)
    assert ended.is_set()
