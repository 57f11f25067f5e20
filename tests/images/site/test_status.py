"""The status of an image: one definition, of verdict, GPU, day, newer claims and moved layers."""

from dataclasses import replace
from datetime import date

import pytest

from images.config.paths import CHECKOUT
from images.locking import layer_record
from images.site import records, runs
from images.site.recorded import RecordedRuns
from images.site.runs import Run
from images.site.status import (
    ImageStatus,
    Validation,
    compare_build,
    image_status,
    layers_of_today,
)
from tests.support import site_samples as samples
from tests.support.site_samples import H100, H200
from tests.support.sources import SOURCES, image
from validate.claims import Claim, Tier
from validate.judging import Status

GATE = (Tier.STATIC, Tier.CPU, Tier.GPU)
PAYLOAD = {"debian": "1", "torch": "2", "settings": "3"}
WHOLE = samples.run(
    "i", *samples.STATIC_CPU, samples.gpu(), gpus=(H200,), day=date(2026, 11, 10), payload=PAYLOAD
)
LATER_ON_H100 = replace(
    samples.run("i", *samples.STATIC_CPU, samples.gpu(), gpus=(H100,), day=date(2026, 11, 12)),
    digest="sha256:def",
    payload={},
)


def status_of(*of_image: Run, **more: object) -> ImageStatus:
    plain = {"pins": {"torch": "2.7.1"}, "layers": {}, **more}
    return image_status(of_image, **plain)  # type: ignore[arg-type]


def with_more_gpu_claims(run: Run) -> Run:
    more = [samples.claim(Tier.GPU, check="step", subject=subject) for subject in ("a", "b")]
    return replace(run, claims=(*run.claims, *more))


def newer_claim(tier: Tier) -> Claim:
    return Claim(check="new", subject="x", tier=tier, probe="x.y", statement="x", expect={})


# --- newer claims, moved layers -------------------------------------------------------------------


def test_claims_that_were_added_do_not_turn_a_pass_into_anything_else() -> None:
    claims = [newer_claim(tier) for tier in GATE]

    status = status_of(WHOLE, claims=claims)

    assert status.validation(GATE) is Validation.VALIDATED
    assert status.passed_on == ["H200"]
    (gpu_run,) = [run for run in status.deciding if run.tier is Tier.GPU]
    assert gpu_run.phrase == (
        "passed the 1 claim of its run on H200 of 2026-11-10; 1 claim added since and not measured"
    )


@pytest.mark.parametrize(
    ("more", "moved"),
    [
        ({"pins": {"torch": "2.8.0"}}, "torch 2.7.1 where the pin is 2.8.0 now"),
        ({"layers": {"torch": frozenset({"9"}), "debian": frozenset({"1"})}}, "layer torch moved"),
    ],
)
def test_layers_that_moved_make_a_run_stale(more: dict[str, object], moved: str) -> None:
    status = status_of(WHOLE, **more)

    assert all(moved in run.moved for run in status.deciding)
    assert status.validation(GATE) is Validation.STALE
    assert status.passed_on == []
    assert "; stale: " in status.gpu_sentence()


@pytest.mark.parametrize(
    ("lock", "validation"),
    [
        ("of today", Validation.PARTLY),
        ("of that night", Validation.FAILED),
        ("", Validation.FAILED),
    ],
)
def test_a_nightly_run_of_another_lock_than_todays_is_stale_though_it_failed(
    lock: str, validation: Validation
) -> None:
    """cu130-torch214 was shown as failed for a night before its pins moved, on a false alarm."""
    night = samples.run(
        "i", samples.claim(Tier.STATIC, Status.FAIL), digest="sha256:def", day=date(2026, 11, 26)
    )
    night = replace(night, packages={}, lock="of that night")
    older = replace(WHOLE, packages={}, payload={})

    assert status_of(older, night, lock=lock).validation(GATE) is validation


def test_known_faults_are_counted_apart_whatever_the_verdict() -> None:
    known = samples.claim(Tier.GPU, Status.KNOWN, check="silent-faults", required=False)
    for verdict, words in [(Status.PASS, "passed the 1 claim"), (Status.FAIL, "failed 1 of the 2")]:
        run = replace(samples.run("i", samples.gpu(verdict), known, gpus=(H200,)), payload=PAYLOAD)

        phrase = status_of(run).deciding[0].phrase

        assert words in phrase
        assert " and showed 1 known silent fault" in phrase


def test_a_pass_does_not_hide_a_claim_that_failed_and_is_not_required() -> None:
    optional = samples.claim(Tier.GPU, Status.FAIL, check="step", required=False)
    run = samples.run("i", samples.gpu(Status.PASS), optional, gpus=(H200,))

    phrase = status_of(run).deciding[0].phrase

    assert "passed the 1 claim of its run on H200" in phrase
    assert ", failed 1 of those not required" in phrase


def test_layers_that_are_known_by_another_digest_have_not_moved() -> None:
    layers = {"torch": frozenset({"2", "written by another engine"})}

    assert {run.moved for run in status_of(WHOLE, layers=layers).runs} == {""}


def test_people_pull_a_published_image_whatever_the_pins_are_today() -> None:
    status = status_of(WHOLE, pins={"torch": "2.8.0"}, published_digest=WHOLE.digest)

    assert status.validation(GATE) is Validation.VALIDATED


def test_age_alone_makes_no_run_stale() -> None:
    old = replace(WHOLE, moment=None)

    assert status_of(old).validation(GATE) is Validation.VALIDATED


def test_a_run_whose_layers_are_not_recorded_counts_and_says_so() -> None:
    status = status_of(WHOLE, LATER_ON_H100)

    assert status.passed_on == ["H100", "H200"]
    assert "; its layers are not recorded" in status.gpu_sentence(["H100"], "sm_90")


def test_a_run_of_other_layers_than_the_newest_does_not_count() -> None:
    newest = replace(LATER_ON_H100, payload={**PAYLOAD, "torch": "9"})

    assert status_of(WHOLE, newest).passed_on == ["H100"]


def test_runs_of_two_builds_with_the_same_layers_count_together() -> None:
    on_other_gpu = replace(LATER_ON_H100, payload=PAYLOAD)

    assert status_of(WHOLE, on_other_gpu).passed_on == ["H100", "H200"]


def test_a_run_that_recorded_no_packages_had_those_of_the_next_newer_one() -> None:
    older = replace(WHOLE, packages={}, moment=None)
    newer = replace(WHOLE, packages={"torch": "2.7.0"})

    status = status_of(newer, older)

    assert {run.moved for run in status.runs} == {"torch 2.7.0 where the pin is 2.7.1 now"}


def test_a_run_of_a_part_of_a_tier_does_not_replace_the_whole() -> None:
    """`validate --claim` on an image that passed: h200-speed of cu126-torch25."""
    whole = with_more_gpu_claims(WHOLE)
    part = replace(
        samples.run("i", samples.gpu(Status.UNPROVEN), gpus=(H200,), day=date(2026, 11, 11)),
        payload=PAYLOAD,
    )

    assert status_of(whole, part).passed_on == ["H200"]


def test_a_part_of_a_tier_that_failed_counts() -> None:
    whole = with_more_gpu_claims(WHOLE)
    part = replace(
        samples.run("i", samples.gpu(Status.FAIL), gpus=(H200,), day=date(2026, 11, 11)),
        payload=PAYLOAD,
    )

    assert status_of(whole, part).validation(GATE) is Validation.FAILED


def test_known_faults_are_counted_beside_the_claims_that_passed() -> None:
    known = samples.claim(Tier.GPU, Status.KNOWN, check="silent-faults", required=False)
    run = samples.run("i", samples.gpu(), known, gpus=(H200,))

    (gpu_run,) = status_of(run).deciding

    assert gpu_run.verdict is Status.PASS
    assert gpu_run.phrase.startswith("passed the 1 claim of its run on H200 of ")
    assert " and showed 1 known silent fault" in gpu_run.phrase


@pytest.mark.parametrize("with_whole_run", [True, False])
def test_what_a_run_of_single_claims_did_not_judge_is_not_newer(*, with_whole_run: bool) -> None:
    whole = with_more_gpu_claims(WHOLE)
    part = replace(
        samples.run("i", samples.gpu(Status.FAIL), gpus=(H200,), day=date(2026, 11, 11)),
        payload=PAYLOAD,
    )
    claims = [replace(newer_claim(Tier.GPU), subject=subject) for subject in "abc"]

    status = status_of(part, *[whole] * with_whole_run, claims=claims)

    gpu_runs = [run for run in status.deciding if run.tier is Tier.GPU]
    assert [run.phrase for run in gpu_runs] == [
        "failed 1 of the 1 claim of its run on H200 of 2026-11-11"
    ]


def test_the_optional_claims_of_a_nightly_run_hide_no_newer_required_one() -> None:
    # given a line of a nightly run, which has numbers and no names
    optional = [
        samples.claim(Tier.STATIC, subject=str(number), required=False) for number in range(9)
    ]
    required = [samples.claim(Tier.STATIC, subject=str(number)) for number in range(9, 20)]
    run = replace(samples.run("i", *optional, *required), claims=())
    claims = [
        replace(newer_claim(Tier.STATIC), subject=str(number), required=number >= 9)
        for number in range(25)
    ]

    (static_run,) = status_of(run, claims=claims).deciding

    assert static_run.newer == 5


def test_a_tier_without_a_required_claim_is_not_said_to_leave_none_unproven() -> None:
    claims = [samples.claim(Tier.CPU, subject=subject, required=False) for subject in "abc"]

    (cpu_run,) = status_of(samples.run("i", *claims)).deciding

    assert cpu_run.verdict is Status.UNPROVEN
    assert cpu_run.phrase.startswith("is not proved by the 3 claims of its run ")


def test_an_image_that_ran_on_several_gpus_only_is_not_said_to_have_run_on_none() -> None:
    several = samples.gpu(tier=Tier.MULTIGPU)
    on_two = samples.run("i", *samples.STATIC_CPU, several, gpus=(H200, H200))
    on_none = samples.run("i", *samples.STATIC_CPU)

    assert "; gpu not validated; multigpu passed the 1 claim of" in status_of(on_two).sentence
    assert status_of(on_none).sentence.endswith("; not validated on a GPU.")


# --- the sentence of a machine --------------------------------------------------------------------


def test_a_gpu_on_which_nothing_ran_is_named_before_others() -> None:
    sentence = status_of(WHOLE).gpu_sentence(["GeForce RTX 3090"], "sm_86")

    assert sentence.startswith(
        "Its gpu tier has not run on GeForce RTX 3090 (sm_86). "
        "It passed the 1 claim of its run on H200 of 2026-11-10 (image ID "
    )


def test_a_run_on_this_gpu_comes_before_newer_ones_on_others() -> None:
    on_other_gpu = replace(LATER_ON_H100, payload=PAYLOAD)

    assert " on H200 of " in status_of(WHOLE, on_other_gpu).gpu_sentence(["H200"], "sm_90")


def test_without_runs_the_sentence_says_so() -> None:
    assert status_of().gpu_sentence(["H200"]) == ("No run of its gpu tier is recorded, on any GPU.")


# --- a build, and what is recorded ----------------------------------------------------------------


def test_a_run_of_the_same_image_id_is_about_the_build() -> None:
    sentence, is_about_build = compare_build([WHOLE], WHOLE.digest, {})

    assert is_about_build
    assert sentence == (
        "this build is, bit for bit, the image whose gpu tier passed the 1 claim of its run on "
        "H200 of 2026-11-10"
    )


@pytest.mark.parametrize(
    ("payload", "run"),
    [
        pytest.param({}, WHOLE, id="the build's payload is not known"),
        pytest.param({}, LATER_ON_H100, id="neither payload is known"),
        pytest.param(PAYLOAD, LATER_ON_H100, id="the run's payload is not known"),
    ],
)
def test_without_both_payloads_no_run_is_about_another_image_id(
    payload: dict[str, str], run: Run
) -> None:
    sentence, is_about_build = compare_build([run], "sha256:mine", payload)

    assert not is_about_build
    assert "has another ID than" in sentence
    assert "are not known" in sentence


def test_without_a_run_none_is_about_the_build() -> None:
    sentence, is_about_build = compare_build([], "sha256:mine", PAYLOAD)

    assert not is_about_build
    assert sentence == "no run of its gpu tier is recorded, of any build"


def test_the_layers_of_todays_builds_are_those_of_the_record() -> None:
    record = layer_record.read(CHECKOUT.locks)

    layers = layers_of_today(record, "cu126-torch25")

    assert {"base", "debian", "torch", "settings"} <= layers.keys()
    assert layers_of_today(record, "cu99-torch99") == {}


def test_every_place_reads_the_same_status() -> None:
    recorded = RecordedRuns.read(SOURCES)
    cu128 = image("cu128-torch210")

    status = recorded.status(cu128)

    assert status.passed_on == recorded.status(cu128, with_claims=False).passed_on
    assert len(runs.recorded_runs([records.FOLDER])) == len(recorded.runs)
