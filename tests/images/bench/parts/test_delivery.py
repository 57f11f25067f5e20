"""Where the benchmark `delivery` can be taken, and what is kept of what can't."""

from types import SimpleNamespace
from typing import Any

import pytest

from images.bench import network
from images.bench.data import DeliveryData
from images.bench.parts import delivery
from images.engine import Finished
from images.engine.containers import Exit
from images.errors import Problem, UserError
from tests.support.bench import bench_on


@pytest.mark.parametrize(
    ("free", "told"), [(None, "the engine is on another machine"), (39_000_000_000, "has 39 GB free .* need 40 GB")]
)
def test_an_engine_elsewhere_or_on_a_full_disk_is_refused_with_the_next_command(free: int | None, told: str) -> None:
    with pytest.raises(UserError, match=told.removeprefix("the engine ")) as refused:
        delivery.require_here(free)
    assert "`nox -s bench -- --only delivery`" in refused.value.problems[0].then
    delivery.require_here(40_000_000_000)


def test_what_can_not_be_measured_is_said_and_kept() -> None:
    kept: list[Any] = []
    bench, said = bench_on(SimpleNamespace(), keep=kept.append)
    data: DeliveryData = {"image": "i", "images": {}, "pushes": [], "runs": [], "blocked": []}
    delivery.note(bench, data, "engine 28.5", UserError(Problem(where="mmdebstrap sid", cause="no mirror", then="do")))
    gap = {"what": "engine 28.5", "reason": "mmdebstrap sid: no mirror", "expected": False}
    assert data["blocked"] == [gap] and kept == [data]
    assert said == ["engine 28.5 is not measured: mmdebstrap sid: no mirror"]
    delivery.note(bench, data, "engine 28.5", FileNotFoundError(2, "No such file"), expected=True)
    assert data["blocked"][1]["expected"] and "No such file" in data["blocked"][1]["reason"]


def test_a_pull_that_its_link_can_not_have_passed_is_no_measurement() -> None:
    delivery.require_slower_than("1 Gb/s", 125_000_000 + network.BURST, 1.0)
    delivery.require_slower_than(network.LOOPBACK, 10**12, 0.1)
    with pytest.raises(UserError, match=r"passed 133 MB in 0.8 s, which takes 0.9 s") as refused:
        delivery.require_slower_than("1 Gb/s", 125_000_000 + network.BURST, 0.8)
    assert "`tc qdisc show dev lo`" in refused.value.problems[0].then


def container_that(code: int, stdout: str, stderr: str = "") -> Any:
    done = Finished(exit=Exit(code=code, oom=False, error=""), stdout=stdout, stderr=stderr)

    class Opened:
        def __enter__(self) -> Any:
            return SimpleNamespace(run=lambda _timeout: done)

        def __exit__(self, *_: object) -> None:
            """Nothing was made."""

    return SimpleNamespace(container=lambda _spec: Opened())


def test_a_container_without_a_step_is_no_measurement() -> None:
    with pytest.raises(UserError, match="no training step: ImportError: libcudart"):
        delivery.first_step(container_that(1, "", "ImportError: libcudart"), "image")


def test_a_link_that_the_kernel_does_not_know_is_an_error_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LINKS", {"odd": "none"})
    monkeypatch.setattr(network.shutil, "which", lambda _name: "/bin/false")
    monkeypatch.setattr(
        network.subprocess,
        "run",
        lambda *_a, **_k: SimpleNamespace(returncode=2, stderr="Error: Specified qdisc kind is unknown.\n"),
    )
    with pytest.raises(UserError, match="qdisc kind is unknown"):
        network.shape("odd")
