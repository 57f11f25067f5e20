"""Two records side by side: what moved, what is beyond the noise, and what is not recorded."""

from typing import Any

import pytest

from images.comparison.differences import Comparison, ImageRecord, LayerState, compare
from images.validation.rows import ClaimRow, StepRow, TierCount
from validate.claims import Tier
from validate.judging import Status

H200 = ["NVIDIA H200"]
STEP = StepRow(seconds=0.3, spread=0.01, peak=40_000_000_000, loss=5.35)


def record(label: str, **fields: Any) -> ImageRecord:
    """The record of an image of which nothing is recorded but `fields`."""
    return ImageRecord(
        label=label,
        name="cu126-torch25",
        source=f"run {label}",
        **{"digest": f"sha256:{label}", **fields},
    )


def compared(before: dict[str, Any], after: dict[str, Any]) -> Comparison:
    """The comparison of two records with these fields."""
    return compare(record("A", **before), record("B", **after))


def packages(versions: dict[str, str], **fields: Any) -> dict[str, Any]:
    """The fields of a record with packages, all of which are pinned."""
    return {"packages": versions, "pins": list(versions), **fields}


def claim(key: str, verdict: Status, reason: str = "") -> ClaimRow:
    """A claim of the static tier, by its name `CHECK/SUBJECT`."""
    check, _, subject = key.partition("/")
    return ClaimRow(
        check=check,
        subject=subject,
        tier=Tier.STATIC,
        verdict=verdict,
        required=True,
        reason=reason,
    )


def judged(*claims: ClaimRow) -> dict[str, Any]:
    """The fields of a record whose static tier was measured."""
    return {"claims": claims, "tiers": {Tier.STATIC: TierCount(verdict=Status.PASS, counts={})}}


# --- packages -------------------------------------------------------------------------------------


def test_packages_that_moved_came_or_went_are_changes_where_all_are_recorded() -> None:
    before = packages({"torch": "2.13.0", "numpy": "2.3", "gone": "1"}, all_packages=True)
    after = packages({"torch": "2.14.1", "numpy": "2.3", "new": "2"}, all_packages=True)

    changes = compared(before, after).packages

    assert [str(change) for change in changes] == [
        "torch 2.13.0 -> 2.14.1",
        "new (none) -> 2",
        "gone 1 -> (none)",
    ]


def test_a_package_that_one_record_lacks_is_not_said_to_have_come_or_gone() -> None:
    before = packages({"torch": "2.13.0"})
    after = packages({"torch": "2.14.1", "flash-attn-4": "4.0"}, all_packages=True)

    comparison = compared(before, after)

    assert [str(change) for change in comparison.packages] == ["torch 2.13.0 -> 2.14.1"]
    assert "packages that the matrix does not pin" in comparison.before.missing


def test_a_pin_that_a_complete_record_lacks_came_or_went() -> None:
    pins = packages({"torch": "2.5.1", "flash-attn": "2.8.3"})
    everything = packages({"torch": "2.5.1", "numpy": "2.0"}, all_packages=True)

    removed = compared(pins, everything).packages
    added = compared(everything, pins).packages

    assert [str(change) for change in removed] == ["flash-attn 2.8.3 -> (none)"]
    assert [str(change) for change in added] == ["flash-attn (none) -> 2.8.3"]


def test_without_packages_of_an_image_none_are_compared() -> None:
    comparison = compared({}, packages({"torch": "2.14.1"}, all_packages=True))

    assert comparison.packages == ()
    assert "packages" in comparison.before.missing


def test_pinned_packages_come_first_and_system_packages_apart() -> None:
    before = {"packages": {"a": "1", "torch": "1"}, "system_packages": {"libc6": "2.36"}}
    after = {"packages": {"a": "2", "torch": "2"}, "system_packages": {"libc6": "2.41"}}

    comparison = compared(
        {**before, "pins": ["torch"], "all_packages": True},
        {**after, "pins": ["torch"], "all_packages": True},
    )

    assert [(change.name, change.pinned) for change in comparison.packages] == [
        ("torch", True),
        ("a", False),
    ]
    assert [str(change) for change in comparison.system_packages] == ["libc6 2.36 -> 2.41"]


def test_builds_of_one_version_differ_where_both_records_have_local_parts() -> None:
    before = packages({"torch": "2.7.1+cu126"}, all_packages=True, local_versions=True)
    after = packages({"torch": "2.7.1+cpu"}, all_packages=True, local_versions=True)

    comparison = compared(before, after)

    assert [str(change) for change in comparison.packages] == ["torch 2.7.1+cu126 -> 2.7.1+cpu"]


def test_a_build_without_a_local_part_differs_from_one_that_has_it() -> None:
    before = packages({"torch": "2.7.1"}, all_packages=True, local_versions=True)
    after = packages({"torch": "2.7.1+cu126"}, all_packages=True, local_versions=True)

    assert [str(change) for change in compared(before, after).packages] == [
        "torch 2.7.1 -> 2.7.1+cu126"
    ]


def test_local_parts_that_only_one_record_has_are_no_change() -> None:
    before = packages({"torch": "2.7.1", "numpy": "2.3"}, all_packages=True)
    after = packages(
        {"torch": "2.7.1+cu126", "numpy": "2.4"}, all_packages=True, local_versions=True
    )

    comparison = compared(before, after)

    assert [str(change) for change in comparison.packages] == ["numpy 2.3 -> 2.4"]


# --- layers ---------------------------------------------------------------------------------------


def test_each_layer_has_its_state_and_its_sizes() -> None:
    before = {
        "layers": {"base": "1", "torch": "2", "cuda": "3"},
        "layer_bytes": {"base": 10, "torch": 20, "cuda": 30, "suite": 1},
    }
    after = {
        "layers": {"base": "1", "torch": "9", "profile": "4"},
        "layer_bytes": {"base": 10, "torch": 25, "profile": 5, "suite": 2},
    }

    rows = compared(before, after).layers

    # The suite's layer, whose digest is not recorded, is left out.
    assert {row.layer: (row.state, row.before, row.after) for row in rows} == {
        "base": (LayerState.SAME, 10, 10),
        "torch": (LayerState.CHANGED, 20, 25),
        "cuda": (LayerState.REMOVED, 30, None),
        "profile": (LayerState.ADDED, None, 5),
    }


def test_layers_that_are_not_recorded_are_not_compared() -> None:
    comparison = compared({"layer_bytes": {"torch": 20}}, {"layers": {"torch": "2"}})

    assert comparison.layers == ()
    assert "layers" in comparison.before.missing
    assert "sizes of layers" in comparison.after.missing


def test_layers_without_digests_are_compared_by_their_sizes() -> None:
    (row,) = compared({"layer_bytes": {"torch": 20}}, {"layer_bytes": {"torch": 25}}).layers

    assert (row.state, row.before, row.after) == (LayerState.UNKNOWN, 20, 25)


# --- claims ---------------------------------------------------------------------------------------


def test_claims_with_another_verdict_and_claims_of_one_run_are_listed() -> None:
    before = judged(
        claim("pins/torch", Status.PASS),
        claim("files/gone", Status.PASS),
        claim("files/known", Status.KNOWN),
    )
    after = judged(
        claim("files/new", Status.FAIL),
        claim("pins/torch", Status.PASS),
        claim("files/known", Status.PASS),
    )

    changes = compared(before, after).claims

    verdicts = []
    for change in changes:
        old = change.before.verdict if change.before else None
        new = change.after.verdict if change.after else None
        verdicts.append((change.claim, old, new))
    assert verdicts == [
        ("files/new", None, Status.FAIL),
        ("files/known", Status.KNOWN, Status.PASS),
        ("files/gone", Status.PASS, None),
    ]


def test_claims_of_a_tier_that_one_run_did_not_measure_are_not_compared() -> None:
    comparison = compared({}, judged(claim("pins/torch", Status.PASS)))

    assert comparison.claims == ()


@pytest.mark.parametrize("verdict", [Status.FAIL, Status.UNPROVEN])
def test_a_claim_that_does_not_hold_for_another_reason_is_listed(verdict: Status) -> None:
    before = claim("numerics/gemm", verdict, "off by 1e-3")
    after = claim("numerics/gemm", verdict, "illegal access")
    same = claim("a/b", verdict, "the same")

    (change,) = compared(judged(before, same), judged(after, same)).claims

    assert (change.before, change.after) == (before, after)


def test_a_claim_that_is_no_longer_required_is_listed() -> None:
    before = claim("numerics/gemm", Status.FAIL, "off by 1e-3")
    after = before.model_copy(update={"required": False})

    (change,) = compared(judged(before), judged(after)).claims

    assert (change.before, change.after) == (before, after)


def test_figures_count_in_the_reason_of_a_failure_only() -> None:
    comparison = compared(
        judged(
            claim("step/eager", Status.UNPROVEN, "340.1 ms a step, which no run is beside"),
            claim("numerics/gemm", Status.FAIL, "off by 1e-3"),
        ),
        judged(
            claim("step/eager", Status.UNPROVEN, "99 ms a step, which no run is beside"),
            claim("numerics/gemm", Status.FAIL, "off by 5e-1"),
        ),
    )

    assert [change.claim for change in comparison.claims] == ["numerics/gemm"]


def test_reasons_of_claims_that_hold_or_are_known_are_not_compared() -> None:
    comparison = compared(
        judged(claim("a/passed", Status.PASS, "1"), claim("a/known", Status.KNOWN, "1")),
        judged(claim("a/passed", Status.PASS, "2"), claim("a/known", Status.KNOWN, "2")),
    )

    assert comparison.claims == ()


# --- training steps -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "judgement"),
    [
        ({}, "within noise"),
        # 1 + 0.08 (another machine) + 3 * sqrt(0.01^2 + 0.01^2) = 1.122 times as long.
        ({"seconds": 0.3 * 1.121}, "within noise"),
        ({"seconds": 0.3 * 1.124}, "slower"),
        ({"seconds": 0.3 / 1.124}, "faster"),
        ({"seconds": 0.9, "spread": 0.11}, "too noisy to compare"),
        ({"peak": 42_100_000_000}, "more memory"),
        ({"peak": 38_000_000_000}, "less memory"),
        ({"loss": 5.41}, "another loss"),
        ({"loss": float("nan")}, "another loss"),
        ({"seconds": float("nan")}, "slower"),
        ({"seconds": 0.9, "loss": 5.41}, "slower, another loss"),
    ],
)
def test_a_training_step_is_held_to_the_noise_of_both_runs(
    changed: dict[str, float], judgement: str
) -> None:
    new_step = STEP.model_copy(update=changed)

    (row,) = compared(
        {"steps": {"eager": STEP}, "gpus": H200}, {"steps": {"eager": new_step}, "gpus": H200}
    ).steps

    assert row.judgement == judgement


def test_steps_on_different_gpus_are_shown_and_not_judged() -> None:
    slow = STEP.model_copy(update={"seconds": 1.0})

    (row,) = compared(
        {"steps": {"eager": STEP}, "gpus": ["NVIDIA H100 80GB HBM3"]},
        {"steps": {"eager": slow}, "gpus": H200},
    ).steps

    assert (row.before, row.after, row.judgement) == (STEP, slow, "not judged: other GPUs")


def test_a_step_that_only_one_run_has_is_not_judged() -> None:
    comparison = compared({"gpus": H200}, {"steps": {"eager": STEP}, "gpus": H200})

    (row,) = comparison.steps
    assert (row.before, row.after, row.judgement) == (None, STEP, "not judged")
    assert "undisturbed training steps" in comparison.before.missing
