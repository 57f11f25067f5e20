"""A trial's containers: what they may use, and what happens where the engine may not set a limit."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from images.engine import ContainerSpec, EngineError, EngineErrorKind, Exit
from images.errors import Problem
from images.validation import trial
from validate.claims import ClaimSet

IMAGE: Any = SimpleNamespace(id="sha256:1", tags=("a:1",), env={})


class Engine:
    """Refuses containers with limits for one reason; the suite prints one record in any other."""

    facts = SimpleNamespace(memory=1 << 34, cpus=2)

    def __init__(self, kind: EngineErrorKind) -> None:
        self.kind = kind
        self.specs: list[ContainerSpec] = []

    @contextmanager
    def container(self, spec: ContainerSpec) -> Iterator[SimpleNamespace]:
        self.specs.append(spec)
        if spec.ulimits:
            raise EngineError(Problem(where="a:1", cause="the engine says: no"), self.kind)
        yield SimpleNamespace(
            put=lambda *_: None,
            start=lambda: None,
            lines=lambda timeout: iter([SimpleNamespace(stream="stdout", text="record")]),
            wait=lambda timeout: Exit(code=0, oom=False, error=""),
        )


def measured(engine: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run ranks on an engine. Why they have not the limits that they should have."""
    monkeypatch.setattr(trial, "_record", lambda _line: SimpleNamespace())
    plan = trial._ContainerPlan(claims=ClaimSet(image="a", claims=()), ranks=True)
    return trial._run_suite(engine, IMAGE, plan, trial.Trial(tiers=()))[2]


def test_ranks_run_without_limits_where_the_engine_may_not_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(EngineErrorKind.ULIMIT)
    assert measured(engine, monkeypatch) == "the engine says: no"
    assert [spec.ulimits for spec in engine.specs] == [trial.RANKS_ULIMITS, {}]


def test_any_other_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(EngineErrorKind.OTHER)
    with pytest.raises(EngineError):
        measured(engine, monkeypatch)
    assert len(engine.specs) == 1
