"""results/: lines that are read, evidence that is judged again, and sizes that stay small."""

import json
from datetime import timedelta
from pathlib import Path

import jsonschema_rs
import pytest

from images.errors import UserError
from images.site import records, runs
from images.site.records import RunLine
from tests.support import recorded
from tests.support.checkout import ROOT
from tools import record
from validate import checks
from validate.claims import Tier
from validate.judging import Status

LINES = recorded.lines()
KEPT = [line for line in LINES.values() if line.kept]
GONE = {"bytecode/sources", "origin/files", "origin/lookup", "origin/privileges", "origin/wheels", "origin/deepspeed"}
"""Claims of before whose checks are others today: origin by reproduction, and records, modes and others."""
H100 = "cu130-torch211-py312-sm90/h100"


@pytest.mark.parametrize("line", KEPT, ids=lambda line: line.id)
def test_kept_evidence_gets_the_recorded_verdict_for_every_claim(line: RunLine) -> None:
    verdict = records.judged_again(line, recorded.text(line.id).encode())
    gone = [claim for claim in recorded.evidence(line.id).claims if claim.key in GONE]
    assert len(verdict.claims) == sum(len(keys) for tier in line.claims.values() for keys in tier.values()) - len(gone)


def test_the_replayed_claims_are_counted_and_those_that_went_are_known() -> None:
    claims = [claim for line in KEPT for claim in recorded.evidence(line.id).claims]
    gone = {claim.key for claim in claims if not checks.judge_of(claim)}
    assert (len(KEPT), len(claims), gone) == (55, 2237, GONE)


def test_the_newest_run_of_a_gpu_tier_is_told_to_who_chooses() -> None:
    old = next(line for line in LINES.values() if Tier.GPU in line.tiers and not line.experiment)
    assert old.date
    new = old.model_copy(update={"date": old.date + timedelta(days=1), "gpus": ["L4", "L4"], "digest": "sha256:abc"})
    broken = new.model_copy(update={"date": old.date + timedelta(days=2), "experiment": True})
    part = new.model_copy(update={"date": broken.date, "claims": {Tier.GPU: {Status.UNPROVEN: ["step/eager"]}}})
    assert records.gpu_runs([old, new, broken, part], old.image) == [new, old]
    tier, day = old.tiers[Tier.GPU], f"{new.date:%Y-%m-%d}"
    result = f"{tier.verdict} on L4, {day} ({tier.counts[tier.verdict]} claims"
    told = f"Its gpu tier: {result}, image ID abc; `build` says whether yours is the same)."
    assert records.gpu_sentence([new, old], {}) == told
    assert records.gpu_sentence(records.gpu_runs([old], "cu99-torch99"), {}) == "No run of its gpu tier is recorded."

    moved, unknown = (old.model_copy(update={"id": f"i/{at}", "packages": at}) for at in ({"a": "1", "b": "3"}, {}))
    drifts = records.drifts(
        [unknown, moved, unknown.model_copy(update={"id": "i/old"})], {"a": "1", "b": "2", "c": "9"}
    )
    assert list(drifts.values()) == ["", *["b 3 where the pin is 2 now"] * 2]
    assert ", with b 3 where the pin is 2 now, image ID" in records.gpu_sentence([moved], drifts)

    judged = new.model_copy(update={"payload": {"debian": "1", "torch": "2", "settings": "3"}})
    assert records.of_this_build([judged], "sha256:abc", {}) == (
        f"this build is, bit for bit, the image whose gpu tier got {result})",
        True,
    )
    for payload, lines in (({}, [judged]), ({}, [old]), (judged.payload, [old]), (judged.payload, [])):
        said, found = records.of_this_build(lines, "sha256:mine", payload)
        assert not found and ("has another ID than" in said and "are not known" in said) == bool(lines)


@pytest.mark.parametrize("line", LINES.values(), ids=lambda line: line.id)
def test_counts_and_findings_of_a_line_are_those_of_its_claims(line: RunLine) -> None:
    for tier, verdicts in line.claims.items():
        assert line.tiers[tier].counts == {status: len(keys) for status, keys in verdicts.items()}
    unsettled = {(tier, key) for tier, status, key in _claims(line) if status in UNSETTLED}
    assert {(one.tier, one.key) for one in line.findings} == unsettled


UNSETTLED = (Status.FAIL, Status.KNOWN, Status.UNPROVEN)


def _claims(line: RunLine) -> list[tuple[str, Status, str]]:
    return [(tier, status, f"{check}/{subject}") for tier, status, check, subject in line.each()]


def test_all_kept_evidence_has_a_line_and_is_small() -> None:
    files = [path for path in (records.FOLDER / "evidence").rglob("*") if path.is_file()]
    names = {str(path.relative_to(records.FOLDER / "evidence")).removesuffix(".json.xz") for path in files}
    assert names == {line.id for line in KEPT}
    assert sum(path.stat().st_size for path in files) < 1_500_000
    assert max(path.stat().st_size for path in records.FOLDER.rglob("*") if path.is_file()) < 1_000_000


def folder_of(tmp_path: Path, line: RunLine, content: bytes) -> Path:
    (tmp_path / records.LINES).write_text(records.dumps([line]))
    record.write_evidence(tmp_path, line.id, content)
    return tmp_path


def test_a_line_and_its_evidence_are_read_back(tmp_path: Path) -> None:
    content = recorded.text(H100).encode()
    folder = folder_of(tmp_path, LINES[H100], content)
    (run,) = runs.recorded(folder)
    assert records.read(folder) == (LINES[H100],)
    assert run.gpus == ("NVIDIA H100 80GB HBM3",)
    assert records.read_evidence(folder, LINES[H100].id) == content
    assert len(run.claims) == 91 and run.packages["torch"].startswith("2.11.0")


def test_without_evidence_a_run_has_the_same_verdicts_and_reasons_where_needed(tmp_path: Path) -> None:
    line = LINES[H100].model_copy(update={"kept": False})
    (tmp_path / records.LINES).write_text(records.dumps([line]))
    (run,) = runs.recorded(tmp_path)
    (whole,) = (one for one in runs.recorded() if one.source.endswith(line.id))
    recorded_claims = {(one.check, one.subject): one.verdict for one in run.claims}
    judged_again = {(one.check, one.subject): one.verdict for one in whole.claims}
    assert {key: verdict for key, verdict in recorded_claims.items() if " ".join(key) not in GONE} == judged_again
    assert run.tiers == whole.tiers and run.packages == whole.packages


def test_a_line_that_its_evidence_contradicts_is_refused(tmp_path: Path) -> None:
    claims = json.loads(LINES[H100].model_dump_json())["claims"]
    claims["static"]["FAIL"] = [claims["static"]["PASS"].pop()]
    line = RunLine.model_validate_json(json.dumps({**LINES[H100].model_dump(mode="json"), "claims": claims}))
    with pytest.raises(UserError) as caught:
        runs.recorded(folder_of(tmp_path, line, recorded.text(H100).encode()))
    (problem,) = caught.value.problems
    assert problem.cause == f"the verdict is not what the evidence says: {claims['static']['FAIL'][0]}"


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"{", "Expecting property name"),
        (recorded.text(H100).replace('"exit_code": 0', '"exit_code": 1', 1).encode(), "changed after it was measured"),
        (recorded.text("cu130-torch211-py312-sm90/2xh200").encode(), "the evidence is of another run"),
    ],
)
def test_evidence_that_is_damaged_or_of_another_run_is_refused(tmp_path: Path, content: bytes, cause: str) -> None:
    with pytest.raises(UserError) as caught:
        runs.recorded(folder_of(tmp_path, LINES[H100], content))
    assert cause in caught.value.problems[0].cause


def test_evidence_that_is_missing_or_not_compressed_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LINES[H100], b"{}")
    path = records.evidence_file(folder, H100)
    path.write_bytes(b"{}")
    with pytest.raises(UserError, match="can't be read"):
        runs.recorded(folder)
    path.unlink()
    with pytest.raises(UserError, match="can't be read"):
        runs.recorded(folder)


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    good = records.dumps([LINES[H100]])
    (tmp_path / records.LINES).write_text(good + "{}\n" + good.replace('"image":"', '"image":"../../') + good)
    with pytest.raises(UserError) as caught:
        records.read(tmp_path)
    assert [problem.where for problem in caught.value.problems] == [f"runs.jsonl:{number}" for number in (2, 3, 4)]
    assert "is there twice" in caught.value.problems[2].cause


def test_lines_keep_to_their_published_schema() -> None:
    schema = json.loads((ROOT / "docs" / "schema" / "runs.schema.json").read_text())
    validator = jsonschema_rs.Draft202012Validator(schema)
    for text in (records.FOLDER / records.LINES).read_text().splitlines():
        validator.validate(json.loads(text))
