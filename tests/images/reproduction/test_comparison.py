"""Two builds are compared: which layers differ, in which files, and what is recorded of them."""

import gzip
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from images.commands import reproduce
from images.config.paths import Workspace
from images.engine.layer_tree import LayerEntry
from images.errors import UserError
from images.locking import layer_record
from images.reproduction import builds, cold_builds, comparison, recording
from images.reproduction.builds import BuildResult, LayerBuilt
from images.site import records
from tests.support.checkout import ROOT
from validate import installation

FILE = LayerEntry("etc/x", "file", 0o644, (0, 0), 1704067200, "", "3 one")


def digest(letter: str) -> str:
    """Return a digest that consists of one letter."""
    return f"sha256:{letter * 64}"


def result_on(engine: str = "Docker 26.1.5", torch: str = "b") -> BuildResult:
    """Return what an engine built: two layers. `torch`: the letter of the second one's digest."""
    layers = []
    for layer, letter in (("debian", "a"), ("torch", torch)):
        layers.append(LayerBuilt(layer=layer, diff_id=digest(letter), written_as=digest(letter)))
    return BuildResult(
        id=engine,
        image="x",
        on=engine,
        date="2026-11-28",
        recipe={"debian": "1", "torch": "2"},
        unknown="",
        layers=layers,
        seconds=1,
    )


@pytest.mark.parametrize(
    ("second", "difference"),
    [
        (FILE._replace(time=1704067261), "/etc/x: time 1704067200 and 1704067261"),
        (FILE._replace(mode=0o755), "/etc/x: mode 420 and 493"),
        (FILE._replace(owner=(1001, 0)), "/etc/x: owner (0, 0) and (1001, 0)"),
        (FILE._replace(content="3 two"), "/etc/x: content 3 one and 3 two"),
    ],
    ids=["time", "mode", "owner", "content"],
)
def test_what_differs_of_a_file_is_named(second: LayerEntry, difference: str) -> None:
    assert comparison.describe_files([FILE], [second]) == [difference]


def test_the_first_files_are_named_and_the_others_counted() -> None:
    first = [FILE._replace(path=f"f{number}") for number in range(9)]
    second = [entry._replace(content="2") for entry in first]

    differences = comparison.describe_files(first, second)

    assert len(differences) == 6
    assert differences[0].startswith("/f0: content")
    assert differences[-1] == "4 more files differ"


def test_a_layer_that_another_store_wrote_is_equal_if_it_changes_the_same() -> None:
    classic = LayerBuilt(layer="debian", diff_id="1", written_as="1", change="same")
    containerd = LayerBuilt(layer="debian", diff_id="2", written_as="2", change="same")

    assert comparison.compare([classic], [containerd]) == []


@pytest.mark.parametrize("change", ["", "other"], ids=["unknown", "another"])
def test_a_layer_of_another_diff_id_differs_unless_it_changes_the_same(change: str) -> None:
    first = LayerBuilt(layer="debian", diff_id="1", written_as="1", change=change)
    second = LayerBuilt(layer="debian", diff_id="2", written_as="2")

    (difference,) = comparison.compare([first], [second])

    assert (difference.first, difference.second) == ("1", "2")


def test_layers_can_differ_where_all_their_files_are_the_same() -> None:
    other = FILE._replace(path="a")

    in_another_order = comparison.describe_files([FILE, other], [other, FILE])
    without_difference = comparison.describe_files([FILE], [FILE])

    assert in_another_order == ["the same files in another order"]
    assert without_difference == ["in how the tar is written"]


def test_a_file_that_only_one_build_has_is_named() -> None:
    assert comparison.describe_files([], [FILE]) == ["/etc/x is only in the second"]


def test_what_another_engine_gave_is_read_back(tmp_path: Path) -> None:
    builds.write_result(tmp_path, result_on(), {"torch": [FILE]})

    result, files = builds.read_result(tmp_path / builds.RESULT)

    assert result == result_on()
    assert files == {"torch": [FILE]}


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    message = "is no result of `reproduce`: No such file or directory\n"
    with pytest.raises(UserError, match=message) as error:
        builds.read_result(tmp_path / "none" / builds.RESULT)
    assert error.value.code == 2


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (builds.RESULT, b'"a text"'),
        (builds.RESULT, b"[]"),
        (builds.RESULT, b'{"layers": []}'),
        (builds.RESULT, b'{"layers": [{"colour": "red"}]}'),
        (builds.FILES, gzip.compress(b"{}" * 99)[:20]),
        (builds.FILES, gzip.compress(b'{"torch": [["too", "short"]]}')),
        (builds.FILES, gzip.compress(b"[]")),
    ],
    # A compressed file has the time in it, so it can't name a test of several workers.
    ids=["text", "list", "fields", "layer", "cut off", "entry", "listing"],
)
def test_a_damaged_result_is_refused(tmp_path: Path, file: str, content: bytes) -> None:
    builds.write_result(tmp_path, result_on(), {"torch": [FILE]})
    (tmp_path / file).write_bytes(content)

    with pytest.raises(UserError, match="is no result of `reproduce`"):
        builds.read_result(tmp_path / builds.RESULT)


def test_layers_are_compared_by_their_steps() -> None:
    layers = result_on().layers
    files = {"torch": [FILE]}

    (difference,) = comparison.compare(layers, result_on(torch="c").layers)
    (explained,) = comparison.with_files([difference], files, {"torch": [FILE._replace(mode=0)]})
    (missing,) = comparison.compare(layers, layers[:1])

    assert comparison.compare(layers, result_on().layers) == []
    assert difference.layer == "torch"
    assert (difference.first, difference.second) == (digest("b"), digest("c"))
    assert explained.files == ("/etc/x: mode 420 and 0",)
    assert missing.layer == "torch"


def test_two_builds_that_agree_are_recorded(tmp_path: Path) -> None:
    recording.record_builds(tmp_path, [result_on(), result_on("Docker 20.10.24")])

    record = layer_record.read(tmp_path)
    assert [build.on for build in record["2"].builds] == ["Docker 26.1.5", "Docker 20.10.24"]


def test_after_a_record_the_next_commands_are_named() -> None:
    """Evidence of an earlier day is judged by the record of that day, and stays UNPROVEN."""
    next_steps = reproduce.describe_next_steps("cu126-torch27")

    assert next_steps.startswith("next: ")
    assert "`nox -s validate -- cu126-torch27`" in next_steps
    assert "`nox -s publish -- cu126-torch27 --to REPOSITORY`" in next_steps


def test_builds_that_give_another_layer_than_recorded_are_refused(tmp_path: Path) -> None:
    recording.record_builds(tmp_path, [result_on(), result_on("Docker 20.10.24")])
    others = [result_on("Docker 28.5", torch="c"), result_on("Docker 29", torch="c")]

    with pytest.raises(UserError, match="the layer torch of x"):
        recording.record_builds(tmp_path, others)


def test_builds_without_a_recipe_are_not_recorded(tmp_path: Path) -> None:
    without_recipe = replace(result_on(), recipe={}, unknown="of a tag")

    with pytest.raises(UserError, match="from what bytes the image is built: of a tag"):
        recording.record_builds(tmp_path, [result_on(), without_recipe])


def test_one_build_is_not_recorded() -> None:
    with pytest.raises(UserError, match="--once makes only one build") as error:
        reproduce.require_second_build(once=True, beside="")
    assert error.value.code == 2


@pytest.mark.parametrize(
    "other",
    [
        replace(result_on(), recipe={"debian": "1", "torch": "3"}),
        replace(result_on(), id="", recipe={}),
    ],
    ids=["another recipe", "an image that may come from a cache"],
)
def test_a_build_is_not_recorded_beside_one_that_may_be_of_another_recipe(
    tmp_path: Path, other: BuildResult
) -> None:
    with pytest.raises(UserError, match="is not known to be of the same steps"):
        recording.record_builds(tmp_path, [other, result_on()])


def test_the_layers_of_a_recorded_run_are_a_build_of_another_machine() -> None:
    line = next(line for line in records.read() if line.payload)

    result = reproduce.result_of_run(line)

    assert result.id == line.id
    assert result.on == f"the machine of the recorded run {line.id}"
    diff_ids = {row.layer: row.diff_id for row in result.layers}
    assert diff_ids == line.payload, "with one layer of the base"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let truetag be installed: a checkout that is being edited has changed templates."""
    monkeypatch.setattr(installation, "IS_CHECKOUT", False)


def committed_workspace(folder: Path) -> Workspace:
    """Return a workspace whose matrix and lock are committed, with an `out/` that is not."""
    for file in ("matrix.yaml", "locks/x/torch.txt", "out/x/build.json"):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("as committed")
    author = ["-c", "user.name=x", "-c", "user.email=x@example"]
    for command in (
        ["init", "-q"],
        ["add", "matrix.yaml", "locks"],
        [*author, "commit", "-q", "-m", "x"],
    ):
        subprocess.run(["git", "-C", folder, *command], check=True)
    return Workspace(folder / "matrix.yaml")


@pytest.mark.usefixtures("installed")
def test_results_and_an_earlier_record_need_not_be_committed(tmp_path: Path) -> None:
    workspace = committed_workspace(tmp_path)
    (workspace.locks / layer_record.FILE).write_text("{}")

    reproduce.require_committed(workspace)


@pytest.mark.usefixtures("installed")
def test_a_lock_that_git_ignores_is_in_no_commit(tmp_path: Path) -> None:
    workspace = committed_workspace(tmp_path)
    (tmp_path / ".git" / "info" / "exclude").write_text("locks/y/\n")
    (workspace.locks / "y").mkdir()
    (workspace.locks / "y" / "torch.txt").write_text("ignored")

    with pytest.raises(UserError, match="locks/y is in no commit as it is now"):
        reproduce.require_committed(workspace)


@pytest.mark.parametrize("file", ["matrix.yaml", "locks/x/torch.txt", "locks/x/new.txt"])
@pytest.mark.usefixtures("installed")
def test_nothing_is_recorded_of_a_matrix_or_lock_in_no_commit(tmp_path: Path, file: str) -> None:
    workspace = committed_workspace(tmp_path)
    (tmp_path / file).write_text("edited")

    with pytest.raises(UserError, match=f"{file} is in no commit as it is now"):
        reproduce.require_committed(workspace)


def test_nothing_is_recorded_outside_of_git(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"matrix\.yaml and locks/ in .* are in no commit"):
        reproduce.require_committed(Workspace(tmp_path / "matrix.yaml"))


def test_a_build_takes_no_wheel_that_another_made() -> None:
    dockerfile = b"RUN --mount=type=cache,id=truetag-uv,target=/run/uv x\n"

    context = cold_builds.with_own_wheels({"Dockerfile": dockerfile}, "abc")

    assert context["Dockerfile"] == b"RUN --mount=type=cache,id=truetag-uv-abc,target=/run/uv x\n"


def test_every_cache_of_a_real_dockerfile_is_replaced() -> None:
    golden = ROOT / "tests" / "golden" / "cu126-torch25.Dockerfile"

    dockerfile = cold_builds.with_own_wheels({"Dockerfile": golden}, "abc")["Dockerfile"]

    assert isinstance(dockerfile, bytes)
    assert dockerfile.count(b"id=truetag-uv-abc,") == golden.read_bytes().count(b"type=cache")
