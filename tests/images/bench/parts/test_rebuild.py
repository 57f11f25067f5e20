"""The moment in which a candidate is in the engine."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from images.bench.parts import rebuild
from images.engine import Engine
from images.errors import Problem, UserError


def appears(after: int) -> Engine:
    """An engine that has an image from the `after`th question on."""
    asked = iter(range(after))
    return SimpleNamespace(  # type: ignore[return-value]
        find=lambda _name: None if next(asked, None) is not None else "image", untag=lambda _name: None
    )


def test_the_first_moment_of_a_candidate_is_seen() -> None:
    start = time.monotonic()
    with rebuild.watched(appears(1), "one-candidate") as seen:
        for _ in range(1000):
            if not seen:
                time.sleep(0.05)
    assert 0.15 < seen[0] < time.monotonic() - start


def test_a_candidate_that_nobody_saw_has_no_time() -> None:
    with pytest.raises(UserError, match="never seen") as told, rebuild.watched(appears(1000), "one-candidate"):
        pass
    assert told.value.problems[0].then == "`nox -s bench -- --only rebuild` measures it again"


def test_what_the_engine_says_to_who_watches_for_a_candidate_is_told() -> None:
    asked = threading.Event()

    def find(_name: str) -> None:
        asked.set()
        raise UserError(Problem(where="engine", cause="went away"), code=1)

    engine: Any = SimpleNamespace(find=find, untag=lambda _name: None)
    with pytest.raises(UserError, match="engine: went away"), rebuild.watched(engine, "one-candidate"):
        assert asked.wait(60)
