"""What a build leaves on disk, and what is recorded of an image that another builder made."""

from dataclasses import replace
from pathlib import Path

import pytest

from images.building import run_files
from images.config.names import ImageName
from images.context.labels import BaseContext
from images.engine import ImageInfo
from images.errors import UserError
from images.publish import provenance
from images.wheels import prebuilt
from tests.support import sources
from tests.support.engine_contents import image_info

IMAGE = image_info(digest=f"sha256:{'1' * 64}", layers=("sha256:0",), workdir="/", command=())
NAME = "cu126-torch27"
REVISION = "0123456789ab"
BASE = BaseContext(reference="debian:bookworm-slim", origin="tag")
FITTING_LABELS = {
    "image": NAME,
    "matrix_revision": REVISION,
    "base": "debian:bookworm-slim",
    "base_origin": "tag",
}
"""Our labels of an image that was built from the context that `render` writes here."""


def image_with(labels: dict[str, str]) -> ImageInfo:
    ours = {f"dev.truetag.{key.replace('_', '-')}": value for key, value in labels.items()}
    return replace(IMAGE, labels=ours)


def render(folder: Path) -> prebuilt.Gathered:
    """Write to a folder what `render` leaves beside a context, and return its wheels."""
    wheel = folder.parent / "x-1-py3-none-any.whl"
    wheel.write_bytes(b"x")
    gathered = prebuilt.Gathered(files={wheel.name: wheel}, missing={}, details={})
    image = replace(sources.image(NAME), revision=REVISION)
    run_files.write_inputs(folder, image, BASE, gathered, {"commit": "c0ffee", "locks": {}})
    return gathered


# --- contexts -------------------------------------------------------------------------------------


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_wheel_in_a_context_is_a_file_and_the_newest_one(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    context = tmp_path / "context"

    for content in (b"older", b"newer"):
        wheel.unlink(missing_ok=True)
        wheel.write_bytes(content)
        run_files.write_context({"wheels/a.whl": wheel}, context)

    placed = context / "wheels" / "a.whl"
    assert placed.read_bytes() == b"newer"
    assert not placed.is_symlink()


def test_a_newer_wheel_in_a_context_leaves_the_older_wheel_alone(tmp_path: Path) -> None:
    """The wheel in the context is a hard link to the file in the cache."""
    older, newer = tmp_path / "older.whl", tmp_path / "newer.whl"
    older.write_bytes(b"older")
    newer.write_bytes(b"newer")
    context = tmp_path / "context"

    run_files.write_context({"wheels/a.whl": older}, context)
    run_files.write_context({"wheels/a.whl": newer}, context)

    assert (context / "wheels" / "a.whl").read_bytes() == b"newer"
    assert older.read_bytes() == b"older"


def test_only_this_user_can_read_the_settings_of_the_host(tmp_path: Path) -> None:
    """An index's address may hold a password."""
    run_files.write_context({"host/env": b"export A=b\n"}, tmp_path)

    assert (tmp_path / "host" / "env").stat().st_mode & 0o077 == 0


def test_files_of_an_earlier_context_are_removed(tmp_path: Path) -> None:
    run_files.write_context({"Dockerfile": b"FROM x\n", "host/env": b"export A=b\n"}, tmp_path)

    run_files.write_context({"Dockerfile": b"FROM y\n"}, tmp_path)

    assert files_in(tmp_path) == {"Dockerfile"}


# --- images that another builder made -------------------------------------------------------------


def test_an_image_built_elsewhere_is_recorded_with_what_was_rendered(tmp_path: Path) -> None:
    wheels = render(tmp_path / NAME).digests()
    missing = {"flash-attn": "no wheel"}

    record = run_files.make_build_record(tmp_path / NAME, image_with(FITTING_LABELS), missing)

    assert record["digest"] == IMAGE.digest
    assert record["base"] == {"reference": "debian:bookworm-slim", "origin": "tag", "digest": ""}
    assert record["missing"] == missing
    assert record["wheels"] == wheels
    assert record["commit"] == "c0ffee"


def test_the_provenance_of_an_image_built_elsewhere_follows_from_its_record(
    tmp_path: Path,
) -> None:
    render(tmp_path / NAME)
    record = run_files.make_build_record(tmp_path / NAME, image_with(FITTING_LABELS), {})

    predicate = provenance.make_predicate(
        record, name=ImageName.parse(NAME), revision=REVISION, created=IMAGE.created
    )

    labels = provenance.read_labels(predicate)
    assert labels == {"matrix-revision": REVISION, "base-digest": ""}


@pytest.mark.parametrize(
    "contradiction",
    [
        {"image": "cu126-torch25"},
        {"matrix_revision": "another"},
        {"base": "debian:trixie-slim"},
        {"base_origin": "custom"},
        pytest.param(dict.fromkeys(FITTING_LABELS, ""), id="no labels"),
    ],
)
def test_an_image_whose_labels_contradict_its_rendered_context_is_refused(
    tmp_path: Path, contradiction: dict[str, str]
) -> None:
    render(tmp_path / NAME)
    other_image = image_with(FITTING_LABELS | contradiction)

    with pytest.raises(UserError, match="was not built from the folder"):
        run_files.make_build_record(tmp_path / NAME, other_image, {})


def test_an_image_without_a_rendered_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read as `nox -s render` wrote it") as error:
        run_files.make_build_record(tmp_path / NAME, image_with({}), {})
    dockerfile_folder = tmp_path / NAME / "context"
    assert f"`docker build {dockerfile_folder}`" in error.value.problems[0].then
