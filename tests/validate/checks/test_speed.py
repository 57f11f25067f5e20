"""speed and step: what counts as slow, hungry or wrong, and what only disturbed the measurement."""

import copy
import json
from collections.abc import Mapping, Sequence
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
from tests.support.judging import fails
from tests.support.sources import SOURCES, image
from tools import baselines
from validate.checks.gpu import speed, step
from validate.claims import Claim
from validate.evidence import Evidence, strict_json
from validate.harness import timing
from validate.judge import ClaimVerdict, Verdict
from validate.judging import Finding, Status
from validate.next_steps import MEASUREMENT_FAILED

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"
RTX_4090 = ("NVIDIA GeForce RTX 4090", (8, 9), 25 * GIB)
TESLA_T4 = ("Tesla T4", (7, 5), 16 * GIB)

# What NVML reads of a GPU that nobody else uses. 0x4 is the power cap, which is no disturbance.
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
DISTURBANCES: Mapping[str, Mapping[str, Any]] = {
    "other process": {"before": {**QUIET["before"], "busy": 97}},
    "memory": {"others": 9 * GIB},
    "heat": {"under_load": [{"clock": 1400, "throttled": 0x24}]},
    "clocks": {"under_load": [{"clock": 700, "throttled": 0x4}]},
    "power": {"before": {**QUIET["before"], "power_limit": 400_000}},
}


def claims_for(
    gpu_name: str,
    capability: tuple[int, int] = (9, 0),
    memory: int = 85 * GIB,
    *,
    other_gpus: Sequence[Gpu] = (),
    image_name: str = "cu130-torch213",
    **context: Any,
) -> dict[str, Claim]:
    """Return subject -> claim of speed, step and silent-faults, on a host with such a GPU."""
    gpu = Gpu(name=gpu_name, capability=capability, memory=memory)
    inventory = Inventory(driver="580.1", gpus=(gpu, *other_gpus), source="test")
    claims = image_claims(
        ClaimContext(image=image(image_name), facts=SOURCES.facts, inventory=inventory, **context)
    ).claims
    checks = ("silent-faults", "speed", "step")
    return {claim.subject: claim for claim in claims if claim.check in checks}


CLAIMS = claims_for(H100)
FLOORS = [subject for subject in speed.WORKS if subject in CLAIMS]
MEASURED_WITHOUT_PEAK = ["host-threads", "launches", "allocations"]
BOUNDED_FROM_ABOVE = ("launches", "allocations")


# Claims: what is asked of which GPU.


def test_a_floor_is_required_only_on_gpus_on_which_our_runs_kept_it() -> None:
    on_h200 = claims_for("NVIDIA H200")

    assert all(CLAIMS[subject].required for subject in FLOORS)
    assert not any(on_h200[subject].required for subject in FLOORS if subject in on_h200)
    assert "attention-xformers" not in ENVELOPES["gpus"][0]["seen"], "no image with it has run"


def test_a_gpu_model_without_known_peaks_has_no_floors() -> None:
    claims = claims_for("NVIDIA X1")

    for subject in FLOORS:
        assert "NVIDIA X1" in claims[subject].unproven
        assert not claims[subject].required
    assert not claims["launches"].unproven, "it needs no peak"


def test_a_peak_of_one_model_is_no_bound_of_different_gpus() -> None:
    a100 = Gpu(name="NVIDIA A100-SXM4-80GB", capability=(8, 0), memory=85 * GIB)

    claims = claims_for(H100, other_gpus=[a100])

    assert "no peaks of the GPU" in claims["copy"].unproven


def test_a_floor_depends_on_the_gpus_generation() -> None:
    on_b200 = claims_for("NVIDIA B200", (10, 0))

    assert on_b200["attention"].expect["least"] < CLAIMS["attention"].expect["least"]


def test_a_floor_is_not_applicable_on_a_gpu_without_its_kernel() -> None:
    claim = claims_for(*TESLA_T4)["attention-flash"]

    assert claim.expect["not_applicable"]
    assert not claim.required


def test_a_package_that_the_image_lacks_is_claimed_nowhere() -> None:
    claims = claims_for(H100, missing={"bitsandbytes": "no wheel"})

    assert not {"nf4-matmul", "qlora", "bnb-quantise-strided"} & claims.keys()
    assert "qlora" in CLAIMS


def test_a_step_needs_bfloat16() -> None:
    assert "8.0" in claims_for(*TESLA_T4)["eager"].expect["not_applicable"]


def test_a_step_has_as_many_rows_as_fit_into_the_gpus_memory() -> None:
    too_small = claims_for("NVIDIA L4", (8, 9), 12 * GIB)["eager"]

    assert CLAIMS["eager"].expect["rows"] == 8
    assert claims_for(*RTX_4090)["eager"].expect["rows"] == 2
    assert "GiB" in too_small.expect["not_applicable"]


def test_a_step_is_required_only_of_images_whose_runs_are_recorded() -> None:
    assert claims_for(H100, image_name="cu130-torch211")["eager"].required
    assert not CLAIMS["eager"].required


def test_mfu_is_not_computed_where_weights_are_packed_and_frozen() -> None:
    assert "peak_operations" in CLAIMS["liger"].expect
    assert "peak_operations" not in CLAIMS["qlora"].expect


def test_a_silent_fault_that_needs_more_memory_than_the_gpu_has_is_not_required() -> None:
    """A required claim that is NOT_APPLICABLE closes the gate: it is one of larger GPUs."""
    on_24_gib = claims_for(*RTX_4090)

    too_large = on_24_gib["conv3d-bfloat16"]
    assert "takes 32 GB of GPU memory, NVIDIA GeForce" in too_large.expect["not_applicable"]
    assert not too_large.required
    assert CLAIMS["conv3d-bfloat16"].required
    assert not on_24_gib["cudnn-attention-mask"].required
    assert "fp8-scale-result" in on_24_gib


def cudnn_mask_claim(cudnn_version: str) -> Claim:
    """Return the claim about a fault of cuDNN, of an image with this version in its lock."""
    lock = {"torch": {"nvidia-cudnn-cu13": cudnn_version}}
    return claims_for(H100, locked=lock)["cudnn-attention-mask"]


def test_a_fault_of_the_locked_cudnn_is_known_and_not_required() -> None:
    repaired = cudnn_mask_claim("9.26.0.51")
    faulty = cudnn_mask_claim("9.20.0.48")

    assert repaired.required
    assert not repaired.expect["known"]
    assert faulty.expect["known"]
    assert not faulty.required


def test_a_fault_is_not_claimed_of_a_torch_that_refuses_it_with_an_error() -> None:
    assert "cudnn-attention-mask" not in claims_for(H100, image_name="cu126-torch25")


def test_without_a_gpu_only_faults_of_the_gpu_are_unproven() -> None:
    claims = claims_for(H100, no_gpu="no GPU")

    assert claims["cudnn-attention-mask"].unproven
    assert not claims["cpu-conv2d-2x2"].unproven


def test_every_floor_and_step_of_the_table_is_measured() -> None:
    assert {*ENVELOPES["floors"]} == {*speed.WORKS, *speed.MEASURES_WITHOUT_PEAK}
    assert {*ENVELOPES["steps"]} == {*step.VARIANTS}


def test_every_gpu_model_of_the_table_has_a_source_and_one_row() -> None:
    names = [name for row in ENVELOPES["gpus"] for name in row["names"]]

    assert len(names) == len({*names})
    assert all(row["source"] for row in ENVELOPES["gpus"])


# The judge of `speed`.


def judge_speed(
    subject: str,
    times_its_bound: float,
    spread: float = 0.01,
    facts: Mapping[str, float] | None = None,
    **conditions: Any,
) -> Finding:
    """Judge a figure that is so many times its bound, measured under these conditions."""
    expect: Any = CLAIMS[subject].expect
    bound = expect["least"] * expect["peak"] if expect["least"] else expect["most"]
    evidence: Any = {
        "figure": times_its_bound * bound,
        "timed": {"seconds": 0.01, "spread": spread, "repeats": 15},
        "conditions": {**QUIET, **conditions},
        "device": {"name": H100},
        "environment": {},
    }
    if subject == "host-threads":
        evidence["facts"] = {"cores": 16, "threads": 16, "load": 1.0, **(facts or {})}
    return speed.judge(subject, expect, evidence)


@pytest.mark.parametrize("subject", [*FLOORS, *MEASURED_WITHOUT_PEAK])
def test_a_figure_just_out_of_its_bound_fails_and_one_just_within_passes(subject: str) -> None:
    just_within, just_out = (0.99, 1.01) if subject in BOUNDED_FROM_ABOVE else (1.01, 0.99)

    assert judge_speed(subject, just_within).status is Status.PASS
    assert judge_speed(subject, just_out).status is Status.FAIL


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_a_slow_figure_of_a_disturbed_gpu_is_unproven(disturbance: str) -> None:
    slow = judge_speed("attention", 0.5, **DISTURBANCES[disturbance])

    assert slow.status is Status.UNPROVEN


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_a_fast_figure_of_a_disturbed_gpu_passes(disturbance: str) -> None:
    fast = judge_speed("attention", 1.5, **DISTURBANCES[disturbance])

    assert fast.status is Status.PASS


def test_a_slow_figure_whose_times_vary_too_much_is_unproven() -> None:
    assert judge_speed("attention", 0.5, spread=0.2).status is Status.UNPROVEN


def test_a_figure_far_above_the_peak_fails_because_it_was_not_timed() -> None:
    fails(judge_speed("attention", 7.0), "more than 130% can't be true")


def test_slow_host_threads_are_not_excused_by_the_gpu() -> None:
    finding = judge_speed("host-threads", 0.5, **DISTURBANCES["other process"])

    assert finding.status is Status.FAIL


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        pytest.param({"cores": 2}, Status.UNPROVEN, id="few cores"),
        pytest.param({"load": 12.0}, Status.UNPROVEN, id="busy host"),
        pytest.param({"limit": 1.5}, Status.UNPROVEN, id="container limited to fewer cores"),
        pytest.param({"limit": 16.0}, Status.FAIL, id="container limited to all cores"),
    ],
)
def test_slow_host_threads_are_excused_by_the_host(facts: Any, status: Status) -> None:
    assert judge_speed("host-threads", 0.5, facts=facts).status is status


@pytest.mark.parametrize(
    ("subject", "judge", "measured"),
    [("copy", speed.judge, {"figure": 1.0}), ("eager", step.judge, {"trained": {}})],
)
def test_a_bound_of_one_gpu_model_says_nothing_about_another(
    subject: str, judge: Any, measured: Mapping[str, Any]
) -> None:
    device = {"name": f"{H100} MIG 1g.10gb"}
    evidence: Any = {**measured, "conditions": QUIET, "device": device}

    finding = judge(subject, CLAIMS[subject].expect, evidence)

    assert finding.status is Status.UNPROVEN
    assert f"on {H100} MIG 1g.10gb, and the bound is for a whole {H100}" in finding.reason


def test_a_bound_of_no_gpu_model_holds_for_each() -> None:
    assert speed.judge_gpu("", {"name": "NVIDIA X1"}) is None


# The judge of `step`.

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
NOISY_TIME = {"seconds": 0.45, "spread": 0.5, "repeats": 16}


def judge_step(
    subject: str = "eager",
    *,
    times_as_long: float = 1.0,
    times_the_peak: float = 1.0,
    losses: Sequence[float] = LOSSES,
    distance_from_float32: float = 0.0,
    baseline: Mapping[str, Any] | None = BASELINE,
    time: Mapping[str, Any] | None = None,
    eager_time: Mapping[str, Any] | None = None,
    eager_losses: Sequence[float] = LOSSES,
    **conditions: Any,
) -> Finding:
    """Judge a step that took so many times the time and memory of EAGER or LIGER.

    `time` and `eager_time` replace the whole time, of the step and of the eager model beside it.
    """
    trained = copy.deepcopy(EAGER if subject == "eager" else LIGER)
    trained["time"]["seconds"] *= times_as_long
    trained["peak"] *= times_the_peak
    trained["losses"] = list(losses)
    if time:
        trained["time"] = time

    evidence: Any = {
        "trained": trained,
        "conditions": {**QUIET, **conditions},
        "device": {"name": H100},
    }
    if subject == "eager":
        ends = [losses[0], losses[-1]]
        in_float32 = [loss + distance_from_float32 for loss in ends]
        evidence["reference"] = {"bfloat16": ends, "float32": in_float32}
    else:
        time_of_eager = eager_time or EAGER["time"]
        evidence["eager"] = {**EAGER, "time": time_of_eager, "losses": eager_losses}

    expect: Any = dict(CLAIMS[subject].expect)
    if baseline:
        expect["baseline"] = baseline
    return step.judge(subject, expect, evidence)


def test_a_step_as_recorded_passes_and_says_its_mfu() -> None:
    finding = judge_step()

    assert finding.status is Status.PASS
    # (6 x 1.1 billion weights + 0.55 billion of attention) x 16,384 tokens / 0.3257 s / 989 TFLOP/s
    assert "MFU 0.36" in finding.reason


def test_the_mfu_is_a_share_of_what_the_gpu_of_the_claim_can_do() -> None:
    expect: Any = {**CLAIMS["eager"].expect, "peak_operations": 2 * 989e12}
    trained: Any = EAGER

    assert "MFU 0.18" in step.summarise(expect, trained)


def test_a_faster_step_passes() -> None:
    """JAX-Toolbox's guard, `actual > 0.95 x expected seconds`, fails what is faster."""
    assert judge_step(times_as_long=0.7).status is Status.PASS


def moved(distance: float) -> list[float]:
    """Return the losses of all steps, off by as much."""
    return [loss + distance for loss in LOSSES]


@pytest.mark.parametrize(
    ("just_within", "just_out"),
    [
        # 8 % between two machines, and three times the spread of both runs.
        pytest.param({"times_as_long": 1.08}, {"times_as_long": 1.10}, id="time"),
        pytest.param({"times_the_peak": 1.04}, {"times_the_peak": 1.06}, id="memory"),
        pytest.param({"losses": moved(0.04)}, {"losses": moved(0.06)}, id="higher loss"),
        pytest.param({"losses": moved(-0.04)}, {"losses": moved(-0.06)}, id="lower loss"),
        pytest.param(
            {"distance_from_float32": 0.01}, {"distance_from_float32": 0.03}, id="float32 above"
        ),
        pytest.param(
            {"distance_from_float32": -0.01}, {"distance_from_float32": -0.03}, id="float32 below"
        ),
    ],
)
def test_a_step_just_within_a_bound_passes_and_one_just_out_fails(
    just_within: Any, just_out: Any
) -> None:
    assert judge_step(**just_within).status is Status.PASS
    assert judge_step(**just_out).status is Status.FAIL


def one_loss_moved(distance: float) -> list[float]:
    """Return the losses of the first 12 steps, of which the fifth is off by as much."""
    return [*LOSSES[:4], LOSSES[4] + distance, *LOSSES[5:12]]


@pytest.mark.parametrize(
    ("just_within", "just_out"),
    [
        pytest.param({"times_as_long": 1.32}, {"times_as_long": 1.34}, id="time"),
        pytest.param({"times_the_peak": 1.23}, {"times_the_peak": 1.25}, id="memory"),
        pytest.param(
            {"losses": one_loss_moved(0.04)}, {"losses": one_loss_moved(0.06)}, id="higher loss"
        ),
        pytest.param(
            {"losses": one_loss_moved(-0.04)}, {"losses": one_loss_moved(-0.06)}, id="lower loss"
        ),
    ],
)
def test_a_step_is_held_to_its_share_of_the_eager_models_time_and_memory_and_to_its_losses(
    just_within: Any, just_out: Any
) -> None:
    """Liger's may take 95 % of the time, 80 % of the memory, and be 0.05 off at each step."""
    assert judge_step("liger", baseline=None, **just_within).status is Status.UNPROVEN
    assert judge_step("liger", baseline=None, **just_out).status is Status.FAIL


def test_a_variant_without_bounds_is_not_compared_with_the_eager_step() -> None:
    finding = judge_step("qlora", baseline=None, times_as_long=3, times_the_peak=3, losses=moved(1))

    assert finding.status is Status.UNPROVEN


def test_losses_are_not_compared_with_some_that_are_no_numbers() -> None:
    finding = judge_step("liger", eager_losses=[float("nan")] * step.STEPS)

    fails(finding, "losses differ by up to nan from those of the same model without")


def test_a_last_loss_that_is_no_number_is_a_problem_and_does_not_keep_from_judging() -> None:
    losses = strict_json([*LOSSES[:-1], float("nan")])

    finding = judge_step("qlora", losses=losses)

    fails(finding, "a loss is nan, and must be a number (measured: ")


def test_every_loss_has_one_in_float32_to_compare_it_with() -> None:
    reference = {"bfloat16": [10.4, 6.6], "float32": [10.4]}
    expect: Any = CLAIMS["eager"].expect
    evidence: Any = {"trained": EAGER, "reference": reference}

    with pytest.raises(ValueError, match="shorter"):
        list(step.find_loss_problems(expect, evidence))


@pytest.mark.parametrize("figure", ["times_as_long", "times_the_peak", "distance_from_float32"])
@pytest.mark.parametrize("baseline", [BASELINE, None])
def test_what_is_no_number_is_within_no_bound(
    figure: str, baseline: Mapping[str, Any] | None
) -> None:
    subject = "eager" if figure == "distance_from_float32" or baseline else "liger"
    not_a_number: Any = {figure: float("nan")}

    assert judge_step(subject, baseline=baseline, **not_a_number).status is Status.FAIL


@pytest.mark.parametrize("peak", [0, float("nan")])
def test_no_counted_memory_is_a_problem_even_if_there_is_nothing_to_compare_it_with(
    peak: float,
) -> None:
    expect: Any = CLAIMS["eager"].expect
    evidence: Any = {"trained": {**EAGER, "peak": peak}}

    problems = list(step.find_peak_problems(expect, evidence))

    assert problems == ["torch's allocator counted no GPU memory at all"]


def test_no_memory_is_compared_with_an_eager_model_whose_memory_was_not_counted() -> None:
    expect: Any = CLAIMS["liger"].expect
    evidence: Any = {"trained": LIGER, "eager": {**EAGER, "peak": 0}}

    problems = list(step.find_peak_problems(expect, evidence))

    assert problems == ["torch's allocator counted no GPU memory of the eager model"]


def test_a_step_without_a_time_is_not_called_slow() -> None:
    finding = judge_step(times_as_long=float("nan"))

    fails(finding, "no time of a step could be measured")
    assert "is allowed" not in finding.reason
    assert finding.next_step == MEASUREMENT_FAILED


def test_a_slower_step_fails_and_names_the_recorded_time() -> None:
    fails(
        judge_step(times_as_long=1.3),
        "recorded runs of this image took 325.7 ms a step (by image ID: 2 runs",
    )


@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_a_slower_step_on_a_disturbed_gpu_is_unproven(disturbance: str) -> None:
    finding = judge_step(times_as_long=1.3, **DISTURBANCES[disturbance])

    assert finding.status is Status.UNPROVEN
    assert "recorded runs of this image took 325.7 ms a step" in finding.reason


def test_a_step_whose_times_vary_too_much_is_unproven() -> None:
    """Its bound is as wide as times vary: what varies as it likes would keep any."""
    finding = judge_step(time=NOISY_TIME)

    assert finding.status is Status.UNPROVEN
    assert "times vary by 50%" in finding.reason


def test_a_step_compared_with_an_eager_step_whose_times_vary_too_much_is_unproven() -> None:
    noisy_eager_time = {**NOISY_TIME, "seconds": EAGER["time"]["seconds"]}

    finding = judge_step("liger", times_as_long=1.4, eager_time=noisy_eager_time)

    assert finding.status is Status.UNPROVEN


def test_a_higher_peak_of_memory_fails_also_on_a_disturbed_gpu() -> None:
    finding = judge_step(times_the_peak=1.1, **DISTURBANCES["other process"])

    assert finding.status is Status.FAIL


def test_a_peak_of_zero_fails_because_the_allocators_cache_is_off() -> None:
    assert judge_step(times_the_peak=0.0).status is Status.FAIL


def test_losses_that_are_not_those_of_float32_fail() -> None:
    assert judge_step(distance_from_float32=0.1).status is Status.FAIL


def test_losses_that_are_not_the_recorded_ones_fail() -> None:
    assert judge_step(losses=[loss + 0.1 for loss in LOSSES]).status is Status.FAIL


@pytest.mark.parametrize(("fall", "status"), [(0.11, Status.PASS), (0.09, Status.FAIL)])
def test_losses_must_fall_by_a_tenth(fall: float, status: Status) -> None:
    losses = [*LOSSES[:-1], LOSSES[0] - fall]

    assert judge_step(losses=losses, baseline={**BASELINE, "loss": losses[-1]}).status is status


def test_a_loss_that_is_nan_fails() -> None:
    losses = [*LOSSES[:-1], float("nan")]

    assert judge_step(losses=losses, baseline=None).status is Status.FAIL


@pytest.mark.parametrize("subject", ["eager", "liger"])
def test_a_step_without_a_recorded_run_is_unproven(subject: str) -> None:
    assert judge_step(subject, baseline=None).status is Status.UNPROVEN


def test_a_liger_that_changes_nothing_fails_by_the_eager_step_without_a_recorded_run() -> None:
    finding = judge_step(
        "liger",
        baseline=None,
        times_as_long=EAGER["time"]["seconds"] / LIGER["time"]["seconds"],
        times_the_peak=EAGER["peak"] / LIGER["peak"],
    )

    fails(finding, "1.00 of the eager model's")


def test_a_liger_with_other_losses_than_the_eager_step_fails_without_a_recorded_run() -> None:
    losses = [loss + 0.2 for loss in LOSSES]

    assert judge_step("liger", baseline=None, losses=losses).status is Status.FAIL


# Times and recorded runs.


def test_a_bound_counts_the_noise_of_both_runs() -> None:
    calm: timing.Timed = {"seconds": 1.0, "spread": 0.0, "repeats": 9}
    noisy: timing.Timed = {"seconds": 1.0, "spread": 0.04, "repeats": 9}

    # a margin of 8 %, plus three times the spread of 4 %
    assert timing.longest_allowed(calm, calm, 0.08) == pytest.approx(1.08)
    assert timing.longest_allowed(noisy, calm, 0.08) == pytest.approx(1.2)
    assert timing.longest_allowed(calm, noisy, 0.08) == timing.longest_allowed(noisy, calm, 0.08)


def test_a_single_outlier_changes_neither_the_time_nor_its_spread() -> None:
    timed = timing.summarise_times([1.0, 1.01, 0.99, 1.0, 5.0])

    assert timed["seconds"] == 1.0
    assert timed["spread"] < 0.02


def step_row(seconds: float) -> StepRow:
    return StepRow(seconds=seconds, spread=0.002, peak=10, loss=5.0)


def test_a_baseline_is_of_all_runs_and_as_wide_as_they_differ() -> None:
    of_three = baselines.baseline([step_row(0.32), step_row(0.33), step_row(0.34)])
    of_one = baselines.baseline([step_row(0.32)])

    assert of_three["time"]["seconds"] == 0.33
    assert of_three["time"]["spread"] > 0.04
    assert of_one["time"]["spread"] == 0.002


def test_a_step_that_failed_after_a_rebuild_is_still_held_to_the_runs_before() -> None:
    """A line has the steps that did not fail: of the others the newest payload has none."""
    before = recorded.lines()["cu130-torch211/h100-2"]
    assert before.date
    rebuilt = before.model_copy(
        update={
            "id": "cu130-torch211/new",
            "digest": "sha256:ab",
            "payload": {"all": "ab"},
            "steps": {name: row for name, row in before.steps.items() if name != "eager"},
            "date": before.date + timedelta(days=1),
        }
    )

    generated = json.loads(baselines.generated([before, rebuilt]))["cu130-torch211"][H100]

    assert "0f93ecff4b4f" in generated["eager"]["of"]
    assert "ab" in generated["liger"]["of"]


NOISY_EAGER = {**EAGER, "time": {**EAGER["time"], "spread": 0.5}}


def verdict_on_step(evidence: Mapping[str, Any], status: Status) -> ClaimVerdict:
    claim = CLAIMS["eager"]
    return ClaimVerdict(claim=claim, status=status, reason="", seconds=1.0, evidence=evidence)


@pytest.mark.parametrize(
    ("evidence", "is_recorded"),
    [
        pytest.param({"trained": EAGER, "conditions": QUIET}, True, id="undisturbed"),
        pytest.param({"trained": NOISY_EAGER, "conditions": QUIET}, False, id="noisy"),
        pytest.param(
            {"trained": EAGER, "conditions": {**QUIET, **DISTURBANCES["heat"]}}, False, id="heat"
        ),
    ],
)
def test_a_step_is_recorded_unless_it_was_disturbed_varied_or_failed(
    evidence: Mapping[str, Any], is_recorded: bool
) -> None:
    passed = verdict_on_step(evidence, Status.PASS)
    failed = replace(passed, status=Status.FAIL)

    assert bool(collect_steps([passed])) is is_recorded
    assert bool(steps_of_run_line(passed)) is is_recorded
    assert not steps_of_run_line(failed)


def steps_of_run_line(verdict_on_claim: ClaimVerdict) -> Any:
    """Return the steps that results/runs.jsonl records of a run with this verdict."""
    evidence = Evidence(image="x", digest="sha256:1", records=())
    verdict = Verdict(image="x", digest="sha256:1", claims=(verdict_on_claim,))
    return records.make_run_line(evidence, verdict, "here").steps
