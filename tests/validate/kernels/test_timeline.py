"""For which case each CUDA kernel ran: the profiler's list of them, divided by marks."""

import sys
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from validate.kernels import Kernel, Observed, _timeline, runner
from validate.kernels._timeline import CLAIMED, LEAD_IN, PLAIN

SPIN = "at::cuda::spin_kernel(long)"
PRODUCT, FLASH, COPY = "nvjet_tst", "flash_fwd", "at::native::copy"
CASE_A = [("a", PLAIN), ("a", CLAIMED)]
CASE_B = [("b", PLAIN), ("b", CLAIMED)]


@pytest.mark.parametrize(
    ("stretches", "names", "ran"),
    [
        pytest.param(
            [None, *CASE_A, None],
            [SPIN, "setup", SPIN, PRODUCT, COPY, SPIN, FLASH, COPY, SPIN, "later"],
            {"a": [FLASH]},
            id="a kernel of its own",
        ),
        pytest.param(
            CASE_A, [SPIN, PRODUCT, SPIN, PRODUCT], {"a": []}, id="a fallback to plain torch"
        ),
        pytest.param(
            [*CASE_A, *CASE_B],
            [SPIN, PRODUCT, SPIN, FLASH, SPIN, FLASH, SPIN, PRODUCT],
            {"a": [FLASH], "b": [PRODUCT]},
            id="cases by themselves",
        ),
    ],
)
def test_a_cases_own_kernels_are_those_that_plain_torch_does_not_run_for_it(
    stretches: Any, names: Any, ran: Any
) -> None:
    profile = _timeline.describe([LEAD_IN, *names], stretches, ["flash"])

    assert profile["works"]
    assert profile["ran"] == ran
    assert profile["matching"] == {"flash": [FLASH] if FLASH in names else []}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([], id="nothing"),
        pytest.param([FLASH], id="no lead-in and no mark"),
        pytest.param([LEAD_IN], id="no mark"),
        pytest.param([LEAD_IN, SPIN, FLASH], id="a mark too few"),
        pytest.param([LEAD_IN, SPIN, SPIN, SPIN], id="a mark too many"),
        # What was dropped may have been more than the lead-in.
        pytest.param([SPIN, FLASH, SPIN], id="all marks and no lead-in"),
    ],
)
def test_a_profile_that_lost_something_does_not_say_what_ran(names: list[str]) -> None:
    profile = _timeline.describe(names, [("a", CLAIMED), None], [])

    assert not profile["works"]
    assert "ran" not in profile


class FakeGpu:
    """A device that records what runs, and a profiler that lists it in another order."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.lost_count = 0
        """So many kernels at the start of a session are dropped: CUPTI dates them before it."""
        self.session_count = 0
        self.cuda = SimpleNamespace(
            synchronize=lambda: None,
            # at 1.98 GHz, as an H200
            _sleep=lambda cycles: self.run(SPIN, microseconds=cycles / 1980),
            get_device_name=lambda _index: "Fake",
            get_device_capability=lambda _index: (9, 0),
        )

    def generator(self) -> Any:
        return SimpleNamespace(manual_seed=lambda _seed: None)

    def run(self, name: str, microseconds: float = 5.0) -> None:
        start = self.events[-1].time_range.end if self.events else 0.0
        time_range = SimpleNamespace(start=start, end=start + microseconds)
        self.events.append(SimpleNamespace(name=name, device_type="CUDA", time_range=time_range))

    def profiler(self, **_options: Any) -> Any:
        gpu = self

        class Profile:
            def __enter__(self) -> Any:
                gpu.events.clear()
                gpu.session_count += 1
                return self

            def __exit__(self, *_error: object) -> None:
                return

            def events(self) -> list[Any]:
                return gpu.events[gpu.lost_count :][::-1]

        return Profile()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A fake GPU, with fake modules of torch that use it."""
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


def run_case_a(gpu: FakeGpu) -> Callable[[Any], None]:
    """Return the work of a case: by plain torch, and by a kernel of its own beside a product."""

    def work(mark: Any) -> None:
        mark(("a", PLAIN))
        gpu.run(PRODUCT)
        mark(("a", CLAIMED))
        gpu.run("Memcpy DtoH")
        gpu.run(PRODUCT)
        gpu.run(FLASH)

    return work


@pytest.mark.parametrize(
    ("lost_count", "session_count"),
    # Lead-ins have 10, 100 and 400 spins. One of them must be left.
    [(0, 1), (9, 1), (10, 2), (11, 2), (150, 3)],
)
def test_kernels_that_the_profiler_drops_at_the_start_cost_only_spins_of_the_lead_in(
    gpu: FakeGpu, lost_count: int, session_count: int
) -> None:
    gpu.lost_count = lost_count

    profile: Any = _timeline.profile_kernels(gpu, run_case_a(gpu), [])

    assert gpu.session_count == session_count
    assert profile["ran"] == {"a": [FLASH]}


def test_a_profile_that_lost_more_than_the_longest_lead_in_says_how_many_marks_it_saw(
    gpu: FakeGpu,
) -> None:
    gpu.lost_count = 401

    profile: Any = _timeline.profile_kernels(gpu, run_case_a(gpu), [])

    assert gpu.session_count == 3
    assert not profile["works"]
    assert profile["marks"] == {"made": 4, "seen": 3, "lead_in": 0}


def kernel_with(**fields: Any) -> Kernel:
    return Kernel(check="compile", probe="gpu.compile", package="torch", statement="test", **fields)


def test_what_runs_for_an_observation_with_figures_counts_as_the_kernels_own(gpu: FakeGpu) -> None:
    def observe(_rng: Any) -> Observed:
        gpu.run(FLASH)
        return {"figures": {}, "facts": {}}

    kernel = kernel_with(observe=observe, figures={"error": (0.0, 1.0)})

    evidence = runner.examine("x", kernel)

    assert evidence["kernels"]["ran"] == {"x": [FLASH]}


def test_an_observation_of_facts_alone_need_not_run_anything(gpu: FakeGpu) -> None:
    """As torch.compile's: it reads counters after the case."""
    facts = {"graphs": 1}

    evidence = runner.examine("x", kernel_with(observe=lambda _rng: {"facts": facts}, facts=facts))

    assert evidence["kernels"]["works"]
    assert evidence["kernels"]["ran"] == {}
    assert names_of_short_events(gpu.events) == [SPIN] * 3, "marks, and nothing else"


def names_of_short_events(events: Sequence[Any]) -> list[str]:
    """Return the names of what ran for less than a spin of the lead-in does."""
    names = []
    for event in events:
        if event.time_range.end - event.time_range.start < 1000:
            names.append(event.name)
    return names


def test_a_case_that_is_not_claimed_is_not_run(gpu: FakeGpu) -> None:
    """It may break the device for all that come after it."""
    made_cases: list[str] = []
    cases = {
        name: lambda _rng, name=name: made_cases.append(name) for name in ("claimed", "left out")
    }

    runner.examine("x", kernel_with(cases=cases), cases=["claimed"])

    assert made_cases == ["claimed"]
