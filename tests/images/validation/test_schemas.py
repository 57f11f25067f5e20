"""The published schemas hold for what is really written, and a recorded run can be judged again."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from images.building import run_files
from tests.support import recorded
from tests.support.checkout import ROOT
from tests.support.commands import Called, call
from validate.claims import Claim, Tier
from validate.evidence import Evidence, Measurement, Outcome, Record
from validate.judge import explain, judge

LACKING = {"check": "pins", "subject": "flash-attn", "unproven": "no wheel"}
CLAIMS = (
    Claim(
        check="environment",
        subject="variables",
        tier=Tier.STATIC,
        probe="static.environment",
        statement="as promised",
    ),
    Claim(
        check="compiler",
        subject="triton-launcher",
        tier=Tier.CPU,
        probe="cpu.compiler",
        statement="it compiles",
    ),
    Claim(**LACKING, tier=Tier.STATIC, probe="static.pins", statement="-", required=False),  # type: ignore[arg-type]
)
EVIDENCE = Evidence(
    image="cu126-torch27",
    digest="sha256:1",
    records=(
        Record(
            probe="cpu.compiler",
            outcome=Outcome.CRASHED,
            seconds=1.5,
            exit_code=1,
            measurements=(
                Measurement(subject="other", seconds=0.1, evidence={"deep": [{"1": None}]}),
            ),
            log="main.c:6:10: fatal error: Python.h: No such file or directory",
        ),
    ),
    host={"engine": "28.5", "cpus": 2, "gpus": []},
    claims=CLAIMS,
)


def schema(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        (ROOT / "docs" / "schema" / f"{name}.schema.json").read_text()
    )
    jsonschema_rs.meta.validate(content)
    return content


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The folder of a trial, as the product writes it."""
    run_files.record_validation(tmp_path, EVIDENCE, explain(judge(EVIDENCE.claim_set, EVIDENCE)))
    return tmp_path


@pytest.mark.parametrize("name", ["verdict", "evidence"])
def test_what_is_written_keeps_to_its_schema(name: str, written: Path) -> None:
    jsonschema_rs.validate(schema(name), json.loads((written / f"{name}.json").read_text()))


def test_a_verdict_has_hints_names_its_evidence_and_repeats_none_of_it(written: Path) -> None:
    verdict, evidence = (
        json.loads((written / f"{name}.json").read_text()) for name in ("verdict", "evidence")
    )
    assert verdict["evidence_sha256"] == evidence["sha256"]
    assert not [row for row in verdict["claims"] if "evidence" in row]
    (row,) = [row for row in verdict["claims"] if row["check"] == "compiler"]
    assert [hint["id"] for hint in row["hints"]] == ["no-python-headers"]
    assert [
        row for row in verdict["claims"] if row["check"] == "environment" and "hints" in row
    ] == []


@pytest.mark.parametrize("run_id", [line.id for line in recorded.lines().values() if line.kept])
def test_recorded_evidence_keeps_to_the_schema(run_id: str) -> None:
    jsonschema_rs.validate(schema("evidence"), recorded.data(run_id))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("verdict", lambda data: data.update(extra=1)),
        ("verdict", lambda data: data.pop("overall")),
        ("verdict", lambda data: data.update(schema_version=1)),
        ("verdict", lambda data: data["claims"][0].update(evidence={})),
        ("verdict", lambda data: data["claims"][0].update(verdict="GREEN")),
        ("verdict", lambda data: data["claims"][0].update(hints=[])),
        ("evidence", lambda data: data["records"][0].update(outcome="fine")),
        ("evidence", lambda data: data.update(claims=[])),
        ("evidence", lambda data: data.update(sha256="x")),
    ],
)
def test_the_schemas_refuse_what_is_wrong(name: str, change: Any, written: Path) -> None:
    data = json.loads((written / f"{name}.json").read_text())
    change(data)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema(name), data)


def judged_again(file: Path, *options: str) -> Called:
    return call("validate", "--evidence", str(file), *options)


def test_a_recorded_run_gets_the_same_verdict_again(written: Path) -> None:
    done = judged_again(written / "evidence.json", "--json")
    assert done.returncode == 1, done.stderr
    assert done.stdout == (written / "verdict.json").read_text()
    done = judged_again(written / "evidence.json")
    assert "Python.h" in done.stdout and "hint" in done.stdout


def test_one_tier_of_it_can_be_judged_and_one_that_was_not_measured_is_no_verdict(
    written: Path,
) -> None:
    done = judged_again(written / "evidence.json", "--tier", "static")
    assert done.returncode == 0 and "triton-launcher" not in done.stdout, "unproven is not failed"
    done = judged_again(written / "evidence.json", "--tier", "multigpu")
    assert (
        done.returncode == 2
        and "holds no claims of the multigpu tier" in done.stderr
        and not done.stdout
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("sha256:1", "sha256:2"), "changed after it was measured"),
        (
            lambda text: text.replace('"unproven": ""', '"unproven": "let it be"', 1),
            "changed after it was measured",
        ),
        (
            lambda text: text.replace('"exit_code": 1', '"exit_code": 0'),
            "changed after it was measured",
        ),
        (lambda text: text[:-30], "is not JSON"),
        (lambda text: "{}", "is no evidence"),
        (lambda text: "[]", "is no evidence"),
        (lambda text: json.dumps({**json.loads(text), "claims": []}), "claims"),
        (lambda text: '{"records": 3, "claims": 4}', "schema_version: "),
        (lambda text: '{"schema_version": 2, "records": []}', "claims had numbers and not names"),
    ],
)
def test_a_file_that_was_tampered_with_is_a_clear_error(
    change: Any, words: str, written: Path
) -> None:
    file = written / "evidence.json"
    file.write_text(change(file.read_text()))
    done = judged_again(file)
    assert (
        done.returncode == 2
        and words in done.stderr
        and "next:" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert not done.stdout
