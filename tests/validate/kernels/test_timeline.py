"""What ran when, told apart by spins on the device."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from validate.kernels import Kernel, _timeline, runner
from validate.kernels._timeline import CLAIMED, LEAD_IN, PLAIN

GEMM, OWN, COPY = "nvjet_tst", "flash_fwd", "at::native::copy"
SPIN = "at::cuda::spin_kernel(long)"


A, B = [("a", PLAIN), ("a", CLAIMED)], [("b", PLAIN), ("b", CLAIMED)]


@pytest.mark.parametrize(
    ("stretches", "names", "ran"),
    [
        (
            [None, *A, None],
            [SPIN, "setup", SPIN, GEMM, COPY, SPIN, OWN, COPY, SPIN, "later"],
            {"a": [OWN]},
        ),
        (A, [SPIN, GEMM, SPIN, GEMM], {"a": []}),  # a fallback to what plain torch runs
        ([*A, *B], [SPIN, GEMM, SPIN, OWN, SPIN, OWN, SPIN, GEMM], {"a": [OWN], "b": [GEMM]}),
    ],
)
def test_kernels_that_plain_torch_runs_too_are_not_the_kernels_own(
    stretches: Any, names: Any, ran: Any
) -> None:
    found = _timeline.describe([LEAD_IN, *names], stretches, ["flash"])
    assert found["works"] and found["ran"] == ran
    assert found["matching"] == {"flash": [OWN] if OWN in names else []}


def test_a_spin_that_the_profiler_lost_or_made_up_leaves_nothing_told() -> None:
    lost = [[], [OWN], [LEAD_IN], [LEAD_IN, SPIN, OWN], [LEAD_IN, SPIN, SPIN, SPIN]]
    # Of the last, what was dropped may have been more than the lead-in.
    for names in (*lost, [SPIN, OWN, SPIN]):
        found = _timeline.describe(names, [("a", CLAIMED), None], [])
        assert not found["works"] and "ran" not in found


class FakeGpu:
    """A device that records what runs, and a profiler that tells it in another order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.lost = 0
        """So many kernels at the start of a session are dropped: CUPTI dates them before it."""
        self.sessions = 0
        self.cuda = SimpleNamespace(
            synchronize=lambda: None,
            _sleep=lambda cycles: self.run(SPIN, microseconds=cycles / 1980),
            get_device_name=lambda _index: "Fake",
            get_device_capability=lambda _index: (9, 0),
        )

    def generator(self) -> Any:
        return SimpleNamespace(manual_seed=lambda _seed: None)

    def run(self, name: str, microseconds: float = 5.0) -> None:
        start = self.events[-1].time_range.end if self.events else 0.0
        at = SimpleNamespace(start=start, end=start + microseconds)
        self.events.append(SimpleNamespace(name=name, device_type="CUDA", time_range=at))

    def profiler(self, **_options: Any) -> Any:
        gpu = self

        class Profile:
            def __enter__(self) -> Any:
                gpu.events.clear()
                gpu.sessions += 1
                return self

            def __exit__(self, *_error: object) -> None:
                return

            def events(self) -> list[Any]:
                return gpu.events[gpu.lost :][::-1]

        return Profile()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    fake = FakeGpu()
    for name, members in {
        "torch": {"cuda": fake.cuda, "__version__": "2.11.0", "Generator": fake.generator},
        "torch.profiler": {"profile": fake.profiler, "ProfilerActivity": SimpleNamespace(CUDA=1)},
        "torch.autograd": {"DeviceType": SimpleNamespace(CUDA="CUDA")},
    }.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return fake


@pytest.mark.parametrize(
    ("lost", "sessions"), [(0, 1), (9, 1), (10, 2), (11, 2), (150, 3), (401, 3)]
)
def test_kernels_dropped_at_the_start_cost_only_the_lead_in(
    gpu: FakeGpu, lost: int, sessions: int
) -> None:
    """The order on the device decides. More lost than any lead-in has is said."""
    gpu.lost = lost

    def work(mark: Any) -> None:
        mark(("a", PLAIN))
        gpu.run(GEMM)
        mark(("a", CLAIMED))
        gpu.run("Memcpy DtoH")
        gpu.run(GEMM)
        gpu.run(OWN)

    found: Any = _timeline.profile_kernels(gpu, work, [])
    assert gpu.sessions == sessions
    if lost > 400:
        assert not found["works"] and found["marks"] == {"made": 4, "seen": 3, "lead_in": 0}
    else:
        assert found["ran"] == {"a": [OWN]}


def row(**given: Any) -> Kernel:
    return Kernel(check="compile", probe="gpu.compile", package="torch", statement="test", **given)


def test_an_observation_that_measures_is_held_to_a_kernel_of_its_own(gpu: FakeGpu) -> None:
    def observe(_rng: Any) -> Any:
        gpu.run(OWN)
        return {"figures": {}, "facts": {}}

    found = runner.examine("x", row(observe=observe, figures={"error": (0.0, 1.0)}))
    assert found["kernels"]["ran"] == {"x": [OWN]}


def test_a_case_that_is_not_claimed_is_not_run(gpu: FakeGpu) -> None:
    """It may break the device for all that come after it."""
    made: list[str] = []
    cases = {name: lambda _rng, name=name: made.append(name) for name in ("claimed", "left out")}
    runner.examine("x", row(cases=cases), cases=["claimed"])
    assert made == ["claimed"]


def test_an_observation_of_facts_alone_need_not_run_anything(gpu: FakeGpu) -> None:
    """As torch.compile's: it reads counters after the case."""
    found = runner.examine(
        "x", row(observe=lambda _rng: {"facts": {"graphs": 1}}, facts={"graphs": 1})
    )
    assert found["kernels"]["ran"] == {}
    assert found["kernels"]["works"]
    marks = [event for event in gpu.events if event.time_range.end - event.time_range.start < 1000]
    assert [event.name for event in marks] == [SPIN] * 3
