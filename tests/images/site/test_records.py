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
from validate.claims import Claim, Tier
from validate.evidence import Evidence
from validate.judge import ClaimVerdict, Verdict, judge
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
    # imports/torch fails for what torch says at import where it can't use numpy, and
    # native/torchvision if torchvision's operators are not there.
    "bridges/numpy",
    "bridges/torchvision",
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

    assert len(KEPT) == 58
    assert len(claims) == 2271
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


def test_the_size_of_an_image_is_that_of_its_newest_run_that_has_one() -> None:
    line = records.read()[0]
    assert line.date
    later = {days: line.date + timedelta(days=days) for days in (0, 1, 2, 3)}
    lines = [
        line.model_copy(update={"bytes": 7, "date": later[1], "experiment": False}),
        line.model_copy(update={"bytes": 6, "date": later[0], "experiment": False}),
        line.model_copy(update={"bytes": 0, "date": later[2], "experiment": False}),
        line.model_copy(update={"bytes": 9, "date": later[3], "experiment": True}),
    ]

    assert records.newest_size(lines, line.image) == 7
    assert records.newest_size(lines, "cu126-torch99") == 0


# --- what a line records of a run -----------------------------------------------------------------


def passed(check: str, subject: str, expect: dict[str, object], measured: object) -> ClaimVerdict:
    """A claim of the static tier that passed."""
    claim = Claim(
        check=check,
        subject=subject,
        tier=Tier.STATIC,
        probe=f"static.{check}",
        statement="-",
        expect=expect,
    )
    evidence = {"installed" if check == "pins" else "records": measured}
    return ClaimVerdict(claim=claim, status=Status.PASS, reason="", seconds=1, evidence=evidence)


PINNED = passed("pins", "flash-attn", {}, [{"version": "2.8.3"}])
INSTALLED = {"path": "-", "version": "2.7.1", "digest": "-", "files": 1}


def locked(**expect: object) -> ClaimVerdict:
    """The verdict about the RECORDs of a lock. `expect`: what it expects besides torch."""
    expect = {"wheels": {"torch": {}, "gone": {}}, "built": [], "unknown": {}, **expect}
    return passed("records", "locked", expect, {"torch": [INSTALLED]})


def line_of(*claims: ClaimVerdict, **host: object) -> RunLine:
    """The line of a run with these verdicts."""
    evidence = Evidence(image="cu126-torch27", digest="sha256:1", records=(), host=host, claims=())
    verdict = Verdict(image="cu126-torch27", digest="sha256:1", claims=claims)
    return records.make_run_line(evidence, verdict, "h100")


def test_a_line_has_all_that_was_installed_from_the_lock_and_the_size_of_each_layer() -> None:
    line = line_of(PINNED, locked(built=["flash-attn"]), layer_bytes={"torch": 5})

    assert line.locked == {"torch": "2.7.1", "flash-attn": "2.8.3"}
    assert line.layer_bytes == {"torch": 5}


def test_a_line_has_no_list_of_packages_that_lacks_one_of_the_lock() -> None:
    without_a_version = line_of(PINNED, locked(unknown={"xformers": "its RECORD was not read"}))

    assert without_a_version.locked == {}
    assert line_of(PINNED).locked == {}
    assert line_of(PINNED).packages == {"flash-attn": "2.8.3"}
