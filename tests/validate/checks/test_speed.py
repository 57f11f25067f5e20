"""speed and step: what counts as slow, hungry or wrong, and what only disturbed the measurement."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from images.hardware.inventory import Gpu, Inventory
from images.site import records
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.validation.claims.gpu import ENVELOPES
from images.validation.rows import StepRow, collect_steps
from tests.support import recorded
from tests.support.sources import SOURCES, image
from tools import baselines
from validate.checks.gpu import speed, step
from validate.claims import Claim
from validate.evidence import Evidence
from validate.harness import timing
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Finding, Status

H100 = "NVIDIA H100 80GB HBM3"
QUIET: dict[str, Any] = {
    "before": {
        "busy": 0,
        "highest_clock": 1980,
        "power_limit": 700_000,
        "usual_power_limit": 700_000,
    },
    "others": 600 << 20,
    "under_load": [{"clock": 1400, "throttled": 0x4}],
}
DISTURBED = {
    "other process": {"before": {**QUIET["before"], "busy": 97}},
    "memory": {"others": 9 << 30},
    "heat": {"under_load": [{"clock": 1400, "throttled": 0x24}]},
    "clocks": {"under_load": [{"clock": 700, "throttled": 0x4}]},
    "power": {"before": {**QUIET["before"], "power_limit": 400_000}},
}


def claims_of(
    name: str,
    capability: tuple[int, int] = (9, 0),
    memory: int = 85 << 30,
    *,
    of: str = "cu130-torch213",
    **more: Any,
) -> dict[str, Claim]:
    gpus = (Gpu(name=name, capability=capability, memory=memory), *more.pop("beside", ()))
    inventory = Inventory(driver="580.1", gpus=gpus, source="test")
    context = ClaimContext(image=image(of), facts=SOURCES.facts, inventory=inventory, **more)
    return {
        claim.subject: claim
        for claim in image_claims(context).claims
        if claim.check in ("silent-faults", "speed", "step")
    }


CLAIMS = claims_of(H100)
FLOORS = [subject for subject in speed.WORKS if subject in CLAIMS]


def floor(subject: str, share: float, spread: float = 0.01, **conditions: Any) -> Finding:
    """A figure that is so many times its bound."""
    expect: Any = CLAIMS[subject].expect
    figure = share * (expect["least"] * expect["peak"] if expect["least"] else expect["most"])
    timed = {"seconds": 0.01, "spread": spread, "repeats": 15}
    facts = {"cores": 16, "threads": 16, "load": 1.0, **conditions.pop("facts", {})}
    evidence: Any = {"figure": figure, "timed": timed, "conditions": {**QUIET, **conditions}}
    evidence |= {"facts": facts} if subject == "host-threads" else {}
    return speed.judge(subject, expect, {**evidence, "device": {"name": H100}, "environment": {}})


def test_a_floor_is_required_where_our_runs_kept_it() -> None:
    assert all(CLAIMS[subject].required for subject in FLOORS)
    assert not any(
        claim.required for subject, claim in claims_of("NVIDIA H200").items() if subject in FLOORS
    )
    assert "attention-xformers" not in ENVELOPES["gpus"][0]["seen"], "no image with it has run"


@pytest.mark.parametrize("subject", [*FLOORS, "host-threads", "launches", "allocations"])
def test_below_a_floor_fails_as_do_waiting_launches_and_an_allocator_without_a_cache(
    subject: str,
) -> None:
    good, bad = (0.99, 1.01) if subject in ("launches", "allocations") else (1.01, 0.99)
    assert (floor(subject, good).status, floor(subject, bad).status) == (Status.PASS, Status.FAIL)


@pytest.mark.parametrize("what", DISTURBED)
def test_a_disturbed_gpu_proves_nothing_and_fails_nothing(what: str) -> None:
    assert floor("attention", 0.5, **DISTURBED[what]).status is Status.UNPROVEN
    assert floor("attention", 1.5, **DISTURBED[what]).status is Status.PASS
    assert floor("attention", 0.5, spread=0.2).status is Status.UNPROVEN
    assert judged(time=1.3, **DISTURBED[what]).status is Status.UNPROVEN


def test_noise_excuses_no_slow_step() -> None:
    """Its bound is as wide as times vary: none holds what varies as it likes."""
    noisy = {"seconds": 0.45, "spread": 0.5, "repeats": 16}
    assert judged(trained={"time": noisy}).status is Status.UNPROVEN
    assert (
        judged("liger", time=1.4, eager={"time": {**noisy, "seconds": 0.3257}}).status
        is Status.UNPROVEN
    )
    assert "times vary by 50%" in judged(trained={"time": noisy}).reason


def test_what_is_faster_than_the_gpu_was_not_timed() -> None:
    assert (
        floor("attention", 7.0).status is Status.FAIL
        and "more than it can" in floor("attention", 7.0).reason
    )


def test_threads_are_the_hosts_affair() -> None:
    assert floor("host-threads", 0.5, **DISTURBED["other process"]).status is Status.FAIL
    assert floor("host-threads", 0.5, facts={"cores": 2}).status is Status.UNPROVEN
    assert floor("host-threads", 0.5, facts={"load": 12.0}).status is Status.UNPROVEN
    assert floor("host-threads", 0.5, facts={"limit": 1.5}).status is Status.UNPROVEN
    assert floor("host-threads", 0.5, facts={"limit": 16.0}).status is Status.FAIL


def test_a_bound_is_of_one_model_and_a_model_without_a_row_has_none() -> None:
    evidence: Any = {
        "figure": 1.0,
        "conditions": QUIET,
        "device": {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"},
    }
    assert speed.judge("copy", CLAIMS["copy"].expect, evidence).status is Status.UNPROVEN  # type: ignore[arg-type]
    unknown = claims_of("NVIDIA X1")
    assert all(
        "NVIDIA X1" in unknown[subject].unproven and not unknown[subject].required
        for subject in FLOORS
    )
    assert not unknown["launches"].unproven
    turing = claims_of("Tesla T4", (7, 5), 16 << 30)
    assert "8.0" in turing["eager"].expect["not_applicable"]
    assert claims_of("NVIDIA GeForce RTX 4090", (8, 9), 25 << 30)["eager"].expect["rows"] == 2
    assert "GiB" in claims_of("NVIDIA L4", (8, 9), 12 << 30)["eager"].expect["not_applicable"]


def test_what_a_gpu_is_too_small_for_is_not_asked_of_it() -> None:
    """A required claim that is NOT_APPLICABLE closes the gate: it is one of larger GPUs."""
    small, large = claims_of("NVIDIA GeForce RTX 4090", (8, 9), 25 << 30), claims_of(H100)
    assert not small["conv3d-bfloat16"].required and large["conv3d-bfloat16"].required
    assert (
        "takes 32 GB of GPU memory, NVIDIA GeForce"
        in small["conv3d-bfloat16"].expect["not_applicable"]
    )
    assert small["cudnn-attention-mask"].required is False and "fp8-scale-result" in small


def test_no_mfu_is_told_where_weights_are_packed_and_frozen() -> None:
    assert (
        "peak_operations" in CLAIMS["liger"].expect
        and "peak_operations" not in CLAIMS["qlora"].expect
    )


def test_what_an_image_lacks_or_a_gpu_has_no_kernel_for_is_not_asked_of_it() -> None:
    lacking = claims_of(H100, missing={"bitsandbytes": "no wheel"})
    assert (
        not {"nf4-matmul", "qlora", "bnb-quantise-strided"} & lacking.keys() and "qlora" in CLAIMS
    )
    turing = claims_of("Tesla T4", (7, 5), 16 << 30)["attention-flash"]
    assert turing.expect["not_applicable"] and not turing.required
    other = Gpu(name="NVIDIA A100-SXM4-80GB", capability=(8, 0), memory=85 << 30)
    assert "no peaks of the GPU" in claims_of(H100, beside=[other])["copy"].unproven
    assert (
        claims_of("NVIDIA B200", (10, 0))["attention"].expect["least"]
        < CLAIMS["attention"].expect["least"]
    )
    assert claims_of(H100, of="cu130-torch211")["eager"].required and not CLAIMS["eager"].required


def test_a_fault_of_the_locked_cudnn_is_known_and_not_required() -> None:
    locked = claims_of(H100, locked={"torch": {"nvidia-cudnn-cu13": "9.26.0.51"}})[
        "cudnn-attention-mask"
    ]
    assert locked.required and not locked.expect["known"]
    own = claims_of(H100, locked={"torch": {"nvidia-cudnn-cu13": "9.20.0.48"}})[
        "cudnn-attention-mask"
    ]
    assert own.expect["known"] and not own.required
    assert "cudnn-attention-mask" not in claims_of(H100, of="cu126-torch25"), (
        "it refuses that aloud"
    )
    nowhere = claims_of(H100, no_gpu="no GPU")
    assert nowhere["cudnn-attention-mask"].unproven and not nowhere["cpu-conv2d-2x2"].unproven


def test_every_floor_and_step_of_the_table_is_measured() -> None:
    assert {*ENVELOPES["floors"]} == {*speed.WORKS, *speed.MEASURES_WITHOUT_PEAK}
    assert {*ENVELOPES["steps"]} == {*step.VARIANTS}
    names = [name for row in ENVELOPES["gpus"] for name in row["names"]]
    assert len(names) == len({*names}) and all(row["source"] for row in ENVELOPES["gpus"])


LOSSES = [10.4 - 0.2 * number for number in range(step.STEPS)]
EAGER: dict[str, Any] = {
    "time": {"seconds": 0.3257, "spread": 0.002, "repeats": 16},
    "peak": 44_800_000_000,
    "losses": LOSSES,
    "parameters": 1_100_048_384,
}
LIGER = {**EAGER, "time": {**EAGER["time"], "seconds": 0.2353}, "peak": 28_900_000_000}
BASELINE = {
    "time": EAGER["time"],
    "peak": EAGER["peak"],
    "loss": LOSSES[-1],
    "of": "2 runs of 0123 until 2026-11-26",
}


def judged(
    subject: str = "eager",
    *,
    time: float = 1.0,
    peak: float = 1.0,
    losses: Sequence[float] = LOSSES,
    reference: float = 0.0,
    baseline: Any = BASELINE,
    trained: Any = None,
    eager: Any = None,
    **conditions: Any,
) -> Finding:
    """A step that takes so many times what it should."""
    found = copy.deepcopy(EAGER if subject == "eager" else LIGER)
    found["time"]["seconds"] *= time
    found |= {"peak": peak * found["peak"], "losses": list(losses), **(trained or {})}
    evidence: Any = {
        "trained": found,
        "conditions": {**QUIET, **conditions},
        "device": {"name": H100},
    }
    ends = [losses[0], losses[-1]]
    evidence |= (
        {"reference": {"bfloat16": ends, "float32": [one + reference for one in ends]}}
        if subject == "eager"
        else {"eager": {**EAGER, **(eager or {})}}
    )
    expect: Any = {**CLAIMS[subject].expect, **({"baseline": baseline} if baseline else {})}
    return step.judge(subject, expect, evidence)


def test_a_slower_step_fails_and_a_faster_one_passes() -> None:
    """JAX-Toolbox's guard, `actual > 0.95 x expected seconds`, has it the wrong way round: it fails what is faster."""
    assert judged().status is Status.PASS and "MFU 0.3" in judged().reason
    assert judged(time=0.7).status is Status.PASS
    assert judged(time=1.05).status is Status.PASS, "two machines differ by as much"
    assert (
        judged(time=1.3).status is Status.FAIL and "325.7 ms in 2 runs" in judged(time=1.3).reason
    )


def test_a_hungrier_step_fails_on_a_busy_gpu_as_well() -> None:
    assert judged(peak=1.1, **DISTURBED["other process"]).status is Status.FAIL
    assert judged(peak=0.0).status is Status.FAIL, "the allocator's cache is off"


def test_other_losses_fail() -> None:
    assert judged(reference=0.1).status is Status.FAIL
    assert judged(losses=[one + 0.1 for one in LOSSES]).status is Status.FAIL
    assert judged(losses=[10.4] * 20, baseline=None).status is Status.FAIL
    assert judged(losses=[*LOSSES[:-1], float("nan")], baseline=None).status is Status.FAIL


def test_what_is_recorded_of_no_run_is_unproven_and_still_held_against_the_eager_step() -> None:
    assert judged(baseline=None).status is Status.UNPROVEN
    assert judged("liger", baseline=None).status is Status.UNPROVEN
    not_applied = {
        "time": EAGER["time"]["seconds"] / LIGER["time"]["seconds"],
        "peak": EAGER["peak"] / LIGER["peak"],
    }
    found = judged("liger", baseline=None, **not_applied)
    assert found.status is Status.FAIL and "1.00 of the eager model's" in found.reason
    assert (
        judged("liger", baseline=None, losses=[one + 0.2 for one in LOSSES]).status is Status.FAIL
    )


def test_a_bound_counts_the_noise_of_both_runs() -> None:
    calm: timing.Timed = {"seconds": 1.0, "spread": 0.0, "repeats": 9}
    noisy: timing.Timed = {"seconds": 1.0, "spread": 0.04, "repeats": 9}
    assert timing.longest_allowed(calm, calm, 0.08) == pytest.approx(1.08)
    assert (
        timing.longest_allowed(noisy, calm, 0.08)
        == timing.longest_allowed(calm, noisy, 0.08)
        == pytest.approx(1.2)
    )
    one_outlier = timing.summarise_times([1.0, 1.01, 0.99, 1.0, 5.0])
    assert one_outlier["seconds"] == 1.0 and one_outlier["spread"] < 0.02


def test_a_baseline_is_of_all_runs_and_as_wide_as_they_differ() -> None:
    runs = [StepRow(seconds=took, spread=0.002, peak=10, loss=5.0) for took in (0.32, 0.33, 0.34)]
    found = baselines.baseline(runs)
    assert found["time"]["seconds"] == 0.33 and found["time"]["spread"] > 0.04
    assert baselines.baseline(runs[:1])["time"]["spread"] == 0.002


def test_a_step_that_failed_after_a_rebuild_is_still_held_to_the_runs_before() -> None:
    """A line has the steps that did not fail: of the others the newest payload has none."""
    before = recorded.lines()["cu130-torch211/h100-2"]
    others = {subject: step for subject, step in before.steps.items() if subject != "eager"}
    new = {
        "id": "cu130-torch211/new",
        "digest": "sha256:ab",
        "payload": {"all": "ab"},
        "steps": others,
    }
    assert before.date
    rebuilt = before.model_copy(update={**new, "date": before.date + timedelta(days=1)})
    found = json.loads(baselines.generated([before, rebuilt]))["cu130-torch211"][H100]
    assert "0f93ecff4b4f" in found["eager"]["of"] and "ab" in found["liger"]["of"]


def test_what_disturbed_or_varied_is_recorded_of_no_step() -> None:
    noisy = {**EAGER, "time": {**EAGER["time"], "spread": 0.5}}
    for evidence, recorded_one in (
        ({"trained": EAGER, "conditions": QUIET}, True),
        ({"trained": noisy, "conditions": QUIET}, False),
        ({"trained": EAGER, "conditions": {**QUIET, **DISTURBED["heat"]}}, False),
    ):
        one = ClaimVerdict(
            claim=CLAIMS["eager"], status=Status.PASS, reason="", seconds=1.0, evidence=evidence
        )
        assert bool(collect_steps([one])) is recorded_one
        ran = Evidence(image="x", digest="sha256:1", records=())
        for status, kept in ((Status.PASS, recorded_one), (Status.FAIL, False)):
            verdict = Verdict(image="x", digest="sha256:1", claims=(replace(one, status=status),))
            assert bool(records.make_run_line(ran, verdict, "here").steps) is kept
