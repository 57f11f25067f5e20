"""`record` makes a line of a run on disk, once, and keeps its evidence on request."""

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
    """Return out/NAME of a run on an H100."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "evidence.json").write_text(WHOLE.dumps())
    build = {"digest": recorded.lines()[H100].digest, "bytes": 123}
    (folder / "build.json").write_text(json.dumps(build))
    return folder


def record(folder: Path, *options: str) -> Called:
    """Record a run for which today's matrix has no claims: it makes that image otherwise."""
    results = str(folder.parent / "results")
    return tool("record", str(folder), "--results", results, "--unchecked", *options)


def kept_evidence(folder: Path, run_id: str) -> str:
    """Return the evidence.json that was kept in the results below a folder."""
    file = folder / "results" / "evidence" / f"{run_id}.json.xz"
    return lzma.decompress(file.read_bytes()).decode()


def test_a_run_becomes_the_line_that_the_repository_has_of_it(folder: Path, tmp_path: Path) -> None:
    recording = record(folder, "--as", "h100", "--keep-evidence")

    assert recording.returncode == 0, recording.stderr
    assert f"{H100}, PASS" in recording.stdout
    (line,) = records.read(tmp_path / "results")
    known = recorded.line_of_today(H100).model_copy(update={"bytes": 123, "date": None})
    assert line.model_dump() == known.model_dump()
    assert kept_evidence(tmp_path, H100) == WHOLE.dumps()


def test_a_run_is_recorded_once(folder: Path, tmp_path: Path) -> None:
    assert record(folder, "--as", "h100").returncode == 0
    before = (tmp_path / "results" / records.LINES).read_bytes()

    again = record(folder, "--as", "h100")

    assert again.returncode == 2
    assert "has a run of this ID already" in again.stderr
    assert (tmp_path / "results" / records.LINES).read_bytes() == before


def write_part(tmp_path: Path, name: str, tiers: Sequence[Tier], **changed: object) -> Path:
    """Write a part of the run as `validate --tier` does, and return its folder.

    `changed`: `digest`, the image's; `records_seed`, with which its records were measured; other
    keys are facts about its host.
    """
    claims = WHOLE.claim_set.in_tiers(tiers).claims
    probes = {claim.probe for claim in claims}
    digest = changed.pop("digest", WHOLE.digest)
    records_seed = changed.pop("records_seed", changed.get("seed", WHOLE.host.get("seed")))
    own_records = []
    for probe_record in WHOLE.records:
        if probe_record.probe in probes:
            own_records.append(replace(probe_record, seed=records_seed))
    evidence: Evidence = replace(
        WHOLE,
        digest=digest,
        records=tuple(own_records),
        claims=claims,
        host={**WHOLE.host, **changed},
        recorded_sha256="",
    )  # type: ignore[arg-type]
    folder = tmp_path / name
    folder.mkdir()
    (folder / "evidence.json").write_text(evidence.dumps())
    return folder


def test_parts_of_a_run_are_recorded_as_the_run(tmp_path: Path) -> None:
    without_gpu = {"gpus": [], "driver": "", "date": "2026-11-20T10:00:00+00:00", "seed": 1}
    with_gpu = {"date": "2026-11-20T10:05:00+00:00", "seed": 2}
    first = write_part(tmp_path, "first", [Tier.STATIC, Tier.CPU], **without_gpu)
    second = write_part(tmp_path, "second", [Tier.GPU, Tier.MULTIGPU], **with_gpu)

    recording = record(first, str(second), "--as", "parts", "--keep-evidence")

    assert recording.returncode == 0, recording.stderr
    (line,) = records.read(tmp_path / "results")
    known = recorded.line_of_today(H100)
    assert line.date and line.date.minute == 0, "the first part's"
    assert (line.claims, line.gpus, line.driver) == (known.claims, known.gpus, known.driver)
    evidence = Evidence.loads(kept_evidence(tmp_path, line.id))
    assert judge(evidence.claim_set, evidence).overall is Status.PASS


@pytest.mark.parametrize(
    ("tiers", "changed", "cause"),
    [
        ([Tier.CPU, Tier.GPU], {}, "was measured in"),
        ([Tier.GPU], {"digest": "sha256:0"}, "the first one is of"),
        ([Tier.GPU], {"gpus": [{"name": "another"}]}, "on another machine (gpus differ)"),
        ([Tier.GPU], {"cpus": 1234}, "on another machine (cpus differ)"),
        ([Tier.GPU], {"seed": 1, "records_seed": 2}, "has records of another run"),
    ],
    ids=["a claim twice", "another image", "other GPUs", "another machine", "another seed"],
)
def test_parts_that_are_not_of_one_run_are_refused(
    tmp_path: Path, tiers: Sequence[Tier], changed: dict[str, object], cause: str
) -> None:
    first = write_part(tmp_path, "first", [Tier.STATIC, Tier.CPU])
    second = write_part(tmp_path, "second", tiers, **changed)

    recording = record(first, str(second), "--as", "parts")

    assert recording.returncode == 2
    assert cause in " ".join(recording.stderr.split())
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ({"steps_above": 2, "labelled": WHOLE.image}, "is of an image with 2 steps above"),
        ({"labelled": "cu126-torch99"}, "is of an image that is called cu126-torch99, not"),
        ({"labelled": ""}, "is of an image that is called nothing, not"),
        (
            {"other_base": "ubuntu:24.04"},
            f"the run is of {WHOLE.image} on another base, ubuntu:24.04",
        ),
    ],
    ids=[
        "a derived image",
        "an image of another name",
        "an image without a name",
        "an image on another base",
    ],
)
@pytest.mark.parametrize("tiers", [[Tier.STATIC], [Tier.GPU]], ids=["static", "gpu"])
def test_no_other_image_is_recorded_as_the_matrixs(
    tmp_path: Path, host: dict[str, object], cause: str, tiers: Sequence[Tier]
) -> None:
    folder = write_part(tmp_path, "other", tiers, **host)

    recording = record(folder, "--as", "x")

    assert recording.returncode == 2
    assert cause in recording.stderr and "--experiment" in recording.stderr
    assert not (tmp_path / "results").exists()
    assert record(folder, "--as", "x", "--experiment").returncode == 0


def test_labels_tell_another_image_where_the_machine_did_not_note_it(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    renamed = replace(WHOLE, image="cu126-torch99", recorded_sha256="")
    (folder / "evidence.json").write_text(renamed.dumps())

    recording = record(folder, "--as", "x")

    assert f"is called {WHOLE.image}, not cu126-torch99" in recording.stderr


@pytest.mark.parametrize(
    ("tiers", "cause"),
    [
        (list(Tier), "matrix.yaml makes another image of this name today"),
        ([Tier.GPU], "no part of the run measured the static tier"),
    ],
    ids=["all tiers", "only gpu"],
)
def test_a_run_that_todays_matrix_can_not_judge_is_refused_unless_somebody_says_so(
    tmp_path: Path, tiers: Sequence[Tier], cause: str
) -> None:
    folder = write_part(tmp_path, "old", tiers)

    recording = tool("record", str(folder), "--results", str(tmp_path / "results"), "--as", "x")

    assert recording.returncode == 2
    assert cause in " ".join(recording.stderr.split())
    assert "--unchecked" in recording.stderr
    assert not (tmp_path / "results").exists()
    assert record(folder, "--as", "x").returncode == 0
