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

INFO = image_info(id=f"sha256:{'1' * 64}", layers=("sha256:0",), workdir="/", command=())


def test_a_context_on_disk_is_whole_and_keeps_passwords_to_itself(tmp_path: Path) -> None:
    wheel, folder = tmp_path / "a.whl", tmp_path / "context"
    for content in (b"older", b"newer"):
        wheel.unlink(missing_ok=True)
        wheel.write_bytes(content)
        run_files.write_context(
            {"Dockerfile": b"FROM x\n", "host/env": b"export A=b\n", "wheels/a.whl": wheel}, folder
        )
    placed = folder / "wheels" / "a.whl"
    assert placed.read_bytes() == b"newer" and not placed.is_symlink()
    assert (folder / "host" / "env").stat().st_mode & 0o077 == 0
    run_files.write_context({"Dockerfile": b"FROM y\n"}, folder)
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"Dockerfile"}


def rendered(folder: Path) -> prebuilt.Gathered:
    """What `render` leaves beside a context."""
    wheel = folder.parent / "x-1-py3-none-any.whl"
    wheel.write_bytes(b"x")
    found = prebuilt.Gathered(files={wheel.name: wheel}, missing={}, details={})
    base = BaseContext(reference="debian:bookworm-slim", origin="tag")
    image, source = (
        replace(sources.image("cu126-torch27"), revision="0123456789ab"),
        {"commit": "c0ffee", "locks": {}},
    )
    run_files.write_inputs(folder, image, base, found, source)
    return found


def info(**labels: str) -> ImageInfo:
    ours = {f"dev.truetag.{key.replace('_', '-')}": value for key, value in labels.items()}
    return replace(INFO, labels=ours)


def test_an_image_built_elsewhere_is_recorded_as_it_was_rendered_and_as_the_engine_has_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "cu126-torch27"
    wheels = rendered(folder).digests()
    fits = info(
        image="cu126-torch27",
        matrix_revision="0123456789ab",
        base="debian:bookworm-slim",
        base_origin="tag",
    )
    record = run_files.record_built_elsewhere(folder, fits, {"flash-attn": "no wheel"})
    base = {"reference": "debian:bookworm-slim", "origin": "tag", "digest": ""}
    assert (record["digest"], record["base"], record["missing"]) == (
        INFO.id,
        base,
        {"flash-attn": "no wheel"},
    )
    assert (record["wheels"], record["commit"]) == (wheels, "c0ffee")
    name = ImageName.parse("cu126-torch27")
    made = provenance.make_predicate(
        record, name=name, revision="0123456789ab", created=INFO.created
    )
    told = provenance.read_labels(made)
    assert told == {"matrix-revision": "0123456789ab", "base-digest": ""}


@pytest.mark.parametrize(
    "other",
    [
        {"image": "cu126-torch25"},
        {"matrix_revision": "another"},
        {"base": "debian:trixie-slim"},
        {"base_origin": "custom"},
        dict.fromkeys(("image", "matrix_revision", "base", "base_origin"), ""),
    ],
)
def test_an_image_whose_labels_are_not_of_its_rendered_context_is_refused(
    tmp_path: Path, other: dict[str, str]
) -> None:
    rendered(tmp_path / "cu126-torch27")
    labels = {
        "image": "cu126-torch27",
        "matrix_revision": "0123456789ab",
        "base": "debian:bookworm-slim",
    }
    with pytest.raises(UserError, match="its labels say otherwise"):
        run_files.record_built_elsewhere(
            tmp_path / "cu126-torch27", info(**{**labels, "base_origin": "tag", **other}), {}
        )


def test_an_image_of_no_rendered_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not what `nox -s render` wrote"):
        run_files.record_built_elsewhere(tmp_path / "cu126-torch27", info(), {})
