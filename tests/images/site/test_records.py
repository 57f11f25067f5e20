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
    # files/recorded sees an NCCL that is not its wheel's, lookup/paths one that the loader finds before it.
    "collectives/nccl",
}
"""Claims of kept runs that no check judges today, and why."""
H100 = "cu130-torch211-py312-sm90/h100"


@pytest.mark.parametrize("line", KEPT, ids=lambda line: line.id)
def test_kept_evidence_gets_the_recorded_verdict_for_every_claim(line: RunLine) -> None:
    evidence = recorded.evidence(line.id)
    assert (line.image, line.digest, line.evidence_sha256) == (
        evidence.image,
        evidence.digest,
        evidence.sha256,
    )
    # Nobody can judge again what no check has any more.
    claims = tuple(claim for claim in evidence.claims if claim.key not in GONE)
    verdict = judge(replace(evidence.claim_set, claims=claims), evidence)
    judged_again = {
        (row.claim.tier, row.status, row.claim.check, row.claim.subject) for row in verdict.claims
    }
    assert judged_again == {row for row in _claims(line) if "/".join(row[2:]) not in GONE}


def test_the_replayed_claims_are_counted_and_those_that_went_are_known() -> None:
    claims = [claim for line in KEPT for claim in recorded.evidence(line.id).claims]
    gone = {claim.key for claim in claims if not checks.judge_of(claim)}
    assert (len(KEPT), len(claims), gone) == (55, 2237, GONE)


def test_the_newest_run_of_a_gpu_tier_is_told_to_who_chooses() -> None:
    old = next(line for line in LINES.values() if Tier.GPU in line.tiers and not line.experiment)
    assert old.date
    new = old.model_copy(
        update={"date": old.date + timedelta(days=1), "gpus": ["L4", "L4"], "digest": "sha256:abc"}
    )
    broken = new.model_copy(update={"date": old.date + timedelta(days=2), "experiment": True})
    part = new.model_copy(
        update={"date": broken.date, "claims": {Tier.GPU: {Status.UNPROVEN: ["step/eager"]}}}
    )
    assert records.gpu_runs([old, new, broken, part], old.image) == [new, old]
    tier, day = old.tiers[Tier.GPU], f"{new.date:%Y-%m-%d}"
    result = f"{tier.verdict} on L4, {day} ({tier.counts[tier.verdict]} claims"
    told = f"Its gpu tier: {result}, image ID abc; `build` says whether yours is the same)."
    assert records.gpu_sentence([new, old], {}) == told
    assert (
        records.gpu_sentence(records.gpu_runs([old], "cu99-torch99"), {})
        == "No run of its gpu tier is recorded."
    )

    moved, unknown = (
        old.model_copy(update={"id": f"i/{at}", "packages": at})
        for at in ({"a": "1", "b": "3"}, {})
    )
    drifts = records.drift_by_run(
        [unknown, moved, unknown.model_copy(update={"id": "i/old"})], {"a": "1", "b": "2", "c": "9"}
    )
    assert list(drifts.values()) == ["", *["b 3 where the pin is 2 now"] * 2]
    assert ", with b 3 where the pin is 2 now, image ID" in records.gpu_sentence([moved], drifts)

    judged = new.model_copy(update={"payload": {"debian": "1", "torch": "2", "settings": "3"}})
    assert records.compare_build([judged], "sha256:abc", {}) == (
        f"this build is, bit for bit, the image whose gpu tier got {result})",
        True,
    )
    for payload, lines in (
        ({}, [judged]),
        ({}, [old]),
        (judged.payload, [old]),
        (judged.payload, []),
    ):
        said, found = records.compare_build(lines, "sha256:mine", payload)
        assert not found and ("has another ID than" in said and "are not known" in said) == bool(
            lines
        )


@pytest.mark.parametrize("line", LINES.values(), ids=lambda line: line.id)
def test_counts_and_findings_of_a_line_are_those_of_its_claims(line: RunLine) -> None:
    for tier, verdicts in line.claims.items():
        assert line.tiers[tier].counts == {status: len(keys) for status, keys in verdicts.items()}
    unsettled = {row for row in _claims(line) if row[1] in UNSETTLED}
    assert {(row.tier, row.verdict, row.check, row.subject) for row in line.findings} == unsettled
    assert {(row.tier, row.verdict, row.check, row.subject) for row in line.rows()} == set(
        _claims(line)
    )


UNSETTLED = (Status.FAIL, Status.KNOWN, Status.UNPROVEN)


def _claims(line: RunLine) -> list[tuple[Tier, Status, str, str]]:
    claims = []
    for tier, verdicts in line.claims.items():
        for status, keys in verdicts.items():
            for key in keys:
                check, _, subject = key.partition("/")
                claims.append((tier, status, check, subject))
    return claims


def test_all_kept_evidence_has_a_line_and_is_small() -> None:
    files = [path for path in (records.FOLDER / "evidence").rglob("*") if path.is_file()]
    names = {
        str(path.relative_to(records.FOLDER / "evidence")).removesuffix(".json.xz")
        for path in files
    }
    assert names == {line.id for line in KEPT}
    assert sum(path.stat().st_size for path in files) < 1_500_000
    assert (
        max(path.stat().st_size for path in records.FOLDER.rglob("*") if path.is_file()) < 1_000_000
    )


def test_a_run_has_the_claims_and_packages_of_its_line() -> None:
    (run,) = (
        run for run in runs.recorded_runs([records.FOLDER]) if run.source.endswith(f" {H100}")
    )
    assert run.gpus == ("NVIDIA H100 80GB HBM3",)
    assert len(run.claims) == len(_claims(LINES[H100])) and run.packages["torch"].startswith(
        "2.11.0"
    )


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    good = LINES[H100].model_dump_json() + "\n"
    (tmp_path / records.LINES).write_text(
        good + "{}\n" + good.replace('"image":"', '"image":"../../') + good
    )
    with pytest.raises(UserError) as caught:
        records.read(tmp_path)
    assert [problem.where for problem in caught.value.problems] == [
        f"runs.jsonl:{number}" for number in (2, 3, 4)
    ]
    assert "is there twice" in caught.value.problems[2].cause


def test_lines_keep_to_their_published_schema() -> None:
    schema = json.loads((ROOT / "docs" / "schema" / "runs.schema.json").read_text())
    validator = jsonschema_rs.Draft202012Validator(schema)
    for text in (records.FOLDER / records.LINES).read_text().splitlines():
        validator.validate(json.loads(text))
