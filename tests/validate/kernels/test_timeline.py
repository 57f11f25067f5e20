"""What ran when, told apart by spins on the device."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from validate.kernels import _timeline
from validate.kernels._timeline import ASKED, PLAIN, Timeline

GEMM, OWN, COPY = "nvjet_tst", "flash_fwd", "at::native::copy"
SPIN = "at::cuda::spin_kernel(long)"


def test_kernels_that_plain_torch_runs_too_are_not_the_kernels_own() -> None:
    stretches = [None, ("a", PLAIN), ("a", ASKED), None]
    found = _timeline.described([SPIN, "setup", SPIN, GEMM, COPY, SPIN, OWN, COPY, SPIN, "later"], stretches, ["flash"])
    assert found["ran"] == {"a": [OWN]}
    assert found["matching"] == {"flash": [OWN]}
    assert found["works"]


def test_a_fallback_to_what_plain_torch_runs_leaves_nothing() -> None:
    found = _timeline.described([SPIN, GEMM, SPIN, GEMM], [("a", PLAIN), ("a", ASKED)], [])
    assert found["ran"] == {"a": []}


def test_cases_do_not_share_what_ran() -> None:
    stretches = [("a", PLAIN), ("a", ASKED), ("b", PLAIN), ("b", ASKED)]
    found = _timeline.described([SPIN, GEMM, SPIN, OWN, SPIN, OWN, SPIN, GEMM], stretches, [])
    assert found["ran"] == {"a": [OWN], "b": [GEMM]}


@pytest.mark.parametrize("names", [[], [OWN], [SPIN, OWN], [SPIN, SPIN, SPIN]])
def test_a_spin_that_the_profiler_lost_or_made_up_leaves_nothing_told(names: list[str]) -> None:
    found = _timeline.described(names, [("a", ASKED), None], [])
    assert not found["works"]
    assert "ran" not in found


class FakeGpu:
    """A device that records what runs, and a profiler that tells it in another order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.cuda = SimpleNamespace(synchronize=lambda: None, _sleep=lambda _cycles: self.run(SPIN))

    def run(self, name: str) -> None:
        at = SimpleNamespace(start=float(len(self.events)))
        self.events.append(SimpleNamespace(name=name, device_type="CUDA", time_range=at))

    def profiler(self, **_options: Any) -> Any:
        gpu = self

        class Profile:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_error: object) -> None:
                return

            def events(self) -> list[Any]:
                return gpu.events[::-1]

        return Profile()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    for name, members in {
        "torch": {},
        "torch.profiler": {"profile": fake.profiler, "ProfilerActivity": SimpleNamespace(CUDA=1)},
        "torch.autograd": {"DeviceType": SimpleNamespace(CUDA="CUDA")},
    }.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return fake


def test_the_order_on_the_device_decides(gpu: FakeGpu) -> None:
    def work(timeline: Timeline) -> None:
        timeline.mark(("a", PLAIN))
        gpu.run(GEMM)
        timeline.mark(("a", ASKED))
        gpu.run("Memcpy DtoH")
        gpu.run(GEMM)
        gpu.run(OWN)

    profiled: Callable[..., Any] = _timeline.profiled
    assert profiled(gpu, work, ["flash"])["ran"] == {"a": [OWN]}
