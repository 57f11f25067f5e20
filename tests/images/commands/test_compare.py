"""`compare`: what its arguments mean, its two forms, and what it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from images.commands.compare import add_newest_run
from images.comparison.differences import ImageRecord
from images.config import matrix
from images.config.paths import CHECKOUT
from images.locking import layer_record
from images.site import records
from tests.support import recorded
from tests.support.commands import call
from validate.evidence import MeasuredOn

TORCH_213, TORCH_214 = "cu130-torch213/h200", "cu130-torch214/h200"
"""Two recorded runs, without layers and training steps."""
WITH_STEPS = "cu130-torch211/h100-speed"
"""A recorded run with training steps, whose evidence is kept."""
SPEED_ALONE = "cu126-torch25/h200-speed"
"""A recorded run of the claims about speed and training steps."""
NO_ENGINE = ("--engine", "tcp://127.0.0.1:9")


@pytest.fixture
def matrix_file(tmp_path: Path) -> Path:
    """The matrix in a folder of its own, without recorded runs."""
    shutil.copy(matrix.MATRIX, tmp_path / "matrix.yaml")
    return tmp_path / "matrix.yaml"


def in_one_line(text: str) -> str:
    """A message without its line breaks."""
    return " ".join(text.split())


def add_runs(matrix_file: Path, *lines: records.RunLine) -> None:
    """Record runs beside a matrix."""
    folder = matrix_file.parent / "results"
    folder.mkdir()
    text = "".join(f"{line.model_dump_json()}\n" for line in lines)
    (folder / records.LINES).write_text(text)


def write_run(folder: Path, run_id: str) -> Path:
    """Write the kept evidence of a run as `validate` does, and return its folder."""
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_text(recorded.text(run_id))
    return folder


def test_two_recorded_runs_side_by_side_as_markdown() -> None:
    finished = call("compare", TORCH_213, TORCH_214)

    assert finished.returncode == 0, finished.stderr
    lines = [" ".join(line.split()) for line in finished.stdout.splitlines()]
    assert lines[0] == "### cu130-torch213 -> cu130-torch214"
    assert "| torch | 2.13.0 | 2.14.1 | pinned |" in lines
    assert "| whole image | 6.23 GB | 7.00 GB | +770.8 MB | |" in lines
    assert "### Claims that changed: 0" in lines
    assert lines[-1].startswith("- B: packages that the matrix does not pin, ")


def test_json_has_both_records_and_what_differs() -> None:
    as_json = json.loads(call("compare", TORCH_213, TORCH_214, "--json").stdout)

    (torch,) = [change for change in as_json["packages"] if change["name"] == "torch"]
    assert torch == {"name": "torch", "before": "2.13.0", "after": "2.14.1", "pinned": True}
    assert as_json["before"]["digest"] == recorded.lines()[TORCH_213].digest


def test_a_name_is_its_newest_run(matrix_file: Path) -> None:
    line = recorded.lines()[TORCH_213]
    assert line.date
    older = line.model_copy(
        update={"id": "cu130-torch213/older", "date": line.date.replace(year=2025)}
    )
    broken = line.model_copy(
        update={
            "id": "cu130-torch213/broken",
            "date": line.date.replace(year=2027),
            "experiment": True,
        }
    )
    add_runs(matrix_file, older, line, broken, recorded.lines()[TORCH_214])

    finished = call("compare", "cu130-torch213", "cu130-torch214", "--matrix", str(matrix_file))

    assert finished.returncode == 0, finished.stderr
    assert f"run {TORCH_213}" in finished.stdout


def test_the_id_of_an_old_run_is_taken_and_the_newer_ones_are_named() -> None:
    """`cu126-torch25/h200` reads like the image's runs on an H200, and is the first of them."""
    message = in_one_line(call("compare", "cu126-torch25/h200", TORCH_214).stderr)

    assert "cu126-torch25/h200 is the ID of one run of 2026-11-22; newer ones" in message
    assert "cu126-torch25/h200-3" in message
    assert "(`cu126-torch25` alone is its newest whole run)" in message
    assert "cu130-torch214" not in message, "nothing is newer than that run"


def test_a_row_of_a_table_is_one_line_however_narrow_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    rows = call("compare", TORCH_213, TORCH_214).stdout.splitlines()

    assert [
        row
        for row in rows
        if row.startswith("| from") and row.endswith("cu130-torch214/h200      |")
    ]


def test_a_name_is_no_run_of_a_part_of_the_claims_while_there_is_a_whole_one(
    matrix_file: Path,
) -> None:
    # Given a newer run of the claims about speed and training steps alone
    whole, partial = recorded.lines()["cu126-torch25/h200-3"], recorded.lines()[SPEED_ALONE]
    assert whole.date
    assert partial.date
    assert partial.date > whole.date
    add_runs(matrix_file, whole, partial, recorded.lines()[TORCH_214])

    finished = call("compare", "cu126-torch25", TORCH_214, "--matrix", str(matrix_file), "--json")

    assert json.loads(finished.stdout)["before"]["source"] == f"run {whole.id}"


def test_a_newer_run_of_a_part_is_none_of_the_whole_whatever_its_layers_are(
    matrix_file: Path,
) -> None:
    # Given a newer run of five claims, of another build, beside one of 34
    name = "cu128-torch28-axolotl"
    whole, partial = (recorded.lines()[f"{name}/{run}"] for run in ("h200", "cpu-examples"))
    only_cpu = recorded.lines()[f"{name}/cpu"]
    add_runs(matrix_file, whole, partial, only_cpu, recorded.lines()[TORCH_214])

    finished = call("compare", name, TORCH_214, "--matrix", str(matrix_file), "--json")

    assert json.loads(finished.stdout)["before"]["source"] == f"run {whole.id}"


def test_a_name_is_a_run_of_all_tiers_before_a_newer_one_of_a_single_tier(
    matrix_file: Path,
) -> None:
    # Given a run of the tier gpu alone, a day newer than one of static, cpu and gpu
    whole, only_gpu = recorded.lines()[TORCH_213], recorded.lines()["cu130-torch213/h100"]
    assert whole.date
    assert only_gpu.date
    assert only_gpu.date > whole.date
    add_runs(matrix_file, whole, only_gpu, recorded.lines()[TORCH_214])

    finished = call("compare", whole.image, TORCH_214, "--matrix", str(matrix_file), "--json")

    assert json.loads(finished.stdout)["before"]["source"] == f"run {whole.id}"


def test_a_name_is_the_run_of_a_part_where_no_other_is_recorded(matrix_file: Path) -> None:
    add_runs(matrix_file, recorded.lines()[SPEED_ALONE], recorded.lines()[TORCH_214])

    finished = call("compare", "cu126-torch25", TORCH_214, "--matrix", str(matrix_file), "--json")

    assert json.loads(finished.stdout)["before"]["source"] == f"run {SPEED_ALONE}"


def test_a_run_in_out_is_that_of_its_image_and_has_its_training_steps(matrix_file: Path) -> None:
    folder = write_run(matrix_file.parent / "out" / "cu130-torch211", WITH_STEPS)
    other_run = recorded.lines()["cu130-torch211/h100-4"]
    add_runs(matrix_file, other_run)

    by_path = call("compare", str(folder), other_run.id, "--matrix", str(matrix_file), "--json")

    assert by_path.returncode == 0, by_path.stderr
    comparison = json.loads(by_path.stdout)
    (eager,) = [step for step in comparison["steps"] if step["step"] == "eager"]
    assert eager["before"] == recorded.lines()[WITH_STEPS].steps["eager"].model_dump()
    assert eager["judgement"] == "within noise"


def test_out_is_taken_for_a_name_if_it_is_newer(matrix_file: Path) -> None:
    write_run(matrix_file.parent / "out" / "cu130-torch211", WITH_STEPS)
    line = recorded.lines()[WITH_STEPS]
    assert line.date
    older = line.model_copy(
        update={"id": "cu130-torch211/older", "date": line.date.replace(year=2025)}
    )
    add_runs(matrix_file, older, recorded.lines()[TORCH_214])

    finished = call("compare", "cu130-torch211", TORCH_214, "--matrix", str(matrix_file), "--json")

    assert json.loads(finished.stdout)["before"]["source"].endswith("out/cu130-torch211")


def test_layers_that_engines_wrote_differently_are_the_same(matrix_file: Path) -> None:
    # Given two runs with two digests of one layer, both of which locks/layers.json has
    recorded_layers = layer_record.read(CHECKOUT.locks)
    layer = next(row for row in recorded_layers.values() if row.written_as)
    (matrix_file.parent / "locks").mkdir()
    shutil.copy(CHECKOUT.locks / layer_record.FILE, matrix_file.parent / "locks")
    add_runs(
        matrix_file,
        run_of("cu130-torch214/a", digest="sha256:a", payload={"base": layer.diff_id}),
        run_of("cu130-torch214/b", digest="sha256:b", payload={"base": layer.written_as[0]}),
    )

    finished = call(
        "compare", "cu130-torch214/a", "cu130-torch214/b", "--matrix", str(matrix_file), "--json"
    )

    (row,) = json.loads(finished.stdout)["layers"]
    assert row["state"] == "same"


def test_an_image_on_top_of_ours_is_not_called_by_the_name_of_ours(tmp_path: Path) -> None:
    evidence = recorded.evidence(WITH_STEPS)
    derived = replace(
        evidence, host={**evidence.host, "steps_above": 2}, digest="sha256:1", recorded_sha256=""
    )
    (tmp_path / "evidence.json").write_text(derived.dumps())

    finished = call("compare", "cu130-torch211", str(tmp_path))

    first_line = finished.stdout.splitlines()[0]
    assert first_line == "### cu130-torch211 -> cu130-torch211 with 2 steps above"


def write_changed_run(folder: Path, **host: object) -> Path:
    """Write the evidence of a run with these facts of the machine and image, and return its folder.

    Its digest is that of the changed content, so that it counts as written by a run.
    """
    evidence = recorded.evidence(WITH_STEPS)
    changed = replace(
        evidence,
        host=cast("MeasuredOn", {**evidence.host, **host}),
        digest="sha256:1",
        recorded_sha256="",
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "evidence.json").write_text(changed.dumps())
    return folder


def test_an_image_on_another_base_has_this_base_in_its_name(tmp_path: Path) -> None:
    write_changed_run(tmp_path, other_base="company/base:1", steps_above=1)

    finished = call("compare", "cu130-torch211", str(tmp_path))

    first_line = finished.stdout.splitlines()[0]
    assert first_line == "### cu130-torch211 -> cu130-torch211 on company/base:1 with 1 step above"


# --- an image of an engine ------------------------------------------------------------------------


IN_ENGINE = ImageRecord(
    label="A",
    name="my:1",
    source="the engine's my:1",
    digest="sha256:1",
    layers={"torch": "sha256:2"},
)


def run_of(run_id: str, **changed: object) -> records.RunLine:
    """A recorded run of another image, with these fields changed."""
    return recorded.lines()[TORCH_214].model_copy(update={"id": run_id, **changed})


def test_an_image_of_an_engine_has_the_claims_of_the_newest_run_of_its_layers() -> None:
    line = recorded.lines()[TORCH_214]
    newest_first = [
        run_of("a/broken", digest=IN_ENGINE.digest, experiment=True),
        run_of("a/other"),
        run_of("a/same-layers", payload=IN_ENGINE.layers),
        run_of("a/same-digest", digest=IN_ENGINE.digest),
    ]

    record = add_newest_run(IN_ENGINE, newest_first)

    assert record.source == "the engine's my:1, and run a/same-layers"
    assert record.tiers == line.tiers
    assert len(record.claims) == len(list(line.rows()))


def test_an_image_of_an_engine_has_the_claims_of_a_whole_run_before_those_of_a_part() -> None:
    whole, partial = recorded.lines()["cu126-torch25/h200-3"], recorded.lines()[SPEED_ALONE]

    record = add_newest_run(replace(IN_ENGINE, digest=whole.digest), [partial, whole])

    assert record.source == f"the engine's my:1, and run {whole.id}"


def test_an_image_whose_layers_cannot_be_read_has_no_run_of_other_images() -> None:
    unread = replace(IN_ENGINE, layers={})

    record = add_newest_run(unread, [run_of("a/layers-not-recorded", payload={})])

    assert record == unread


def test_the_name_of_an_image_with_its_tag_is_an_image_of_the_engine() -> None:
    finished = call("compare", "cu130-torch214:latest", TORCH_213, *NO_ENGINE)

    # The name alone has a recorded run, and asks no engine.
    assert finished.returncode == 2
    assert "no Docker Engine answers" in finished.stderr


# --- what is refused ------------------------------------------------------------------------------


def refused(*arguments: str) -> str:
    """What `compare` says of arguments that it refuses."""
    finished = call("compare", *arguments)

    assert finished.returncode == 2
    assert not finished.stdout
    assert "next: " in finished.stderr
    return in_one_line(finished.stderr)


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    message = refused("cu130-torh213", TORCH_214, *NO_ENGINE)

    assert "cu130-torh213: is no image of the matrix, no recorded run and no folder" in message
    assert "nearest: cu130-torch213" in message
    assert "`nox -s plan` lists all images, and results/runs.jsonl all recorded runs" in message
    assert "no Docker Engine answers" in message, "it could be an image of that engine"
    assert message.count("error ") == 1


def test_a_text_that_is_too_long_for_a_path_is_an_unknown_name() -> None:
    message = refused("a" * 5_000, TORCH_214, *NO_ENGINE)

    assert "is no image of the matrix, no recorded run and no folder" in message


def test_an_image_without_a_run_gets_the_command_that_makes_one_and_the_folder_of_validate(
    matrix_file: Path,
) -> None:
    write_run(matrix_file.parent / "out" / "validate" / "cu130-torch213", WITH_STEPS)

    message = refused("cu130-torch213", TORCH_214, "--matrix", str(matrix_file))

    assert "cu130-torch213: no run of this image is recorded, and it was not built here" in message
    assert "build -- cu130-torch213`" in message
    assert "give its folder (out/validate/cu130-torch213)" in message


def test_the_same_text_twice_is_refused_before_anything_is_told_of_it() -> None:
    message = refused("cu126-torch25", "cu126-torch25")

    assert message.startswith("error cu126-torch25: A and B are the same next: name two images")


def test_a_folder_without_evidence_is_refused(tmp_path: Path) -> None:
    message = refused(str(tmp_path), TORCH_214)

    assert f"{tmp_path}/evidence.json: can't be read: No such file" in message


def test_a_damaged_run_in_out_is_refused_with_its_file(matrix_file: Path) -> None:
    folder = matrix_file.parent / "out" / "cu130-torch213"
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_text("{")

    message = refused("cu130-torch213", TORCH_214, "--matrix", str(matrix_file))

    assert "out/cu130-torch213/evidence.json: is not JSON" in message
    assert "this file was changed or cut off after truetag wrote it" in message


@pytest.mark.parametrize("name", ["audit of a:1", "My Image"])
def test_evidence_of_no_image_of_a_matrix_is_refused(name: str, tmp_path: Path) -> None:
    evidence = replace(recorded.evidence(WITH_STEPS), image=name, recorded_sha256="")
    (tmp_path / "evidence.json").write_text(evidence.dumps())

    message = refused(str(tmp_path), TORCH_214)

    assert f"{tmp_path}: its evidence.json is of {name}, and `compare` reads" in message


def test_deeply_nested_json_is_no_evidence(tmp_path: Path) -> None:
    (tmp_path / "evidence.json").write_text("[" * 200_000)

    message = refused(str(tmp_path), TORCH_214)

    assert (
        f"{tmp_path}/evidence.json: is not as truetag wrote it: it is nested too deeply" in message
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpus", ["x"]),
        ("date", "yesterday"),
        ("payload", {"torch": 1}),
        ("layer_bytes", {"torch": "large"}),
        ("steps_above", "two"),
        ("not_compared", ["x"]),
    ],
)
def test_facts_of_another_type_are_no_evidence(key: str, value: object, tmp_path: Path) -> None:
    write_changed_run(tmp_path, **{key: value})

    message = refused(str(tmp_path), TORCH_214)

    assert f"{tmp_path}/evidence.json: is not as truetag wrote it: host.{key}" in message
    assert "this file was changed or cut off" in message
