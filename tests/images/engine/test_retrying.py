"""Which failures are retried, how often, and after which pauses."""

from collections.abc import Callable

import pytest

from images.engine import EngineError, EngineErrorKind
from images.engine.buildkit import BuildEvent, Retrying
from images.engine.client import _transient_push
from images.engine.retrying import Retries
from images.errors import Problem


def failing(*kinds: EngineErrorKind) -> Callable[[], str]:
    """Fails with each of these kinds in turn, then succeeds."""
    left = list(kinds)

    def attempt() -> str:
        if left:
            raise EngineError(Problem(where="here", cause="it failed"), left.pop(0))
        return "done"

    return attempt


def test_a_transient_error_is_retried_after_pauses_that_double() -> None:
    pauses: list[float] = []
    events: list[BuildEvent] = []
    retries = Retries(attempts=3, sleep=pauses.append, on_event=events.append)
    attempt = failing(EngineErrorKind.OTHER, EngineErrorKind.CONNECTION)
    assert retries.run(attempt, _transient_push) == "done"
    assert pauses == [5, 10]
    assert events == [Retrying(attempt=number, of=3, delay=5 * (number - 1), cause="it failed") for number in (2, 3)]


@pytest.mark.parametrize(
    "kind", [EngineErrorKind.NO_SUCH_IMAGE, EngineErrorKind.REGISTRY_REFUSAL, EngineErrorKind.BAD_REFERENCE]
)
def test_a_refusal_is_not_retried(kind: EngineErrorKind) -> None:
    pauses: list[float] = []
    with pytest.raises(EngineError):
        Retries(attempts=3, sleep=pauses.append, on_event=print).run(failing(kind), _transient_push)
    assert pauses == []


def test_the_last_error_is_raised() -> None:
    pauses: list[float] = []
    retries = Retries(attempts=2, sleep=pauses.append, on_event=lambda _event: None)
    with pytest.raises(EngineError):
        retries.run(failing(EngineErrorKind.OTHER, EngineErrorKind.OTHER), _transient_push)
    assert pauses == [5]
