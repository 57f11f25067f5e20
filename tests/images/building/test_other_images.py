"""Which other images run GPU claims that failed, and what is said where none can."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from images.building import other_images, validating
from images.building.other_images import Candidate, OtherImages, RecordedPass
from images.commands import build, validate
from images.engine import EngineError, EngineErrorKind, ImageInfo, private_engine
from images.engine.gpus import Attachment
from images.errors import Problem, UserError
from images.hardware.inventory import Gpu, GpuMode, Inventory
from images.site import recorded
from tests.images.validation.test_validation_run import Engine
from tests.support.engine_contents import image_info
from tests.support.sources import SOURCES
from validate.claims import Claim, ClaimSet, Tier
from validate.evidence import Evidence, OtherImage, Outcome, Record
from validate.judge import judge
from validate.judging import Status

H200 = Gpu(name="NVIDIA H200", capability=(9, 0), memory=140 << 30)
INVENTORY = Inventory(driver="580.95.05", gpus=(H200,), source="NVML")
GPUS = Attachment(mode=GpuMode.NVIDIA, reason="", inventory=INVENTORY)
OTHER_DIGEST = "sha256:" + "0" * 64
PASSED = RecordedPass(
    run="cu126-torch25/h200",
    image="cu126-torch25",
    digest=OTHER_DIGEST,
    payload={"torch": "sha256:2"},
    gpus=("NVIDIA H200",),
    claims=frozenset({"numerics/gemm-fp32", "triton/jit"}),
    is_of_today=True,
)


def gpu_claim(key: str = "numerics/gemm-fp32", **fields: Any) -> Claim:
    check, subject = key.split("/")
    return Claim(
        check=check, subject=subject, tier=Tier.GPU, probe=f"gpu.{check}", statement="", **fields
    )


def evidence_of(*claims: Claim, seconds: Mapping[str, float] = MappingProxyType({})) -> Evidence:
    """Return evidence in which these claims fail: nothing was measured for them.

    `seconds`: how long probes took that took longer than one second.
    """
    records = []
    for probe in dict.fromkeys(claim.probe for claim in claims):
        duration = seconds.get(probe, 1.0)
        records.append(Record(probe=probe, outcome=Outcome.COMPLETED, seconds=duration, seed=7))
    return Evidence(
        image="a",
        digest="sha256:1",
        records=tuple(records),
        host={"seed": 7, "payload": {"torch": "sha256:1"}},
        claims=claims,
    )


SLOW_TRITON = {"gpu.triton": 301.0}
TRITON_TOO_SLOW = {"triton/jit": "gpu.triton took 301 s, and other images get 300 s together"}
"""Why no other image is to run a claim whose probe took so long."""


def others_of(evidence: Evidence) -> Sequence[OtherImage]:
    """Return what other images measured."""
    return evidence.host.get("other_images", [])


class EngineWithImages(Engine):
    """An engine that has the image with OTHER_DIGEST, unless it is told otherwise."""

    digests: Sequence[str] = (OTHER_DIGEST,)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.searches: list[str] = []

    def find(self, reference: str) -> ImageInfo | None:
        self.searches.append(reference)
        return image_info(digest=reference) if reference in self.digests else None


def compare(
    evidence: Evidence,
    monkeypatch: pytest.MonkeyPatch,
    *passes: RecordedPass,
    engine: Any = None,
    gpus: Attachment = GPUS,
    others_claims: Sequence[Claim] | None = None,
) -> tuple[Evidence, list[str]]:
    """Run what failed in other images; returns the evidence and what was said.

    `others_claims`: what the other image is held to; None: the same claims.
    """
    claims = evidence.claims if others_claims is None else tuple(others_claims)
    monkeypatch.setattr(
        validating, "claims_of", lambda *_args, **_options: ClaimSet(image="b", claims=claims)
    )
    said: list[str] = []
    others = OtherImages(engine or EngineWithImages(), SOURCES, lambda: passes, said.append)
    verdict = judge(evidence.claim_set, evidence)
    others.compare(evidence, verdict, gpus)
    return evidence, said


# --- what runs ------------------------------------------------------------------------------------


def test_only_failed_claims_run_in_the_other_image(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = EngineWithImages()
    optional = gpu_claim("triton/jit", required=False)

    evidence, said = compare(evidence_of(gpu_claim(), optional), monkeypatch, PASSED, engine=engine)

    (other,) = evidence.host["other_images"]
    assert (other["image"], other["digest"], other["run"]) == (
        "cu126-torch25",
        OTHER_DIGEST,
        "cu126-torch25/h200",
    )
    assert [claim["check"] for claim in other["claims"]] == ["numerics"]
    assert [record["probe"] for record in other["records"]] == ["gpu.numerics"]
    assert "not_compared" not in evidence.host
    assert said == [
        "cu126-torch25 runs 1 failed claim, to tell the image's fault from the machine's"
    ]
    (spec,) = engine.specs
    assert spec.image == OTHER_DIGEST
    assert spec.device_requests == GPUS.device_requests
    # Both images compute with the same random inputs.
    assert "--seed 7" in " ".join(spec.cmd)


def test_nothing_is_read_or_run_if_nothing_failed_on_a_gpu() -> None:
    def refuse() -> Sequence[RecordedPass]:
        raise AssertionError("recorded runs were read")

    others = OtherImages(EngineWithImages(), SOURCES, refuse, lambda _text: None)  # type: ignore[arg-type]
    evidence = evidence_of(gpu_claim(unproven="no GPU"))

    others.compare(evidence, judge(evidence.claim_set, evidence), GPUS)

    assert evidence.host.keys() == {"seed", "payload"}


def test_measuring_judges_again_with_what_the_other_image_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fake engine's containers measure nothing that a judge can read: both images fail."""
    claims = ClaimSet(image="a", claims=(gpu_claim(),))
    monkeypatch.setattr(validating.earlier_run, "describe_inputs", lambda *_a, **_o: {})
    monkeypatch.setattr(validating, "claims_of", lambda *_args, **_options: claims)
    engine: Any = EngineWithImages()
    others = OtherImages(engine, SOURCES, lambda: [PASSED], lambda _text: None)

    evidence, verdict = validating.measure_and_judge(
        engine, "a:1", claims, (Tier.GPU,), GPUS, compare=others.compare
    )

    (judged,) = verdict.claims
    assert judged.status is Status.UNPROVEN
    assert judged.reason.startswith("the host's fault: the image cu126-torch25, which passed")
    assert verdict.evidence_sha256 == evidence.sha256
    assert judge(evidence.claim_set, evidence).claims[0].reason == judged.reason


def test_a_required_claim_that_failed_is_told_as_soon_as_it_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = ClaimSet(image="a", claims=(gpu_claim(), gpu_claim("triton/jit", required=False)))
    monkeypatch.setattr(validating.earlier_run, "describe_inputs", lambda *_a, **_o: {})
    said: list[str] = []

    def on_record(record: Record) -> None:
        said.append(record.probe)

    validating.measure_and_judge(
        EngineWithImages(),  # type: ignore[arg-type]
        "a:1",
        claims,
        (Tier.GPU,),
        GPUS,
        say=said.append,
        on_record=on_record,
    )

    failed = next(text for text in said if text.startswith("failed so far"))
    assert failed.startswith("failed so far: numerics/gemm-fp32: ")
    assert said.index(failed) == said.index("gpu.numerics") + 1
    assert "triton/jit" not in "".join(said)


def test_an_admission_claim_that_nobody_chose_is_told_if_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = replace(gpu_claim("files/recorded"), tier=Tier.STATIC, probe="static.files")
    claims = ClaimSet(image="a", claims=(gpu_claim(),), admission=(files,))
    monkeypatch.setattr(validating.earlier_run, "describe_inputs", lambda *_a, **_o: {})
    said: list[str] = []

    validating.measure_and_judge(
        EngineWithImages(),  # type: ignore[arg-type]
        "a:1",
        claims,
        (Tier.GPU,),
        GPUS,
        say=said.append,
    )

    assert any(text.startswith("failed so far: files/recorded: ") for text in said)


def test_another_image_runs_what_the_newest_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = replace(PASSED, run="cu130-torch211/h200", claims=frozenset({"numerics/gemm-fp32"}))

    evidence, _ = compare(
        evidence_of(gpu_claim(), gpu_claim("triton/jit")), monkeypatch, newest, PASSED
    )

    checks_of_runs = {}
    for other in evidence.host["other_images"]:
        checks_of_runs[other["run"]] = [claim["check"] for claim in other["claims"]]
    assert checks_of_runs == {
        "cu130-torch211/h200": ["numerics"],
        "cu126-torch25/h200": ["triton"],
    }


def test_an_image_that_does_not_start_is_no_error_and_its_claims_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_probes: list[str]) -> None:
        raise EngineError(Problem(where="b", cause="no such device"), EngineErrorKind.OTHER)

    evidence, _ = compare(
        evidence_of(gpu_claim()), monkeypatch, PASSED, engine=EngineWithImages(refuse)
    )

    assert evidence.host["not_compared"] == {
        "numerics/gemm-fp32": "the image cu126-torch25 did not measure it: no such device"
    }


def test_another_image_is_held_to_what_the_matrix_says_of_it_on_this_machine() -> None:
    evidence = evidence_of(gpu_claim("speed/copy"))
    recorded_pass = replace(PASSED, claims=frozenset({"speed/copy"}))
    engine: Any = EngineWithImages()
    others = OtherImages(engine, SOURCES, lambda: [recorded_pass], lambda _text: None)

    others.compare(evidence, judge(evidence.claim_set, evidence), GPUS)

    ((claim,),) = [other["claims"] for other in others_of(evidence)]
    assert claim["unproven"] == ""
    assert claim["expect"]["gpu"] == "NVIDIA H200"
    assert claim["expect"]["peak"] > 1


@pytest.mark.parametrize(
    "others_claim",
    [
        gpu_claim("triton/jit"),
        gpu_claim(unproven="no wheel"),
        gpu_claim(expect={"not_applicable": "takes compute capability 10.0"}),
    ],
)
def test_an_image_that_is_not_held_to_the_claim_does_not_run_it(
    monkeypatch: pytest.MonkeyPatch, others_claim: Claim
) -> None:
    evidence, said = compare(
        evidence_of(gpu_claim()), monkeypatch, PASSED, others_claims=[others_claim]
    )

    assert said == []
    assert evidence.host["not_compared"] == {
        "numerics/gemm-fp32": "cu126-torch25 can't be held to this claim on this machine"
    }


def test_recorded_runs_that_cannot_be_read_do_not_lose_what_was_measured() -> None:
    def read_damaged() -> Sequence[RecordedPass]:
        raise UserError(Problem(where="results/runs.jsonl:3", cause="is no run"))

    evidence = evidence_of(gpu_claim(), gpu_claim("triton/jit"), seconds=SLOW_TRITON)
    others = OtherImages(EngineWithImages(), SOURCES, read_damaged, print)

    others.compare(evidence, judge(evidence.claim_set, evidence), GPUS)

    assert evidence.host["not_compared"] == {
        "numerics/gemm-fp32": "the recorded runs can't be read (results/runs.jsonl:3: is no run)",
        **TRITON_TOO_SLOW,
    }


@pytest.mark.parametrize(
    ("out_of_memory", "probes"), [(False, ["gpu.a", "gpu.b", "gpu.c"]), (True, ["gpu.a"])]
)
def test_a_probe_that_was_killed_for_lack_of_memory_blames_no_machine(
    out_of_memory: bool, probes: list[str]
) -> None:
    candidate = Candidate(PASSED, image_info(digest=OTHER_DIGEST), ClaimSet(image="b", claims=()))
    records = (
        Record(probe="gpu.a", outcome=Outcome.COMPLETED, seconds=1.0),
        Record(probe="gpu.b", outcome=Outcome.CRASHED, seconds=1.0, exit_code=-9, log="Killed"),
        Record(probe="gpu.c", outcome=Outcome.TIMED_OUT, seconds=60.0),
    )
    measured = replace(
        evidence_of(), records=records, host={"seed": 7, "out_of_memory": out_of_memory}
    )

    described = other_images.describe(candidate, measured)

    assert [record["probe"] for record in described["records"]] == probes


# --- which image ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "recorded_pass",
    [
        pytest.param(replace(PASSED, gpus=("NVIDIA H100 80GB HBM3",)), id="other GPU"),
        pytest.param(replace(PASSED, gpus=("NVIDIA H200", "NVIDIA L4")), id="one more GPU"),
        pytest.param(replace(PASSED, digest="sha256:1"), id="same digest"),
        pytest.param(replace(PASSED, payload={"torch": "sha256:1"}), id="same layers"),
        pytest.param(replace(PASSED, claims=frozenset({"triton/jit"})), id="other claim"),
    ],
)
def test_a_run_of_another_gpu_or_claim_or_of_the_same_image_is_no_comparison(
    monkeypatch: pytest.MonkeyPatch, recorded_pass: RecordedPass
) -> None:
    evidence, _ = compare(evidence_of(gpu_claim()), monkeypatch, recorded_pass)

    assert "other_images" not in evidence.host
    assert evidence.host["not_compared"] == {
        "numerics/gemm-fp32": "no other image is recorded as PASS on this GPU model"
    }


def test_images_whose_layers_are_not_known_are_told_apart_by_their_digests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = evidence_of(gpu_claim())
    failed.host["payload"] = {}

    evidence, _ = compare(failed, monkeypatch, replace(PASSED, payload={}))

    assert len(others_of(evidence)) == 1


@pytest.mark.parametrize(
    ("is_of_today", "words"),
    [
        (True, "`nox -s build -- cu126-torch25` builds one, then validate again"),
        (False, "are images that no build gives today"),
    ],
)
def test_an_image_that_the_engine_lacks_is_one_to_build(
    monkeypatch: pytest.MonkeyPatch, is_of_today: bool, words: str
) -> None:
    engine = EngineWithImages()
    engine.digests = ()

    evidence, _ = compare(
        evidence_of(gpu_claim()),
        monkeypatch,
        replace(PASSED, is_of_today=is_of_today),
        engine=engine,
    )

    assert words in evidence.host["not_compared"]["numerics/gemm-fp32"]
    assert engine.specs == []


@pytest.mark.parametrize("name", ["cu126-torch25", "cu126-torch25-candidate"])
@pytest.mark.parametrize(
    ("of_record", "of_image", "is_the_same"),
    [
        ({"torch": "sha256:2"}, {"torch": "sha256:2"}, True),
        ({"torch": "sha256:2"}, {"torch": "sha256:3"}, False),
        # Neither is known.
        ({}, {}, False),
    ],
)
def test_an_image_of_the_recorded_name_counts_only_with_the_recorded_layers(
    of_record: dict[str, str],
    of_image: dict[str, str],
    is_the_same: bool,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = EngineWithImages()
    engine.digests = (name,)
    monkeypatch.setattr(OtherImages, "_read_payload", lambda *_arguments: of_image)
    recorded_pass = replace(PASSED, payload=of_record)

    evidence, _ = compare(evidence_of(gpu_claim()), monkeypatch, recorded_pass, engine=engine)

    digests = [other["digest"] for other in others_of(evidence)]
    assert digests == ([name] if is_the_same else [])


def test_the_layers_of_an_image_are_read_once_for_all_its_recorded_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are gigabytes."""
    reads: list[object] = []
    reading = SimpleNamespace(compared={"torch": "sha256:4"})
    monkeypatch.setattr(
        other_images.layers, "read_layers", lambda *arguments: reads.append(arguments) or reading
    )
    engine = EngineWithImages()
    engine.digests = ("cu126-torch25",)
    runs = [replace(PASSED, payload={"torch": f"sha256:{number}"}) for number in (2, 3, 4)]

    evidence, _ = compare(evidence_of(gpu_claim()), monkeypatch, *runs, engine=engine)

    assert len(reads) == 1
    assert len(others_of(evidence)) == 1


def test_an_image_for_a_newer_driver_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fail on this machine without any fault of it."""
    old_driver = replace(GPUS, inventory=replace(INVENTORY, driver="450.80.02"))

    evidence, _ = compare(evidence_of(gpu_claim()), monkeypatch, PASSED, gpus=old_driver)

    assert "other_images" not in evidence.host


def test_an_image_that_the_matrix_no_longer_has_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_pass = replace(PASSED, image="cu126-torch0", is_of_today=False)

    evidence, _ = compare(evidence_of(gpu_claim()), monkeypatch, recorded_pass)

    (reason,) = evidence.host["not_compared"].values()
    assert "images that no build gives today" in reason


def test_an_image_is_looked_for_only_if_it_passed_what_no_other_has_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looking may read the layers of an image."""
    of_another_claim = replace(PASSED, claims=frozenset({"triton/jit"}))
    engine = EngineWithImages()

    compare(evidence_of(gpu_claim()), monkeypatch, of_another_claim, PASSED, PASSED, engine=engine)

    assert engine.searches == [OTHER_DIGEST]


def test_nothing_is_compared_where_the_gpus_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, said = compare(
        evidence_of(gpu_claim()), monkeypatch, PASSED, gpus=replace(GPUS, inventory=None)
    )

    assert "other_images" not in evidence.host
    assert said == []


# --- time -----------------------------------------------------------------------------------------


def test_a_claim_that_no_recorded_run_passed_has_no_image_to_build() -> None:
    recorded_pass = replace(PASSED, claims=frozenset({"triton/jit"}))

    reason = other_images.reason_absent("numerics/gemm-fp32", [recorded_pass])

    assert reason == "no other image is recorded as PASS on this GPU model"


def test_claims_that_take_longer_than_the_limit_are_not_compared() -> None:
    claims = [gpu_claim("speed/copy"), gpu_claim(), gpu_claim("triton/jit")]
    # What has not failed does not run again.
    passed = gpu_claim("kernels/nf4")
    seconds = {"gpu.numerics": 299.0, "gpu.speed": 300.0, "gpu.kernels": 200.0}
    evidence = evidence_of(*claims, passed, seconds=seconds)

    assert other_images.find_too_long(claims, evidence) == {
        "speed/copy": "gpu.speed took 300 s, and other images get 300 s together"
    }


@pytest.mark.parametrize("passes", [[PASSED], []])
def test_what_takes_too_long_does_not_run_and_is_named_beside_what_did_not_run_either(
    passes: list[RecordedPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = evidence_of(gpu_claim(), gpu_claim("triton/jit"), seconds=SLOW_TRITON)

    evidence, _ = compare(slow, monkeypatch, *passes)

    measured = [record["probe"] for other in others_of(evidence) for record in other["records"]]
    not_compared = dict(evidence.host["not_compared"])
    assert not_compared.pop("triton/jit") == TRITON_TOO_SLOW["triton/jit"]
    assert measured == (["gpu.numerics"] if passes else [])
    assert list(not_compared) == ([] if passes else ["numerics/gemm-fp32"])


def test_another_image_is_stopped_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    engine = EngineWithImages()
    monkeypatch.setattr(other_images, "MOST_SECONDS", 20)
    original = other_images.validation_run.measure_in_container

    def measure(*arguments: Any, timeout: float, **options: Any) -> Any:
        timeouts.append(timeout)
        return original(*arguments, timeout=timeout, **options)

    monkeypatch.setattr(other_images.validation_run, "measure_in_container", measure)

    compare(evidence_of(gpu_claim()), monkeypatch, PASSED, engine=engine)

    (timeout,) = timeouts
    assert 1 <= timeout <= 20


# --- recorded runs --------------------------------------------------------------------------------


def test_recorded_runs_are_read_newest_first_without_images_that_were_broken() -> None:
    passes = recorded.read_passes(SOURCES)

    runs = [recorded_pass.run for recorded_pass in passes]
    assert "cu130-torch211/h100" in runs
    assert not [run for run in runs if "broken" in run]
    assert runs.index("cu130-torch211/h200-2026-11-29") < runs.index("cu130-torch211/h200-5")
    by_run = dict(zip(runs, passes, strict=True))
    # Its layers were not recorded, so nobody knows whether a build of today gives them.
    assert not by_run["cu130-torch211/h100"].is_of_today
    assert "numerics/gemm-fp32" in by_run["cu130-torch211/h100"].claims


@pytest.mark.parametrize("verb", ["build", "validate"])
def test_build_and_validate_compare_with_recorded_images(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compares: list[Any] = []

    def build_all(*arguments: Any) -> Any:
        compares.append(arguments[2].compare)
        raise UserError(Problem(where="a", cause="ends here", then="-"))

    def validate_image(*_arguments: Any, compare: Any, **_options: Any) -> Any:
        compares.append(compare)
        raise UserError(Problem(where="a", cause="ends here", then="-"))

    engine = EngineWithImages()
    engine.digests = (OTHER_DIGEST, "cu126-torch25")
    monkeypatch.setattr(
        private_engine, "open_engine", lambda *_args, **_options: nullcontext(engine)
    )
    monkeypatch.setattr(build, "build_all", build_all)
    monkeypatch.setattr(validating, "validate_image", validate_image)

    with pytest.raises(UserError, match="ends here"):
        if verb == "build":
            build.build(["cu126-torch25"], out=tmp_path)
        else:
            validate.validate("cu126-torch25", out=tmp_path)

    (compare,) = compares
    assert isinstance(compare.__self__, OtherImages)
    assert compare.__self__._read_passes() == recorded.read_passes(SOURCES)
