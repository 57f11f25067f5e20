"""Two builds side by side: which layers differ, in which files, and what is recorded of them."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from images.engine.layer_tree import LayerEntry
from images.errors import UserError
from images.locking import layer_record
from images.site import records
from tests.support.checkout import ROOT
from tools import cold_builds, reproduce
from tools.reproduce import BuildResult, LayerBuilt

FILE = LayerEntry("etc/x", "file", 0o644, (0, 0), 1704067200, "", "3 one")


def digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


def result(on: str = "Docker 26.1.5", torch: str = "b") -> BuildResult:
    made = [
        LayerBuilt(layer=layer, diff_id=digest(letter), written_as=digest(letter))
        for layer, letter in (("debian", "a"), ("torch", torch))
    ]
    recipe = {"debian": "1", "torch": "2"}
    return BuildResult(
        id=on,
        image="x",
        on=on,
        date="2026-11-28",
        recipe=recipe,
        unknown="",
        layers=made,
        seconds=1,
    )


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (FILE._replace(time=1704067261), "/etc/x: time 1704067200 and 1704067261"),
        (FILE._replace(mode=0o755), "/etc/x: mode 420 and 493"),
        (FILE._replace(owner=(1001, 0)), "/etc/x: owner (0, 0) and (1001, 0)"),
        (FILE._replace(content="3 two"), "/etc/x: content 3 one and 3 two"),
    ],
)
def test_what_differs_of_a_file_is_named(second: LayerEntry, said: str) -> None:
    assert reproduce.describe_files([FILE], [second]) == [said]


def test_the_first_files_are_named_and_the_others_counted() -> None:
    first = [FILE._replace(path=f"f{number}") for number in range(9)]
    second = [entry._replace(content="2") for entry in first]
    said = reproduce.describe_files(first, second)
    assert (
        said[0].startswith("/f0: content") and said[-1] == "4 more files differ" and len(said) == 6
    )
    assert reproduce.describe_files([], [FILE]) == ["/etc/x is only in the second"]
    other = FILE._replace(path="a")
    assert reproduce.describe_files([FILE, other], [other, FILE]) == [
        "the same files in another order"
    ]
    assert reproduce.describe_files([FILE], [FILE]) == ["in how the tar is written"]


def test_layers_are_compared_by_their_steps_and_what_another_engine_gave_is_read_back(
    tmp_path: Path,
) -> None:
    reproduce.write_result(tmp_path, result(), {"torch": [FILE]})
    theirs, files = reproduce.read_result(tmp_path / reproduce.RESULT)
    assert theirs == result() and files == {"torch": [FILE]}
    assert reproduce.compare(theirs.layers, result().layers) == []
    (differing,) = reproduce.compare(theirs.layers, result(torch="c").layers)
    assert (differing.layer, differing.first, differing.second) == (
        "torch",
        digest("b"),
        digest("c"),
    )
    (explained,) = reproduce.with_files([differing], files, {"torch": [FILE._replace(mode=0)]})
    assert explained.files == ("/etc/x: mode 420 and 0",)
    assert [one.layer for one in reproduce.compare(theirs.layers, theirs.layers[:1])] == ["torch"]
    with pytest.raises(UserError, match="is no result of this tool"):
        reproduce.read_result(tmp_path / "none" / reproduce.RESULT)


def test_two_builds_are_recorded_and_one_that_differs_is_refused(tmp_path: Path) -> None:
    reproduce.record_builds(tmp_path, [result(), result("Docker 20.10.24")])
    record = layer_record.read(tmp_path)
    assert [build.on for build in record["2"].builds] == ["Docker 26.1.5", "Docker 20.10.24"]
    with pytest.raises(UserError, match="the layer torch of x"):
        reproduce.record_builds(
            tmp_path, [result("Docker 28.5", torch="c"), result("Docker 29", torch="c")]
        )
    without = replace(result(), recipe={}, unknown="of a tag")
    with pytest.raises(UserError, match="has no recipe: of a tag"):
        reproduce.record_builds(tmp_path, [result(), without])
    with pytest.raises(UserError, match="one build proves nothing"):
        reproduce.record_builds(tmp_path, [result()])
    for other in (replace(result(), recipe={"debian": "1", "torch": "3"}), replace(without, id="")):
        with pytest.raises(UserError, match="is not known to be a build of the same recipe"):
            reproduce.record_builds(tmp_path, [other, result()])


def test_the_layers_of_a_recorded_run_are_a_build_of_another_machine() -> None:
    (line, *_) = (one for one in records.read() if one.payload)
    found = reproduce.result_of_run(line)
    assert found.id == line.id and found.on == f"the machine of the recorded run {line.id}"
    assert {row.layer: row.diff_id for row in found.layers} == line.payload, (
        "with one layer of the base"
    )


def test_nothing_is_recorded_from_a_checkout_with_changes(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "templates").write_text("edited")
    with pytest.raises(UserError, match="this checkout has changes that are in no commit"):
        reproduce.require_clean(tmp_path)


def test_a_build_takes_no_wheel_that_another_made() -> None:
    dockerfile = b"RUN --mount=type=cache,id=truetag-uv,target=/run/uv x\n"
    context = cold_builds.with_own_wheels({"Dockerfile": dockerfile}, "abc")
    assert context["Dockerfile"] == b"RUN --mount=type=cache,id=truetag-uv-abc,target=/run/uv x\n"
    golden = ROOT / "tests" / "golden" / "cu126-torch25.Dockerfile"
    named = cold_builds.with_own_wheels({"Dockerfile": golden}, "abc")["Dockerfile"]
    assert isinstance(named, bytes) and named.count(
        b"id=truetag-uv-abc,"
    ) == golden.read_bytes().count(b"type=cache")
