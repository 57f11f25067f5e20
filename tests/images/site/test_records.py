"""results/: lines that are read, kept evidence that is judged again, and sizes that stay small."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import jsonschema_rs
import pytest

from images.errors import UserError
from images.site import records, runs
from images.site.records import RunLine
from tests.support import recorded
from tests.support.checkout import ROOT
from validate import checks
from validate.claims import Tier
from validate.judge import judge
from validate.judging import Status

LINES = recorded.lines()
KEPT = [line for line in LINES.values() if line.kept]
GONE = {
    # Origin by reproduction serves in their place, and records, modes and others.
    "bytecode/sources",
    "origin/files",
    "origin/lookup",
    "origin/privileges",
    "origin/wheels",
    "origin/deepspeed",
    # The examples of a profile measure the same.
    "framework/mixed-precision",
    "framework/compile",
    "framework/trainer",
    "framework/axolotl-configuration",
    "zero/stage-1",
    "zero/stage-2",
    "zero/stage-3",
    "framework/unsloth-4-bit",
    # Triton compiles an extension module by itself.
    "compiler/c-extension",
    # The 4-bit model runs the same layers in float32.
    "4bit-llama/float32",
    # Examples run axolotl's commands and train with DeepSpeed.
    "framework/axolotl-commands",
    "framework/deepspeed-configuration",
    # A test of ours runs the entrypoint; image/settings holds an image to it.
    "framework/NCCL_P2P_DISABLE",
    # It never failed.
    "bandwidth/ranks",
    # torch compares the versions by the same rule, where native/cudnn asks it for cuDNN's.
    "numerics/cudnn",
    # environment/variables reads the same files and variables, without a GPU.
    "collectives/settings",
    # files/recorded sees an NCCL that is not its wheel's, lookup/paths one that the loader finds
    # before it.
    "collectives/nccl",
}
"""Claims of kept runs that no check judges today, and why."""
RUN_ON_H100 = "cu130-torch211-py312-sm90/h100"
"""The ID of a recorded run."""
_WITH_REASON = (Status.FAIL, Status.KNOWN, Status.UNPROVEN)


def claims_of(line: RunLine) -> set[tuple[Tier, Status, str]]:
    """The claims in a line: tier, verdict and `CHECK/SUBJECT` of each."""
    claims = set()
    for tier, keys_by_verdict in line.claims.items():
        for status, keys in keys_by_verdict.items():
            for key in keys:
                claims.add((tier, status, key))
    return claims


# --- kept evidence --------------------------------------------------------------------------------


@pytest.mark.parametrize("line", KEPT, ids=lambda line: line.id)
def test_kept_evidence_gets_the_recorded_verdict_for_every_claim(line: RunLine) -> None:
    evidence = recorded.evidence(line.id)
    # Nobody can judge again what no check has any more.
    claims = tuple(claim for claim in evidence.claims if claim.key not in GONE)

    verdict = judge(replace(evidence.claim_set, claims=claims), evidence)

    assert line.image == evidence.image
    assert line.digest == evidence.digest
    assert line.evidence_sha256 == evidence.sha256
    judged_again = {(row.claim.tier, row.status, row.claim.key) for row in verdict.claims}
    assert judged_again == {claim for claim in claims_of(line) if claim[2] not in GONE}


def test_the_replayed_claims_are_counted_and_those_that_went_are_known() -> None:
    claims = []
    for line in KEPT:
        claims += recorded.evidence(line.id).claims

    assert len(KEPT) == 55
    assert len(claims) == 2237
    assert {claim.key for claim in claims if not checks.judge_of(claim)} == GONE


def test_all_kept_evidence_has_a_line() -> None:
    folder = records.FOLDER / "evidence"
    files = [path for path in folder.rglob("*") if path.is_file()]

    names = {str(path.relative_to(folder)).removesuffix(".json.xz") for path in files}

    assert names == {line.id for line in KEPT}


def test_recorded_files_are_small() -> None:
    files = [path for path in records.FOLDER.rglob("*") if path.is_file()]
    evidence = [path for path in (records.FOLDER / "evidence").rglob("*") if path.is_file()]

    assert sum(path.stat().st_size for path in evidence) < 1_500_000
    assert max(path.stat().st_size for path in files) < 1_000_000


# --- lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", LINES.values(), ids=lambda line: line.id)
def test_counts_and_findings_of_a_line_are_those_of_its_claims(line: RunLine) -> None:
    claims = claims_of(line)

    for tier, keys_by_verdict in line.claims.items():
        counts = {status: len(keys) for status, keys in keys_by_verdict.items()}
        assert line.tiers[tier].counts == counts
    findings = {(row.tier, row.verdict, row.key) for row in line.findings}
    assert findings == {claim for claim in claims if claim[1] in _WITH_REASON}
    assert {(row.tier, row.verdict, row.key) for row in line.rows()} == claims


def test_a_run_has_the_claims_and_packages_of_its_line() -> None:
    all_runs = runs.recorded_runs([records.FOLDER])

    (run,) = [run for run in all_runs if run.source.endswith(f" {RUN_ON_H100}")]

    assert run.gpus == ("NVIDIA H100 80GB HBM3",)
    assert len(run.claims) == len(claims_of(LINES[RUN_ON_H100]))
    assert run.packages["torch"].startswith("2.11.0")


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    good = LINES[RUN_ON_H100].model_dump_json() + "\n"
    empty = "{}\n"
    with_a_path_as_name = good.replace('"image":"', '"image":"../../')
    again = good
    (tmp_path / records.LINES).write_text(good + empty + with_a_path_as_name + again)

    with pytest.raises(UserError) as error:
        records.read(tmp_path)

    problems = error.value.problems
    assert [problem.where for problem in problems] == [
        "runs.jsonl:2",
        "runs.jsonl:3",
        "runs.jsonl:4",
    ]
    assert "is there twice" in problems[2].cause


def test_lines_keep_to_their_published_schema() -> None:
    schema = json.loads((ROOT / "docs" / "schema" / "runs.schema.json").read_text())
    validator = jsonschema_rs.Draft202012Validator(schema)

    for text in (records.FOLDER / records.LINES).read_text().splitlines():
        validator.validate(json.loads(text))


# --- what the runs of an image's gpu tier say -----------------------------------------------------

OLD = next(line for line in LINES.values() if Tier.GPU in line.tiers and not line.experiment)
"""A recorded run of the gpu tier. Its payload is not recorded."""
assert OLD.date
NEW = OLD.model_copy(
    update={"date": OLD.date + timedelta(days=1), "gpus": ["L4", "L4"], "digest": "sha256:abc"}
)
EXPERIMENT = NEW.model_copy(update={"date": OLD.date + timedelta(days=2), "experiment": True})
SINGLE_CLAIM = NEW.model_copy(
    update={
        "date": OLD.date + timedelta(days=2),
        "claims": {Tier.GPU: {Status.UNPROVEN: ["step/eager"]}},
    }
)
PAYLOAD = {"debian": "1", "torch": "2", "settings": "3"}
NEW_WITH_PAYLOAD = NEW.model_copy(update={"payload": PAYLOAD})


def result_of_new() -> str:
    """The result of NEW without the closing bracket: `PASS on L4, 2026-11-26 (30 claims`."""
    count = NEW.tiers[Tier.GPU]
    return f"{count.verdict} on L4, {NEW.date:%Y-%m-%d} ({count.counts[count.verdict]} claims"


def test_the_runs_of_a_gpu_tier_come_newest_first_without_experiments_and_single_claims() -> None:
    assert records.gpu_runs([OLD, NEW, EXPERIMENT, SINGLE_CLAIM], OLD.image) == [NEW, OLD]


def test_the_sentence_about_a_gpu_tier_is_about_its_newest_run() -> None:
    assert records.gpu_sentence([NEW, OLD], {}) == (
        f"Its gpu tier: {result_of_new()}, image ID abc; `build` says whether yours is the same)."
    )


def test_the_sentence_says_that_no_run_is_recorded() -> None:
    runs_of_other_image = records.gpu_runs([OLD], "cu99-torch99")

    assert records.gpu_sentence(runs_of_other_image, {}) == "No run of its gpu tier is recorded."


def test_a_run_that_recorded_no_packages_had_those_of_the_next_newer_one() -> None:
    newest = OLD.model_copy(update={"id": "i/newest", "packages": {}})
    measured = OLD.model_copy(update={"id": "i/measured", "packages": {"a": "1", "b": "3"}})
    oldest = OLD.model_copy(update={"id": "i/oldest", "packages": {}})
    pins = {"a": "1", "b": "2", "c": "9"}

    drifts = records.drift_by_run([newest, measured, oldest], pins)

    assert drifts == {
        "i/newest": "",
        "i/measured": "b 3 where the pin is 2 now",
        "i/oldest": "b 3 where the pin is 2 now",
    }
    sentence = records.gpu_sentence([measured], drifts)
    assert ", with b 3 where the pin is 2 now, image ID" in sentence


def test_a_run_of_the_same_image_id_is_about_the_build() -> None:
    assert records.compare_build([NEW_WITH_PAYLOAD], NEW.digest, {}) == (
        f"this build is, bit for bit, the image whose gpu tier got {result_of_new()})",
        True,
    )


@pytest.mark.parametrize(
    ("payload", "run"),
    [
        pytest.param({}, NEW_WITH_PAYLOAD, id="the build's payload is not known"),
        pytest.param({}, OLD, id="neither payload is known"),
        pytest.param(PAYLOAD, OLD, id="the run's payload is not known"),
    ],
)
def test_without_both_payloads_no_run_is_about_another_image_id(
    payload: dict[str, str], run: RunLine
) -> None:
    sentence, is_about_build = records.compare_build([run], "sha256:mine", payload)

    assert not is_about_build
    assert "has another ID than" in sentence
    assert "are not known" in sentence


def test_without_a_run_none_is_about_the_build() -> None:
    sentence, is_about_build = records.compare_build([], "sha256:mine", PAYLOAD)

    assert not is_about_build
    assert sentence == "no run of its gpu tier is recorded, of any build"
