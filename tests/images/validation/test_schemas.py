"""What a validation run writes keeps to the published schemas, and can be judged again."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
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
    Claim(
        check="pins",
        subject="flash-attn",
        tier=Tier.STATIC,
        probe="static.pins",
        statement="-",
        required=False,
        unproven="no wheel",
    ),
)
CRASHED_COMPILER = Record(
    probe="cpu.compiler",
    outcome=Outcome.CRASHED,
    seconds=1.5,
    exit_code=1,
    measurements=(Measurement(subject="other", seconds=0.1, evidence={"deep": [{"1": None}]}),),
    log="main.c:6:10: fatal error: Python.h: No such file or directory",
)
EVIDENCE = Evidence(
    image="cu126-torch27",
    digest="sha256:1",
    records=(CRASHED_COMPILER,),
    host={"engine": "28.5", "cpus": 2, "gpus": []},
    claims=CLAIMS,
)
Change = Callable[[Any], object]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """The folder of a validation run, as the product writes it."""
    run_files.record_validation(tmp_path, EVIDENCE, explain(judge(EVIDENCE.claim_set, EVIDENCE)))
    return tmp_path


def schema(name: str) -> dict[str, Any]:
    file = ROOT / "docs" / "schema" / f"{name}.schema.json"
    content: dict[str, Any] = json.loads(file.read_text())
    jsonschema_rs.meta.validate(content)
    return content


def read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def judge_again(file: Path, *options: str) -> Called:
    return call("validate", "--evidence", str(file), *options)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--again"], "nothing is measured"),
        (["--tag"], "gets its name when it is measured"),
        (["--claim", "foo"], "all claims in the file are judged"),
        (["--image", "my:1"], "the one that the file was measured in"),
        (["--run-anyway"], "nothing is measured"),
        (["--gpus", "none"], "nothing is measured"),
        (["--engine", "tcp://127.0.0.1:9"], "nothing is measured"),
        (["--out", "folder"], "nothing is written"),
        (["--matrix", "matrix.yaml"], "the claims are those in the file"),
    ],
)
def test_options_of_measuring_are_refused_with_recorded_evidence(
    options: list[str], cause: str, run_folder: Path
) -> None:
    refused = judge_again(run_folder / "evidence.json", *options)

    assert refused.returncode == 2
    assert not refused.stdout
    message = " ".join(refused.stderr.split())
    assert f"{options[0]}: " in message
    assert cause in message
    assert "next: leave it out" in message


def test_every_option_that_does_not_go_with_evidence_is_named(run_folder: Path) -> None:
    refused = judge_again(run_folder / "evidence.json", "--again", "--tag", "--claim", "foo")

    for option in ("--again", "--tag", "--claim"):
        assert f"{option}: " in refused.stderr


# --- schemas --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["verdict", "evidence"])
def test_what_is_written_keeps_to_its_schema(name: str, run_folder: Path) -> None:
    jsonschema_rs.validate(schema(name), read_json(run_folder, name))


@pytest.mark.parametrize("run_id", [line.id for line in recorded.lines().values() if line.kept])
def test_recorded_evidence_keeps_to_the_schema(run_id: str) -> None:
    jsonschema_rs.validate(schema("evidence"), recorded.data(run_id))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("verdict", lambda file: file.update(extra=1), id="unknown key"),
        pytest.param("verdict", lambda file: file.pop("overall"), id="missing key"),
        pytest.param("verdict", lambda file: file.update(schema_version=1), id="older version"),
        pytest.param("verdict", lambda file: file["claims"][0].update(evidence={}), id="evidence"),
        pytest.param(
            "verdict", lambda file: file["claims"][0].update(verdict="GREEN"), id="unknown verdict"
        ),
        pytest.param("verdict", lambda file: file["claims"][0].update(hints=[]), id="empty hints"),
        pytest.param(
            "evidence",
            lambda file: file["records"][0].update(outcome="fine"),
            id="unknown outcome",
        ),
        pytest.param("evidence", lambda file: file.update(claims=[]), id="no claims"),
        pytest.param("evidence", lambda file: file.update(sha256="x"), id="no digest"),
    ],
)
def test_a_schema_refuses_a_wrong_file(name: str, change: Change, run_folder: Path) -> None:
    content = read_json(run_folder, name)
    change(content)

    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema(name), content)


# --- verdict.json ---------------------------------------------------------------------------------


def test_a_verdict_names_its_evidence_and_repeats_none_of_it(run_folder: Path) -> None:
    verdict = read_json(run_folder, "verdict")
    evidence = read_json(run_folder, "evidence")

    assert verdict["evidence_sha256"] == evidence["sha256"]
    assert not [row for row in verdict["claims"] if "evidence" in row]


def test_only_a_claim_that_does_not_hold_has_hints(run_folder: Path) -> None:
    rows = {row["check"]: row for row in read_json(run_folder, "verdict")["claims"]}

    assert [hint["id"] for hint in rows["compiler"]["hints"]] == ["no-python-headers"]
    assert "hints" not in rows["environment"]


# --- judged again ---------------------------------------------------------------------------------


def test_a_recorded_run_gets_the_same_verdict_again(run_folder: Path) -> None:
    called = judge_again(run_folder / "evidence.json", "--json")

    assert called.returncode == 1, called.stderr
    assert called.stdout == (run_folder / "verdict.json").read_text()


def test_the_report_of_a_recorded_run_has_the_log_and_the_hint(run_folder: Path) -> None:
    called = judge_again(run_folder / "evidence.json")

    assert "Python.h" in called.stdout
    assert "hint" in called.stdout


def test_what_is_recorded_later_is_said_to_change_nothing(run_folder: Path) -> None:
    called = judge_again(run_folder / "evidence.json")

    message = " ".join(called.stderr.split())
    assert "judged by what was claimed and recorded on an unknown day" in message
    assert "`nox -s validate -- cu126-torch27` judges by today's" in message


def test_one_tier_of_a_recorded_run_can_be_judged(run_folder: Path) -> None:
    called = judge_again(run_folder / "evidence.json", "--tier", "static")

    assert called.returncode == 0, "unproven is not failed"
    assert "triton-launcher" not in called.stdout


def test_a_tier_that_was_not_measured_gets_no_verdict(run_folder: Path) -> None:
    called = judge_again(run_folder / "evidence.json", "--tier", "multigpu")

    assert called.returncode == 2
    assert "has no claims of the multigpu tier" in called.stderr
    assert not called.stdout


@pytest.mark.parametrize(("module", "program"), [(lzma, "xz"), (gzip, "gzip"), (bz2, "bzip2")])
def test_compressed_evidence_gets_the_command_that_decompresses_it(
    module: Any, program: str, run_folder: Path
) -> None:
    file = run_folder / "evidence.compressed"
    file.write_bytes(module.compress((run_folder / "evidence.json").read_bytes()))

    called = judge_again(file)

    assert called.returncode == 2
    message = " ".join(called.stderr.split())
    assert f"{file}: this file is compressed" in message
    assert f"`{program} --decompress --stdout {file} > evidence.json`" in message


CHANGED = "changed after it was measured"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda text: text.replace("sha256:1", "sha256:2"), CHANGED, id="digest"),
        pytest.param(
            lambda text: text.replace('"unproven": ""', '"unproven": "let it be"', 1),
            CHANGED,
            id="claim",
        ),
        pytest.param(
            lambda text: text.replace('"exit_code": 1', '"exit_code": 0'), CHANGED, id="record"
        ),
        pytest.param(lambda text: text[:-30], "is not JSON", id="cut"),
        pytest.param(lambda _text: "{}", "is not as truetag wrote it", id="empty"),
        pytest.param(lambda _text: "[]", "is not as truetag wrote it", id="list"),
        pytest.param(
            lambda text: json.dumps({**json.loads(text), "claims": []}), "claims", id="no claims"
        ),
        pytest.param(
            lambda _text: '{"records": 3, "claims": 4}',
            "the field schema_version is missing",
            id="no version",
        ),
        pytest.param(
            lambda _text: '{"schema_version": 2, "records": []}',
            "validate the image again",
            id="older version",
        ),
    ],
)
def test_a_file_that_was_changed_is_an_error_with_a_next_step(
    change: Callable[[str], str], message: str, run_folder: Path
) -> None:
    file = run_folder / "evidence.json"
    file.write_text(change(file.read_text()))

    called = judge_again(file)

    assert called.returncode == 2
    assert message in called.stderr
    assert "next:" in called.stderr
    assert "Traceback" not in called.stderr
    assert not called.stdout
