"""`record`: a run on disk becomes a line, once; its evidence is kept on request."""

import json
import lzma
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from images.site import records
from tests.support import recorded
from tests.support.commands import Called, tool
from validate.claims import Tier
from validate.evidence import Evidence
from validate.judge import judge
from validate.judging import Status

H100 = "cu130-torch211-py312-sm90/h100"
WHOLE = recorded.evidence_of_today(H100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """out/NAME of a run on an H100."""
    made = tmp_path / "out"
    made.mkdir()
    (made / "evidence.json").write_text(WHOLE.dumps())
    built = {"digest": recorded.lines()[H100].digest, "bytes": 123}
    (made / "build.json").write_text(json.dumps(built))
    return made


def record(folder: Path, *options: str) -> Called:
    """Of a run that is older than today's matrix, which makes that image otherwise."""
    return tool(
        "record", str(folder), "--results", str(folder.parent / "results"), "--unchecked", *options
    )


def kept_evidence(folder: Path, run_id: str) -> str:
    return lzma.decompress(
        (folder / "results" / "evidence" / f"{run_id}.json.xz").read_bytes()
    ).decode()


def test_a_run_becomes_the_line_that_the_repository_has_of_it(folder: Path, tmp_path: Path) -> None:
    done = record(folder, "--as", "h100", "--keep-evidence")
    assert done.returncode == 0 and f"{H100}, PASS" in done.stdout, done.stderr
    (line,) = records.read(tmp_path / "results")
    known = recorded.line_of_today(H100).model_copy(update={"bytes": 123, "date": None})
    assert line.model_dump() == known.model_dump()
    assert kept_evidence(tmp_path, H100) == WHOLE.dumps()


def test_a_run_is_recorded_once(folder: Path, tmp_path: Path) -> None:
    assert record(folder, "--as", "h100").returncode == 0
    before = (tmp_path / "results" / records.LINES).read_bytes()
    done = record(folder, "--as", "h100")
    assert done.returncode == 2 and "is recorded already" in done.stderr
    assert (tmp_path / "results" / records.LINES).read_bytes() == before


def part(tmp_path: Path, name: str, tiers: Sequence[Tier], **changed: object) -> Path:
    """A folder as `validate --tier` leaves it; `changed`: fields of its evidence, and of its host."""
    claims = WHOLE.claim_set.in_tiers(tiers).claims
    probes = {claim.probe for claim in claims}
    host = {**WHOLE.host, **{key: value for key, value in changed.items() if key != "digest"}}
    fields = {"digest": changed["digest"]} if "digest" in changed else {}
    seed = host.pop("records_seed", host.get("seed"))
    found = tuple(replace(record, seed=seed) for record in WHOLE.records if record.probe in probes)
    made: Evidence = replace(
        WHOLE, records=found, claims=claims, host=host, recorded_sha256="", **fields
    )  # type: ignore[arg-type]
    folder = tmp_path / name
    folder.mkdir()
    (folder / "evidence.json").write_text(made.dumps())
    return folder


def test_parts_of_a_run_are_recorded_as_the_run(tmp_path: Path) -> None:
    first = part(
        tmp_path,
        "first",
        [Tier.STATIC, Tier.CPU],
        gpus=[],
        driver="",
        date="2026-11-20T10:00:00+00:00",
        seed=1,
    )
    rest = part(
        tmp_path, "rest", [Tier.GPU, Tier.MULTIGPU], date="2026-11-20T10:05:00+00:00", seed=2
    )
    done = record(first, str(rest), "--as", "parts", "--keep-evidence")
    assert done.returncode == 0, done.stderr
    (line,) = records.read(tmp_path / "results")
    known = recorded.line_of_today(H100)
    assert line.date and line.date.minute == 0
    assert (line.claims, line.gpus, line.driver) == (known.claims, known.gpus, known.driver)
    evidence = Evidence.loads(kept_evidence(tmp_path, line.id))
    assert judge(evidence.claim_set, evidence).overall is Status.PASS


@pytest.mark.parametrize(
    ("tiers", "changed", "cause"),
    [
        ([Tier.CPU, Tier.GPU], {}, "was measured in"),
        ([Tier.GPU], {"digest": "sha256:0"}, "the first part of"),
        ([Tier.GPU], {"gpus": [{"name": "another"}]}, "of another machine: gpus"),
        ([Tier.GPU], {"cpus": 1234}, "of another machine: cpus"),
        ([Tier.GPU], {"seed": 1, "records_seed": 2}, "has records of another run"),
    ],
)
def test_parts_that_are_not_of_one_run_are_refused(
    tmp_path: Path, tiers: Sequence[Tier], changed: dict[str, object], cause: str
) -> None:
    first = part(tmp_path, "first", [Tier.STATIC, Tier.CPU])
    done = record(first, str(part(tmp_path, "rest", tiers, **changed)), "--as", "parts")
    assert done.returncode == 2 and cause in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ({"steps_above": 2, "labelled": WHOLE.image}, "is of an image with 2 steps above"),
        ({"labelled": "cu126-torch99"}, "is of an image that is called cu126-torch99, not"),
        ({"labelled": ""}, "is of an image that is called nothing, not"),
    ],
    ids=["a child", "another", "a foreign one"],
)
@pytest.mark.parametrize("tiers", [[Tier.STATIC], [Tier.GPU]])
def test_no_other_image_is_booked_as_the_matrixs(
    tmp_path: Path, host: dict[str, object], cause: str, tiers: Sequence[Tier]
) -> None:
    folder = part(tmp_path, "other", tiers, **host)
    done = record(folder, "--as", "x")
    assert done.returncode == 2 and cause in done.stderr and "--experiment" in done.stderr
    assert not (tmp_path / "results").exists()
    assert record(folder, "--as", "x", "--experiment").returncode == 0


def test_labels_tell_another_image_where_the_machine_did_not_note_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "evidence.json").write_text(
        replace(WHOLE, image="cu126-torch99", recorded_sha256="").dumps()
    )
    assert f"is called {WHOLE.image}, not cu126-torch99" in record(folder, "--as", "x").stderr


@pytest.mark.parametrize(
    ("tiers", "cause"),
    [
        (list(Tier), "matrix.yaml makes another image of this name today"),
        ([Tier.GPU], "does not say how its image was made: no part measured its static tier"),
    ],
)
def test_a_run_that_todays_matrix_can_not_judge_is_refused_unless_somebody_says_so(
    tmp_path: Path, tiers: Sequence[Tier], cause: str
) -> None:
    folder = part(tmp_path, "old", tiers)
    done = tool("record", str(folder), "--results", str(tmp_path / "results"), "--as", "x")
    assert (
        done.returncode == 2
        and cause in " ".join(done.stderr.split())
        and "--unchecked" in done.stderr
    ), done.stderr
    assert not (tmp_path / "results").exists()
    assert record(folder, "--as", "x").returncode == 0
